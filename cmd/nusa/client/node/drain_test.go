package node

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestDrainTextSaysWhatIsLeft: the text counts what must leave, and says when force begins and what becomes
// of system jobs. A server of an earlier version says nothing about them.
func TestDrainTextSaysWhatIsLeft(t *testing.T) {
	for want, n := range map[string]*nusav1.Node{
		"is draining: 3 allocations to move (":                                                       {Allocations: 3},
		"is draining: 3 allocations to move, by force in 5m; 1 instance of system jobs stops last (": {Allocations: 3, Drain: &nusav1.NodeDrain{Deadline: durationpb.New(5 * time.Minute), Left: 2, SystemLeft: 1}},
		"is draining: 2 allocations to move; 2 instances of system jobs stay (":                      {Allocations: 4, Drain: &nusav1.NodeDrain{IgnoreSystem: true, Left: 2, SystemLeft: 2}},
		"is draining: nothing must leave it; 2 instances of system jobs stay (":                      {Allocations: 2, Drain: &nusav1.NodeDrain{IgnoreSystem: true, SystemLeft: 2}},
		"is draining: 1 allocation to move, by force, because the deadline has passed (":             {Allocations: 1, Drain: &nusav1.NodeDrain{Deadline: durationpb.New(0), Left: 1}},
		"is draining: nothing is left on it (":                                                       {Drain: &nusav1.NodeDrain{Deadline: durationpb.New(time.Minute)}},
	} {
		n.Name, n.Draining, n.State = "n1", true, nusav1.NodeState_NODE_STATE_READY
		if got := workText(n, "nusa"); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

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
