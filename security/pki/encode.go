package pki

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/nusa-scheduler/nusa/security/identity"
)

// Bounds of what is read.
const (
	// maxPEM bounds a PEM text, in bytes.
	maxPEM = 64 << 10
	// maxChain bounds the certificates that a member shows: its own, its region's, and
	// perhaps the root. maxRoots bounds the roots that a member trusts.
	maxChain, maxRoots = 4, 16
)

// Errors of the decoders.
var (
	// ErrCertificate means that a text holds no certificates, or something else besides.
	ErrCertificate = errors.New("not certificates in PEM")
	// ErrKey means that a text holds no private key, or one that cannot be used.
	ErrKey = errors.New("not a usable key")
)

const typeCertificate = "CERTIFICATE"

// Credentials are what a member needs to prove its identity: its certificate, its key, and
// the roots that it trusts.
type Credentials struct {
	// Chain is the member's certificate, followed by the certificate of its authority unless
	// the authority is a root.
	Chain []*x509.Certificate
	Key   crypto.Signer
	Roots *Roots
}

// EncodeCertificates returns the PEM text of certificates.
func EncodeCertificates(certs ...*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, c := range certs {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: c.Raw}))
	}
	return out.Bytes()
}

// EncodeKey returns the PEM text of a private key, in PKCS #8.
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// ParseCertificates reads a PEM text that holds certificates and nothing else. most bounds
// their number.
func ParseCertificates(text []byte, most int) ([]*x509.Certificate, error) {
	if len(text) > maxPEM {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrCertificate, len(text), maxPEM)
	}
	var out []*x509.Certificate
	for rest := text; len(trimSpace(rest)) > 0; {
		var block *pem.Block
		block, rest = decode(rest)
		if block == nil || block.Type != typeCertificate {
			return nil, fmt.Errorf("%w: block %d is no PEM block %q", ErrCertificate, len(out)+1, typeCertificate)
		}
		if len(out) == most {
			return nil, fmt.Errorf("%w: more than %d", ErrCertificate, most)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w: block %d: %w", ErrCertificate, len(out)+1, err)
		}
		out = append(out, cert)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: the text is empty", ErrCertificate)
	}
	return out, nil
}

// ParseKey reads the PEM text of one private key, in PKCS #8, or in the older forms of
// OpenSSL. An error never has a part of the text.
func ParseKey(text []byte) (crypto.Signer, error) {
	if len(text) > maxPEM {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrKey, len(text), maxPEM)
	}
	block, rest := decode(text)
	if block != nil && block.Type == "EC PARAMETERS" { // openssl ecparam -genkey writes these first
		block, rest = decode(rest)
	}
	if block == nil || len(trimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%w: give one PEM block \"PRIVATE KEY\"", ErrKey)
	}
	key, err := parseKeyBlock(block)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%w: a key of type %T cannot sign", ErrKey, key)
	}
	return signer, checkKey(signer.Public())
}

func parseKeyBlock(block *pem.Block) (any, error) {
	var key any
	var err error
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "ENCRYPTED PRIVATE KEY":
		return nil, fmt.Errorf("%w: the key is encrypted: decrypt it with openssl pkey", ErrKey)
	default:
		return nil, fmt.Errorf("%w: a PEM block of another type than \"PRIVATE KEY\"", ErrKey)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the block %q is damaged", ErrKey, block.Type)
	}
	return key, nil
}

// Owner returns the ID that the first certificate of a PEM text names. Owner does not verify the
// certificate.
func Owner(chain []byte) (identity.ID, error) {
	certs, err := ParseCertificates(chain, maxChain)
	if err != nil {
		return identity.ID{}, err
	}
	return idOf(certs[0])
}

// ParseCredentials reads the PEM texts of a member. The certificate must be for the key.
// ParseCredentials does not verify the certificate: see Verify.
func ParseCredentials(chain, key, roots []byte) (Credentials, error) {
	var c Credentials
	var err error
	c.Chain, err = ParseCertificates(chain, maxChain)
	if err != nil {
		return Credentials{}, err
	}
	c.Key, err = ParseKey(key)
	if err != nil {
		return Credentials{}, err
	}
	c.Roots, err = ParseRoots(roots)
	if err != nil {
		return Credentials{}, err
	}
	return c, matches(c.Chain[0], c.Key)
}

// Roots are the root certificates that a member trusts. During a change of the root there
// are several.
type Roots struct {
	Certs []*x509.Certificate
	pool  *x509.CertPool
}

// NewRoots returns the roots with these certificates.
func NewRoots(certs ...*x509.Certificate) (*Roots, error) {
	if len(certs) == 0 {
		return nil, fmt.Errorf("%w: no root", ErrCertificate)
	}
	r := &Roots{Certs: certs, pool: x509.NewCertPool()}
	for _, c := range certs {
		if !c.BasicConstraintsValid || !c.IsCA {
			return nil, fmt.Errorf("%w: the root %q is no certificate of an authority", ErrCertificate, c.Subject.CommonName)
		}
		r.pool.AddCert(c)
	}
	return r, nil
}

// ParseRoots reads the PEM text of roots.
func ParseRoots(text []byte) (*Roots, error) {
	certs, err := ParseCertificates(text, maxRoots)
	if err != nil {
		return nil, fmt.Errorf("roots: %w", err)
	}
	return NewRoots(certs...)
}

// idOf returns the ID that a certificate names: its only URI.
func idOf(cert *x509.Certificate) (identity.ID, error) {
	if len(cert.URIs) != 1 {
		return identity.ID{}, fmt.Errorf("%w: it has %d URIs, and exactly one names its owner", ErrName, len(cert.URIs))
	}
	id, err := identity.Parse(cert.URIs[0].String())
	if err != nil {
		return identity.ID{}, fmt.Errorf("%w: %w", ErrName, err)
	}
	return id, nil
}

// decode returns the first block of a PEM text and the rest. It returns nil if another text
// stands before the block, which pem.Decode would skip.
func decode(text []byte) (*pem.Block, []byte) {
	text = trimSpace(text)
	if !bytes.HasPrefix(text, []byte("-----BEGIN ")) {
		return nil, text
	}
	block, rest := pem.Decode(text)
	if block != nil && bytes.Count(text[:len(text)-len(rest)], []byte("-----BEGIN ")) > 1 {
		return nil, text // a damaged block was skipped
	}
	return block, rest
}

func trimSpace(text []byte) []byte { return bytes.TrimSpace(text) }
