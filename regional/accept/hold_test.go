package accept

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestHeldInstancesAreAnsweredOneByOne: a running instance is kept, and an instance that is
// gone is revoked. There is no answer yet about an instance that starts, stops, or may run
// on a lost node.
func TestHeldInstancesAreAnsweredOneByOne(t *testing.T) {
	r := newRegion(t, state.Service)
	r.do(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n1", Name: "n1", Capacity: state.Resources{CPUMilli: 3000}}}})
	r.order(0, 6, 5, state.Run, state.SlotAccepted)
	for _, i := range []int32{1, 2, 4} {
		r.place(i)
	}
	r.report(1, state.Running)
	r.report(2, state.Running)
	r.order(0, 6, 5, state.Hold, state.SlotAccepted)
	r.answers("0-1 g5 revoked", "1-3 g5 kept", "3-4 g5 revoked", "5-6 g5 revoked")
	r.report(4, state.Failed)
	r.answers("0-1 g5 revoked", "1-3 g5 kept", "3-6 g5 revoked")
	r.do(state.Command{ApplyOrders: &state.ApplyOrders{More: true}})
	r.answers()
	r.do(state.Command{ApplyOrders: &state.ApplyOrders{}})
	r.lost(state.NodeLost)
	r.answers("0-1 g5 revoked", "3-6 g5 revoked")
	r.lost(state.NodeReady)
	r.answers("0-1 g5 revoked", "1-3 g5 kept", "3-6 g5 revoked")
	r.do(state.Command{ApplyOrders: &state.ApplyOrders{Removed: []string{"default/api/web/0"}}})
	r.answers()
}

// TestHeldBatchInstancesAreDone: a batch instance that completed in this region is done. It
// counts only for its own run.
func TestHeldBatchInstancesAreDone(t *testing.T) {
	r := newRegion(t, state.Batch)
	r.order(0, 3, 5, state.Run, state.SlotAccepted)
	r.place(0)
	r.place(1)
	r.report(0, state.Complete)
	r.report(1, state.Running)
	r.order(0, 3, 5, state.Hold, state.SlotAccepted)
	r.answers("0-1 g5 done", "1-2 g5 kept", "2-3 g5 revoked")
	r.report(1, state.Complete)
	r.answers("0-2 g5 done", "2-3 g5 revoked")
}

// TestHeldSlotsWantNothing: while a slot is held, nothing is started, replaced or stopped.
// An attempt on a lost node is given up when its wait has passed. When the region owns the
// slot again, the instance continues in a new generation.
func TestHeldSlotsWantNothing(t *testing.T) {
	r := newRegion(t, state.Service)
	r.jobs[1].Groups[0].Disconnect = state.Disconnect{After: 30 * time.Second, Replace: true}
	r.order(0, 2, 5, state.Run, state.SlotAccepted)
	r.place(0)
	r.report(0, state.Running)
	r.order(0, 2, 5, state.Hold, state.SlotAccepted)
	lostAt := int64(0)
	plan := func() *sched.Plan {
		return sched.Make(sched.Input{View: r.Snapshot(), NowUnixNano: r.now, Absence: func(string) presence.Absence {
			return presence.Absence{Silent: time.Duration(r.now - lostAt)}
		}})
	}
	if p := plan(); !p.Empty() || len(p.Unplaced) > 0 || p.Wake != 0 {
		t.Errorf("a held slot: %+v", p)
	}
	r.order(0, 2, 9, state.Run, state.SlotOffered)
	before, _ := r.Alloc("a0")
	if !before.Live() || before.Desired != state.Run {
		t.Errorf("the instance did not survive: %+v", before)
	}
	r.answers("0-2 g9 accepted")
	if p := plan(); len(p.Stops) > 0 || len(p.Places) != 1 || p.Places[0].Index != 1 {
		t.Errorf("after the return: %+v", p)
	}

	r.order(0, 2, 9, state.Hold, state.SlotAccepted)
	r.lost(state.NodeLost)
	lostAt = r.now
	if p := plan(); !p.Empty() || p.Wake != 30*time.Second {
		t.Errorf("a held slot on a lost node: %+v", p)
	}
	r.now += int64(30 * time.Second)
	p := plan()
	if len(p.Stops) != 1 || !p.Stops[0].GiveUp {
		t.Fatalf("after the wait: %+v", p)
	}
	r.do(state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{ID: "a0", Reason: p.Stops[0].Reason, GiveUp: true}}}})
	r.answers("0-2 g9 revoked")
}

// TestHeldInstancesOfAnotherRunEnd: the job was stopped and runs again in another region.
// Instances of the run before must end.
func TestHeldInstancesOfAnotherRunEnd(t *testing.T) {
	r := newRegion(t, state.Service)
	ordered := func(run int64, desired state.Desired) {
		r.do(state.Command{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{
			Slot: state.Slot{Namespace: "default", Job: "api", Group: "web", From: 0, To: 1, Generation: 5, Run: run,
				Revision: int64(r.index) + 100, JobVersion: 1, Desired: desired, State: state.SlotAccepted},
			Job: r.jobs[1],
		}}}})
	}
	ordered(3, state.Run)
	r.place(0)
	r.report(0, state.Running)
	ordered(3, state.Hold)
	r.answers("0-1 g5 kept")
	ordered(4, state.Hold)
	r.answers()
	p := sched.Make(sched.Input{View: r.Snapshot(), NowUnixNano: r.now})
	if len(p.Stops) != 1 || p.Stops[0].GiveUp {
		t.Fatalf("an instance of the run before: %+v", p)
	}
	r.do(state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{ID: "a0", Reason: p.Stops[0].Reason}}}})
	r.report(0, state.Stopped)
	r.answers("0-1 g5 revoked")
}

// TestRevokedBatchInstancesThatCompletedAreDone: completed instances are answered as done,
// because they must not run again in another region. If the global tier knows that they are
// done and revokes them all the same, they are answered as revoked.
func TestRevokedBatchInstancesThatCompletedAreDone(t *testing.T) {
	r := newRegion(t, state.Batch)
	r.do(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n1", Name: "n1", Capacity: state.Resources{CPUMilli: 3000}}}})
	r.order(0, 6, 5, state.Run, state.SlotAccepted)
	for _, i := range []int32{1, 2, 4} {
		r.place(i)
		r.report(i, state.Running)
	}
	r.report(1, state.Complete)
	r.report(2, state.Complete)
	r.order(0, 6, 5, state.Revoke, state.SlotAccepted)
	r.answers()
	r.report(4, state.Complete)
	r.answers("0-1 g5 revoked", "1-3 g5 done", "3-4 g5 revoked", "4-5 g5 done", "5-6 g5 revoked")
	r.order(0, 6, 5, state.Revoke, state.SlotDone)
	r.answers("0-6 g5 revoked")
}
