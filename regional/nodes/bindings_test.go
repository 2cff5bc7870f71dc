package nodes

import (
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/raftlog/logtest"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// TestLogLearnsWhatAgentsKnow: after an upgrade the log does not know whether the
// agents know which leases bind their tasks. An agent stores the repeated orders. When it then
// confirms the grant of a later request, this is put into the log. A request whose grant was
// lost does not count, and neither does a position of another term.
func TestLogLearnsWhatAgentsKnow(t *testing.T) {
	ctx := t.Context()
	fsm := raftlog.NewFSM()
	log := raftlog.NewSequencer(logtest.New(fsm, 0, nil), fsm, func(*state.View) raftlog.Decision { return raftlog.Decision{} }, func([]state.Result) {})
	go func() { _ = log.Run(ctx) }()
	for _, c := range []state.Command{
		{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n", Name: "n"}}},
		{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{
			Slot: state.Slot{Namespace: "default", Job: "api", Group: "web", To: 1, Generation: 5, Revision: 5, JobVersion: 1, Desired: state.Run},
			Job:  &state.Job{Version: 1, Type: state.Service, Groups: []state.Group{{Name: "web", Singleton: true}}},
		}}}},
		{ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{{Key: state.GroupKey{Namespace: "default", Job: "api", Group: "web"}, JobVersion: 1,
			Allocs: []state.PlaceAlloc{{ID: "a", NodeID: "n"}}}}}},
		{SetLimits: &state.SetLimits{FeatureLevel: 2}},
	} {
		if r, err := log.Commit(ctx, c); err != nil || len(r.Skipped) > 0 {
			t.Fatal(err, r.Skipped)
		}
	}
	a := New(ctx, Config{
		NodeLease: time.Second, Epoch: "e", FSM: fsm, Log: log, Logger: slog.New(slog.DiscardHandler),
		Clock: func() time.Duration { return 0 }, RegionLease: func() time.Duration { return 0 },
	})
	begin := func(has *nusav1.Position) *session {
		ss := &session{agents: a, node: a.ensure("n"), stream: &listedStream{}, hello: &nusav1.AgentHello{NodeId: "n", Orders: has, FeatureLevel: confirmsGrants}, sending: sendActive}
		ss.attach()
		return ss
	}
	id := uint64(0)
	// step sends a lease request. lost: the agent got no grant since the session began.
	step := func(ss *session, stored *nusav1.Position, lost bool, want int) {
		t.Helper()
		id++
		q := &nusav1.LeaseRequest{Id: id, Granted: id - 1}
		if lost {
			q.Granted = 0
		}
		raw, err := proto.Marshal(&nusav1.AgentMessage{OrdersAck: stored, Kind: &nusav1.AgentMessage_Lease{Lease: q}})
		if err != nil {
			t.Fatal(err)
		}
		m, err := wire.ReadAgentMessage(raw)
		if err != nil {
			t.Fatal(err)
		}
		if err := ss.noteStored(m.OrdersAck); err != nil {
			t.Fatal(err)
		}
		if err := ss.confirmBindings(ctx, m.Body); err != nil {
			t.Fatal(err)
		}
		if got := fsm.View().UnknownBindings(); got != want {
			t.Errorf("unknown bindings: %d, want %d", got, want)
		}
	}
	end := fsm.View().Index()
	ss := begin(&nusav1.Position{Epoch: "earlier", Sequence: end + 9})
	step(ss, nil, false, 1)
	step(ss, &nusav1.Position{Epoch: "earlier", Sequence: end + 9}, false, 1)
	step(ss, nil, false, 1)
	step(ss, &nusav1.Position{Epoch: "e", Sequence: end - 1}, false, 1)
	step(ss, nil, false, 1)
	ss = begin(&nusav1.Position{Epoch: "e", Sequence: end})
	step(ss, nil, true, 1)
	step(ss, nil, true, 1)
	step(ss, nil, false, 0)
}
