package global

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestOversizedReportsDoNotEndTheTerm: reports and summaries of regions become part of checkpoints
// and results. A report that is larger than a store record may be is ignored or ends its region's
// session. It does not end the leadership term.
func TestOversizedReportsDoNotEndTheTerm(t *testing.T) {
	s := newFederation().start(t, "g1")
	alpha, beta := s.joined("alpha"), s.joined("beta")
	s.submit(testJob("api", 1))
	alpha.wait("subscriptions", func() bool { return len(alpha.shapes.GetAsks()) > 0 }) // the region sends no report of its own after this message
	long := strings.Repeat("x", 40_000)
	alpha.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Report{Report: &nusav1.RegionReport{
		NodesReady: 1, Drivers: slices.Repeat([]string{long}, 64),
	}}})
	reasons := slices.Repeat([]*nusav1.CountedReason{{Count: 1, Message: long}}, state.MaxCounts)
	beta.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Summaries{Summaries: &nusav1.JobSummaries{
		Full: true, Last: true, Position: &nusav1.Position{Epoch: "e", Sequence: 1},
		Summaries: []*nusav1.JobSummary{{Namespace: "default", Job: "api", Index: 1, Reasons: map[string]*nusav1.GroupReasons{"web": {Reasons: reasons}}}},
	}}})
	beta.wait("acknowledgement", func() bool { return beta.acked != nil })
	// The region comes last in the alphabet, and so does its checkpoint.
	s.joined("zeta")
	s.stored(t, state.CheckpointPrefix+"zeta")
	for _, r := range []*fakeRegion{alpha, beta} {
		r.mu.Lock()
		if r.err != nil {
			t.Errorf("the session of %s ended: %v", r.hello.GetDefinition().GetName(), r.err)
		}
		r.mu.Unlock()
	}
	huge := &nusav1.JobSummary{Namespace: "default", Job: "api", Groups: map[string]*nusav1.InstanceCounts{strings.Repeat("x", 128<<10): {}}}
	beta.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Summaries{Summaries: &nusav1.JobSummaries{
		Full: true, Last: true, Position: &nusav1.Position{Epoch: "e", Sequence: 2}, Summaries: []*nusav1.JobSummary{huge},
	}}})
	beta.wait("refusal", func() bool { return beta.refused != nil || beta.err != nil })
}

// stored waits until the store has a key with the prefix.
func (s *testServer) stored(t *testing.T, prefix string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		found := false
		_, err := s.store.List(ctx, prefix, func(store.KV) error { found = true; return nil })
		if err != nil {
			t.Fatalf("nothing is stored under %s: %v", prefix, err)
		}
		if found {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}
