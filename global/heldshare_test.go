package global

import (
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestExplainSaysWhoKeepsAShareOfParallel: a region whose part of a batch job an override holds keeps its share of
// `parallel`, and explain says it.
func TestExplainSaysWhoKeepsAShareOfParallel(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha", func(r *fakeRegion) { r.hello.FeatureLevel = 15 })
	s.waitReport("alpha")
	s.submit(testJob("many", 5, func(spec *nusav1.JobSpec) {
		spec.Type, spec.Groups["web"].Parallel = nusav1.JobType_JOB_TYPE_BATCH, 2
	}))
	slot := r.waitSlot("default/many/web/0", accepted)
	note := func(held int32, sequence uint64) string {
		r.summarize(sequence == 1, sequence, &nusav1.JobSummary{Namespace: "default", Job: "many", Incarnation: 1, Index: sequence, Version: 1, Run: slot.GetRun(),
			Groups: map[string]*nusav1.InstanceCounts{"web": {Pending: 5 - held, Held: held}}})
		r.waitSlot("default/many/web/0", func(s *nusav1.Slot) bool { return s.GetParallel() == 2 })
		e, err := s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: "many"}})
		if err != nil {
			t.Fatal(err)
		}
		return e.GetNote()
	}
	if got := note(0, 1); strings.Contains(got, "override") {
		t.Errorf("without an override: %q", got)
	}
	const want = "alpha keeps 2 of the 2 instances of group web that may run at once, although an override holds 5 there"
	if got := note(5, 2); !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
