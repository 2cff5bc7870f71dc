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
	r.do(state.Command{SetLimits: &state.SetLimits{FeatureLevel: 1, NodeLease: time.Second}})
	r.do(state.Command{BumpIncarnation: &state.BumpIncarnation{Incarnation: 2}})
	expect("the log of the region was restored, too", 0, false)
}
