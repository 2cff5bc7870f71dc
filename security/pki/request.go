package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"

	"github.com/nusa-scheduler/nusa/security/identity"
)

// ErrRequest is wrapped by the errors of ParseRequest.
var ErrRequest = errors.New("not a certificate request")

const typeRequest = "CERTIFICATE REQUEST"

// leastRSA is the least size of an RSA key, in bits.
const leastRSA = 2048

// NewRequest returns the PEM text of a request for a certificate. The member signs the
// request with its own key, which never leaves the member.
func NewRequest(id identity.ID, key crypto.Signer, random io.Reader) ([]byte, error) {
	if err := id.Check(); err != nil {
		return nil, err
	}
	uri, err := url.Parse(id.String())
	if err != nil {
		return nil, fmt.Errorf("request of %s: %w", id.Describe(), err)
	}
	der, err := x509.CreateCertificateRequest(random, &x509.CertificateRequest{URIs: []*url.URL{uri}}, key)
	if err != nil {
		return nil, fmt.Errorf("request of %s: %w", id.Describe(), err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeRequest, Bytes: der}), nil
}

// ParseRequest returns the ID and the key of a request whose sender has the key. Nothing else
// of a request is used, so a request cannot ask for more.
func ParseRequest(text []byte) (identity.ID, crypto.PublicKey, error) {
	if len(text) > maxPEM {
		return identity.ID{}, nil, fmt.Errorf("%w: %d bytes, at most %d", ErrRequest, len(text), maxPEM)
	}
	block, rest := decode(text)
	if block == nil || block.Type != typeRequest || len(trimSpace(rest)) > 0 {
		return identity.ID{}, nil, fmt.Errorf("%w: give one PEM block %q", ErrRequest, typeRequest)
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return identity.ID{}, nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	if err := checkKey(r.PublicKey); err != nil {
		return identity.ID{}, nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	if err := r.CheckSignature(); err != nil {
		return identity.ID{}, nil, fmt.Errorf("%w: its signature is not that of its key: %w", ErrRequest, err)
	}
	if len(r.URIs) != 1 {
		return identity.ID{}, nil, fmt.Errorf("%w: %d URIs, exactly one names the member", ErrRequest, len(r.URIs))
	}
	id, err := identity.Parse(r.URIs[0].String())
	if err != nil {
		return identity.ID{}, nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return id, r.PublicKey, nil
}

// checkKey refuses keys that are weak, or so large that their use is expensive.
func checkKey(key crypto.PublicKey) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if size := k.Curve.Params().BitSize; size < 256 {
			return fmt.Errorf("%w: an ECDSA key of %d bits, at least 256", ErrKey, size)
		}
		return nil
	case ed25519.PublicKey:
		return nil
	case *rsa.PublicKey:
		if size := k.N.BitLen(); size < leastRSA || size > 2*leastRSA {
			return fmt.Errorf("%w: an RSA key of %d bits, allowed are %d to %d", ErrKey, size, leastRSA, 2*leastRSA)
		}
		return nil
	}
	return fmt.Errorf("%w: a key of type %T, allowed are ECDSA, Ed25519 and RSA", ErrKey, key)
}
