package master

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestLeasesAreNotOverWhileAnAgentMayStop: the log was restored. An agent runs a version
// that the log does not have, with a longer kill_timeout. So earlier leases count as over
// only after that longer time.
func TestLeasesAreNotOverWhileAnAgentMayStop(t *testing.T) {
	fsm := raftlog.NewFSM()
	for i, cmd := range []state.Command{
		{Bootstrap: &state.Bootstrap{ClusterID: "c", Region: "sea"}},
		{SetLimits: &state.SetLimits{FeatureLevel: 1, NodeLease: 15 * time.Second}},
		{BumpIncarnation: &state.BumpIncarnation{Incarnation: 2}},
	} {
		fsm.Apply(&raft.Log{Index: uint64(i + 1), Data: raftlog.Entry(&cmd)})
	}
	l := &limiter{
		fsm: fsm, clock: func() time.Duration { return 30 * time.Second }, nodeLease: 15 * time.Second, level: func() uint32 { return 1 },
		regionLease: func() (length, since time.Duration) { return 0, 0 }, stopTime: func() time.Duration { return time.Minute },
	} // without a log it commits nothing
	if again, err := l.commit(t.Context()); err != nil || again < 45*time.Second || again > 50*time.Second {
		t.Errorf("the leases are over in %s, %v", again, err)
	}
}
