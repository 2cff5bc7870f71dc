package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
)

// The default lives of certificates.
const (
	RootLife     = 10 * 365 * 24 * time.Hour
	RegionLife   = 365 * 24 * time.Hour
	ServerLife   = 72 * time.Hour
	AgentLife    = 24 * time.Hour
	OperatorLife = 30 * 24 * time.Hour
)

// Backdate is how long before its issue a certificate becomes valid, because the clock of
// its verifier may be late.
const Backdate = 5 * time.Minute

// ErrNotAllowed means that an authority may not issue such a certificate.
var ErrNotAllowed = errors.New("the authority may not issue this certificate")

// Env has the time and the randomness for a new certificate.
type Env struct {
	Now  time.Time
	Rand io.Reader
}

// Authority is a certificate authority: the root of a federation, or a region's.
type Authority struct {
	// ID has the kind Federation or Region.
	ID   identity.ID
	Cert *x509.Certificate
	Key  crypto.Signer
}

// DefaultLife returns the default life of a certificate of a kind.
func DefaultLife(kind identity.Kind) time.Duration {
	switch kind {
	case identity.Federation:
		return RootLife
	case identity.Region:
		return RegionLife
	case identity.Agent:
		return AgentLife
	case identity.Operator:
		return OperatorLife
	}
	return ServerLife
}

// NewKey returns a new private key.
func NewKey(random io.Reader) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), random)
	if err != nil {
		return nil, fmt.Errorf("create a private key: %w", err)
	}
	return key, nil
}

// NewRoot returns the root of a new federation. Without a name the federation is named after
// the root's public key.
func NewRoot(federation string, env Env) (*Authority, error) {
	key, err := NewKey(env.Rand)
	if err != nil {
		return nil, err
	}
	if federation == "" {
		federation, err = federationOf(key.Public())
		if err != nil {
			return nil, err
		}
	}
	id := identity.ID{Federation: federation, Kind: identity.Federation}
	if err := id.Check(); err != nil {
		return nil, err
	}
	template, err := template(id, RootLife, env)
	if err != nil {
		return nil, err
	}
	cert, err := sign(template, template, key.Public(), key, env)
	if err != nil {
		return nil, err
	}
	return &Authority{ID: id, Cert: cert, Key: key}, nil
}

// federationOf returns the name of a federation that has no other name.
func federationOf(root crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(root)
	if err != nil {
		return "", fmt.Errorf("name the federation: %w", err)
	}
	sum := sha256.Sum256(der)
	return "nusa-" + hex.EncodeToString(sum[:8]), nil
}

// NewAuthority returns the authority with a certificate and its key. The certificate may be
// made by another program, but it must name a federation or a region.
func NewAuthority(cert *x509.Certificate, key crypto.Signer) (*Authority, error) {
	id, err := idOf(cert)
	if err != nil {
		return nil, err
	}
	if id.Kind.Leaf() || !cert.IsCA {
		return nil, fmt.Errorf("%w: the certificate is that of %s, and no authority's", ErrNotAllowed, id.Describe())
	}
	if err := matches(cert, key); err != nil {
		return nil, err
	}
	return &Authority{ID: id, Cert: cert, Key: key}, nil
}

// NewRegion returns the authority of a region, with a new key.
func (a *Authority) NewRegion(region string, env Env) (*Authority, error) {
	key, err := NewKey(env.Rand)
	if err != nil {
		return nil, err
	}
	id := identity.ID{Federation: a.ID.Federation, Kind: identity.Region, Region: region}
	cert, err := a.Issue(id, key.Public(), RegionLife, env)
	if err != nil {
		return nil, err
	}
	return &Authority{ID: id, Cert: cert, Key: key}, nil
}

// Issue returns a certificate for an ID and a public key. The certificate does not outlive
// the certificate of its authority. The root issues for the whole federation but not for
// itself. A region issues for its own servers and agents.
func (a *Authority) Issue(id identity.ID, key crypto.PublicKey, life time.Duration, env Env) (*x509.Certificate, error) {
	if err := id.Check(); err != nil {
		return nil, err
	}
	if err := a.mayIssue(id); err != nil {
		return nil, err
	}
	if life <= 0 {
		return nil, fmt.Errorf("%w: a life of %s", ErrNotAllowed, life)
	}
	if !env.Now.Before(a.Cert.NotAfter) {
		return nil, fmt.Errorf("%w: the certificate of %s expired at %s", ErrNotAllowed, a.ID.Describe(), a.Cert.NotAfter.Format(time.RFC3339))
	}
	t, err := template(id, life, env)
	if err != nil {
		return nil, err
	}
	if t.NotAfter.After(a.Cert.NotAfter) {
		t.NotAfter = a.Cert.NotAfter
	}
	return sign(t, a.Cert, key, a.Key, env)
}

// mayIssue returns an error if the authority may not issue certificates for an ID.
func (a *Authority) mayIssue(id identity.ID) error {
	switch {
	case id.Federation != a.ID.Federation:
		return fmt.Errorf("%w: %s is of federation %s, the authority is of %s", ErrNotAllowed, id.Describe(), id.Federation, a.ID.Federation)
	case a.ID.Kind == identity.Federation && id.Kind != identity.Federation:
		return nil
	case a.ID.Kind == identity.Region && id.Kind.Regional() && id.Region == a.ID.Region:
		return nil
	}
	return fmt.Errorf("%w: %s issues none for %s", ErrNotAllowed, a.ID.Describe(), id.Describe())
}

// template returns the certificate of an ID without its key.
func template(id identity.ID, life time.Duration, env Env) (*x509.Certificate, error) {
	uri, err := url.Parse(id.String())
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", id.Describe(), err)
	}
	// The highest bit is cleared and one bit is set, so that the number is positive.
	serial := make([]byte, 16)
	if _, err := io.ReadFull(env.Rand, serial); err != nil {
		return nil, fmt.Errorf("serial number of a certificate: %w", err)
	}
	serial[0] = serial[0]&0x7f | 0x40
	t := &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial),
		Subject:      pkix.Name{Organization: []string{"Nusa " + id.Federation}, CommonName: commonName(id)},
		NotBefore:    env.Now.Add(-Backdate), NotAfter: env.Now.Add(life),
		URIs:                  []*url.URL{uri},
		BasicConstraintsValid: true,
	}
	if id.Kind.Leaf() {
		t.KeyUsage = x509.KeyUsageDigitalSignature
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
		if name := dnsName(id); name != "" {
			t.DNSNames = []string{name}
		}
		if id.Kind == identity.Global {
			t.DNSNames = append(t.DNSNames, TierName(id.Federation))
		}
		return t, nil
	}
	t.IsCA, t.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	if id.Kind == identity.Region {
		t.MaxPathLenZero = true
		// The constraint is for verifiers other than Verify, which read no path of a URI.
		t.PermittedDNSDomainsCritical, t.PermittedDNSDomains = true, []string{regionDomain(id)}
	}
	return t, nil
}

// commonName returns the name of a certificate for people. X.509 allows 64 bytes.
func commonName(id identity.ID) string {
	name := id.Describe()
	return name[:min(len(name), 64)]
}

// regionDomain returns the DNS domain of a region's servers and agents.
func regionDomain(id identity.ID) string { return id.Region + ".region." + id.Federation }

// TierName returns the DNS name that all global servers of a federation share.
func TierName(federation string) string { return "global." + federation }

// dnsName returns the DNS name of a member, for verifiers that know no SPIFFE ID. It is empty
// if the member's name cannot be a part of a DNS name.
func dnsName(id identity.ID) string {
	name := strings.ToLower(id.Name)
	switch id.Kind {
	case identity.Global:
		name += ".global." + id.Federation
	case identity.Operator:
		name += ".operator." + id.Federation
	default:
		name += "." + regionDomain(id)
	}
	if len(name) > 253 {
		return ""
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return ""
		}
	}
	return name
}

// sign returns the certificate that a parent signs.
func sign(t, parent *x509.Certificate, key crypto.PublicKey, signer crypto.Signer, env Env) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(env.Rand, t, parent, key, signer)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate %q: %w", t.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate %q: %w", t.Subject.CommonName, err)
	}
	return cert, nil
}

// matches returns an error if the certificate is not for the key.
func matches(cert *x509.Certificate, key crypto.Signer) error {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(cert.PublicKey) {
		return fmt.Errorf("%w: the key belongs to another certificate than %q", ErrKey, cert.Subject.CommonName)
	}
	return nil
}
