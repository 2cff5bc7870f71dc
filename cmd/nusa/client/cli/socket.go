package cli

import (
	"fmt"
	"strings"

	"github.com/nusa-scheduler/nusa/client"
)

// socketPath returns the path of an address unix:PATH or unix://PATH.
func socketPath(addr string) (path string, ok bool) {
	rest, ok := strings.CutPrefix(addr, "unix:")
	return strings.TrimPrefix(rest, "//"), ok
}

// connectSocket connects the session to the Unix socket of a server on this machine. The server knows
// the user of this process, so the session has no credentials.
func connectSocket(c *Session, path string) (closeConn func(), err error) {
	if path == "" {
		return nil, fmt.Errorf("--addr %s: give the path of a socket, such as unix:DATA/nusa.sock", c.Addr)
	}
	c.Addr, c.Identity = "unix:"+path, ""
	c.RootsFile, c.rootHash = "", ""
	c.creds, err = openCredentials(c)
	if err != nil {
		return nil, err
	}
	return c.open(client.Options{Socket: path})
}
