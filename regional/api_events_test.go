package regional

import (
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestToldOf: an event about several restarts, of which only the latest was
// reported, names them all.
func TestToldOf(t *testing.T) {
	for want, told := range map[string]state.Told{
		", version 2":                  {Alloc: &state.Alloc{}},
		", version 2, restart 5":       {Alloc: &state.Alloc{Restarts: 5}, Anew: 1},
		", version 2, restarts 3 to 5": {Alloc: &state.Alloc{Restarts: 5}, Anew: 3},
	} {
		told.ID, told.Placed, told.Seat = "aaaaaaaa", &state.Placed{JobVersion: 2}, &state.Seat{}
		if got := (toldOf{told}).String(); !strings.HasSuffix(got, want) {
			t.Errorf("%q, want %q at its end", got, want)
		}
	}
}
