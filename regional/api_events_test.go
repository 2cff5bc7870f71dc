package regional

import (
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestToldOf: an event about several restarts, of which only the latest was
// reported, names them all.
func TestToldOf(t *testing.T) {
	for want, told := range map[string]state.ReportedChange{
		", version 2":                  {Alloc: &state.Alloc{}},
		", version 2, restart 5":       {Alloc: &state.Alloc{Restarts: 5}, NewRestarts: 1},
		", version 2, restarts 3 to 5": {Alloc: &state.Alloc{Restarts: 5}, NewRestarts: 3},
	} {
		told.ID, told.Placement, told.NodeRef = "aaaaaaaa", &state.Placement{JobVersion: 2}, &state.NodeRef{}
		if got := (toldOf{told}).String(); !strings.HasSuffix(got, want) {
			t.Errorf("%q, want %q at its end", got, want)
		}
	}
}
