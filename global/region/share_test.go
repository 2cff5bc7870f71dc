package region_test

import (
	"slices"
	"testing"

	"github.com/nusa-scheduler/nusa/global/region"
)

// TestSplitsKeepTheShare: after a split, the parts of a slot that must run may not run more instances at once
// than the whole slot.
func TestSplitsKeepTheShare(t *testing.T) {
	slot := region.Slot{Namespace: "d", Job: "j", Group: "g", From: 0, To: 9, Region: "osaka", State: region.Accepted, Desired: region.DesiredRun, Generation: 5, Parallel: 2}
	answer := func(state region.SlotState, from, to int, generation int64) func([]region.Slot) []region.Change {
		return func(slots []region.Slot) []region.Change {
			return region.ApplyAnswer(slots, "osaka", region.Answer{Namespace: "d", Job: "j", Group: "g", From: from, To: to, Generation: generation, State: state}).Changes
		}
	}
	revoke := func(slots []region.Slot) []region.Change { return region.RevokeUnlessConnected(slots[0], 3, 6) }
	for name, steps := range map[string][]func([]region.Slot) []region.Change{
		"returned in the middle":    {answer(region.Returned, 3, 6, 5)},
		"done in the middle":        {answer(region.Done, 3, 6, 5)},
		"returned at the beginning": {answer(region.Returned, 0, 6, 5)},
		"revoked and kept":          {revoke, answer(region.Kept, 3, 6, 7)},
		"revoked and done":          {revoke, answer(region.Done, 3, 6, 7)},
		"revoked in the middle":     {revoke},
		"returned to the region before": {func(slots []region.Slot) []region.Change { return region.ReturnPart(slots[0], 3, 6, "nagoya") },
			answer(region.Revoked, 3, 6, 7)},
	} {
		slots := []region.Slot{slot}
		for _, step := range steps {
			for _, c := range step(slots) {
				slots = slices.DeleteFunc(slots, func(s region.Slot) bool { return s.From == c.Slot.From })
				if !c.Delete {
					if c.Slot.Generation == 0 {
						c.Slot.Generation = 7
					}
					slots = append(slots, c.Slot)
				}
			}
		}
		sum := 0
		for _, s := range slots {
			if s.Desired == region.DesiredRun {
				sum += s.Parallel
			}
		}
		if sum != slot.Parallel {
			t.Errorf("%s: %d instances may run at once, the slot had %d: %v", name, sum, slot.Parallel, slots)
		}
	}
}
