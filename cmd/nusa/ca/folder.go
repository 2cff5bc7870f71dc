package ca

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/internal/replace"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// rootName is the name of the root's files in the folder. A region's files are in the folder
// regions and have the region's name.
const rootName = "root"

// newFolder writes the files of a root into a folder that has none.
func newFolder(ctx context.Context, dir string, root *pki.Authority) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	locked, err := lock(ctx, dir)
	if err != nil {
		return err
	}
	defer locked.Close()
	_, err = os.Stat(filepath.Join(dir, rootName+".pem"))
	if err == nil {
		return fmt.Errorf("%s already has a root certificate: name another folder with --dir", dir)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return write(filepath.Join(dir, rootName), root)
}

// write writes an authority to PATH.pem and PATH-key.pem.
func write(path string, a *pki.Authority) error {
	key, err := pki.EncodeKey(a.Key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// The certificate comes last, because an authority without a certificate does not exist.
	if err := replace.File(path+"-key.pem", key); err != nil {
		return err
	}
	return replace.File(path+".pem", pki.EncodeCertificates(a.Cert))
}

// open reads an authority from PATH.pem and PATH-key.pem.
func open(path string) (*pki.Authority, error) {
	cert, err := os.ReadFile(path + ".pem")
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(path + "-key.pem")
	if err != nil {
		return nil, err
	}
	certs, err := pki.ParseCertificates(cert, 1)
	if err != nil {
		return nil, fmt.Errorf("%s.pem: %w", path, err)
	}
	signer, err := pki.ParseKey(key)
	if err != nil {
		return nil, fmt.Errorf("%s-key.pem: %w", path, err)
	}
	a, err := pki.NewAuthority(certs[0], signer)
	if err != nil {
		return nil, fmt.Errorf("%s.pem: %w", path, err)
	}
	return a, nil
}

// openRoot reads the root of a folder.
func openRoot(dir string) (*pki.Authority, error) {
	root, err := open(filepath.Join(dir, rootName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, noRoot(dir, err)
	}
	return root, err
}

func noRoot(dir string, err error) error {
	return fmt.Errorf("%w: `nusa ca init --dir %s` makes a root certificate", err, dir)
}

// lockWait bounds the wait for another command that uses the folder.
const lockWait = 10 * time.Second

// lock keeps other commands from the folder of an authority until the file is closed. The end of
// the process closes the file, too.
func lock(ctx context.Context, dir string) (io.Closer, error) {
	f, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, noRoot(dir, err)
	}
	if err != nil {
		return nil, err
	}
	for began := time.Now(); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Since(began) > lockWait || !wait.For(ctx, 20*time.Millisecond) {
			f.Close()
			return nil, fmt.Errorf("%s: lock the folder (another nusa ca may use it): %w", dir, err)
		}
	}
}

// openRegion reads the authority of a region. It makes one if there is none, or if the one
// that exists ends before a new leaf would and a new one would end later.
func openRegion(dir string, root *pki.Authority, region string, life time.Duration) (*pki.Authority, error) {
	path := filepath.Join(dir, "regions", region)
	a, err := open(path)
	if err == nil && (a.Cert.NotAfter.After(time.Now().Add(life)) || a.Cert.NotAfter.Equal(root.Cert.NotAfter)) {
		return a, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	a, err = root.NewRegion(region, env())
	if err != nil {
		return nil, err
	}
	return a, write(path, a)
}

// longest returns an error if the authority of a member would end before a certificate with this
// life.
func longest(root *pki.Authority, id identity.ID, life time.Duration) error {
	most := time.Until(root.Cert.NotAfter)
	if id.Kind.Regional() {
		most = min(most, pki.RegionLife)
	}
	if life <= most {
		return nil
	}
	return fmt.Errorf("--ttl: %s is longer than the authority of %s lives: give at most %s",
		job.FormatDuration(life), id.Describe(), job.FormatDuration(most.Truncate(time.Minute)))
}

// issue makes the credentials of a member. Without a life the default of its kind holds. kept are
// further roots that the member trusts.
func issue(dir string, root *pki.Authority, id identity.ID, life time.Duration, kept []*x509.Certificate) (pki.Credentials, error) {
	if life == 0 {
		life = pki.DefaultLife(id.Kind)
	} else if err := longest(root, id, life); err != nil {
		return pki.Credentials{}, err
	}
	authority := root
	if id.Kind.Regional() {
		var err error
		authority, err = openRegion(dir, root, id.Region, life)
		if err != nil {
			return pki.Credentials{}, err
		}
	}
	return credentials(authority, root, id, life, kept)
}

// credentials makes the credentials of a member, whose certificate the authority signs.
func credentials(authority, root *pki.Authority, id identity.ID, life time.Duration, kept []*x509.Certificate) (pki.Credentials, error) {
	key, err := pki.NewKey(rand.Reader)
	if err != nil {
		return pki.Credentials{}, err
	}
	cert, err := authority.Issue(id, key.Public(), life, env())
	if err != nil {
		return pki.Credentials{}, err
	}
	chain := []*x509.Certificate{cert}
	if authority != root {
		chain = append(chain, authority.Cert)
	}
	all := kept
	if !slices.ContainsFunc(kept, root.Cert.Equal) {
		all = append(slices.Clone(kept), root.Cert)
	}
	roots, err := pki.ParseRoots(pki.EncodeCertificates(all...)) // a member reads no more roots than this function
	if err != nil {
		return pki.Credentials{}, err
	}
	return pki.Credentials{Chain: chain, Key: key, Roots: roots}, nil
}
