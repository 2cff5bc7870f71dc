package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"

	"google.golang.org/grpc/credentials"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/profile"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// clientCredentials are the credentials of a client. They remember why the latest connection
// could not be encrypted.
type clientCredentials struct {
	credentials.TransportCredentials
	failed *atomic.Pointer[error]
}

// anyServer are the servers that a client accepts: every one of the federation, because the client does
// not know which server is at an address.
var anyServer = identity.Rules{{Kind: identity.Global}, {Kind: identity.Server}}

// maxRoots bounds the certificates of a file with roots.
const maxRoots = 16

// openCredentials reads the certificate of the client, or the roots of a client without one. Without
// both connections are not encrypted.
func openCredentials(c *Session) (*clientCredentials, error) {
	var source *trust.Source
	transport := source.Client(anyServer)
	text, err := rootsOf(c)
	if text == nil && err == nil && c.anonymous && c.rootHash != "" {
		c.roots, err = contact(c)
		text = c.roots
	}
	switch {
	case err != nil:
		return nil, err
	case text != nil:
		certs, err := pki.ParseCertificates(text, maxRoots)
		if err != nil {
			return nil, fmt.Errorf("the roots that this client trusts: %w", err)
		}
		roots, err := pki.NewRoots(certs...)
		if err != nil {
			return nil, fmt.Errorf("the roots that this client trusts: %w", err)
		}
		transport = trust.Anonymous(roots, anyServer)
	case c.Identity != "":
		source, err = openIdentity(c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", whatIdentity(c), err)
		}
		transport = source.Client(anyServer)
	}
	return &clientCredentials{transport, &atomic.Pointer[error]{}}, nil
}

// rootsOf returns the roots of a client that shows no certificate, and nil for other clients.
func rootsOf(c *Session) ([]byte, error) {
	switch {
	case c.Identity != "" && c.anonymous:
		text, err := os.ReadFile(filepath.Join(c.Identity, trust.RootsFile))
		if err != nil {
			return nil, fmt.Errorf("--identity (or NUSA_IDENTITY): %w", err)
		}
		return text, nil
	case c.Identity != "":
		return nil, nil
	case c.RootsFile != "":
		text, err := os.ReadFile(c.RootsFile)
		if err != nil {
			return nil, fmt.Errorf("--roots (or NUSA_ROOTS): %w", err)
		}
		return text, nil
	case c.profile != nil:
		return c.profile.Roots, nil
	}
	return c.roots, nil
}

// useProfile takes the credentials from the profile of the first server that has one, unless a flag
// or the environment names an identity or roots.
func useProfile(c *Session) error {
	if c.Identity != "" || c.RootsFile != "" || c.profile != nil {
		return nil
	}
	for _, addr := range c.addrs {
		p, err := profile.Read(addr)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		c.profile = p
		if p.HasIdentity() && !c.anonymous {
			c.Identity = p.Dir
		}
		return nil
	}
	return nil
}

// whatIdentity names what gives the credentials, for errors.
func whatIdentity(c *Session) string {
	switch {
	case c.profile == nil && c.Identity == "" && c.RootsFile != "":
		return "--roots (or NUSA_ROOTS)"
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
