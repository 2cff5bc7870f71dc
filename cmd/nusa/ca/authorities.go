package ca

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// Authorities issue the identities of a whole federation on one machine.
type Authorities struct {
	root    *pki.Authority
	regions map[string]*pki.Authority
	life    time.Duration
}

// Open returns the authorities of a folder. It makes the root and the authorities of the regions
// that are missing, or that end before a new certificate with the life would.
func Open(ctx context.Context, dir string, regions []string, life time.Duration) (*Authorities, error) {
	if _, err := os.Stat(filepath.Join(dir, rootName+".pem")); errors.Is(err, os.ErrNotExist) {
		root, err := pki.NewRoot("", env())
		if err != nil {
			return nil, err
		}
		if err := newFolder(ctx, dir, root); err != nil {
			return nil, err
		}
	}
	locked, err := lock(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer locked.Close()
	a := &Authorities{regions: map[string]*pki.Authority{}, life: life}
	a.root, err = openRoot(dir)
	if err != nil {
		return nil, err
	}
	for _, region := range regions {
		a.regions[region], err = openRegion(dir, a.root, region, life)
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Files returns the files of the root in a folder: its certificate and its key.
func Files(dir string) (cert, key string) {
	return filepath.Join(dir, rootName+".pem"), filepath.Join(dir, rootName+"-key.pem")
}

// Region returns the authority of a region that Open was given.
func (a *Authorities) Region(name string) *pki.Authority { return a.regions[name] }

// ID returns the identity of a member, for example of "region/a/agent/n1".
func (a *Authorities) ID(path string) (identity.ID, error) {
	return identity.ParsePath(a.root.ID.Federation, path)
}

// Issue makes the credentials of a member, with a new key.
func (a *Authorities) Issue(id identity.ID) (pki.Credentials, error) {
	authority := a.root
	if id.Kind.Regional() {
		authority = a.regions[id.Region]
	}
	return credentials(authority, a.root, id, a.life, nil)
}
