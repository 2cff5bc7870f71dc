package master

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/raftlog/logtest"
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

// TestEpochsBeginBeforeTheFirstJob: a new cluster takes one of the region's own jobs as soon
// as its first term has begun. The epochs of the job are not those of an earlier cluster.
func TestEpochsBeginBeforeTheFirstJob(t *testing.T) {
	fsm := raftlog.NewFSM()
	bootstrap := state.Command{Bootstrap: &state.Bootstrap{ClusterID: "c", Region: "sea"}}
	fsm.Apply(&raft.Log{Index: 1, Data: raftlog.Entry(&bootstrap)})
	log := raftlog.NewSequencer(logtest.New(fsm, 1, nil), fsm, func(*state.View) raftlog.Decision { return raftlog.Decision{} }, func([]state.Result) {})
	committed := 0
	l := &limiter{
		log: log, fsm: fsm, clock: func() time.Duration { return 0 }, nodeLease: 15 * time.Second, level: func() uint32 { return state.FeatureLevel },
		regionLease: func() (length, since time.Duration) { return 0, 0 }, stopTime: func() time.Duration { return 0 },
		committed: func() { committed++ }, logger: slog.New(slog.DiscardHandler),
	}
	l.begin()
	key := state.JobKey{Namespace: "default", Job: "j", Local: true}
	submitted, err := log.Propose(state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: state.Job{
		Key: key, Type: state.Service, Groups: []state.Group{{Name: "g", Count: 1}}}}})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = log.Run(t.Context()) }()
	if _, err := submitted.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again, err := l.commit(t.Context()); err != nil || again != 0 || committed != 1 {
		t.Errorf("limits: again in %s, %v, committed %d times", again, err, committed)
	}
	view := fsm.View()
	base := view.Cluster().EpochBase
	slots := slices.Collect(view.Slots())
	if base == 0 || len(slots) != 1 || slots[0].Generation <= base {
		t.Errorf("base %d, slots %+v", base, slots)
	}
}
