package regional

import (
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// A scheduler that plans in vain rests as long as that took; what it could place
// does not wait.
func TestSchedulerRests(t *testing.T) {
	vain := []sched.Unplaced{{Reason: state.ReasonInsufficientCPU}}
	for _, c := range []struct {
		plan       sched.Plan
		took, want time.Duration
	}{
		{sched.Plan{}, time.Minute, 0},
		{sched.Plan{Places: make([]sched.Place, 9)}, time.Minute, 0},
		{sched.Plan{Unplaced: vain}, 70 * time.Millisecond, 70 * time.Millisecond},
		{sched.Plan{Unplaced: vain}, time.Minute, maxRest},
		{sched.Plan{Unplaced: vain, More: true}, time.Minute, 0},
	} {
		if got := restAfter(&c.plan, c.took); got != c.want {
			t.Errorf("%+v took %v: rest %v, want %v", c.plan, c.took, got, c.want)
		}
	}
}

// Nodes that are gone for days are forgotten, unless something waits for them.
func TestLongGoneNodes(t *testing.T) {
	st, index := state.New(), uint64(0)
	do := func(at time.Duration, c state.Command) {
		t.Helper()
		index++
		c.NowUnixNano = int64(at)
		if r := st.Apply(index, c); r.Err != nil || len(r.Skipped) > 0 {
			t.Fatalf("%v, skipped %v", r.Err, r.Skipped)
		}
	}
	for _, id := range []string{"away", "cordoned", "gone", "late", "there", "waited"} {
		do(0, state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: id}}})
	}
	do(0, state.Command{CordonNode: &state.CordonNode{ID: "cordoned", Cordon: true}})
	for node, replace := range map[string]bool{"away": true, "waited": false} {
		do(0, state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: state.Job{
			Key: state.JobKey{Namespace: "default", Job: node, Local: true}, Type: state.Service,
			Groups: []state.Group{{Name: "g", Count: 1, Disconnect: state.Disconnect{Replace: replace}}}}}})
		do(0, state.Command{ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{{
			Key: state.GroupKey{Namespace: "default", Job: node, Group: "g", Local: true}, JobVersion: 1, Allocs: []state.PlaceAlloc{{ID: node, NodeID: node}}}}}})
	}
	for id, at := range map[string]time.Duration{"away": 1, "cordoned": 1, "gone": 1, "late": time.Hour, "waited": 1} {
		do(at, state.Command{SetNodeStatus: &state.SetNodeStatus{ID: id, Status: state.NodeLost}})
	}
	var got []string
	for _, n := range longGone(st.Snapshot(), int64(time.Minute)) {
		got = append(got, n.ID)
	}
	if slices.Sort(got); !slices.Equal(got, []string{"away", "gone"}) {
		t.Errorf("%q", got)
	}
}

// TestUnjumped: a clock that is set forward makes nothing older, and one that is
// set back makes things younger.
func TestUnjumped(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		wall, want time.Time
	}{
		{began.Add(time.Hour), began.Add(time.Hour)},
		{began.Add(73 * time.Hour), began.Add(time.Hour)},
		{began.Add(-72 * time.Hour), began.Add(-72 * time.Hour)},
	} {
		if got := unjumped(c.wall, began, time.Hour); !got.Equal(c.want) {
			t.Errorf("%v an hour after %v: %v, want %v", c.wall, began, got, c.want)
		}
	}
}
