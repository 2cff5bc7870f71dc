package regional

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// A node whose message is under way here is not silent: it is we who are slow.
func TestSlowMasterLosesNoNodes(t *testing.T) {
	a := newAgents(&leader{s: &server{cfg: Config{NodeLease: time.Second}}})
	n := &state.Node{ID: "n", Status: state.NodeReady}
	a.node("n").busy = 1
	if s, _ := a.status(n, time.Minute); s != state.NodeReady {
		t.Errorf("%s while its message is being committed", s)
	}
	a.node("n").busy = 0
	if s, _ := a.status(n, time.Minute); s != state.NodeLost {
		t.Errorf("%s after a minute's silence", s)
	}
}

// A region without a global tier keeps nothing for it.
func TestIslandRemembersNoChanges(t *testing.T) {
	u := newUplink(&leader{})
	u.changed([]state.GroupKey{{Namespace: "default", Job: "a", Group: "web"}})
	u.explained(map[state.GroupKey]struct{}{{Namespace: "default", Job: "b", Group: "web"}: {}})
	if len(u.dirty)+len(u.unplaced) > 0 {
		t.Errorf("%d jobs and %d groups are remembered", len(u.dirty), len(u.unplaced))
	}
}
