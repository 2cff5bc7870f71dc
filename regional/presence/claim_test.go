package presence

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestClaims: a name is free when its holder is lost or has left. A node that may run
// something keeps its session.
func TestClaims(t *testing.T) {
	const lease = 10 * time.Second
	node := func(id, name string, st state.NodeStatus) *state.Node {
		return &state.Node{ID: id, Name: name, Status: st}
	}
	left := New(0)
	left.Leave()
	for _, c := range []struct {
		what string
		Claim
		want Outcome
	}{
		{"the holder is ready", Claim{Holder: node("a", "n", state.NodeReady)}, Taken},
		{"the holder is lost", Claim{Holder: node("a", "n", state.NodeLost)}, Free},
		{"the holder said goodbye", Claim{Holder: node("a", "n", state.NodeReady), Contact: left}, Free},
		{"the holder has another name now", Claim{Holder: node("a", "m", state.NodeReady)}, Free},
		{"the holder is being registered", Claim{Now: lease}, Taken},
		{"the holder was forgotten", Claim{Now: lease + 1}, Free},
		{"both are ready", Claim{Own: node("b", "n", state.NodeReady), Holder: node("a", "n", state.NodeReady)}, Shared},
		{"it was lost and may run something", Claim{Own: node("b", "n", state.NodeLost), Charged: 1, Holder: node("a", "n", state.NodeReady)}, Shared},
		{"it was lost and runs nothing", Claim{Own: node("b", "n", state.NodeLost), Holder: node("a", "n", state.NodeReady)}, Taken},
		{"it had another name", Claim{Own: node("b", "m", state.NodeReady), Holder: node("a", "n", state.NodeReady)}, Taken},
		{"it was forgotten, and has orders", Claim{Index: 3, Holder: node("a", "n", state.NodeReady)}, Shared},
	} {
		c.Name, c.Lease = "n", lease
		if got := c.Outcome(); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
}
