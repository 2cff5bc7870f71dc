package master

import (
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestEventNamesAllRestarts: an event counts all restarts since the last report, although
// the agent reported only the latest one.
func TestEventNamesAllRestarts(t *testing.T) {
	for want, change := range map[string]state.ReportedChange{
		", version 2":                  {Alloc: &state.Alloc{}},
		", version 2, restart 5":       {Alloc: &state.Alloc{Restarts: 5}, NewRestarts: 1},
		", version 2, restarts 3 to 5": {Alloc: &state.Alloc{Restarts: 5}, NewRestarts: 3},
	} {
		change.ID, change.Placement, change.NodeRef = "aaaaaaaa", &state.Placement{JobVersion: 2}, &state.NodeRef{}
		if got := (changeText{change}).String(); !strings.HasSuffix(got, want) {
			t.Errorf("%q, want %q at its end", got, want)
		}
	}
}
