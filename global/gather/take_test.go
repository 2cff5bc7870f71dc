package gather

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/auditwire"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// trail is the trail of a region.
type trail struct {
	t                 *testing.T
	name, key, signer string
	entries           []audit.Entry
	trees             []audit.Tree // before each entry, and after the last one
}

func newTrail(t *testing.T, region, cluster string, entries int, text string) *trail {
	t.Helper()
	x := &trail{t: t, name: audit.RegionTrail(region, cluster), trees: []audit.Tree{{}}}
	var err error
	x.signer, x.key, err = audit.GenerateKey(rand.Reader, x.name)
	if err != nil {
		t.Fatal(err)
	}
	x.add(entries, text)
	return x
}

func (x *trail) add(n int, text string) {
	for range n {
		e := audit.Entry{Seq: int64(len(x.entries)) + 1, Time: time.Unix(5, 0).UTC(), Verb: "exec", Reason: text}
		x.entries, x.trees = append(x.entries, e), append(x.trees, x.trees[len(x.entries)].Append(e.Hash()))
	}
}

// part returns the entries after from, up to to, as a region forwards them.
func (x *trail) part(from, to int, change ...func(*nusav1.ForwardAuditResponse)) *nusav1.ForwardAuditResponse {
	x.t.Helper()
	signed, err := audit.Sign(x.signer, x.trees[to])
	if err != nil {
		x.t.Fatal(err)
	}
	out := &nusav1.ForwardAuditResponse{Trail: x.name, Key: x.key, Signed: signed, Part: &nusav1.AuditPart{Before: auditwire.FromTree(x.trees[from])}}
	for _, e := range x.entries[from:to] {
		m, hash := auditwire.FromEntry(e), e.Hash()
		m.Hash = hash[:]
		out.Part.Entries = append(out.Part.Entries, m)
	}
	for _, f := range change {
		f(out)
	}
	return out
}

// at returns the cursor of a trail whose first entries are stored.
func (x *trail) at(size int) Cursor {
	return Cursor{Trail: x.name, Key: x.key, Tree: x.trees[size], Branch: 2, Lost: 1}
}

// TestTake: what a region forwards is stored if it continues the trail. A trail that cannot do that is
// stored as a new branch, and a gap is counted. Everything else is refused.
func TestTake(t *testing.T) {
	a := newTrail(t, "alpha", "c1", 10, "a")
	again := newTrail(t, "alpha", "c2", 10, "a")
	foreign := newTrail(t, "beta", "c1", 10, "b")
	forked := func(r *nusav1.ForwardAuditResponse) { r.Forked = true }
	for _, c := range []struct {
		name           string
		from           Cursor
		resp           *nusav1.ForwardAuditResponse
		entries        int
		branch, lost   int64
		note, problems string
	}{
		{"the first entries", Cursor{}, a.part(0, 4), 4, 0, 0, "", ""},
		{"the first entries that are left", Cursor{}, a.part(3, 4), 1, 0, 3, "entries 1 to 3 are missing", ""},
		{"the next entries", a.at(4), a.part(4, 10), 6, 2, 1, "", ""},
		{"nothing new", a.at(4), a.part(4, 4), 0, 2, 1, "", ""},
		{"a gap", a.at(4), a.part(6, 8), 2, 2, 3, "entries 5 to 6 are missing", ""},
		{"a fork", a.at(4), a.part(0, 3, forked), 3, 3, 1, "starts again", ""},
		{"a fork with missing entries", a.at(8), a.part(2, 3, forked), 1, 3, 3, "starts again", ""},
		{"another cluster", a.at(4), again.part(0, 2), 2, 3, 1, "starts again", ""},
		{"stored entries again", a.at(4), a.part(3, 5), 0, 0, 0, "", "it follows 3 entries, 4 are stored"},
		{"another region", Cursor{}, foreign.part(0, 2), 0, 0, 0, "", "region/beta"},
		{"a changed entry", a.at(4), a.part(4, 6, func(r *nusav1.ForwardAuditResponse) { r.Part.Entries[1].Who = "mallory" }), 0, 0, 0, "", "entry 6"},
		{"a missing entry", a.at(4), a.part(4, 6, func(r *nusav1.ForwardAuditResponse) { r.Part.Entries = r.Part.Entries[1:] }), 0, 0, 0, "", "entry 6 is not entry 5"},
		{"a left out end", a.at(4), a.part(4, 6, func(r *nusav1.ForwardAuditResponse) { r.Part.Entries = r.Part.Entries[:1] }), 0, 0, 0, "", "its checkpoint"},
		{"another signature", a.at(4), a.part(4, 6, func(r *nusav1.ForwardAuditResponse) { r.Signed = again.part(4, 6).GetSigned() }), 0, 0, 0, "", "not signed"},
		{"no tree", a.at(4), &nusav1.ForwardAuditResponse{Part: &nusav1.AuditPart{Before: &nusav1.AuditTree{Size: 3}}}, 0, 0, 0, "", "hashes"},
	} {
		out, err := Take(c.from, "alpha", c.resp)
		if c.problems != "" {
			if err == nil || !strings.Contains(err.Error(), c.problems) {
				t.Errorf("%s: %v, want %q", c.name, err, c.problems)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got := out.Cursor
		if len(out.Entries) != c.entries || got.Branch != c.branch || got.Lost != c.lost || (c.note == "") != (out.Note == "") || !strings.Contains(out.Note, c.note) {
			t.Errorf("%s: %d entries, branch %d, lost %d, %q", c.name, len(out.Entries), got.Branch, got.Lost, out.Note)
		}
		if after := out.Before.Size + int64(c.entries); got.Tree.Size != after || got.Signed != c.resp.GetSigned() {
			t.Errorf("%s: the cursor is at %d, want %d", c.name, got.Tree.Size, after)
		}
		back, err := fromRecord(got.record())
		if err != nil || !back.Tree.Equal(got.Tree) || back.Branch != got.Branch || back.Lost != got.Lost || back.Trail != got.Trail || back.Key != got.Key {
			t.Errorf("%s: stored and read again: %+v, %v", c.name, back, err)
		}
	}
}
