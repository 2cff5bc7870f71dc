package reservation

import (
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestListFitsTerminal: no line of the list is wider than a terminal, and without a terminal
// no column is left out.
func TestListFitsTerminal(t *testing.T) {
	all := []*nusav1.Reservation{
		{Id: "01a2238f-0601-7b02-8f54-efd50e9231e0", State: nusav1.ReservationState_RESERVATION_STATE_COMPLETED,
			Node: &nusav1.ReservedNode{Name: "brazilsouth-agent-1", Region: "brazilsouth"}, Claim: &nusav1.ReservationClaim{By: "virtflow"}},
		{Id: "01a2238f-1ef7-797a-a507-9148c8571a27", State: nusav1.ReservationState_RESERVATION_STATE_FAILED,
			Message: "No available nodes: not enough cpu: brazilsouth: needs 400 cpu, the largest suitable node has 133m"},
	}
	list := func(width int) string {
		var b strings.Builder
		writeList(&term.Screen{Writer: &b, Width: width}, all)
		return b.String()
	}
	for line := range strings.Lines(list(80)) {
		if len(strings.TrimSuffix(line, "\n")) >= 80 {
			t.Errorf("a line has %d columns: %s", len(line)-1, line)
		}
	}
	for _, part := range []string{"brazilsouth-agent-1", "virtflow", "REGION"} {
		if !strings.Contains(list(0), part) {
			t.Errorf("the list has no %q:\n%s", part, list(0))
		}
	}
}
