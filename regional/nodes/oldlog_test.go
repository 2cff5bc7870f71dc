package nodes

import (
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
)

// TestAgentThatKnowsMoreThanTheLogIsRefused: the log was restored from an old copy without
// a new incarnation. The refusal has both numbers, and is not for good: a restore helps.
func TestAgentThatKnowsMoreThanTheLogIsRefused(t *testing.T) {
	a := New(t.Context(), Config{Region: "sea", FSM: raftlog.NewFSM()})
	for _, c := range []struct {
		incarnation, index uint64
		refused            bool
	}{{0, 0, false}, {0, 7, true}, {2, 0, true}} {
		r := a.refuse(&nusav1.AgentHello{NodeId: "n", Name: "n", Region: "sea", Inventory: &nusav1.NodeInventory{}, Protocol: protocol,
			Incarnation: c.incarnation, Index: c.index})
		switch {
		case (r != nil) != c.refused:
			t.Errorf("%+v: %v", c, r)
		case r != nil && (r.GetPermanent() || !strings.Contains(r.GetMessage(), "ended at index 0 of incarnation 0") || !strings.Contains(r.GetMessage(), "nusa regional restore")):
			t.Errorf("%+v: %v", c, r)
		}
	}
}
