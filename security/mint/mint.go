package mint

import (
	"crypto/rand"
	"crypto/x509"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Federation is the root of a federation with the authorities of its regions. It is safe for
// concurrent use.
type Federation struct {
	Root *pki.Authority
	now  func() time.Time

	mu      sync.Mutex
	regions map[string]*pki.Authority
}

// New makes the root of a new federation. now returns the time at which certificates are issued.
func New(now func() time.Time) (*Federation, error) {
	f := &Federation{now: now, regions: map[string]*pki.Authority{}}
	var err error
	f.Root, err = pki.NewRoot("", f.env())
	return f, err
}

func (f *Federation) env() pki.Env { return pki.Env{Now: f.now(), Rand: rand.Reader} }

// ID returns the ID of a member, for example of "region/a/agent/n1".
func (f *Federation) ID(path string) (identity.ID, error) {
	return identity.ParsePath(f.Root.ID.Federation, path)
}

// Region returns the authority of a region. The first call makes the authority.
func (f *Federation) Region(name string) (*pki.Authority, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.regions[name]; a != nil {
		return a, nil
	}
	a, err := f.Root.NewRegion(name, f.env())
	if err == nil {
		f.regions[name] = a
	}
	return a, err
}

// Issue returns new credentials of a member, with the default life of its kind.
func (f *Federation) Issue(path string) (pki.Credentials, error) {
	id, err := f.ID(path)
	if err != nil {
		return pki.Credentials{}, err
	}
	authority := f.Root
	if id.Kind.Regional() {
		if authority, err = f.Region(id.Region); err != nil {
			return pki.Credentials{}, err
		}
	}
	key, err := pki.NewKey(rand.Reader)
	if err != nil {
		return pki.Credentials{}, err
	}
	cert, err := authority.Issue(id, key.Public(), pki.DefaultLife(id.Kind), f.env())
	if err != nil {
		return pki.Credentials{}, err
	}
	chain := []*x509.Certificate{cert}
	if authority != f.Root {
		chain = append(chain, authority.Cert)
	}
	roots, err := pki.NewRoots(f.Root.Cert)
	if err != nil {
		return pki.Credentials{}, err
	}
	return pki.Credentials{Chain: chain, Key: key, Roots: roots}, nil
}

// Write writes new credentials of a member into a folder, and makes the folder.
func (f *Federation) Write(dir, path string) error {
	c, err := f.Issue(path)
	if err != nil {
		return err
	}
	return trust.Write(dir, c)
}

// Open writes new credentials of a member into a folder, and opens the folder.
func (f *Federation) Open(dir, path string) (*trust.Source, error) {
	if err := f.Write(dir, path); err != nil {
		return nil, err
	}
	return trust.Open(trust.Options{Dir: dir})
}
