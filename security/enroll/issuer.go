package enroll

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nusa-scheduler/nusa/internal/replace"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// ErrNoAuthority means that this server issues no certificates.
var ErrNoAuthority = errors.New("this server has no authority that issues certificates")

// Issuer signs certificates with an authority.
type Issuer struct {
	Authority *pki.Authority
	// Lives are the lives of new certificates by kind. A kind without an entry has its default.
	Lives map[identity.Kind]time.Duration
	// Above are certificates that follow those of Authority in each chain.
	Above []*x509.Certificate
	// Now returns the time. Default: time.Now.
	Now func() time.Time
}

// Issue returns a new certificate, and the certificates of its authorities below the root.
func (i *Issuer) Issue(id identity.ID, key crypto.PublicKey) ([]*x509.Certificate, error) {
	life, now := i.Lives[id.Kind], time.Now
	if life == 0 {
		life = pki.DefaultLife(id.Kind)
	}
	if i.Now != nil {
		now = i.Now
	}
	cert, err := i.Authority.Issue(id, key, life, pki.Env{Now: now(), Rand: rand.Reader})
	if err != nil {
		return nil, err
	}
	chain := []*x509.Certificate{cert}
	if i.Authority.ID.Kind != identity.Federation {
		chain = append(chain, i.Authority.Cert)
	}
	return append(chain, i.Above...), nil
}

// authorityDir is the folder of a regional server's authority, below that of its identity.
const authorityDir = "authority"

// ReadAuthority reads the authority of a regional server. dir is the folder of the server's
// identity.
func ReadAuthority(dir string) (*pki.Authority, error) {
	cert, err := os.ReadFile(filepath.Join(dir, authorityDir, trust.CertFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: it joined with an identity that `nusa ca issue` made", ErrNoAuthority)
	}
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, authorityDir, trust.KeyFile))
	if err != nil {
		return nil, err
	}
	certs, err := pki.ParseCertificates(cert, 1)
	if err != nil {
		return nil, err
	}
	key, err := pki.ParseKey(text)
	if err != nil {
		return nil, err
	}
	return pki.NewAuthority(certs[0], key)
}

// WriteAuthority writes the authority of a regional server. The certificate comes last, because
// an authority without a certificate does not exist. After a crash between both files ReadAuthority
// fails, and the server asks for another authority.
func WriteAuthority(dir string, a *pki.Authority) error {
	key, err := pki.EncodeKey(a.Key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, authorityDir), 0o700); err != nil {
		return err
	}
	if err := replace.File(filepath.Join(dir, authorityDir, trust.KeyFile), key); err != nil {
		return err
	}
	return replace.File(filepath.Join(dir, authorityDir, trust.CertFile), pki.EncodeCertificates(a.Cert))
}
