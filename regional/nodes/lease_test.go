package nodes

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/raftlog/logtest"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestLostNodeGetsALeaseOnlyWhenTheLogSaysItIsReady: a node is declared lost while its
// session goes on, and requests a lease at that moment. Its instances may be given up in
// entries that are being committed. So the node gets its orders before its lease.
func TestLostNodeGetsALeaseOnlyWhenTheLogSaysItIsReady(t *testing.T) {
	ctx := t.Context()
	fsm := raftlog.NewFSM()
	log := raftlog.NewSequencer(logtest.New(fsm, 0, nil), fsm, func(*state.View) raftlog.Decision { return raftlog.Decision{} }, func([]state.Result) {})
	go func() { _ = log.Run(ctx) }()
	commit := func(c state.Command) {
		t.Helper()
		if _, err := log.Commit(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	commit(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n", Name: "n"}}})
	now := time.Duration(0)
	a := New(ctx, Config{
		NodeLease: time.Second, Epoch: "e", FSM: fsm, Log: log, Logger: slog.New(slog.DiscardHandler),
		Clock: func() time.Duration { return now }, RegionLease: func() time.Duration { return 0 },
	})
	st := &listedStream{}
	ss := &session{agents: a, node: a.ensure("n"), stream: st, hello: &nusav1.AgentHello{NodeId: "n", FeatureLevel: 1}, sending: sendActive}
	ss.attach()
	request := func(id, confirmed uint64) error {
		t.Helper()
		raw, err := proto.Marshal(&nusav1.LeaseRequest{Id: id, Granted: confirmed})
		if err != nil {
			t.Fatal(err)
		}
		ss.node.beginMessage(a.cfg.Clock)
		defer ss.node.endMessage(a.cfg.Clock)
		if err := ss.grant(ctx, raw); err != nil {
			return err
		}
		return ss.send()
	}
	if err := request(1, 0); err != nil {
		t.Fatal(err)
	}
	st.sent = nil

	now = 2 * time.Second
	lost := func() {
		t.Helper()
		registered, _ := fsm.View().Node("n")
		p, err := a.proposeStatus(registered, now)
		if err != nil || p == nil {
			t.Fatalf("after a silence of two leases: %v, %v", p, err)
		}
		if _, err := p.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if got, _ := fsm.View().Node("n"); got.Status != state.NodeLost {
			t.Errorf("after a silence of two leases: %s", got.Status)
		}
	}
	lost()
	ss.node.mu.Lock()
	ss.node.outbox.PutAt(1, "a", 1) // an allocation is given up
	ss.node.mu.Unlock()
	if err := request(2, 1); err != nil {
		t.Fatal(err)
	}
	if got, _ := fsm.View().Node("n"); got.Status != state.NodeReady {
		t.Errorf("it has a lease and is %s", got.Status)
	}
	if got := slices.Compact(st.sent); !slices.Equal(got, []string{"orders", "grant"}) {
		t.Errorf("sent %v", got)
	}
	// The planner counts the absence from this grant, even within a plan that has already
	// begun.
	if absent := a.Absences(fsm.View())("n"); absent != (presence.Absence{}) {
		t.Errorf("it got a lease just now and is absent: %+v", absent)
	}

	// The node requests a lease again and again, but no grant reaches it.
	for id := uint64(3); id < 8; id++ {
		now += time.Second / 3
		if err := request(id, 1); err != nil {
			t.Fatal(err)
		}
	}
	now += time.Second
	lost()
	if err := request(8, 1); err == nil {
		t.Error("the session goes on although nothing reaches the node")
	}
}
