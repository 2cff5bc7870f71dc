package job

import (
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestSlotStates: a slot that its owner has given up has no owner, and is not shown as
// being revoked.
func TestSlotStates(t *testing.T) {
	const revoke, stop, run = nusav1.SlotDesired_SLOT_DESIRED_REVOKE, nusav1.SlotDesired_SLOT_DESIRED_STOP, nusav1.SlotDesired_SLOT_DESIRED_RUN
	for _, c := range []struct {
		slot    *nusav1.Slot
		state   string
		removed bool
	}{
		{&nusav1.Slot{Desired: run, State: nusav1.SlotState_SLOT_STATE_ACCEPTED}, "accepted", false},
		{&nusav1.Slot{Desired: revoke, State: nusav1.SlotState_SLOT_STATE_ACCEPTED}, "being revoked", true},
		{&nusav1.Slot{Desired: revoke, State: nusav1.SlotState_SLOT_STATE_ACCEPTED, Vacant: true}, "vacant", false},
		{&nusav1.Slot{Desired: stop, State: nusav1.SlotState_SLOT_STATE_ACCEPTED}, "stopping", true},
	} {
		if got, removed := slotState(c.slot), beingRemoved(c.slot); got != c.state || removed != c.removed {
			t.Errorf("%v: %q, being removed: %t", c.slot, got, removed)
		}
	}
}
