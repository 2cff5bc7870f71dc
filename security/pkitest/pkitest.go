// Package pkitest makes the certificates of a federation for tests.
package pkitest

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/mint"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// CA is the root of a federation with the authorities of some regions.
type CA struct {
	t    testing.TB
	all  *mint.Federation
	Root *pki.Authority
	// Now is the time at which certificates are issued.
	Now time.Time
}

// New returns a new federation.
func New(t testing.TB) *CA {
	t.Helper()
	c := &CA{t: t, Now: time.Now()}
	all, err := mint.New(func() time.Time { return c.Now })
	if err != nil {
		t.Fatal(err)
	}
	c.all, c.Root = all, all.Root
	return c
}

// ID returns an ID of the federation, for example of "region/a/agent/n1".
func (c *CA) ID(path string) identity.ID {
	c.t.Helper()
	id, err := c.all.ID(path)
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// Region returns the authority of a region.
func (c *CA) Region(name string) *pki.Authority {
	c.t.Helper()
	a, err := c.all.Region(name)
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

// Issue returns the credentials of a member, with the default life of its kind.
func (c *CA) Issue(path string) pki.Credentials {
	c.t.Helper()
	creds, err := c.all.Issue(path)
	if err != nil {
		c.t.Fatal(err)
	}
	return creds
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
