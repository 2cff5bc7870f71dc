package nodes

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/internal/lease"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestAgentThatKnowsMoreThanTheLogIsRefused: the log was restored from an old copy without
// a new incarnation. The refusal has both numbers. It is not permanent, because a restore
// with a new incarnation helps.
func TestAgentThatKnowsMoreThanTheLogIsRefused(t *testing.T) {
	a := New(t.Context(), Config{Region: "sea", FSM: raftlog.NewFSM()})
	for _, c := range []struct {
		incarnation, index uint64
		refused            bool
	}{{0, 0, false}, {0, 7, true}, {2, 0, true}} {
		r := a.refuse(&nusav1.AgentHello{NodeId: "n", Name: "n", Region: "sea", Inventory: &nusav1.NodeInventory{}, Protocol: protocol,
			Incarnation: c.incarnation, Index: c.index})
		if (a.OldLog() != "") != c.refused {
			t.Errorf("%+v: the log is old: %v", c, a.OldLog())
		}
		switch {
		case (r != nil) != c.refused:
			t.Errorf("%+v: %v", c, r)
		case r != nil && (r.GetPermanent() || !strings.Contains(r.GetMessage(), "ended at index 0 of incarnation 0") || !strings.Contains(r.GetMessage(), "nusa regional restore")):
			t.Errorf("%+v: %v", c, r)
		}
	}
}

// TestAgentOfARemovedNodeReturns: a node got orders in this term and was removed while it
// was disconnected. Its agent still has the orders. That does not show that the log is an
// old copy.
func TestAgentOfARemovedNodeReturns(t *testing.T) {
	a := New(t.Context(), Config{Region: "sea", FSM: raftlog.NewFSM()})
	hello := &nusav1.AgentHello{NodeId: "n", Name: "n", Region: "sea", Inventory: &nusav1.NodeInventory{}, Protocol: protocol, Index: 7}
	a.ensure("n").newest = 7
	if r := a.refuse(hello); r != nil {
		t.Errorf("of a known node: %v", r)
	}
	a.dropUnregistered()
	if a.find("n") != nil {
		t.Fatal("the removed node is still known")
	}
	if r := a.refuse(hello); r != nil {
		t.Errorf("after the node was removed: %v", r)
	}
	hello.Index = 8
	if a.refuse(hello) == nil {
		t.Error("an order that nobody sent is accepted")
	}
}

// TestWrongAgentIsRefusedAlone: the log had every order of an agent when the agent was
// accepted in this term. If that agent claims further orders later, only that agent is
// refused, and the master goes on placing instances.
func TestWrongAgentIsRefusedAlone(t *testing.T) {
	a := New(t.Context(), Config{Region: "sea", FSM: raftlog.NewFSM()})
	a.ensure("n").accept()
	r := a.refuse(&nusav1.AgentHello{NodeId: "n", Name: "n", Region: "sea", Inventory: &nusav1.NodeInventory{}, Protocol: protocol, Index: 8})
	if r == nil || !strings.Contains(r.GetMessage(), "no master sent") || a.OldLog() != "" {
		t.Errorf("refused %v; the log: %q", r, a.OldLog())
	}
}

// TestRemovedNodeIsNoEvidenceOfAnOldLog: an operator has removed the node of an agent with an order
// that the log lacks. As long as another agent has such an order, nothing is placed.
func TestRemovedNodeIsNoEvidenceOfAnOldLog(t *testing.T) {
	a := New(t.Context(), Config{Region: "sea", FSM: raftlog.NewFSM()})
	claims := func(id string) {
		a.refuse(&nusav1.AgentHello{NodeId: id, Name: "node-" + id, Region: "sea", Inventory: &nusav1.NodeInventory{}, Protocol: protocol, Index: 8})
	}
	claims("a")
	claims("b")
	was := a.knowsMore["a"]
	was.registered = true // the log no longer has the node
	a.knowsMore["a"] = was
	if why := a.OldLog(); !strings.Contains(why, "node-b has an order of index 8") || !strings.Contains(why, "index 0") || !strings.Contains(why, "nusa node remove node-b") {
		t.Errorf("the log: %q", why)
	}
	accepted := &nusav1.AgentHello{NodeId: "b", Name: "node-b", Region: "sea", Inventory: &nusav1.NodeInventory{}, Protocol: protocol}
	if r := a.refuse(accepted); r != nil || a.OldLog() != "" {
		t.Errorf("%v, the log: %q", r, a.OldLog())
	}
}

// TestSuspectLogContinuesAndStartsNothing: all servers of a region have started again.
// Grants only continue running tasks until the agents of all nodes in the log have
// connected, or until every earlier lease has ended.
func TestSuspectLogContinuesAndStartsNothing(t *testing.T) {
	for name, end := range map[string]func(a *Agents, now *time.Duration){
		"all have connected":      func(a *Agents, _ *time.Duration) { a.accepted("n1", 0); a.accepted("n2", 0) },
		"earlier leases are over": func(_ *Agents, now *time.Duration) { *now += lease.Over(15*time.Second, 0) },
	} {
		fsm := raftlog.NewFSM()
		for i, id := range []string{"n1", "n2"} {
			cmd := state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: id, Name: id}}}
			fsm.Apply(&raft.Log{Index: uint64(i + 1), Data: raftlog.Entry(&cmd)})
		}
		now, certain := 100*time.Second, 0
		a := New(t.Context(), Config{NodeLease: 15 * time.Second, FSM: fsm, Logger: slog.New(slog.DiscardHandler),
			Clock: func() time.Duration { return now }, RegionLease: func() time.Duration { return time.Second },
			Start: presence.Start{At: now, Index: 2}, Certain: func() { certain++ }})
		ss := &session{agents: a, node: a.ensure("n1"), regionLease: true}
		continues := func() bool {
			out, err := ss.grantMessages([]uint64{3}, false)
			if err != nil || len(out) != 1 || out[0].GetLease().GetDuration().AsDuration() != 15*time.Second {
				t.Fatalf("%v, %v", out, err)
			}
			return out[0].GetLease().GetContinueOnly()
		}
		a.accepted("n1", 0)
		if !a.LogSuspect() || !continues() || certain != 0 || ss.empty != 3 {
			t.Errorf("%s: not suspect after the start, or grant %d is empty", name, ss.empty)
		}
		ss.empty = 0
		if a.accepted("n1", time.Minute); a.LongestStop() != time.Minute {
			t.Errorf("%s: an agent takes a minute to stop, known is %s", name, a.LongestStop())
		}
		end(a, &now)
		if a.LogSuspect() || continues() || certain != 1 || ss.empty != 0 {
			t.Errorf("%s: still suspect, or called %d times, or grant %d is empty", name, certain, ss.empty)
		}
	}
}
