package global

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// TestRowsAreJudged: only what a probe can have measured, of regions that there
// are, enters the matrix.
func TestRowsAreJudged(t *testing.T) {
	st := New("e", func() time.Duration { return 0 }, time.Second)
	for _, name := range []string{"alpha", "beta"} {
		st.applyRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}}, 1)
	}
	a := &active{st: st}
	s := &session{a: a, region: "alpha", woken: make(chan struct{}, 1)}
	st.Regions["alpha"].Session = s
	for name, tc := range map[string]struct {
		change func(*nusav1.Edge)
		held   bool
	}{
		"good":     {func(*nusav1.Edge) {}, true},
		"stranger": {func(e *nusav1.Edge) { e.To = "nowhere" }, false},
		"negative": {func(e *nusav1.Edge) { e.P50 = durationpb.New(-1) }, false},
		"absurd":   {func(e *nusav1.Edge) { e.P99 = durationpb.New(time.Hour) }, false},
		"NaN":      {func(e *nusav1.Edge) { e.Loss = math.NaN() }, false},
		"loss":     {func(e *nusav1.Edge) { e.Loss = 1.5 }, false},
		"ancient":  {func(e *nusav1.Edge) { e.Age = durationpb.New(math.MaxInt64) }, false},
		"no state": {func(e *nusav1.Edge) { e.State = 77 }, false},
	} {
		e := &nusav1.Edge{To: "beta", State: nusav1.EdgeState_EDGE_STATE_OK, P50: durationpb.New(time.Millisecond)}
		tc.change(e)
		a.latency(s, &nusav1.LatencyRow{Full: true, Edges: []*nusav1.Edge{e}})
		st.matrix.picture = nil
		if held := st.topologyView().Edge("alpha", "beta").Source == topology.Measured; held != tc.held {
			t.Errorf("%s: held %t, want %t", name, held, tc.held)
		}
	}
}

// TestAnswersAreBounded: what a region says is stored, so it is cut.
func TestAnswersAreBounded(t *testing.T) {
	a := AnswerFromProto(&nusav1.SlotAnswer{
		State: nusav1.SlotState_SLOT_STATE_RETURNED, Message: strings.Repeat("é", MaxMessage),
		Counts: make([]*nusav1.CountedReason, MaxCounts+1),
	})
	if a.State != region.Returned || len(a.Message) > MaxMessage+len("…") || !utf8.ValidString(a.Message) || len(a.Counts) != MaxCounts {
		t.Errorf("%d bytes, %d counts", len(a.Message), len(a.Counts))
	}
}

// TestTallTalesEndNoReign: what regions say goes into checkpoints and results. A
// report or a summary beyond what the store takes costs its region, and not the
// active server.
func TestTallTalesEndNoReign(t *testing.T) {
	s := newFederation().start(t, "g1")
	alpha, beta := s.joined("alpha"), s.joined("beta")
	s.submit(testJob("api", 1))
	alpha.wait("what is asked for", func() bool { return len(alpha.shapes.GetAsks()) > 0 }) // with which its own report went
	long := strings.Repeat("x", 40_000)
	alpha.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Report{Report: &nusav1.RegionReport{
		NodesReady: 1, Drivers: slices.Repeat([]string{long}, maxDrivers),
	}}})
	reasons := slices.Repeat([]*nusav1.CountedReason{{Count: 1, Message: long}}, MaxCounts)
	beta.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Summaries{Summaries: &nusav1.JobSummaries{
		Full: true, Last: true, Position: &nusav1.Position{Epoch: "e", Sequence: 1},
		Summaries: []*nusav1.JobSummary{{Namespace: "default", Job: "api", Index: 1, Reasons: map[string]*nusav1.GroupReasons{"web": {Reasons: reasons}}}},
	}}})
	beta.wait("acknowledgement", func() bool { return beta.acked != nil })
	// Alphabetically the region comes last, and so does its checkpoint.
	s.joined("zeta")
	s.stored(t, CheckpointPrefix+"zeta")
	for _, r := range []*fakeRegion{alpha, beta} {
		r.mu.Lock()
		if r.err != nil {
			t.Errorf("the session of %s ended: %v", r.hello.GetDefinition().GetName(), r.err)
		}
		r.mu.Unlock()
	}
	huge := &nusav1.JobSummary{Namespace: "default", Job: "api", Groups: map[string]*nusav1.InstanceCounts{strings.Repeat("x", maxSummary): {}}}
	beta.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Summaries{Summaries: &nusav1.JobSummaries{
		Full: true, Last: true, Position: &nusav1.Position{Epoch: "e", Sequence: 2}, Summaries: []*nusav1.JobSummary{huge},
	}}})
	beta.wait("refusal", func() bool { return beta.refused != nil || beta.err != nil })
}

// stored waits until the store has a key that begins so.
func (s *testServer) stored(t *testing.T, prefix string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for found := false; !found; {
		if _, err := s.store.List(ctx, prefix, func(store.KV) error { found = true; return nil }); err != nil {
			t.Fatalf("nothing is stored under %s: %v", prefix, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// TestResultsFitTheStore: however many slots, regions and reasons a job ended
// with, how it ended can be stored, with what counts.
func TestResultsFitTheStore(t *testing.T) {
	status := func(regions int) *nusav1.JobStatus {
		out := &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_FAILED, Groups: map[string]*nusav1.GroupStatus{}}
		for _, group := range []string{"a", "b", "c"} {
			g := &nusav1.GroupStatus{Counts: &nusav1.InstanceCounts{Failed: int32(regions)}, Regions: map[string]*nusav1.InstanceCounts{}}
			for i := range regions {
				name := fmt.Sprint("region-", i)
				g.Regions[name] = &nusav1.InstanceCounts{Failed: 1}
				g.Slots = append(g.Slots, &nusav1.Slot{Job: "j", Group: group, Region: name, PlacedBecause: strings.Repeat("x", 100)})
				g.Pending = append(g.Pending, &nusav1.CountedReason{Count: 1, Message: strings.Repeat("x", MaxMessage)})
			}
			out.Groups[group] = g
		}
		return out
	}
	for _, tc := range []struct{ regions, reasons, counted int }{{1, 1, 1}, {1024, MaxCounts, 1024}, {30_000, 1, 0}} {
		got := storable(status(tc.regions))
		if size := proto.Size(got); size > maxResult {
			t.Errorf("%d regions: %d bytes", tc.regions, size)
		}
		for name, g := range got.GetGroups() {
			if g.GetCounts().GetFailed() != int32(tc.regions) || len(g.GetPending()) != tc.reasons || len(g.GetRegions()) != tc.counted || len(g.GetSlots()) > 0 {
				t.Errorf("%d regions, group %s: %v, %d reasons, %d regions, %d slots", tc.regions, name, g.GetCounts(), len(g.GetPending()), len(g.GetRegions()), len(g.GetSlots()))
			}
		}
	}
}
