package network

import (
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
)

// TestTreeShowsUnhealthyNodesFirst: unhealthy nodes are shown first, and the number of the
// other nodes is right.
func TestTreeShowsUnhealthyNodesFirst(t *testing.T) {
	for most, want := range map[int]string{
		1: "and 3 more nodes, 1 of them unhealthy", 2: "and 2 more nodes, all of them ready", 3: "and 1 more nodes, all of them ready", 4: "",
	} {
		var b strings.Builder
		writeTree(&term.Screen{Writer: &b, Now: sample.Noon}, sample.CrowdedTree(), most)
		shown := strings.Count(b.String(), "─ node ")
		if shown != most || strings.Contains(b.String(), "more nodes") != (want != "") || !strings.Contains(b.String(), want) {
			t.Errorf("at most %d: %d shown, without %q:\n%s", most, shown, want, b.String())
		}
	}
}
