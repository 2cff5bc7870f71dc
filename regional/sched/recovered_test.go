package sched_test

import (
	"testing"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestRecoveredRegionWaitsForLeases: an agent that has not been seen since a recovery may
// run instances that the restored log does not know. Nothing that a lease binds starts
// before every lease has ended. Other work does not wait.
func TestRecoveredRegionWaitsForLeases(t *testing.T) {
	w := newWorld()
	for _, line := range []string{"node n1", "job own web running=stop", "job free web", "order own 0-2", "order free 0-2"} {
		w.run(t, "setup", line)
	}
	w.apply(state.Command{BumpIncarnation: &state.BumpIncarnation{Incarnation: 2}})
	in := w.input()
	plan := sched.NewPlanner().Make(in)
	for _, p := range plan.Places {
		if p.Key.Job != "free" {
			t.Errorf("%s[%d] is placed", p.Key, p.Index)
		}
	}
	if len(plan.Places) != 2 || len(plan.Waiting) != 1 || plan.Waiting[0].Reason != state.ReasonRegionLease || sched.Instances(plan.Waiting[0].Ranges) != 2 {
		t.Errorf("places %v, waits %v", plan.Places, plan.Waiting)
	}
	unsafe := state.Command{ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{{
		Key: plan.Waiting[0].Key, JobVersion: 1, Allocs: []state.PlaceAlloc{{ID: "x", Index: 0, NodeID: "n1"}}}}}}
	if r := w.apply(unsafe); len(r.Skipped) != 1 || r.Skipped[0].Reason != state.ReasonRegionLease {
		t.Errorf("a placement of an earlier plan: %+v", r.Skipped)
	}
	w.apply(state.Command{SetLimits: &state.SetLimits{LeasesOver: true}})
	if plan := sched.NewPlanner().Make(w.input()); len(plan.Places) != 4 {
		t.Errorf("once the leases are over: %v", plan.Places)
	}
}

// TestSuspectLogPlacesNothingThatALeaseBinds: the log may be an old copy, and a node that
// has not connected may run instances that the log does not know.
func TestSuspectLogPlacesNothingThatALeaseBinds(t *testing.T) {
	w := newWorld()
	for _, line := range []string{"node n1", "job own web running=stop", "job free web", "order own 0-2", "order free 0-2"} {
		w.run(t, "setup", line)
	}
	for suspect, want := range map[bool]int{true: 2, false: 4} {
		in := w.input()
		in.LogSuspect = suspect
		if plan := sched.NewPlanner().Make(in); len(plan.Places) != want || len(plan.Waiting) == 0 == suspect {
			t.Errorf("suspect %v: places %v, waits %v", suspect, plan.Places, plan.Waiting)
		}
	}
}
