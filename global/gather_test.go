package global

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/auditwire"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// regionTrail is the audit trail of a fake region.
type regionTrail struct {
	nusav1.UnimplementedAuditServer
	t                 *testing.T
	region, key, sign string
	mu                sync.Mutex
	entries           []audit.Entry
	trees             []audit.Tree // before each entry, and after the last one
	removed           int          // how many entries the region has no longer
	most              int          // how many entries a part has
	parts             int
}

func newRegionTrail(t *testing.T, region string) *regionTrail {
	t.Helper()
	x := &regionTrail{t: t, region: region, trees: []audit.Tree{{}}, most: 4}
	var err error
	x.sign, x.key, err = audit.GenerateKey(rand.Reader, x.name())
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *regionTrail) name() string { return audit.RegionTrail(x.region, "cluster-"+x.region) }

// add adds entries with these names.
func (x *regionTrail) add(names ...string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, name := range names {
		e := audit.Entry{Seq: int64(len(x.entries)) + 1, Time: time.Now(), Verb: "exec", Kind: "allocation", Name: name, Region: x.region, Outcome: audit.Started}.Bounded()
		x.entries, x.trees = append(x.entries, e), append(x.trees, x.trees[len(x.entries)].Append(e.Hash()))
	}
}

// back removes the entries behind the first n, as a restored copy of the log does.
func (x *regionTrail) back(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.entries, x.trees = slices.Clone(x.entries[:n]), slices.Clone(x.trees[:n+1])
}

func (x *regionTrail) Forward(_ context.Context, req *nusav1.ForwardAuditRequest) (*nusav1.ForwardAuditResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	stored, err := auditwire.Tree(req.GetStored())
	if err != nil {
		return nil, err
	}
	x.parts++
	out := &nusav1.ForwardAuditResponse{Trail: x.name(), Key: x.key}
	from := x.removed
	if size := int(stored.Size); size > len(x.entries) || size >= x.removed && !x.trees[size].Equal(stored) {
		out.Forked = true
	} else if size >= x.removed {
		from = size
	}
	to := min(from+x.most, len(x.entries))
	out.More, out.Part = to < len(x.entries), &nusav1.AuditPart{Before: auditwire.FromTree(x.trees[from])}
	for _, e := range x.entries[from:to] {
		m, hash := auditwire.FromEntry(e), e.Hash()
		m.Hash = hash[:]
		out.Part.Entries = append(out.Part.Entries, m)
	}
	out.Signed, err = audit.Sign(x.sign, x.trees[to])
	return out, err
}

// tell reports how many entries the region's trail has.
func (x *regionTrail) tell(r *fakeRegion) {
	m := r.report()
	x.mu.Lock()
	m.GetReport().AuditEntries = int64(len(x.entries))
	x.mu.Unlock()
	r.send(m)
}

// listed returns the entries of a list, each as "source number name".
func (s *testServer) listed(req *nusav1.ListAuditRequest) (out []string) {
	s.t.Helper()
	for {
		resp, err := s.audit().List(s.t.Context(), req)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, e := range resp.GetEntries() {
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %d %s", e.GetSource(), e.GetSeq(), e.GetName())))
		}
		req.Page = resp.GetNextPage()
		if req.Page == "" {
			return out
		}
	}
}

// awaitStored waits until this many entries of a region are stored.
func (s *testServer) awaitStored(x *regionTrail, r *fakeRegion, want int64) {
	s.t.Helper()
	deadline := time.Now().Add(testWait)
	for {
		x.tell(r)
		end, err := s.audit().Checkpoint(s.t.Context(), &nusav1.AuditCheckpointRequest{Region: x.region, Stored: true})
		if err == nil && end.GetSize() == want {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%d entries of region %s are stored, want %d: %v", end.GetSize(), x.region, want, err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-s.t.Context().Done():
		}
	}
}

// TestRegionsForwardTheirTrails: the entries of regions are stored once, also those of before the
// region connected, and a later server goes on from there. Lists show them with their source. What is
// stored can be exported and verified without the region.
func TestRegionsForwardTheirTrails(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	trail := newRegionTrail(t, "alpha")
	trail.add("a", "b", "c", "d", "e", "f")
	with := func(r *fakeRegion) { r.trail = trail }
	r := s.joined("alpha", with)
	s.serveTunnels(r)
	s.awaitStored(trail, r, 6)
	s.submit(testJob("api", 1))
	trail.add("g")
	s.awaitStored(trail, r, 7)
	s.stop()

	s = f.start(t, "g2")
	r = s.joined("alpha", with)
	s.serveTunnels(r)
	trail.add("h")
	s.awaitStored(trail, r, 8)
	r.leave()
	s.waitRegion("alpha", nusav1.RegionState_REGION_STATE_DISCONNECTED)
	want := []string{
		"region/alpha 8 h", "region/alpha 7 g", "region/alpha 6 f", "region/alpha 5 e", "region/alpha 4 d", "region/alpha 3 c", "region/alpha 2 b", "region/alpha 1 a",
	}
	if got := s.listed(&nusav1.ListAuditRequest{Region: "alpha", Stored: true, Limit: 3}); !slices.Equal(got, want) {
		t.Errorf("stored is %q", got)
	}
	all := slices.DeleteFunc(s.listed(&nusav1.ListAuditRequest{Limit: 3}), func(line string) bool { return strings.HasSuffix(line, " alpha") }) // definitions of the region
	if !slices.Equal(all, slices.Concat(want[:2], []string{"global 1 api"}, want[2:])) {
		t.Errorf("all entries: %q", all)
	}
	if got := s.listed(&nusav1.ListAuditRequest{Own: true, Name: "api"}); !slices.Equal(got, []string{"1 api"}) {
		t.Errorf("the own trail: %q", got)
	}
	x := s.exportOf(&nusav1.ExportAuditRequest{Region: "alpha", Stored: true})
	if report := audit.Verify(x, trail.key); len(report.Findings) > 0 || report.Signed != 8 {
		t.Errorf("what is stored: %+v", report)
	}
	if trail.parts > 10 {
		t.Errorf("the region was asked %d times", trail.parts)
	}
}

// TestRegionsWithGapsAndForks: entries that a region removed before they were stored are counted and
// noted in the own trail. A region whose log was restored from an old copy begins a new branch.
func TestRegionsWithGapsAndForks(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	trail := newRegionTrail(t, "alpha")
	trail.add("a", "b", "c")
	r := s.joined("alpha", func(r *fakeRegion) { r.trail = trail })
	s.serveTunnels(r)
	s.awaitStored(trail, r, 3)
	trail.mu.Lock()
	trail.removed = 5
	trail.mu.Unlock()
	trail.add("d", "e", "f", "g")
	s.awaitStored(trail, r, 7)
	trail.mu.Lock()
	trail.removed = 0
	trail.mu.Unlock()
	trail.back(2)
	trail.add("x")
	s.awaitStored(trail, r, 3)
	want := []string{
		"region/alpha 3 x", "region/alpha 2 b", "region/alpha 1 a", "region/alpha 7 g", "region/alpha 6 f", "region/alpha 3 c", "region/alpha 2 b", "region/alpha 1 a",
	}
	if got := s.listed(&nusav1.ListAuditRequest{Region: "alpha", Stored: true}); !slices.Equal(got, want) {
		t.Errorf("stored is %q", got)
	}
	var notes []string
	resp, err := s.audit().List(t.Context(), &nusav1.ListAuditRequest{Verb: "forward", Own: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range resp.GetEntries() {
		notes = append(notes, e.GetReason())
	}
	if len(notes) != 2 || !strings.Contains(notes[0], "starts again after entry 0") || !strings.Contains(notes[1], "the entries 4 to 5 are missing") {
		t.Errorf("the notes are %q", notes)
	}
	x := s.exportOf(&nusav1.ExportAuditRequest{Region: "alpha", Stored: true})
	if report := audit.Verify(x, trail.key); len(report.Findings) > 0 || report.Signed != 3 {
		t.Errorf("the new branch: %+v", report)
	}
}
