package cli

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/credentials"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/profile"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// clientCredentials are the credentials of a client. They remember why the latest connection
// could not be encrypted.
type clientCredentials struct {
	credentials.TransportCredentials
	failed *atomic.Pointer[error]
}

// openCredentials reads the credentials of a folder. Without a folder connections are not
// encrypted. The client does not know which server is at an address, so it accepts every
// server of the federation.
func openCredentials(dir string) (*clientCredentials, error) {
	var source *trust.Source
	if dir != "" {
		var err error
		source, err = trust.Open(trust.Options{Dir: dir})
		if err != nil {
			return nil, fmt.Errorf("--identity (or NUSA_IDENTITY): %w", err)
		}
	}
	servers := identity.Rules{{Kind: identity.Global}, {Kind: identity.Server}}
	return &clientCredentials{source.Client(servers), &atomic.Pointer[error]{}}, nil
}

// useProfile takes the credentials from the profile of the first server that has one, unless a flag
// or the environment names an identity.
func useProfile(c *Session) error {
	if c.Identity != "" || c.profile != nil {
		return nil
	}
	for _, addr := range c.servers.addrs {
		p, err := profile.Read(addr)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		c.profile = p
		if p.HasIdentity() {
			c.Identity = p.Dir
		}
		return nil
	}
	return nil
}

// whatIdentity names what gives the credentials, for errors.
func whatIdentity(c *Session) string {
	switch {
	case c.profile == nil:
		return "--identity (or NUSA_IDENTITY)"
	case c.profile.Temporary != "":
		return fmt.Sprintf("the profile %s (if `%s` has ended, remove the folder)", c.profile.Dir, c.profile.Temporary)
	}
	return "the profile " + c.profile.Dir
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *clientCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		c.failed.Store(&err)
		return nil, nil, err
	}
	c.failed.Store(nil)
	return conn, auth, nil
}

// Clone implements credentials.TransportCredentials.
func (c *clientCredentials) Clone() credentials.TransportCredentials {
	return &clientCredentials{c.TransportCredentials.Clone(), c.failed}
}

// err returns why the latest connection could not be encrypted; nil if it could.
func (c *clientCredentials) err() error {
	if c == nil {
		return nil
	}
	if err := c.failed.Load(); err != nil {
		return *err
	}
	return nil
}
