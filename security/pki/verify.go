package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
)

// Errors of Verify. The text of an error says what to do.
var (
	ErrExpired       = errors.New("expired certificate")
	ErrNotYetValid   = errors.New("certificate of the future")
	ErrUnknownCA     = errors.New("certificate of an unknown authority")
	ErrName          = errors.New("certificate without an identity")
	ErrNotLeaf       = errors.New("certificate that cannot be used here")
	ErrUsage         = errors.New("certificate for other uses")
	ErrOutsideRegion = errors.New("certificate outside of what its authority may issue")
)

// Verify returns the identity that the certificates of a peer prove. The first certificate is
// the peer's own. The others lead to one of the roots.
//
// The root issues for the whole federation. A region's certificate issues for the servers
// and agents of that region only. Name constraints of X.509 cannot say this, because they
// hold only the host of a URI. So Verify compares the names itself.
func Verify(chain []*x509.Certificate, roots *Roots, now time.Time) (identity.ID, error) {
	if len(chain) == 0 {
		return identity.ID{}, fmt.Errorf("%w: the peer sent none: give it an identity", ErrName)
	}
	if len(chain) > maxChain {
		return identity.ID{}, fmt.Errorf("%w: the peer sent %d, at most %d", ErrNotLeaf, len(chain), maxChain)
	}
	leaf := chain[0]
	id, err := idOf(leaf)
	if err != nil {
		return identity.ID{}, err
	}
	if err := checkLeaf(leaf, id); err != nil {
		return identity.ID{}, err
	}
	if err := checkTimes(leaf, id.Describe(), now); err != nil {
		return identity.ID{}, err
	}
	above := x509.NewCertPool()
	for _, c := range chain[1:] {
		if !c.BasicConstraintsValid || !c.IsCA {
			return identity.ID{}, fmt.Errorf("%w: %q follows the certificate of %s and is no authority's", ErrNotLeaf, c.Subject.CommonName, id.Describe())
		}
		above.AddCert(c)
	}
	paths, err := leaf.Verify(x509.VerifyOptions{Roots: roots.pool, Intermediates: above, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return identity.ID{}, explain(err, id, now)
	}
	var last error
	for _, path := range paths {
		last = checkPath(id, path)
		if last == nil {
			return id, nil
		}
	}
	return identity.ID{}, last
}

// checkLeaf returns an error if a certificate is not for an end of a connection.
func checkLeaf(c *x509.Certificate, id identity.ID) error {
	switch {
	case c.IsCA || c.KeyUsage&x509.KeyUsageCertSign != 0 || !id.Kind.Leaf():
		return fmt.Errorf("%w: it is that of %s, and belongs to an authority", ErrNotLeaf, id.Describe())
	case c.KeyUsage&x509.KeyUsageDigitalSignature == 0,
		!slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth), !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth):
		return fmt.Errorf("%w: that of %s must be for digital signatures, TLS clients and TLS servers", ErrUsage, id.Describe())
	}
	return checkKey(c.PublicKey)
}

// checkTimes returns an error if a certificate is not valid now.
func checkTimes(c *x509.Certificate, owner string, now time.Time) error {
	switch {
	case now.After(c.NotAfter):
		return fmt.Errorf("%w: that of %s ended at %s, and now is %s: renew it, and check the clocks of both machines",
			ErrExpired, owner, c.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return fmt.Errorf("%w: that of %s begins at %s, and now is %s: check the clocks of both machines",
			ErrNotYetValid, owner, c.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// explain returns the reason why no path leads from the certificate of a peer to a root.
func explain(err error, id identity.ID, now time.Time) error {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) {
		switch invalid.Reason {
		case x509.Expired:
			if timeErr := checkTimes(invalid.Cert, fmt.Sprintf("the authority %q", invalid.Cert.Subject.CommonName), now); timeErr != nil {
				return timeErr
			}
		case x509.CANotAuthorizedForThisName, x509.TooManyIntermediates:
			return fmt.Errorf("%w: %s: %w", ErrOutsideRegion, id, err)
		}
	}
	return fmt.Errorf("%w: that of %s was not issued by a root that this program trusts: %w", ErrUnknownCA, id, err)
}

// checkPath returns an error if an authority on the path from a certificate to its root may
// not issue what follows.
func checkPath(id identity.ID, path []*x509.Certificate) error {
	root := path[len(path)-1]
	if len(root.URIs) > 0 {
		above, err := idOf(root)
		switch {
		case err != nil:
			return fmt.Errorf("%w: the root %q: %w", ErrOutsideRegion, root.Subject.CommonName, err)
		case above.Kind != identity.Federation || above.Federation != id.Federation:
			return fmt.Errorf("%w: %s was issued by the root of %s", ErrOutsideRegion, id, above)
		}
	}
	between := path[1 : len(path)-1]
	// A root may vouch for the root that replaces it.
	if n := len(between); n > 0 {
		if next, err := idOf(between[n-1]); err == nil && next.Kind == identity.Federation && next.Federation == id.Federation {
			between = between[:n-1]
		}
	}
	switch len(between) {
	case 0:
		return nil
	case 1:
	default:
		return fmt.Errorf("%w: %d authorities stand between %s and the root, at most one may", ErrOutsideRegion, len(between), id.Describe())
	}
	above, err := idOf(between[0])
	switch {
	case err != nil:
		return fmt.Errorf("%w: the authority of %s: %w", ErrOutsideRegion, id.Describe(), err)
	case above.Kind != identity.Region || above.Federation != id.Federation || above.Region != id.Region || !id.Kind.Regional():
		return fmt.Errorf("%w: %s was issued by %s, which issues only for its own region", ErrOutsideRegion, id, above)
	}
	return nil
}
