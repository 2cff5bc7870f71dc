package job

import (
	"fmt"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func writeSlots(w *term.Screen, s *nusav1.JobStatus, groups []string) {
	t := term.NewTable("SLOT", "REGION", "STATE", ">VERSION", "#WHY")
	for _, name := range groups {
		for _, slot := range s.GetGroups()[name].GetSlots() {
			because := term.Plain(slot.GetPlacedBecause())
			if r := term.Why(slot.GetReason(), slot.GetMessage()); r != "" {
				because = r
			}
			t.Row(slotName(slot), slot.GetRegion(), w.State(slotState(slot)), fmt.Sprint(slot.GetJobVersion()), because)
		}
	}
	if len(t.Rows) == 0 {
		return
	}
	fmt.Fprintln(w)
	t.Write(w)
}

// unwanted: the slot is being taken back.
func beingRemoved(s *nusav1.Slot) bool {
	return s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_STOP || s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_REVOKE
}

func slotState(s *nusav1.Slot) string {
	state := term.Word(s.GetState())
	if s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_STOP && s.GetState() != nusav1.SlotState_SLOT_STATE_STOPPED {
		return "stopping"
	}
	if s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_REVOKE && s.GetState() != nusav1.SlotState_SLOT_STATE_REVOKED {
		return "being revoked"
	}
	return state
}

// slotName is web[0-5], or web[3] for one instance.
func slotName(s *nusav1.Slot) string {
	if s.GetTo()-s.GetFrom() <= 1 {
		return fmt.Sprintf("%s[%d]", s.GetGroup(), s.GetFrom())
	}
	return fmt.Sprintf("%s[%d-%d]", s.GetGroup(), s.GetFrom(), s.GetTo()-1)
}
