package pki_test

import (
	"crypto/rand"
	"crypto/x509"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/security/pki"
)

// FuzzCertificates: whatever a peer or a file has, the decoders return an error or something
// that can be used, and only what an authority issued is accepted.
func FuzzCertificates(f *testing.F) {
	w := newWorld()
	key := newKey()
	cert := must(w.a.Issue(w.id("region/a/agent/n1"), key.Public(), time.Hour, at(now)))
	chain, keyText := pki.EncodeCertificates(cert, w.a.Cert), must(pki.EncodeKey(key))
	f.Add(chain)
	f.Add(keyText)
	f.Add(pki.EncodeCertificates(w.root.Cert))
	f.Add(must(pki.NewRequest(w.id("region/a/agent/n1"), key, rand.Reader)))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		certs, err := pki.ParseCertificates(text, 4)
		if err == nil {
			if id, err := pki.Verify(certs, w.roots, now); err == nil && !id.Kind.Leaf() {
				t.Fatalf("accepted as %s", id)
			}
		}
		if key, err := pki.ParseKey(text); err == nil {
			if _, err := pki.EncodeKey(key); err != nil {
				t.Fatal(err)
			}
		}
		if roots, err := pki.ParseRoots(text); err == nil && len(roots.Certs) == 0 {
			t.Fatal("no roots")
		}
		if id, _, err := pki.ParseRequest(text); err == nil && id.Check() != nil {
			t.Fatalf("a request of %v", id)
		}
	})
}

// FuzzChain: damaged DER of a certificate is never accepted.
func FuzzChain(f *testing.F) {
	w := newWorld()
	cert := must(w.a.Issue(w.id("region/a/agent/n1"), newKey().Public(), time.Hour, at(now)))
	f.Add(cert.Raw, w.a.Cert.Raw)
	f.Add(w.a.Cert.Raw, w.root.Cert.Raw)
	f.Fuzz(func(t *testing.T, leaf, above []byte) {
		a, err := x509.ParseCertificate(leaf)
		if err != nil {
			return
		}
		chain := []*x509.Certificate{a}
		if b, err := x509.ParseCertificate(above); err == nil {
			chain = append(chain, b)
		}
		id, err := pki.Verify(chain, w.roots, now)
		if err == nil && !a.Equal(cert) {
			t.Fatalf("another certificate is accepted as %s", id)
		}
	})
}
