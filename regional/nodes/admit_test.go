package nodes

import (
	"maps"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/raftlog/logtest"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/enroll"
)

// documents is a log with documents.
func documents(t *testing.T) (*raftlog.FSM, func(key string, m proto.Message)) {
	fsm := raftlog.NewFSM()
	log := raftlog.NewSequencer(logtest.New(fsm, 0, nil), fsm, func(*state.View) raftlog.Decision { return raftlog.Decision{} }, func([]state.Result) {})
	go func() { _ = log.Run(t.Context()) }()
	return fsm, func(key string, m proto.Message) {
		t.Helper()
		value, err := proto.Marshal(m)
		if err == nil {
			_, err = log.Commit(t.Context(), state.Command{ChangeDocuments: &state.ChangeDocuments{Puts: []state.Document{{Key: key, Value: value}}}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestConditionOfThePolicy: an agent is refused, with the text of the condition, if the condition does
// not hold, or has no value.
func TestConditionOfThePolicy(t *testing.T) {
	fsm, write := documents(t)
	cfg := &Config{Region: "sea", FSM: fsm}
	for _, c := range []struct{ require, want string }{
		{"", ""},
		{`node.memory_mib >= 1024 && node.region == "sea"`, ""},
		{"node.memory_mib > 1024", "requires node.memory_mib > 1024, which does not hold for node n1"},
		{`node.name.startsWith("n")`, ""},
		{`node.labels["rack"] == "r1"`, "which has no value for node n1"},
		{"node.nothing", "set the policy again"},
	} {
		write(enroll.PolicyKey, &nusav1.JoinPolicy{Require: c.require})
		r := refuseInventory(cfg, &nusav1.AgentHello{Name: "n1", Inventory: &nusav1.NodeInventory{Capacity: &nusav1.Resources{MemoryBytes: 1 << 30}}})
		if (r == nil) != (c.want == "") || !strings.Contains(r.GetMessage(), c.want) || r.GetPermanent() {
			t.Errorf("%q: %v, want %q", c.require, r, c.want)
		}
	}
}

// TestRegistrationsDescribeNodes: a node has the labels of its registration, and its description
// unless the agent has one.
func TestRegistrationsDescribeNodes(t *testing.T) {
	fsm, write := documents(t)
	cfg := &Config{Region: "sea", FSM: fsm}
	write(enroll.NodeKey("n1"), &nusav1.RegisteredNode{Name: "n1", Labels: map[string]string{"rack": "r1", "disk": "ssd"}, Description: "first"})
	for name, c := range map[string]struct {
		agent, labels map[string]string
		said, want    string
	}{
		"n1":    {map[string]string{"rack": "mine", "os": "x"}, map[string]string{"rack": "r1", "disk": "ssd", "os": "x"}, "own", "own"},
		"other": {map[string]string{"rack": "mine"}, map[string]string{"rack": "mine"}, "", ""},
	} {
		h := &nusav1.AgentHello{Name: name, Inventory: &nusav1.NodeInventory{Labels: c.agent, Description: c.said}}
		describe(cfg, h)
		if inv := h.GetInventory(); !maps.Equal(inv.GetLabels(), c.labels) || inv.GetDescription() != c.want {
			t.Errorf("%s: %v, %q", name, inv.GetLabels(), inv.GetDescription())
		}
	}
	h := &nusav1.AgentHello{Name: "n1", Inventory: &nusav1.NodeInventory{}}
	describe(cfg, h)
	if h.GetInventory().GetDescription() != "first" || len(h.GetInventory().GetLabels()) != 2 {
		t.Errorf("%v", h.GetInventory())
	}
}
