package enroll

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/rotation"
)

// memory is a Store in memory.
type memory struct {
	values   map[string][]byte
	versions map[string]uint64
	last     uint64
}

func newMemory() *memory { return &memory{values: map[string][]byte{}, versions: map[string]uint64{}} }

func (m *memory) Get(_ context.Context, key string) ([]byte, uint64, error) {
	return m.values[key], m.versions[key], nil
}

func (m *memory) List(_ context.Context, prefix string, visit func(string, []byte, uint64) error) error {
	var keys []string
	for key := range m.values {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if err := visit(key, m.values[key], m.versions[key]); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) Change(_ context.Context, c Change) error {
	for _, check := range c.Checks {
		if m.versions[check.Key] != check.Version {
			return ErrChanged
		}
	}
	m.last++
	for _, p := range c.Puts {
		m.values[p.Key], m.versions[p.Key] = p.Value, m.last
	}
	for _, key := range c.Deletes {
		delete(m.values, key)
		delete(m.versions, key)
	}
	return nil
}

func (m *memory) set(t *testing.T, key string, msg proto.Message) {
	t.Helper()
	p, err := put(key, msg)
	if err == nil {
		err = m.Change(t.Context(), Change{Puts: []Put{p}})
	}
	if err != nil {
		t.Fatal(err)
	}
}

var start = time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)

func newRoot(t *testing.T, federation string) *pki.Authority {
	t.Helper()
	a, err := pki.NewRoot(federation, pki.Env{Now: start, Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func readRoot(t *testing.T, m *memory, given ...*pki.Authority) *Root {
	t.Helper()
	root, err := ReadRoot(t.Context(), m, given)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// step does a step, and returns the text of its error.
func step(t *testing.T, m *memory, req *nusav1.RotateAuthorityRequest, given ...*pki.Authority) string {
	t.Helper()
	if err := readRoot(t, m, given...).Rotate(t.Context(), m, req, given, &rotation.Waiting{}, start); err != nil {
		return err.Error()
	}
	return ""
}

// TestRotateInTheStore: the store has the keys of both roots during a change, and then only that of the
// later one. Certificates of the later root come with what the earlier one says about it.
func TestRotateInTheStore(t *testing.T) {
	m, first := newMemory(), newRoot(t, "")
	if err := CreateRoot(t.Context(), m, first, true); err != nil {
		t.Fatal(err)
	}
	if err := CreateRoot(t.Context(), m, newRoot(t, ""), true); err == nil {
		t.Error("a second root is created")
	}
	if goal := readRoot(t, m).Goal(); goal != nil {
		t.Errorf("members should have %v before any change", goal)
	}
	for _, c := range []struct {
		phase          string
		roots, vouched int
		sameIssuer     bool
	}{
		{"trust", 2, 0, true}, {"rollback", 1, 0, true}, {"trust", 2, 0, true}, {"issue", 2, 1, false}, {"rollback", 2, 0, true},
		{"issue", 2, 1, false}, {"distrust", 1, 1, false}, {"trust", 2, 0, false},
	} {
		if why := step(t, m, &nusav1.RotateAuthorityRequest{Phase: c.phase}); why != "" {
			t.Fatalf("%s: %s", c.phase, why)
		}
		root := readRoot(t, m)
		if n, v, same := len(root.Certificates()), len(root.Above()), root.Authority.Cert.Equal(first.Cert); n != c.roots || v != c.vouched || same != c.sameIssuer {
			t.Errorf("%s: %d roots, %d certificates above, the first root issues: %v", c.phase, n, v, same)
		}
		if root.Authority.Key == nil || root.Check(nil) != nil {
			t.Errorf("%s: the store does not have the key of the root that issues", c.phase)
		}
		record := &nusav1.AuthorityRecord{}
		if _, err := read(t.Context(), m, AuthorityKey, record); err != nil {
			t.Fatal(err)
		}
		if (len(record.GetOtherKey()) > 0) != (c.roots == 2) {
			t.Errorf("%s: the store has the key of the other root: %v", c.phase, len(record.GetOtherKey()) > 0)
		}
		if goal := root.Goal(); len(goal.GetWant().GetRoots()) != c.roots || goal.GetWant().GetIssuer() != pki.Fingerprint(root.Authority.Cert) {
			t.Errorf("%s: members should have %v", c.phase, goal)
		}
	}
	later := readRoot(t, m)
	if why := step(t, m, &nusav1.RotateAuthorityRequest{Phase: "rollback"}); why != "" {
		t.Fatal(why)
	}
	if err := later.Rotate(t.Context(), m, &nusav1.RotateAuthorityRequest{Phase: "issue"}, nil, &rotation.Waiting{}, start); err == nil || !strings.Contains(err.Error(), "another call has changed the root") {
		t.Errorf("a step after a step of another call: %v", err)
	}
}

// TestRotateRefuses: roots that cannot be those of the federation, or that nobody can issue with.
func TestRotateRefuses(t *testing.T) {
	first, second := newRoot(t, ""), (*pki.Authority)(nil)
	second, err := first.NextRoot(pki.Env{Now: start, Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	region, err := first.NewRegion("a", pki.Env{Now: start, Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	other := newRoot(t, "other.example")
	pemOf := func(a *pki.Authority) ([]byte, []byte) {
		key, err := pki.EncodeKey(a.Key)
		if err != nil {
			t.Fatal(err)
		}
		return pki.EncodeCertificates(a.Cert), key
	}
	ofOther, keyOfOther := pemOf(other)
	ofRegion, keyOfRegion := pemOf(region)
	ofFirst, keyOfFirst := pemOf(first)
	ofSecond, keyOfSecond := pemOf(second)
	stored, files := newMemory(), newMemory()
	if err := CreateRoot(t.Context(), stored, first, true); err != nil {
		t.Fatal(err)
	}
	if err := CreateRoot(t.Context(), files, first, false); err != nil {
		t.Fatal(err)
	}
	one := []*pki.Authority{first}
	for _, c := range []struct {
		name      string
		m         *memory
		given     []*pki.Authority
		cert, key []byte
		want      string
	}{
		{"another federation", stored, nil, ofOther, keyOfOther, "not of federation"},
		{"a region", stored, nil, ofRegion, keyOfRegion, "not of federation"},
		{"the present root", stored, nil, ofFirst, keyOfFirst, "the new root is the present one"},
		{"the key of another root", stored, nil, ofSecond, keyOfFirst, "the key belongs to another certificate"},
		{"no key", stored, nil, ofSecond, nil, "needs its key"},
		{"no certificate", stored, nil, []byte("x"), nil, "not certificates in PEM"},
		{"files with one root", files, one, nil, nil, "append both it and its key to the files"},
		{"store without key, no files", files, nil, ofSecond, nil, "the store does not have its key"},
	} {
		if why := step(t, c.m, &nusav1.RotateAuthorityRequest{Phase: "trust", Certificate: c.cert, Key: c.key}, c.given...); !strings.Contains(why, c.want) {
			t.Errorf("%s: %q, want %q", c.name, why, c.want)
		}
	}
	if why := step(t, stored, &nusav1.RotateAuthorityRequest{Phase: "trust", Certificate: ofSecond, Key: keyOfSecond}); why != "" {
		t.Errorf("a root of the operator: %s", why)
	}
	// The files have both roots, and the store no key.
	if why := step(t, files, &nusav1.RotateAuthorityRequest{Phase: "trust"}, first, second); why != "" {
		t.Fatal(why)
	}
	if why := step(t, files, &nusav1.RotateAuthorityRequest{Phase: "issue"}, first); !strings.Contains(why, "does not have the key of root") {
		t.Errorf("a server without the key of the new root: %q", why)
	}
	if why := step(t, files, &nusav1.RotateAuthorityRequest{Phase: "issue"}, first, second); why != "" {
		t.Fatal(why)
	}
	record := &nusav1.AuthorityRecord{}
	if _, err := read(t.Context(), files, AuthorityKey, record); err != nil || len(record.GetKey())+len(record.GetOtherKey()) > 0 {
		t.Errorf("the store has keys of roots that are in files: %v", err)
	}
	if err := readRoot(t, files, first).Check([]*pki.Authority{first}); err == nil {
		t.Error("a server starts that has the key of the earlier root only")
	}
}

// TestFirstRing: the first server of a region that takes keys makes its ring. Regions with servers that
// do not take keys get none.
func TestFirstRing(t *testing.T) {
	server := func(region, name string) identity.ID {
		return identity.ID{Federation: "f", Kind: identity.Server, Region: region, Name: name}
	}
	m := newMemory()
	m.set(t, memberKey("server", "old", "s1"), &nusav1.Member{Role: "server", Region: "old", Name: "s1"})
	m.set(t, RingKey(GossipRing, "has"), &nusav1.KeyRingRecord{Version: 3, Keys: [][]byte{[]byte("key")}})
	for _, c := range []struct {
		id    identity.ID
		takes bool
		made  bool
	}{
		{server("new", "s1"), true, true},
		{server("new", "s1"), false, false},
		{server("old", "s2"), true, false},
		{server("has", "s2"), true, false},
		{identity.ID{Federation: "f", Kind: identity.Agent, Region: "new", Name: "n1"}, true, false},
	} {
		check, ring, err := firstRing(t.Context(), m, c.id, c.takes, start)
		if err != nil || (ring != nil) != c.made {
			t.Errorf("%s, takes %v: %v, %v", c.id, c.takes, ring != nil, err)
		}
		if ring != nil && (len(ring.GetKeys()) != 1 || len(ring.GetKeys()[0]) != 32 || check.Version != 0) {
			t.Errorf("the ring of %s has %d keys", c.id, len(ring.GetKeys()))
		}
	}
	out := &nusav1.JoinResponse{}
	if err := ringsOf(t.Context(), m, server("has", "s2"), out); err != nil || len(out.GetGossipKeys()) != 1 {
		t.Errorf("a server gets %d keys: %v", len(out.GetGossipKeys()), err)
	}
	out = &nusav1.JoinResponse{}
	agent := identity.ID{Federation: "f", Kind: identity.Agent, Region: "has", Name: "n1"}
	if err := ringsOf(t.Context(), m, agent, out); err != nil || len(out.GetGossipKeys()) != 0 {
		t.Errorf("an agent gets %d keys: %v", len(out.GetGossipKeys()), err)
	}
}

// TestRingChanges: keys of probes begin with packets that have none. A region without keys gets none.
func TestRingChanges(t *testing.T) {
	m := newMemory()
	change := func(req *nusav1.ChangeRingRequest, waiting *rotation.Waiting) string {
		ring, err := ReadRing(t.Context(), m, req.GetRing(), req.GetRegion())
		if err == nil {
			err = ring.Change(t.Context(), m, req, waiting, start)
		}
		if err != nil {
			return err.Error()
		}
		ring, err = ReadRing(t.Context(), m, req.GetRing(), req.GetRegion())
		if err != nil {
			return err.Error()
		}
		return strings.Join(ring.Status().GetKeys(), " ")
	}
	none, late := &rotation.Waiting{}, &rotation.Waiting{Members: 1, Some: []string{"s1"}}
	key := []byte("0123456789abcdef")
	id := KeyID(key)
	for _, c := range []struct {
		req     *nusav1.ChangeRingRequest
		waiting *rotation.Waiting
		want    string
	}{
		{&nusav1.ChangeRingRequest{Ring: ProbeRing, Step: "install", Key: key}, none, "none " + id},
		{&nusav1.ChangeRingRequest{Ring: ProbeRing, Step: "use"}, late, "would separate"},
		{&nusav1.ChangeRingRequest{Ring: ProbeRing, Step: "use"}, none, id + " none"},
		{&nusav1.ChangeRingRequest{Ring: ProbeRing, Step: "remove", Id: "none"}, none, id},
		{&nusav1.ChangeRingRequest{Ring: ProbeRing, Step: "install", Key: []byte("short")}, none, "must have 16 to 128"},
		{&nusav1.ChangeRingRequest{Ring: ProbeRing, Step: "use", Key: key}, none, "only the step install takes a key"},
		{&nusav1.ChangeRingRequest{Ring: ProbeRing, Region: "a", Step: "install"}, none, "give gossip with a region"},
		{&nusav1.ChangeRingRequest{Ring: GossipRing, Step: "install"}, none, "give gossip with a region"},
		{&nusav1.ChangeRingRequest{Ring: GossipRing, Region: "a", Step: "install"}, none, "keeps no keys of gossip here"},
		{&nusav1.ChangeRingRequest{Ring: GossipRing, Region: "a", Step: "install", Key: []byte("short")}, none, "must have 16, 24 or 32"},
	} {
		if got := change(c.req, c.waiting); got != c.want && !strings.Contains(got, c.want) {
			t.Errorf("%v: %q, want %q", c.req.GetStep(), got, c.want)
		}
	}
}

// TestLagging: members that cannot come back without a token, and banned ones, hold nothing back. All
// others do until they have what they should.
func TestLagging(t *testing.T) {
	ca, m := pkitest.New(t), newMemory()
	s := &Server{
		Source: ca.Source("region/a/server/s1"), Region: "a", Now: func() time.Time { return start }, Log: slog.New(slog.DiscardHandler),
		Store: func() (Store, error) { return m, nil },
	}
	good := &nusav1.KeyState{Roots: []string{"A", "B"}, Issuer: "A"}
	for name, one := range map[string]*nusav1.Member{
		"good":    {NotAfter: timestamppb.New(start.Add(time.Hour)), Has: good},
		"late":    {NotAfter: timestamppb.New(start.Add(time.Hour)), Has: &nusav1.KeyState{Roots: []string{"A"}, Issuer: "A"}},
		"silent":  {NotAfter: timestamppb.New(start.Add(time.Hour))},
		"off":     {NotAfter: timestamppb.New(start.Add(-time.Hour)), Has: &nusav1.KeyState{Roots: []string{"A"}, Issuer: "A"}},
		"gone":    {NotAfter: timestamppb.New(start.Add(-365 * 24 * time.Hour))},
		"refused": {NotAfter: timestamppb.New(start.Add(time.Hour))},
	} {
		one.Role, one.Region, one.Name = "agent", "a", name
		m.set(t, memberKey("agent", "a", name), one)
	}
	m.set(t, bansKey, &nusav1.BanList{Bans: []*nusav1.MemberBan{{Role: "agent", Region: "a", Name: "refused"}}})
	known := map[identity.ID]bool{ca.ID("region/a/agent/good"): true, ca.ID("region/a/agent/made"): true}
	got, err := Lagging(t.Context(), s, identity.Agent, "a", &rotation.State{Roots: []string{"A", "B"}, Issuer: "A"}, known)
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, l := range got.Lags {
		text = append(text, l.GetMember()+": "+l.GetLacks())
	}
	want := []string{
		"agent late of region a: does not trust root B",
		"agent made of region a: has an identity that `nusa ca issue` made: replace its files",
		"agent off of region a: does not trust root B; its certificate ended at 2026-11-23T23:00:00Z, so it is off",
		"agent silent of region a: has not reported what it has",
	}
	if got.Converged != 1 || got.Waiting != len(want) || !slices.Equal(text, want) {
		t.Errorf("%d converged, %d waiting:\n%s\nwant\n%s", got.Converged, got.Waiting, strings.Join(text, "\n"), strings.Join(want, "\n"))
	}
	got.Add(&nusav1.KeyLag{Member: "g1", Lacks: "a note", Note: true})
	hold := got.Hold([]*nusav1.PartialError{{Region: "b"}})
	if hold.Members != len(want) || len(hold.Some) != len(want) || !slices.Equal(hold.Silent, []string{"b"}) {
		t.Errorf("the next step is held back by %+v", hold)
	}
}

// TestReportsAreBounded: a member cannot fill the store with what it says that it has.
func TestReportsAreBounded(t *testing.T) {
	many := make([]string, 17)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for _, bad := range []*nusav1.KeyState{{Roots: many}, {Gossip: []string{strings.Repeat("x", 65)}}, {Issuer: strings.Repeat("x", 65)}, {Probe: many}, {EtcdRoots: many}} {
		if checkState(bad) == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
	if err := checkState(&nusav1.KeyState{Roots: many[:16], Issuer: "A"}); err != nil {
		t.Error(err)
	}
}
