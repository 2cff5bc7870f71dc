package nodes

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestGrantsAreWithinTheLimitOfTheLog: a master is configured with a longer lease than its
// predecessor. It grants the longer lease only once the log has that length, because a
// later master waits for the length in the log.
func TestGrantsAreWithinTheLimitOfTheLog(t *testing.T) {
	fsm := raftlog.NewFSM()
	region := 7 * time.Second
	a := New(t.Context(), Config{NodeLease: time.Minute, FSM: fsm, RegionLease: func() time.Duration { return region }})
	ss := &session{agents: a, node: a.ensure("n"), regionLease: true}
	granted := func() (node, ofRegion time.Duration) {
		t.Helper()
		out, err := ss.grantMessages([]uint64{3}, false)
		if err != nil || len(out) != 1 || out[0].GetLease().GetId() != 3 {
			t.Fatalf("%v, %v", out, err)
		}
		return out[0].GetLease().GetDuration().AsDuration(), out[0].GetLease().GetRegionLeft().AsDuration()
	}
	limit := func(length time.Duration) {
		cmd := state.Command{SetLimits: &state.SetLimits{FeatureLevel: 1, NodeLease: length}}
		fsm.Apply(&raft.Log{Index: fsm.View().Index() + 1, Data: raftlog.Entry(&cmd)})
	}
	if node, ofRegion := granted(); node != time.Minute || ofRegion != region {
		t.Errorf("beside servers of an earlier version: %s and %s", node, ofRegion)
	}
	limit(15 * time.Second)
	if node, _ := granted(); node != 15*time.Second {
		t.Errorf("before the longer lease is in the log: %s", node)
	}
	limit(time.Minute)
	region = 0
	if node, ofRegion := granted(); node != time.Minute || ofRegion != 0 {
		t.Errorf("once it is in the log: %s, and %s of the region's lease", node, ofRegion)
	}
}
