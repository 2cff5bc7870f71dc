// Package pkitest makes the certificates of a federation for tests.
package pkitest

import (
	"crypto/rand"
	"crypto/x509"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// CA is the root of a federation with the authorities of some regions.
type CA struct {
	t       testing.TB
	Root    *pki.Authority
	regions map[string]*pki.Authority
	// Now is the time at which certificates are issued.
	Now time.Time
}

// New returns a new federation.
func New(t testing.TB) *CA {
	t.Helper()
	c := &CA{t: t, regions: map[string]*pki.Authority{}, Now: time.Now()}
	root, err := pki.NewRoot("", c.env())
	if err != nil {
		t.Fatal(err)
	}
	c.Root = root
	return c
}

func (c *CA) env() pki.Env { return pki.Env{Now: c.Now, Rand: rand.Reader} }

// ID returns an ID of the federation, for example of "region/a/agent/n1".
func (c *CA) ID(path string) identity.ID {
	c.t.Helper()
	id, err := identity.ParsePath(c.Root.ID.Federation, path)
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// Region returns the authority of a region.
func (c *CA) Region(name string) *pki.Authority {
	c.t.Helper()
	if c.regions[name] == nil {
		a, err := c.Root.NewRegion(name, c.env())
		if err != nil {
			c.t.Fatal(err)
		}
		c.regions[name] = a
	}
	return c.regions[name]
}

// Issue returns the credentials of a member, with the default life of its kind.
func (c *CA) Issue(path string) pki.Credentials {
	c.t.Helper()
	id := c.ID(path)
	authority := c.Root
	if id.Kind.Regional() {
		authority = c.Region(id.Region)
	}
	key, err := pki.NewKey(rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	cert, err := authority.Issue(id, key.Public(), pki.DefaultLife(id.Kind), c.env())
	if err != nil {
		c.t.Fatal(err)
	}
	chain := []*x509.Certificate{cert}
	if authority != c.Root {
		chain = append(chain, authority.Cert)
	}
	roots, err := pki.NewRoots(c.Root.Cert)
	if err != nil {
		c.t.Fatal(err)
	}
	return pki.Credentials{Chain: chain, Key: key, Roots: roots}
}

// Dir writes the credentials of a member into a new folder, and returns the folder.
func (c *CA) Dir(path string) string {
	c.t.Helper()
	dir := c.t.TempDir()
	if err := trust.Write(dir, c.Issue(path)); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// Source returns the credentials of a member as an open folder.
func (c *CA) Source(path string) *trust.Source {
	c.t.Helper()
	s, err := trust.Open(trust.Options{Dir: c.Dir(path)})
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}
