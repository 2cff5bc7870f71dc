package region_test

import (
	"testing"

	"github.com/nusa-scheduler/nusa/global/region"
)

// TestOfferedAgainMayBeUnbound: another cluster gets a slot whose version no lease binds. After
// the slot gets a version that a lease binds, the cluster may still run the earlier one.
func TestOfferedAgainMayBeUnbound(t *testing.T) {
	s := region.Slot{Region: "sea", Generation: 7, State: region.Accepted, Unbound: true}.OfferedAgain()
	s.Bind(true, 0)
	if s.Generation != 0 || s.State != region.Offered || !s.Bound || !s.Unbound {
		t.Errorf("the slot is %+v", s)
	}
}
