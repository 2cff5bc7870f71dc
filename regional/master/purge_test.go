package master

import (
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestNodesGoneForDaysAreRemovable: nodes that have been gone for days are forgotten,
// unless an operator or an instance needs them.
func TestNodesGoneForDaysAreRemovable(t *testing.T) {
	st, index := state.New(), uint64(0)
	do := func(at time.Duration, c state.Command) {
		t.Helper()
		index++
		c.NowUnixNano = int64(at)
		if r := st.Apply(index, c); r.Err != nil || len(r.Skipped) > 0 {
			t.Fatalf("%v, skipped %v", r.Err, r.Skipped)
		}
	}
	for _, id := range []string{"disconnected", "cordoned", "gone", "late", "ready", "needed", "unbound"} {
		do(0, state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: id}}})
	}
	do(0, state.Command{CordonNode: &state.CordonNode{ID: "cordoned", Cordon: true}})
	for node, replace := range map[string]bool{"disconnected": true, "needed": false, "unbound": true} {
		do(0, state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: state.Job{
			Key: state.JobKey{Namespace: "default", Job: node, Local: true}, Type: state.Service,
			Groups: []state.Group{{Name: "g", Count: 1, Disconnect: state.Disconnect{Replace: replace}}}}}})
		do(0, state.Command{ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{{
			Key: state.GroupKey{Namespace: "default", Job: node, Group: "g", Local: true}, JobVersion: 1, Allocs: []state.PlaceAlloc{{ID: node, NodeID: node}}}}}})
	}
	// No lease ends the instance on the node, and the new version of its group must not run
	// twice.
	do(0, state.Command{SetLimits: &state.SetLimits{FeatureLevel: 1}})
	do(0, state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: state.Job{
		Key: state.JobKey{Namespace: "default", Job: "unbound", Local: true}, Type: state.Service, Spec: []byte{2},
		Groups: []state.Group{{Name: "g", Count: 1, Singleton: true, Hash: 2, Disconnect: state.Disconnect{Replace: true}}}}}})
	for id, at := range map[string]time.Duration{"disconnected": 1, "cordoned": 1, "gone": 1, "late": time.Hour, "needed": 1, "unbound": 1} {
		do(at, state.Command{SetNodeStatus: &state.SetNodeStatus{ID: id, Status: state.NodeLost}})
	}
	var got []string
	for _, n := range removableNodes(st.Snapshot(), int64(time.Minute)) {
		got = append(got, n.ID)
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"disconnected", "gone"}) {
		t.Errorf("%q", got)
	}
}

// TestClockSetForwardMakesNothingOlder: a clock that is set forward makes nothing older. A clock
// that is set back makes entries younger.
func TestClockSetForwardMakesNothingOlder(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		wall, want time.Time
	}{
		{began.Add(time.Hour), began.Add(time.Hour)},
		{began.Add(73 * time.Hour), began.Add(time.Hour)},
		{began.Add(-72 * time.Hour), began.Add(-72 * time.Hour)},
	} {
		if got := steadyNow(c.wall, began, time.Hour); !got.Equal(c.want) {
			t.Errorf("%v an hour after %v: %v, want %v", c.wall, began, got, c.want)
		}
	}
}
