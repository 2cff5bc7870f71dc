package node

import (
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestDrainOfLostNodeNamesNoRoom: instances of a lost node wait for the node, not for
// capacity on other nodes.
func TestDrainOfLostNodeNamesNoRoom(t *testing.T) {
	n := &nusav1.Node{
		Name: "n1", Draining: true, Allocations: 2, State: nusav1.NodeState_NODE_STATE_LOST,
		Leaving: []*nusav1.LeavingGroup{{Job: "api", Group: "web", Count: 2, Reason: nusav1.Reason_REASON_NODE_LOST}},
	}
	if got := workText(n, "nusa"); strings.Contains(got, "no room") || !strings.Contains(got, "2 allocations to move (") {
		t.Error(got)
	}
	n.State = nusav1.NodeState_NODE_STATE_READY
	if !strings.Contains(workText(n, "nusa"), "no room for 2 now") {
		t.Error(workText(n, "nusa"))
	}
}
