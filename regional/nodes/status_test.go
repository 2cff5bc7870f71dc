package nodes

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestNodeWithUnhandledMessageIsNotLost: a node whose message is being handled is not
// silent, because this server is slow.
func TestNodeWithUnhandledMessageIsNotLost(t *testing.T) {
	a := New(t.Context(), Config{NodeLease: time.Second})
	n := a.ensure("n")
	n.contact.Arrived(0)
	if s, _ := n.contact.Status(state.NodeReady, n.sessionState(), a.cfg.NodeLease, time.Minute); s != state.NodeReady {
		t.Errorf("%s while its message is being committed", s)
	}
	n.contact.Handled(0)
	if s, _ := n.contact.Status(state.NodeReady, n.sessionState(), a.cfg.NodeLease, time.Minute); s != state.NodeLost {
		t.Errorf("%s after a minute of silence", s)
	}
}
