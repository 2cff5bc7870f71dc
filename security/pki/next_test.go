package pki_test

import (
	"crypto/x509"
	"errors"
	"slices"
	"testing"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// TestNextRoot: a member that trusts the earlier root accepts certificates of the later one if the chain has
// the certificate by which the earlier root vouches for it. No other authority can vouch.
func TestNextRoot(t *testing.T) {
	w := newWorld()
	next := must(w.root.NextRoot(at(now)))
	vouched := must(w.root.Vouch(next.Cert, at(now)))
	region := must(next.NewRegion("a", at(now)))
	both := must(pki.NewRoots(w.root.Cert, next.Cert))
	only := must(pki.NewRoots(next.Cert))

	global, agent := w.id("global/g1"), w.id("region/a/agent/n1")
	byRoot := must(next.Issue(global, newKey().Public(), pki.ServerLife, at(now)))
	byRegion := must(region.Issue(agent, newKey().Public(), pki.AgentLife, at(now)))
	old := must(w.root.Issue(global, newKey().Public(), pki.ServerLife, at(now)))

	// A region that vouches for a root of its own.
	fake := must(pki.NewRoot(w.root.ID.Federation, at(now)))
	stolen := &pki.Authority{ID: w.root.ID, Cert: w.a.Cert, Key: w.a.Key}
	falseVouch := must(stolen.Vouch(fake.Cert, at(now)))
	byFake := must(fake.Issue(global, newKey().Public(), pki.ServerLife, at(now)))

	for _, c := range []struct {
		name  string
		chain []*x509.Certificate
		roots *pki.Roots
		want  error
	}{
		{"later root, earlier trusted", []*x509.Certificate{byRoot, vouched}, w.roots, nil},
		{"later root, both trusted", []*x509.Certificate{byRoot, vouched}, both, nil},
		{"later root, only later trusted", []*x509.Certificate{byRoot, vouched}, only, nil},
		{"region of the later root, earlier trusted", []*x509.Certificate{byRegion, region.Cert, vouched}, w.roots, nil},
		{"region of the later root, only later trusted", []*x509.Certificate{byRegion, region.Cert, vouched}, only, nil},
		{"nobody vouches", []*x509.Certificate{byRoot}, w.roots, pki.ErrUnknownCA},
		{"earlier root, only later trusted", []*x509.Certificate{old}, only, pki.ErrUnknownCA},
		{"earlier root, both trusted", []*x509.Certificate{old, vouched}, both, nil},
		{"a region vouches for a root", []*x509.Certificate{byFake, falseVouch, w.a.Cert}, w.roots, pki.ErrOutsideRegion},
		{"a region vouches for a root, both trusted", []*x509.Certificate{byFake, falseVouch, w.a.Cert}, both, pki.ErrOutsideRegion},
	} {
		_, err := pki.Verify(c.chain, c.roots, now)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for _, c := range []struct {
		chain []*x509.Certificate
		want  string
	}{
		{[]*x509.Certificate{byRoot, vouched}, pki.Fingerprint(next.Cert)},
		{[]*x509.Certificate{byRegion, region.Cert, vouched}, pki.Fingerprint(next.Cert)},
		{[]*x509.Certificate{old}, pki.Fingerprint(w.root.Cert)},
		{[]*x509.Certificate{byFake}, ""},
	} {
		if got := pki.IssuerOf(c.chain, both); got != c.want {
			t.Errorf("issuer of %s: %q, want %q", c.chain[0].Subject.CommonName, got, c.want)
		}
	}
	if _, err := w.a.Vouch(next.Cert, at(now)); !errors.Is(err, pki.ErrNotAllowed) {
		t.Errorf("a region's authority vouches: %v", err)
	}
	other := must(pki.NewRoot("other.example", at(now)))
	if _, err := w.root.Vouch(other.Cert, at(now)); !errors.Is(err, pki.ErrNotAllowed) {
		t.Errorf("a root vouches for that of another federation: %v", err)
	}
	for name, c := range map[string]struct {
		cert *x509.Certificate
		ok   bool
	}{"root": {next.Cert, true}, "vouched": {vouched, false}, "region": {region.Cert, false}, "leaf": {byRoot, false}, "other federation": {other.Cert, false}} {
		if err := pki.CheckRoot(c.cert, w.root.ID.Federation); (err == nil) != c.ok {
			t.Errorf("%s as a root: %v", name, err)
		}
	}
	if got := pki.Vouched([]*x509.Certificate{byRegion, region.Cert, vouched}); !slices.Equal(got, []*x509.Certificate{vouched}) {
		t.Errorf("vouched: %d certificates", len(got))
	}
	if next.ID != (identity.ID{Federation: w.root.ID.Federation, Kind: identity.Federation}) {
		t.Errorf("the next root is of %s", next.ID)
	}
	if string(next.Cert.RawSubject) == string(w.root.Cert.RawSubject) {
		t.Error("both roots have the same subject")
	}
}
