package enroll

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
)

// door is a server of region a, with one token for agents, and with the agent n1 that has joined.
type door struct {
	*Server
	ca    *pkitest.CA
	store *memory
	token join.Token
	n1    pki.Credentials
}

func newDoor(f testing.TB) *door {
	ca := pkitest.New(f)
	d := &door{ca: ca, store: newMemory(), n1: ca.Issue("region/a/agent/n1")}
	source, authority := ca.Source("region/a/server/s1"), ca.Region("a")
	d.Server = &Server{
		Source: source, Region: "a", Now: func() time.Time { return ca.Now }, Log: slog.New(slog.DiscardHandler),
		Store: func() (Store, error) { return d.store, nil },
		Issuer: func() (*Issuer, error) {
			return &Issuer{Authority: authority, Now: func() time.Time { return ca.Now }}, nil
		},
	}
	root, err := d.rootHash()
	if err != nil {
		f.Fatal(err)
	}
	var random [join.RandomBytes]byte
	copy(random[:], "a token that everybody may know")
	d.token = join.New(random, root)
	record := recordOf(&join.Record{ID: d.token.ID(), Secret: d.token.Hash(), Kind: identity.Agent, Region: "a", Name: "n*", Pool: "gpu", Uses: 1,
		Created: ca.Now, Expires: ca.Now.Add(time.Hour)})
	leaf := d.n1.Chain[0]
	key := hashOf(leaf)
	member := &nusav1.Member{Role: "agent", Region: "a", Name: "n1", Key: key[:], NotAfter: timestamppb.New(leaf.NotAfter)}
	first, err := put(tokenPrefix+d.token.ID(), record)
	if err != nil {
		f.Fatal(err)
	}
	second, err := put(memberKey("agent", "a", "n1"), member)
	if err != nil {
		f.Fatal(err)
	}
	if err := d.store.Change(f.Context(), Change{Puts: []Put{first, second}}); err != nil {
		f.Fatal(err)
	}
	return d
}

// request returns a request of a member for a certificate with a new key.
func (d *door) request(f testing.TB, member string) []byte {
	key, err := pki.NewKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	out, err := pki.NewRequest(d.ca.ID(member), key, rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	return out
}

// fresh returns a server with a copy of the store.
func (d *door) fresh() (*Server, *memory) {
	m := &memory{values: maps.Clone(d.store.values), versions: maps.Clone(d.store.versions), last: d.store.last}
	s := &Server{Source: d.Source, Region: d.Region, Issuer: d.Issuer, Now: d.Now, Log: d.Log, Store: func() (Store, error) { return m, nil }}
	return s, m
}

// checkAnswer checks the answer to a request: without a certificate nothing is written, and a certificate is that
// of the member who asked, with its key.
func (d *door) checkAnswer(t *testing.T, m *memory, request []byte, out *nusav1.JoinResponse, err error) (id identity.ID) {
	t.Helper()
	if err != nil {
		if out != nil || !maps.EqualFunc(m.values, d.store.values, bytes.Equal) {
			t.Fatalf("a refused request (%v) has changed the store, or has the answer %v", err, out)
		}
		text := status.Convert(err).Message()
		if strings.Contains(text, strings.Split(d.token.Reveal(), ".")[2]) || len(text) > 2000 {
			t.Fatalf("the refusal has the secret, or %d bytes", len(text))
		}
		switch status.Code(err) {
		case codes.PermissionDenied, codes.InvalidArgument, codes.Unauthenticated:
		default:
			t.Fatalf("refused with %v", err)
		}
		return identity.ID{}
	}
	asked, key, err := pki.ParseRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := pki.ParseCertificates(out.GetChain(), maxChain)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := pki.NewRoots(d.ca.Root.Cert)
	if err != nil {
		t.Fatal(err)
	}
	id, err = pki.Verify(chain, roots, d.ca.Now)
	if err != nil || id != asked || id.Kind != identity.Agent || id.Region != "a" || len(out.GetAuthority()) > 0 || len(out.GetGossipKeys()) > 0 {
		t.Fatalf("%s asks, and becomes %s: %v", asked, id, err)
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil || join.HashOf(der) != hashOf(chain[0]) {
		t.Fatalf("the certificate has another key: %v", err)
	}
	return id
}

// FuzzJoin: whatever a stranger sends, it is refused and nothing changes, or it has the token and becomes the
// agent that the token is for, once.
func FuzzJoin(f *testing.F) {
	d := newDoor(f)
	good, text := d.request(f, "region/a/agent/n2"), d.token.Reveal()
	f.Add(good, text, "", []byte{}, false, true)
	f.Add(good, "", "gpu", []byte{}, false, false)
	f.Add(good, "nusa1."+text, "gpu", []byte{}, true, true)
	f.Add(good, strings.Replace(text, d.token.ID(), "00000000", 1), "", []byte{}, false, false)
	f.Add(good, text, "other", []byte{}, false, false)
	f.Add(good, text, "", d.request(f, "region/a/agent/n3"), false, false)
	for _, member := range []string{"region/b/agent/n2", "region/a/server/s2", "region/a/agent/m2", "operator/jane", "global/g1", "region/a/agent/n1"} {
		f.Add(d.request(f, member), text, "", []byte{}, true, true)
	}
	f.Add(pki.EncodeCertificates(d.ca.Root.Cert), text, "", good, false, false)
	f.Fuzz(func(t *testing.T, request []byte, token, pool string, authority []byte, nameOfToken, takesKeys bool) {
		s, m := d.fresh()
		req := &nusav1.JoinRequest{Request: request, Token: token, Pool: pool, AuthorityRequest: authority, NameOfToken: nameOfToken, TakesKeys: takesKeys}
		out, err := (&identityAPI{s: s}).Join(t.Context(), req)
		id := d.checkAnswer(t, m, request, out, err)
		if err != nil {
			return
		}
		if strings.TrimSpace(token) != d.token.Reveal() || !strings.HasPrefix(id.Name, "n") || id.Name == "n1" || out.GetPool() != "gpu" {
			t.Fatalf("%s joins in pool %q with the token %q", id, out.GetPool(), token)
		}
		record := &nusav1.TokenRecord{}
		if _, err := read(t.Context(), m, tokenPrefix+d.token.ID(), record); err != nil || record.GetToken().GetUses() != 0 || len(record.GetRecent()) != 1 {
			t.Fatalf("the token is %v, %v", record, err)
		}
	})
}

// FuzzRenew: whatever a stranger sends, it is refused and nothing changes, or it has the certificate and the
// key of the agent that joined, and gets the next certificate of that agent.
func FuzzRenew(f *testing.F) {
	d := newDoor(f)
	renewal, err := pki.NewRequest(d.ca.ID("region/a/agent/n1"), d.n1.Key, rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	chain := pki.EncodeCertificates(d.n1.Chain...)
	f.Add(chain, renewal, []byte{}, "k")
	f.Add(chain, renewal, d.request(f, "region/a/agent/n1"), "")
	f.Add(chain, d.request(f, "region/a/agent/n1"), []byte{}, "")
	f.Add(pki.EncodeCertificates(d.n1.Chain[0]), renewal, []byte{}, "")
	f.Add(pki.EncodeCertificates(d.ca.Issue("region/b/agent/n1").Chain...), renewal, []byte{}, strings.Repeat("k", 1000))
	f.Add([]byte{}, []byte{}, []byte{}, "")
	f.Fuzz(func(t *testing.T, chain, request, authority []byte, has string) {
		s, m := d.fresh()
		req := &nusav1.RenewRequest{Chain: chain, Request: request, AuthorityRequest: authority, Has: &nusav1.KeyState{Roots: []string{has}}}
		out, err := (&identityAPI{s: s}).Renew(t.Context(), req)
		id := d.checkAnswer(t, m, request, out, err)
		if err != nil {
			return
		}
		if id.Name != "n1" {
			t.Fatalf("%s renews", id)
		}
		record := &nusav1.Member{}
		if _, err := read(t.Context(), m, memberKey("agent", "a", "n1"), record); err != nil || len(record.GetHas().GetRoots()[0]) > maxStateText || len(m.values) != len(d.store.values) {
			t.Fatalf("the member is %v, %v", record, err)
		}
	})
}

// TestReplays: a request to join or to renew that is sent again gives its key nothing more. With another
// key, after a new key, and after a ban it is refused.
func TestReplays(t *testing.T) {
	d := newDoor(t)
	s, m := d.fresh()
	api := &identityAPI{s: s}
	first := &nusav1.JoinRequest{Request: d.request(t, "region/a/agent/n2"), Token: d.token.Reveal()}
	renewal, err := pki.NewRequest(d.ca.ID("region/a/agent/n1"), d.n1.Key, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	renew := &nusav1.RenewRequest{Chain: pki.EncodeCertificates(d.n1.Chain...), Request: renewal}
	for range 2 {
		if _, err := api.Join(t.Context(), first); err != nil {
			t.Errorf("the same request: %v", err)
		}
		if _, err := api.Renew(t.Context(), renew); err != nil {
			t.Errorf("the same renewal: %v", err)
		}
	}
	record := &nusav1.TokenRecord{}
	if _, err := read(t.Context(), m, tokenPrefix+d.token.ID(), record); err != nil || record.GetToken().GetUses() != 0 || len(record.GetRecent()) != 1 {
		t.Errorf("the token is %v, %v", record, err)
	}
	for what, request := range map[string][]byte{
		"another key": d.request(t, "region/a/agent/n2"), "another name": d.request(t, "region/a/agent/n3"),
		"another region": d.request(t, "region/b/agent/n2"), "another role": d.request(t, "region/a/server/n2"),
	} {
		if _, err := api.Join(t.Context(), &nusav1.JoinRequest{Request: request, Token: d.token.Reveal()}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The member has joined again with another key.
	other := hashOf(d.ca.Issue("region/a/agent/n1").Chain[0])
	member := &nusav1.Member{Role: "agent", Region: "a", Name: "n1", Key: other[:], NotAfter: timestamppb.New(d.ca.Now.Add(time.Hour))}
	m.set(t, memberKey("agent", "a", "n1"), member)
	if out, err := api.Renew(t.Context(), renew); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a renewal of the earlier key: %v, %v", out, err)
	}
	s, m = d.fresh()
	m.set(t, bansKey, &nusav1.BanList{Bans: []*nusav1.MemberBan{{Role: "agent", Region: "a", Name: "n1"}}})
	if out, err := (&identityAPI{s: s}).Renew(t.Context(), renew); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a renewal after a ban: %v, %v", out, err)
	}
}
