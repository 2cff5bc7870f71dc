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

// TestShareStaysInTheRegion: a region that gives a slot up may run as many instances of its other slots as before, at most. A slot
// that was revoked has kept the share of the whole from which it was split.
func TestShareStaysInTheRegion(t *testing.T) {
	slot := func(from, to, parallel int, desired region.Desired, state region.SlotState) region.Slot {
		return region.Slot{Namespace: "d", Job: "j", Group: "g", From: from, To: to, Region: "osaka", State: state, Desired: desired, Generation: 5, Parallel: parallel}
	}
	const run, revoke, stop = region.DesiredRun, region.DesiredRevoke, region.DesiredStop
	elsewhere := slot(8, 9, 0, run, region.Accepted)
	elsewhere.Region = "nagoya"
	for name, test := range map[string]struct {
		slots []region.Slot
		state region.SlotState
		from  int // the answer is about from ≤ i < from+2
		want  int // what the region may run then
	}{
		"the slot with the share is returned":       {[]region.Slot{slot(0, 2, 3, run, region.Accepted), slot(2, 6, 0, run, region.Accepted)}, region.Returned, 0, 3},
		"a slot with a part of it is returned":      {[]region.Slot{slot(0, 2, 1, run, region.Accepted), slot(2, 6, 2, run, region.Accepted)}, region.Returned, 0, 3},
		"a part of a slot is returned":              {[]region.Slot{slot(0, 4, 3, run, region.Accepted), slot(4, 6, 0, run, region.Accepted)}, region.Returned, 1, 3},
		"parts of two slots are returned":           {[]region.Slot{slot(0, 2, 3, run, region.Accepted), slot(2, 6, 0, run, region.Accepted)}, region.Returned, 1, 3},
		"the slot with the share was revoked":       {[]region.Slot{slot(0, 2, 3, revoke, region.Accepted), slot(2, 6, 0, run, region.Accepted)}, region.Revoked, 0, 3},
		"a part of the slot with it was revoked":    {[]region.Slot{slot(0, 2, 3, revoke, region.Accepted), slot(2, 6, 3, run, region.Accepted)}, region.Revoked, 0, 3},
		"what stays has got a part of it already":   {[]region.Slot{slot(0, 2, 3, revoke, region.Accepted), slot(2, 6, 1, run, region.Accepted)}, region.Revoked, 0, 3},
		"what was stopped frees its share":          {[]region.Slot{slot(0, 2, 3, stop, region.Accepted), slot(2, 6, 0, run, region.Accepted)}, region.Stopped, 0, 0},
		"nothing else of the region runs":           {[]region.Slot{slot(0, 2, 3, run, region.Accepted), slot(2, 6, 0, run, region.Done)}, region.Returned, 0, 0},
		"only another region has more of the group": {[]region.Slot{slot(0, 2, 3, run, region.Accepted), elsewhere}, region.Returned, 0, 0},
	} {
		slots := slices.Clone(test.slots)
		changes := region.ApplyAnswer(slots, "osaka", region.Answer{Namespace: "d", Job: "j", Group: "g", From: test.from, To: test.from + 2, Generation: 5, State: test.state}).Changes
		if len(changes) == 0 {
			t.Errorf("%s: the answer changes nothing", name)
		}
		seen := map[int]bool{}
		for _, c := range changes {
			if seen[c.Slot.From] {
				t.Errorf("%s: two changes of one slot: %v", name, changes)
			}
			seen[c.Slot.From] = true
			slots = slices.DeleteFunc(slots, func(s region.Slot) bool { return s.From == c.Slot.From })
			if !c.Delete {
				slots = append(slots, c.Slot)
			}
		}
		got := 0
		for _, s := range slots {
			if s.Region == "osaka" && s.Desired == run && !s.Vacant {
				got += s.Parallel
			} else if s.Region == "nagoya" && s.Parallel > 0 {
				t.Errorf("%s: region nagoya gets a share", name)
			}
		}
		if got != test.want {
			t.Errorf("%s: region osaka may run %d instances, want %d: %v", name, got, test.want, slots)
		}
	}
}
