package sched_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestPlannerWithEvictedRankingsPlansTheSame: a planner that has seen more distinct asks
// than it caches rankings makes the same plans as a new planner, even while nodes are
// reserved.
func TestPlannerWithEvictedRankingsPlansTheSame(t *testing.T) {
	s, planner, now := benchRegion(30, 0, 0, benchAsk), sched.NewPlanner(), int64(time.Hour)
	kept, ids := 0, 0
	for round := range 30 {
		for j := range 20 {
			ask := benchAsk
			ask.Resources.CPUMilli += int64((round*20+j)%200) * 50
			switch j % 4 {
			case 1:
				ask.Spread = "rack"
			case 2:
				ask.Constraints = []string{"disk=ssd"}
			case 3:
				ask.Affinities = []state.Affinity{{Expr: "disk=hdd", Weight: 50}}
			}
			if j < 2 {
				ask.Resources.CPUMilli = 64_000 - int64(round)
			}
			s.Apply(s.Index()+1, state.Command{NowUnixNano: now, ApplyOrders: benchOrder(fmt.Sprintf("job-%d-%d", round, j), 1, ask)})
		}
		now += int64(time.Minute)
		in := sched.Input{View: s.Snapshot(), NowUnixNano: now, Funcs: testFuncs}
		plan := planner.Make(in)
		if diff := plan.Diff(sched.Make(in)); diff != "" {
			t.Fatalf("round %d:\n%s", round, diff)
		}
		kept += len(plan.Reserved)
		for _, c := range plan.Commands(func() string { ids++; return fmt.Sprint("a-", ids) }, 1000) {
			s.Apply(s.Index()+1, state.Command{ApplyPlan: &c, NowUnixNano: now})
		}
	}
	if kept == 0 || ids == 0 {
		t.Fatalf("%d nodes were reserved, %d instances placed", kept, ids)
	}
}
