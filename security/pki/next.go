package pki

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/nusa-scheduler/nusa/security/identity"
)

// Fingerprint returns the name of a root: a part of the hash of its certificate.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:8])
}

// NextRoot returns a new root of the federation, which may replace this one.
func (a *Authority) NextRoot(env Env) (*Authority, error) {
	next, err := NewRoot(a.ID.Federation, env)
	if err != nil {
		return nil, err
	}
	// Another subject than that of this root, for verifiers that tell roots apart by it.
	t, err := template(next.ID, RootLife, env)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(next.Cert.RawSubjectPublicKeyInfo)
	t.Subject.CommonName = fmt.Sprintf("%.40s, root %s", t.Subject.CommonName, hex.EncodeToString(sum[:4]))
	next.Cert, err = sign(t, t, next.Key.Public(), next.Key, env)
	return next, err
}

// Vouch returns a certificate of this root for the key of another root of the federation. With
// it, members that trust only this root accept certificates of the other one: see Verify.
func (a *Authority) Vouch(next *x509.Certificate, env Env) (*x509.Certificate, error) {
	id, err := idOf(next)
	if err != nil {
		return nil, err
	}
	if a.ID.Kind != identity.Federation || id != a.ID {
		return nil, fmt.Errorf("%w: %s does not vouch for %s", ErrNotAllowed, a.ID.Describe(), id.Describe())
	}
	t, err := template(id, RootLife, env)
	if err != nil {
		return nil, err
	}
	t.Subject, t.RawSubject, t.SubjectKeyId = next.Subject, next.RawSubject, next.SubjectKeyId
	t.NotAfter = next.NotAfter
	if t.NotAfter.After(a.Cert.NotAfter) {
		t.NotAfter = a.Cert.NotAfter
	}
	return sign(t, a.Cert, next.PublicKey, a.Key, env)
}

// CheckRoot returns an error if a certificate cannot be a root of a federation.
func CheckRoot(c *x509.Certificate, federation string) error {
	id, err := idOf(c)
	switch {
	case err != nil:
		return err
	case id != identity.ID{Federation: federation, Kind: identity.Federation}:
		return fmt.Errorf("%w: the root is that of %s, not of federation %s", ErrNotAllowed, id, federation)
	case !c.BasicConstraintsValid || !c.IsCA || c.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("%w: the root %q is no certificate of an authority", ErrCertificate, c.Subject.CommonName)
	case c.CheckSignatureFrom(c) != nil:
		return fmt.Errorf("%w: the root %q did not sign itself", ErrCertificate, c.Subject.CommonName)
	}
	return checkKey(c.PublicKey)
}

// IssuerOf returns the fingerprint of the root from which a chain comes without another root
// between; "" if it is none of the roots.
func IssuerOf(chain []*x509.Certificate, roots *Roots) string {
	chain = slices.DeleteFunc(slices.Clone(chain), isRoot)
	if len(chain) == 0 {
		return ""
	}
	last := chain[len(chain)-1]
	for _, root := range roots.Certs {
		if last.CheckSignatureFrom(root) == nil {
			return Fingerprint(root)
		}
	}
	return ""
}

// IssuerKeyID returns the number by which a chain names the root that IssuerOf returns; "" if the
// chain names none.
func IssuerKeyID(chain []*x509.Certificate) string {
	for _, c := range slices.Backward(chain) {
		if !isRoot(c) {
			return string(c.AuthorityKeyId)
		}
	}
	return ""
}

// isRoot reports whether a certificate names a federation: it is a root, or one that another root
// vouches for.
func isRoot(c *x509.Certificate) bool {
	id, err := idOf(c)
	return err == nil && id.Kind == identity.Federation
}

// Vouched returns the certificates of a chain that say that one root vouches for another.
func Vouched(chain []*x509.Certificate) []*x509.Certificate {
	return slices.DeleteFunc(slices.Clone(chain), func(c *x509.Certificate) bool { return !isRoot(c) })
}

// Fingerprints returns the sorted fingerprints of roots.
func (r *Roots) Fingerprints() []string {
	var out []string
	for _, c := range r.Certs {
		out = append(out, Fingerprint(c))
	}
	slices.Sort(out)
	return out
}

// Pair returns the authority with one of the certificates and the key that belongs to it.
func Pair(certs []*x509.Certificate, keys []crypto.Signer) ([]*Authority, error) {
	var out []*Authority
	for _, c := range certs {
		i := slices.IndexFunc(keys, func(k crypto.Signer) bool { return matches(c, k) == nil })
		if i < 0 {
			return nil, fmt.Errorf("%w: no key belongs to the certificate %q", ErrKey, c.Subject.CommonName)
		}
		a, err := NewAuthority(c, keys[i])
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

// ParseKeys reads a PEM text with several private keys.
func ParseKeys(text []byte, most int) ([]crypto.Signer, error) {
	var out []crypto.Signer
	for rest := trimSpace(text); len(rest) > 0 && len(out) < most; {
		_, after := decode(rest)
		if len(after) == len(rest) {
			return nil, fmt.Errorf("%w: give PEM blocks \"PRIVATE KEY\"", ErrKey)
		}
		key, err := ParseKey(rest[:len(rest)-len(after)])
		if err != nil {
			return nil, err
		}
		out, rest = append(out, key), trimSpace(after)
	}
	return out, nil
}
