package accept

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestUnordered: after a recovery of the global store, a region confirms that nothing runs
// without an order. It does so only once nothing without an order can run in it.
func TestUnordered(t *testing.T) {
	r := newRegion(t, state.Service)
	expect := func(what string, n int, complete bool) {
		t.Helper()
		if got, known := Unordered(r.Snapshot()); got != n || known != complete {
			t.Errorf("%s: %d, %v, want %d, %v", what, got, known, n, complete)
		}
	}
	expect("a server of the region has an earlier version", 0, false)
	r.do(state.Command{SetLimits: &state.SetLimits{FeatureLevel: 2, NodeLease: time.Second}})
	expect("nothing runs", 0, true)
	r.order(0, 2, 5, state.Run, state.SlotAccepted)
	r.place(0)
	r.place(1)
	expect("ordered", 0, true)
	r.do(state.Command{ApplyOrders: &state.ApplyOrders{More: true}})
	expect("the set of orders is incomplete", 0, false)
	r.do(state.Command{ApplyOrders: &state.ApplyOrders{Removed: []string{"default/api/web/0"}}})
	expect("without an order", 2, true)
	r.report(0, state.Stopped)
	expect("one has stopped", 1, true)
	r.lost(state.NodeLost)
	r.do(state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{ID: "a1", Reason: state.ReasonNodeLost, GiveUp: true}}}})
	expect("the node of the other one is lost, and no lease binds it", 1, true)
	r.lost(state.NodeReady)
	r.do(state.Command{AgentReports: &state.AgentReports{NodeID: "n1", Full: true}})
	expect("the node is back, and nothing runs there", 0, true)
	r.do(state.Command{BumpIncarnation: &state.BumpIncarnation{Incarnation: 2}})
	expect("the log of the region was restored, too", 0, false)
}

// TestRevokedIsUnordered: after a recovery, a former owner has the order to give an index up. The
// owner of the copy may start there under a lease, so the region does not confirm while an attempt
// that no lease binds may run on a lost node.
func TestRevokedIsUnordered(t *testing.T) {
	r := newRegion(t, state.Service)
	expect := func(what string, n int) {
		t.Helper()
		if got, _ := Unordered(r.Snapshot()); got != n {
			t.Errorf("%s: %d, want %d", what, got, n)
		}
	}
	r.order(0, 2, 5, state.Run, state.SlotAccepted)
	r.place(0)
	r.place(1)
	r.report(0, state.Running)
	r.report(1, state.Running)
	r.order(0, 2, 5, state.Hold, state.SlotAccepted)
	expect("held", 0)
	r.order(0, 2, 5, state.Revoke, state.SlotAccepted)
	expect("revoked", 2)
	r.report(1, state.Stopped)
	expect("one has stopped", 1)
	r.lost(state.NodeLost)
	expect("the node of the other one is lost", 1)
	r.do(state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{ID: "a0", Reason: state.ReasonNodeLost, GiveUp: true}}}})
	expect("the other one is given up, and no lease binds it", 1)
	r.lost(state.NodeReady)
	r.do(state.Command{AgentReports: &state.AgentReports{NodeID: "n1", Full: true}})
	expect("the node is back, and nothing runs there", 0)
}

// TestUnknownBindingsDoNotCount: a region was upgraded, and the agent of a lost node may not
// know that a lease binds its instance. The slot does not count as bound, and the region
// does not give up the instance as if the lease had ended it.
func TestUnknownBindingsDoNotCount(t *testing.T) {
	for _, known := range []bool{true, false} {
		r := newRegion(t, state.Service)
		r.jobs[1].Groups[0].Disconnect = state.Disconnect{StopRunning: true, StopInRegion: true}
		r.order(0, 1, 5, state.Run, state.SlotOffered)
		r.place(0)
		r.report(0, state.Running)
		r.do(state.Command{SetLimits: &state.SetLimits{FeatureLevel: 2, NodeLease: time.Second}})
		if known {
			r.do(state.Command{OrdersStored: &state.OrdersStored{NodeID: "n1", Index: r.index}})
		}
		if got := Answers(r.Snapshot()); len(got) != 1 || got[0].Bound != known {
			t.Errorf("known %v: answers %+v", known, got)
		}
		r.lost(state.NodeLost)
		r.do(state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{ID: "a0", Reason: state.ReasonNodeLost, GiveUp: true}}}})
		r.order(0, 1, 5, state.Revoke, state.SlotAccepted)
		if got := Answers(r.Snapshot()); len(got) != map[bool]int{true: 1, false: 0}[known] {
			t.Errorf("known %v: revoked: answers %+v", known, got)
		}
		r.do(state.Command{ApplyOrders: &state.ApplyOrders{Removed: []string{"default/api/web/0"}}})
		if n, _ := Unordered(r.Snapshot()); (n == 0) != known {
			t.Errorf("known %v: %d instances may run without an order", known, n)
		}
	}
}
