package cli

import (
	"context"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/serve"
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
	c.Addr, c.Identity, c.servers = "unix:"+path, "", &servers{addrs: []string{"unix:" + path}}
	c.RootsFile, c.rootHash = "", ""
	c.creds, err = openCredentials(c)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	c.dialer = &rpcerr.Dialer{Dial: func(ctx context.Context, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", path) }}
	conn, err := serve.Dial(network.Host(), "localhost", grpc.WithContextDialer(c.dialer.DialContext), grpc.WithTransportCredentials(c.creds))
	if err != nil {
		return nil, fmt.Errorf("--addr %s: %w", c.Addr, err)
	}
	c.Conn = conn
	return func() { conn.Close() }, nil
}
