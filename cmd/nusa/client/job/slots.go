package job

import (
	"cmp"
	"fmt"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func writeSlots(w *term.Screen, j *nusav1.Job, groups []string) {
	t := term.NewTable("SLOT", "REGION", "STATE", ">VERSION", "#WHY")
	for _, name := range groups {
		for _, slot := range j.GetStatus().GetGroups()[name].GetSlots() {
			because := term.OneLine(slot.GetPlacedBecause())
			if r := term.Why(slot.GetReason(), slot.GetMessage()); r != "" {
				because = r
			}
			t.Row(slotName(slot, everyNode(j.GetSpec(), name)), cmp.Or(slot.GetRegion(), "-"), w.State(slotState(slot)), fmt.Sprint(slot.GetJobVersion()), because)
		}
	}
	if len(t.Rows) == 0 {
		return
	}
	fmt.Fprintln(w)
	t.Write(w)
}

// beingRemoved reports whether the region must give up the slot.
func beingRemoved(s *nusav1.Slot) bool {
	return !s.GetVacant() && (s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_STOP || s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_REVOKE)
}

func slotState(s *nusav1.Slot) string {
	state := term.Word(s.GetState())
	if s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_STOP && s.GetState() != nusav1.SlotState_SLOT_STATE_STOPPED {
		return "stopping"
	}
	if s.GetVacant() {
		return "vacant"
	}
	if s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_REVOKE && s.GetState() != nusav1.SlotState_SLOT_STATE_REVOKED {
		return "being revoked"
	}
	return state
}

// slotName returns a name such as web[0-5], or web[3] for one instance. A system group has
// one slot in each region, with an instance on every node.
func slotName(s *nusav1.Slot, everyNode bool) string {
	switch {
	case everyNode:
		return s.GetGroup() + " on every node"
	case s.GetTo()-s.GetFrom() <= 1:
		return fmt.Sprintf("%s[%d]", s.GetGroup(), s.GetFrom())
	}
	return fmt.Sprintf("%s[%d-%d]", s.GetGroup(), s.GetFrom(), s.GetTo()-1)
}

// everyNode reports whether a group has no count, because it runs once on each node.
func everyNode(spec *nusav1.JobSpec, group string) bool {
	g := spec.GetGroups()[group]
	return spec.GetType() == nusav1.JobType_JOB_TYPE_SYSTEM && g != nil && g.Count == nil
}

// writeSystemNote explains how the instances of a system job are numbered, if the job runs
// in several regions.
func writeSystemNote(w *term.Screen, j *nusav1.Job) {
	if j.GetSpec().GetType() != nusav1.JobType_JOB_TYPE_SYSTEM {
		return
	}
	for name, g := range j.GetStatus().GetGroups() {
		if everyNode(j.GetSpec(), name) && len(g.GetSlots()) > 1 {
			fmt.Fprintln(w)
			w.Note("", "each region numbers the instances of a system job by itself: equal numbers in two regions are two instances")
			return
		}
	}
}
