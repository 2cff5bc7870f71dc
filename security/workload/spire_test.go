package workload_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/workload"
)

// link is one certificate of a chain as SPIRE or an authority above it makes them.
type link struct {
	uri string
	// bits is the length of an RSA key. 0: the key is ECDSA, with the curve.
	bits  int
	curve elliptic.Curve
	edit  func(*x509.Certificate)
}

// newKey returns the key of a link. The default is that of SPIRE.
func (l link) newKey(t *testing.T) crypto.Signer {
	t.Helper()
	var key crypto.Signer
	var err error
	switch {
	case l.bits > 0:
		key, err = rsa.GenerateKey(rand.Reader, l.bits)
	case l.curve != nil:
		key, err = ecdsa.GenerateKey(l.curve, rand.Reader)
	default:
		key, err = pki.NewKey(rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// chain returns the credentials of the last link. Each link issues the next. The first is the root.
func chain(t *testing.T, links ...link) pki.Credentials {
	t.Helper()
	var c pki.Credentials
	var above *x509.Certificate
	for i, l := range links {
		key := l.newKey(t)
		x := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{Organization: []string{"SPIRE"}}, BasicConstraintsValid: true,
			NotBefore: time.Now().Add(-10 * time.Second), NotAfter: time.Now().Add(time.Hour),
		}
		if l.uri != "" {
			uri, err := url.Parse(l.uri)
			if err != nil {
				t.Fatal(err)
			}
			x.URIs = []*url.URL{uri}
		}
		if i == len(links)-1 {
			x.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageKeyAgreement
			x.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		} else {
			x.IsCA, x.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
			x.Subject.CommonName = string(rune('A' + i))
		}
		if l.edit != nil {
			l.edit(x)
		}
		parent, signer := above, c.Key
		if above == nil {
			parent, signer = x, key
		}
		raw, err := x509.CreateCertificate(rand.Reader, x, parent, key.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		above, err = x509.ParseCertificate(raw)
		if err != nil {
			t.Fatal(err)
		}
		c.Key = key
		if i == 0 {
			c.Roots, err = pki.NewRoots(above)
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		c.Chain = append([]*x509.Certificate{above}, c.Chain...)
	}
	return c
}

// TestChainsOfSPIRE: chains as SPIRE makes them are accepted, and those that Nusa has rules against are
// refused with the rule.
func TestChainsOfSPIRE(t *testing.T) {
	const domain, member = "spiffe://example.org", "spiffe://example.org/region/a/agent/n1"
	root := link{uri: domain}
	for name, c := range map[string]struct {
		links []link
		want  string
	}{
		"the authority of SPIRE is the root":               {[]link{root, {uri: member}}, ""},
		"with a DNS name and an RSA key of 2048 bits":      {[]link{root, {uri: member, bits: 2048, edit: func(x *x509.Certificate) { x.DNSNames = []string{"n1"} }}}, ""},
		"an authority above that has no SPIFFE ID":         {[]link{{}, root, {uri: member}}, ""},
		"an authority above that of the same trust domain": {[]link{root, root, {uri: member}}, ""},
		"an authority above of another trust domain":       {[]link{{uri: "spiffe://other.org"}, root, {uri: member}}, "was issued by the root of spiffe://other.org"},
		"nested servers of SPIRE":                          {[]link{{}, root, root, {uri: member}}, "which issues only for its own region"},
		"for servers only": {[]link{root, {uri: member, edit: func(x *x509.Certificate) {
			x.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}}}, "must be for digital signatures, TLS clients and TLS servers"},
		"a key that is too small":   {[]link{root, {uri: member, curve: elliptic.P224()}}, "an ECDSA key of 224 bits, at least 256"},
		"an underscore in its name": {[]link{{uri: "spiffe://a_b"}, {uri: "spiffe://a_b/region/a/agent/n1"}}, `"a_b" is not a name of a federation`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := newFake(t)
			api.listen()
			api.give(chain(t, c.links...))
			cfg := api.config(io.Discard)
			if c.want != "" {
				cfg.Wait = time.Second
			}
			err := workload.Ensure(t.Context(), cfg)
			if c.want == "" {
				if err != nil || open(t, cfg.Dir).ID().String() != member {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, workload.ErrSilent) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}
