package pki_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func at(moment time.Time) pki.Env { return pki.Env{Now: moment, Rand: rand.Reader} }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// world is a federation with two regions.
type world struct {
	root, a, b *pki.Authority
	roots      *pki.Roots
}

func newWorld() world {
	root := must(pki.NewRoot("", at(now)))
	return world{root: root, a: must(root.NewRegion("a", at(now))), b: must(root.NewRegion("b", at(now))), roots: must(pki.NewRoots(root.Cert))}
}

func (w world) id(path string) identity.ID {
	return must(identity.ParsePath(w.root.ID.Federation, path))
}

func newKey() crypto.Signer { return must(pki.NewKey(rand.Reader)) }

func TestIssuedCertificatesAreVerified(t *testing.T) {
	w := newWorld()
	for _, c := range []struct {
		path string
		by   *pki.Authority
		dns  string
		life time.Duration
	}{
		{"global/G1", w.root, "g1.global.", 72 * time.Hour},
		{"operator/jane", w.root, "jane.operator.", 30 * 24 * time.Hour},
		{"region/a/server/s.1", w.a, "s.1.a.region.", 72 * time.Hour},
		{"region/b/agent/n_1", w.b, "n_1.b.region.", 24 * time.Hour},
		{"region/a/agent/direct", w.root, "direct.a.region.", 24 * time.Hour},
		{"region/a/agent/" + strings.Repeat("long", 20), w.a, "", 24 * time.Hour},
		{"region/a/agent/two..dots", w.a, "", 24 * time.Hour},
	} {
		id := w.id(c.path)
		cert := must(c.by.Issue(id, newKey().Public(), pki.DefaultLife(id.Kind), at(now)))
		chain := []*x509.Certificate{cert, c.by.Cert}
		got, err := pki.Verify(chain, w.roots, now)
		if err != nil || got != id {
			t.Errorf("%s: %v, %v", c.path, got, err)
		}
		if !cert.NotBefore.Equal(now.Add(-pki.Backdate)) || !cert.NotAfter.Equal(now.Add(c.life)) {
			t.Errorf("%s is valid from %s to %s", c.path, cert.NotBefore, cert.NotAfter)
		}
		want := []string{c.dns + id.Federation}
		if c.dns == "" {
			want = nil
		}
		if id.Kind == identity.Global {
			want = append(want, pki.TierName(id.Federation))
		}
		if strings.Join(cert.DNSNames, ",") != strings.Join(want, ",") {
			t.Errorf("%s has the DNS names %v, want %v", c.path, cert.DNSNames, want)
		}
	}
	if got := w.root.ID.Federation; !strings.HasPrefix(got, "nusa-") || len(got) != len("nusa-")+16 {
		t.Errorf("the federation is named %q", got)
	}
	if named := must(pki.NewRoot("example.org", at(now))); named.ID.Federation != "example.org" {
		t.Errorf("the federation is named %q", named.ID.Federation)
	}
}

// TestForeignVerifiers: a verifier that knows only X.509 accepts the members of a region by
// their DNS names, and refuses a name of another region.
func TestForeignVerifiers(t *testing.T) {
	w := newWorld()
	pool, above := x509.NewCertPool(), x509.NewCertPool()
	pool.AddCert(w.root.Cert)
	above.AddCert(w.a.Cert)
	verify := func(c *x509.Certificate, name string) error {
		_, err := c.Verify(x509.VerifyOptions{DNSName: name, Roots: pool, Intermediates: above, CurrentTime: now})
		return err
	}
	cert := must(w.a.Issue(w.id("region/a/agent/n1"), newKey().Public(), time.Hour, at(now)))
	if err := verify(cert, "n1.a.region."+w.root.ID.Federation); err != nil {
		t.Error(err)
	}
	forged := w.forge(w.a, func(c *x509.Certificate) { c.DNSNames = []string{"n1.b.region." + w.root.ID.Federation} })
	var invalid x509.CertificateInvalidError
	if err := verify(forged, ""); !errors.As(err, &invalid) || invalid.Reason != x509.CANotAuthorizedForThisName {
		t.Errorf("a name of another region: %v", err)
	}
}

// forge returns a certificate that an authority signs although Issue would refuse it.
func (w world) forge(by *pki.Authority, change func(*x509.Certificate)) *x509.Certificate {
	t := w.leaf("region/a/agent/n1")
	change(t)
	return signed(t, by, newKey().Public())
}

// leaf returns the template of a correct leaf.
func (w world) leaf(path string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), BasicConstraintsValid: true,
		URIs: []*url.URL{must(url.Parse(w.id(path).String()))}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

func signed(t *x509.Certificate, by *pki.Authority, key crypto.PublicKey) *x509.Certificate {
	return must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, t, by.Cert, key, by.Key))))
}

// TestVerifyRefuses is the list of attacks with certificates.
func TestVerifyRefuses(t *testing.T) {
	w, foreign := newWorld(), newWorld()
	uri := func(text string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.URIs = []*url.URL{must(url.Parse(text))} }
	}
	f := "spiffe://" + w.root.ID.Federation
	leafKey := newKey()
	leaf := &pki.Authority{ID: w.id("region/a/server/s1"), Key: leafKey, Cert: must(w.a.Issue(w.id("region/a/server/s1"), leafKey.Public(), time.Hour, at(now)))}
	subKey := newKey()
	sub := &pki.Authority{Key: subKey, Cert: signed(&x509.Certificate{
		SerialNumber: big.NewInt(8), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign, URIs: []*url.URL{must(url.Parse(f + "/region/b"))},
	}, w.a, subKey.Public())}
	oldRegion := must(w.root.NewRegion("a", at(now.Add(-2*365*24*time.Hour))))
	same := func(*x509.Certificate) {}
	for name, c := range map[string]struct {
		by     *pki.Authority
		change func(*x509.Certificate)
		above  []*x509.Certificate
		want   error
	}{
		"right":                      {w.a, same, []*x509.Certificate{w.a.Cert}, nil},
		"right, with the root":       {w.a, same, []*x509.Certificate{w.a.Cert, w.root.Cert}, nil},
		"expired":                    {w.a, func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Second) }, []*x509.Certificate{w.a.Cert}, pki.ErrExpired},
		"not yet valid":              {w.a, func(c *x509.Certificate) { c.NotBefore = now.Add(time.Second) }, []*x509.Certificate{w.a.Cert}, pki.ErrNotYetValid},
		"expired authority":          {oldRegion, same, []*x509.Certificate{oldRegion.Cert}, pki.ErrExpired},
		"another federation":         {foreign.a, same, []*x509.Certificate{foreign.a.Cert}, pki.ErrUnknownCA},
		"its root comes along":       {foreign.a, same, []*x509.Certificate{foreign.a.Cert, foreign.root.Cert}, pki.ErrUnknownCA},
		"no authority comes along":   {w.a, same, nil, pki.ErrUnknownCA},
		"region a for region b":      {w.a, uri(f + "/region/b/agent/n1"), []*x509.Certificate{w.a.Cert}, pki.ErrOutsideRegion},
		"region a for b's server":    {w.a, uri(f + "/region/b/server/s1"), []*x509.Certificate{w.a.Cert}, pki.ErrOutsideRegion},
		"region a for global":        {w.a, uri(f + "/global/g1"), []*x509.Certificate{w.a.Cert}, pki.ErrOutsideRegion},
		"region a for operators":     {w.a, uri(f + "/operator/jane"), []*x509.Certificate{w.a.Cert}, pki.ErrOutsideRegion},
		"another federation's name":  {w.a, uri("spiffe://other/region/a/agent/n1"), []*x509.Certificate{w.a.Cert}, pki.ErrOutsideRegion},
		"root for another name":      {w.root, uri("spiffe://other/global/g1"), nil, pki.ErrOutsideRegion},
		"a name of region b in DNS":  {w.a, func(c *x509.Certificate) { c.DNSNames = []string{"n1.b.region." + w.root.ID.Federation} }, []*x509.Certificate{w.a.Cert}, pki.ErrOutsideRegion},
		"a leaf as authority":        {leaf, same, []*x509.Certificate{leaf.Cert, w.a.Cert}, pki.ErrNotLeaf},
		"an authority below another": {sub, uri(f + "/region/b/agent/n1"), []*x509.Certificate{sub.Cert, w.a.Cert}, pki.ErrOutsideRegion},
		"an authority as leaf": {w.a, func(c *x509.Certificate) {
			c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
		}, []*x509.Certificate{w.a.Cert}, pki.ErrNotLeaf},
		"a leaf that may sign":   {w.root, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign; c.BasicConstraintsValid = false }, nil, pki.ErrNotLeaf},
		"the ID of an authority": {w.root, uri(f + "/region/a"), nil, pki.ErrNotLeaf},
		"the ID of the root":     {w.root, uri(f), nil, pki.ErrNotLeaf},
		"two URIs":               {w.a, func(c *x509.Certificate) { c.URIs = append(c.URIs, must(url.Parse(f+"/global/g1"))) }, []*x509.Certificate{w.a.Cert}, pki.ErrName},
		"no URI":                 {w.a, func(c *x509.Certificate) { c.URIs = nil; c.DNSNames = []string{"n1"} }, []*x509.Certificate{w.a.Cert}, pki.ErrName},
		"a strange URI":          {w.a, uri(f + "/region/a/node/n1"), []*x509.Certificate{w.a.Cert}, pki.ErrName},
		"a path trick":           {w.a, uri(f + "/region/a/agent/%2e%2e"), []*x509.Certificate{w.a.Cert}, pki.ErrName},
		"a URL with a port":      {w.a, uri("spiffe://" + w.root.ID.Federation + ":80/region/a/agent/n1"), []*x509.Certificate{w.a.Cert}, pki.ErrName},
		"only for clients":       {w.a, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }, []*x509.Certificate{w.a.Cert}, pki.ErrUsage},
		"only for servers":       {w.a, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] }, []*x509.Certificate{w.a.Cert}, pki.ErrUsage},
		"for code":               {w.a, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} }, []*x509.Certificate{w.a.Cert}, pki.ErrUsage},
		"too many":               {w.a, same, []*x509.Certificate{w.a.Cert, w.root.Cert, w.b.Cert, foreign.a.Cert}, pki.ErrNotLeaf},
	} {
		chain := append([]*x509.Certificate{w.forge(c.by, c.change)}, c.above...)
		id, err := pki.Verify(chain, w.roots, now)
		if !errors.Is(err, c.want) || err == nil && id != w.id("region/a/agent/n1") {
			t.Errorf("%s: %v, %v; want %v", name, id, err, c.want)
		}
	}
	if _, err := pki.Verify(nil, w.roots, now); !errors.Is(err, pki.ErrName) {
		t.Errorf("no certificate: %v", err)
	}
	weak := signed(w.leaf("region/a/agent/n1"), w.a, must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader)).Public())
	if _, err := pki.Verify([]*x509.Certificate{weak, w.a.Cert}, w.roots, now); !errors.Is(err, pki.ErrKey) {
		t.Errorf("a weak key: %v", err)
	}
}

// TestTwoRoots: during a change of the root a member trusts two roots.
func TestTwoRoots(t *testing.T) {
	old, next := must(pki.NewRoot("example.org", at(now))), must(pki.NewRoot("example.org", at(now)))
	id := must(identity.Parse("spiffe://example.org/operator/jane"))
	both := must(pki.NewRoots(old.Cert, next.Cert))
	for _, root := range []*pki.Authority{old, next} {
		cert := must(root.Issue(id, newKey().Public(), time.Hour, at(now)))
		if _, err := pki.Verify([]*x509.Certificate{cert}, both, now); err != nil {
			t.Error(err)
		}
		_, err := pki.Verify([]*x509.Certificate{cert}, must(pki.NewRoots(next.Cert)), now)
		if (err == nil) != (root == next) {
			t.Errorf("with the next root alone: %v", err)
		}
	}
}

func TestAuthoritiesRefuse(t *testing.T) {
	w := newWorld()
	for _, c := range []struct {
		by   *pki.Authority
		path string
		life time.Duration
	}{
		{w.a, "region/b/agent/n1", time.Hour}, {w.a, "region/b/server/s1", time.Hour}, {w.a, "global/g1", time.Hour},
		{w.a, "operator/jane", time.Hour}, {w.a, "region/a", time.Hour}, {w.a, "", time.Hour}, {w.root, "", time.Hour},
		{w.root, "global/g1", 0}, {w.root, "global/g1", -time.Hour},
	} {
		if _, err := c.by.Issue(w.id(c.path), newKey().Public(), c.life, at(now)); !errors.Is(err, pki.ErrNotAllowed) {
			t.Errorf("%s issued %q for %s: %v", c.by.ID.Describe(), c.path, c.life, err)
		}
	}
	other := must(identity.Parse("spiffe://other/global/g1"))
	if _, err := w.root.Issue(other, newKey().Public(), time.Hour, at(now)); !errors.Is(err, pki.ErrNotAllowed) {
		t.Errorf("another federation: %v", err)
	}
	if _, err := w.a.Issue(w.id("region/a/agent/n1"), newKey().Public(), time.Hour, at(now.Add(366*24*time.Hour))); !errors.Is(err, pki.ErrNotAllowed) {
		t.Errorf("after the end of the authority: %v", err)
	}
	late := must(w.a.Issue(w.id("region/a/agent/n1"), newKey().Public(), 2*365*24*time.Hour, at(now)))
	if !late.NotAfter.Equal(w.a.Cert.NotAfter) {
		t.Errorf("a certificate ends at %s, its authority at %s", late.NotAfter, w.a.Cert.NotAfter)
	}
	leafKey := newKey()
	leaf := must(w.a.Issue(w.id("region/a/agent/n1"), leafKey.Public(), time.Hour, at(now)))
	if _, err := pki.NewAuthority(leaf, leafKey); !errors.Is(err, pki.ErrNotAllowed) {
		t.Errorf("a leaf as authority: %v", err)
	}
	if _, err := pki.NewAuthority(w.a.Cert, newKey()); !errors.Is(err, pki.ErrKey) {
		t.Errorf("another key: %v", err)
	}
	if a, err := pki.NewAuthority(w.a.Cert, w.a.Key); err != nil || a.ID != w.a.ID {
		t.Errorf("%v, %v", a, err)
	}
	if _, err := pki.NewRoot("Example", at(now)); !errors.Is(err, identity.ErrID) {
		t.Errorf("a federation in upper case: %v", err)
	}
}

// TestAnyPathIsHeldByItsAuthority: whatever an authority signs, Verify accepts no more than
// what mayIssue allows.
func TestAnyPathIsHeldByItsAuthority(t *testing.T) {
	w := newWorld()
	authorities := []*pki.Authority{w.root, w.a, w.b}
	paths := []string{"global/g1", "operator/jane", "region/a/agent/n1", "region/a/server/s1", "region/b/agent/n1", "region/b/server/s1"}
	key := newKey().Public()
	rapid.Check(t, func(t *rapid.T) {
		by := rapid.SampledFrom(authorities).Draw(t, "authority")
		id := w.id(rapid.SampledFrom(paths).Draw(t, "path"))
		chain := []*x509.Certificate{signed(w.leaf(strings.TrimPrefix(id.String(), "spiffe://"+id.Federation+"/")), by, key)}
		for _, a := range rapid.SliceOfN(rapid.SampledFrom(authorities), 0, 3).Draw(t, "sent") {
			chain = append(chain, a.Cert)
		}
		got, err := pki.Verify(chain, w.roots, now)
		allowed := by == w.root || id.Kind.Regional() && id.Region == by.ID.Region
		if err == nil && (!allowed || got != id) {
			t.Fatalf("%s signed %s: accepted as %s", by.ID, id, got)
		}
		if err != nil && allowed && (by == w.root || len(chain) > 1 && contains(chain[1:], by.Cert)) {
			t.Fatalf("%s signed %s: %v", by.ID, id, err)
		}
	})
}

func contains(all []*x509.Certificate, c *x509.Certificate) bool {
	for _, one := range all {
		if one.Equal(c) {
			return true
		}
	}
	return false
}

func TestCredentialsSurviveTheirTexts(t *testing.T) {
	w := newWorld()
	key := newKey()
	cert := must(w.a.Issue(w.id("region/a/agent/n1"), key.Public(), time.Hour, at(now)))
	chain, keyText, roots := pki.EncodeCertificates(cert, w.a.Cert), must(pki.EncodeKey(key)), pki.EncodeCertificates(w.root.Cert)
	c, err := pki.ParseCredentials(chain, keyText, roots)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := pki.Verify(c.Chain, c.Roots, now); err != nil || id != w.id("region/a/agent/n1") {
		t.Errorf("%v, %v", id, err)
	}
	other := must(pki.EncodeKey(newKey()))
	small := must(pki.EncodeKey(must(rsa.GenerateKey(rand.Reader, 1024))))
	for name, c := range map[string]struct {
		chain, key, roots []byte
		want              error
	}{
		"the key of another":      {chain, other, roots, pki.ErrKey},
		"no chain":                {nil, keyText, roots, pki.ErrCertificate},
		"no key":                  {chain, nil, roots, pki.ErrKey},
		"no roots":                {chain, keyText, []byte("\n"), pki.ErrCertificate},
		"a key in the chain":      {append(bytes.Clone(chain), keyText...), keyText, roots, pki.ErrCertificate},
		"text after the chain":    {append(bytes.Clone(chain), "x"...), keyText, roots, pki.ErrCertificate},
		"text before the chain":   {append([]byte("x"), chain...), keyText, roots, pki.ErrCertificate},
		"two keys":                {chain, append(bytes.Clone(keyText), other...), roots, pki.ErrKey},
		"a certificate as key":    {chain, chain, roots, pki.ErrKey},
		"a leaf as root":          {chain, keyText, chain, pki.ErrCertificate},
		"five certificates":       {bytes.Repeat(roots, 5), keyText, roots, pki.ErrCertificate},
		"seventeen roots":         {chain, keyText, bytes.Repeat(roots, 17), pki.ErrCertificate},
		"a large text":            {bytes.Repeat([]byte("\n"), 65<<10), keyText, roots, pki.ErrCertificate},
		"a large key":             {chain, bytes.Repeat([]byte("\n"), 65<<10), roots, pki.ErrKey},
		"a small RSA key":         {chain, small, roots, pki.ErrKey},
		"a damaged certificate":   {bytes.Replace(chain, []byte("MII"), []byte("MIJ"), 1), keyText, roots, pki.ErrCertificate},
		"an unknown kind of text": {[]byte("-----BEGIN X-----\nAAAA\n-----END X-----\n"), keyText, roots, pki.ErrCertificate},
	} {
		if _, err := pki.ParseCredentials(c.chain, c.key, c.roots); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestRequests(t *testing.T) {
	w := newWorld()
	key := newKey()
	id := w.id("region/a/agent/n1")
	text := must(pki.NewRequest(id, key, rand.Reader))
	got, public, err := pki.ParseRequest(text)
	if err != nil || got != id || !key.Public().(*ecdsa.PublicKey).Equal(public) {
		t.Errorf("%v, %v, %v", got, public, err)
	}
	for name, bad := range map[string][]byte{
		"empty": nil, "two": bytes.Repeat(text, 2), "a certificate": pki.EncodeCertificates(w.a.Cert),
		"large": append(text, bytes.Repeat([]byte(" "), 64<<10)...), "cut": text[:len(text)/2],
	} {
		if got, _, err := pki.ParseRequest(bad); !errors.Is(err, pki.ErrRequest) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := pki.NewRequest(identity.ID{}, key, rand.Reader); !errors.Is(err, identity.ErrID) {
		t.Errorf("an empty ID: %v", err)
	}
}

func TestLife(t *testing.T) {
	from, to := now, now.Add(100*time.Hour)
	issued := from.Add(-pki.Backdate) // a certificate becomes valid before it is issued
	for random, want := range map[float64]time.Duration{-1: 50 * time.Hour, 0: 50 * time.Hour, 0.5: 65 * time.Hour, 0.999: 79*time.Hour + 58*time.Minute + 12*time.Second, 7: 80 * time.Hour} {
		if got := pki.RenewAt(from, to, random).Sub(from).Round(time.Second); got != want {
			t.Errorf("random %v: %s, want %s", random, got, want)
		}
	}
	for left, want := range map[time.Duration]bool{11 * time.Hour: false, 10 * time.Hour: false, 10*time.Hour - 1: true, 0: true, -time.Hour: true} {
		if got := pki.Ending(issued, to, to.Add(-left)); got != want {
			t.Errorf("with %s left: %t, want %t", left, got, want)
		}
	}
}
