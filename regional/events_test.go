package regional

import (
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestInstanceEventNamesEachRestart: an agent reports only the latest of several
// restarts; the event names them all.
func TestInstanceEventNamesEachRestart(t *testing.T) {
	for want, r := range map[string]state.ReportedChange{
		", version 2":                  {Alloc: &state.Alloc{}},
		", version 2, restart 5":       {Alloc: &state.Alloc{Restarts: 5}, NewRestarts: 1},
		", version 2, restarts 3 to 5": {Alloc: &state.Alloc{Restarts: 5}, NewRestarts: 3},
	} {
		r.ID, r.Placement, r.NodeRef = "aaaaaaaa", &state.Placement{JobVersion: 2}, &state.NodeRef{}
		if got := (instanceEvent{r}).String(); !strings.HasSuffix(got, want) {
			t.Errorf("%q, want %q at its end", got, want)
		}
	}
}
