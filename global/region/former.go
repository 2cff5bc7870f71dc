package region

import "slices"

// former returns the position of a region in the slot's list of former owners, or -1.
func (s Slot) former(region string) int {
	return slices.IndexFunc(s.Former, func(f FormerOwner) bool { return f.Region == region })
}

// without returns the slot's former owners except the named one.
func (s Slot) without(region string) []FormerOwner {
	i := s.former(region)
	switch {
	case i < 0:
		return s.Former
	case len(s.Former) == 1:
		return nil
	}
	return slices.Concat(s.Former[:i], s.Former[i+1:])
}

// DesiredOfFormer returns what the former owner at position i of the slot's list is
// ordered to do with the slot: to hold what runs there, or to end it.
func (s Slot) DesiredOfFormer(i int) Desired {
	if s.Former[i].Hold && s.Desired != DesiredStop && s.State != Done {
		return DesiredHold
	}
	return DesiredRevoke
}

// applyFormer applies a former owner's answer to the indices from ≤ i < to, which lie inside s. i
// is the owner's position in s.Former.
//
// If instances have completed in the region, or run there under the order to hold them, the slot
// returns: the present owner is revoked, and the region gets the slot after the confirmation. If
// the region has nothing left, it is removed from the list. The same holds if it has completed what
// the present owner has completed too, or has to stop. The owner of the slot changes here only if
// the slot is vacant.
func applyFormer(s Slot, i, from, to int, a Answer) ([]Change, Ignored) {
	f := s.Former[i]
	if f.Generation != a.Generation {
		return nil, IgnoredGeneration
	}
	middle := s
	switch a.State {
	case Kept, Done:
		switch {
		case s.DesiredOfFormer(i) != DesiredHold && (a.State == Kept || a.Fence < f.Fence):
			return nil, IgnoredNotAsked
		case s.Desired == DesiredStop, s.State == Done: // nothing has to return
			return replace(s, from, to, s.confirmed(f.Region)), IgnoredNone
		case s.ReturnTo != "":
			return nil, IgnoredRepeated // the slot already returns, to this or another region
		}
		middle.Desired, middle.ReturnTo, middle.UnlessConnected = DesiredRevoke, f.Region, false
		if s.Vacant { // no owner has to confirm
			return replace(s, from, to, middle.released(Answer{})), IgnoredNone
		}
	case Revoked, Stopped:
		if a.MayRun {
			return mayRun(s, i, from, to)
		}
		return replace(s, from, to, s.confirmed(f.Region)), IgnoredNone
	default: // the answer was sent in a session before the verdict
		return nil, IgnoredNotAsked
	}
	return replace(s, from, to, &middle), IgnoredNone
}

// mayRun notes that a lost node of a former owner may still run the slot. The rest of what the
// former owner ran has ended.
func mayRun(s Slot, i, from, to int) ([]Change, Ignored) {
	if s.Former[i].MayRun {
		return nil, IgnoredRepeated
	}
	middle := s
	middle.Former = slices.Clone(s.Former)
	middle.Former[i].MayRun = true
	return replace(s, from, to, &middle), IgnoredNone
}

// confirmed returns the slot after a former owner has confirmed that it runs nothing of the slot.
func (s Slot) confirmed(former string) *Slot {
	s.Former = s.without(former)
	if s.Vacant {
		return s.vacated()
	}
	return &s
}

// OfferedAgain returns the slot as a new offer to another cluster that takes the owner's name,
// after an operator has stated that nothing of the former cluster runs. The offer has a new
// generation, because the new cluster does not know which epochs the former cluster has used.
// Unbound stays, because the slot's version may be one that no lease binds.
func (s Slot) OfferedAgain() Slot {
	s.Generation = 0
	if s.State == Accepted {
		s.State = Offered
	}
	return s
}

// released returns the slot after its owner has given it up, or nil if no record has to stay.
//
// The next owner is the region that the slot returns to, otherwise the latest former owner that
// holds the slot. Without such a region, the slot becomes vacant if a former owner may still run
// it. If a lost node of the present owner may still run the slot, the present owner becomes a
// former owner.
func (s Slot) released(a Answer) *Slot {
	if a.MayRun {
		s.Former = slices.Concat(s.Former, []FormerOwner{{Region: s.Region, Generation: s.Generation, Moved: a.At, MayRun: true}})
		if len(s.Former) > MaxFormer {
			s.Former = s.forgetOldest()
		}
	}
	next := s
	next.State, next.Generation, next.Hold, next.Parallel = Offered, 0, 0, 0
	next.UnlessConnected, next.ReturnTo, next.Reason, next.Message = false, "", "", ""
	next.PlacedBecause = "returned from " + s.Region
	if s.Desired != DesiredStop {
		next.Desired = DesiredRun
	}
	next.Region, next.Vacant = s.ReturnTo, false
	for _, f := range slices.Backward(s.Former) {
		if next.Region == "" && f.Hold {
			next.Region = f.Region
		}
	}
	if next.Region == "" {
		return s.vacated()
	}
	next.bindFormer(s) // the next owner may still run an earlier version
	next.Former = s.without(next.Region)
	if next.Region == s.Home {
		next.Home = ""
	}
	return &next
}

// Reachable returns the slot without ReturnTo if the slot returns to a region that is not
// connected. Such a region gets the order to hold the slot again when it next says hello.
func (s Slot) Reachable(connected func(name string) bool) Slot {
	if s.ReturnTo != "" && !connected(s.ReturnTo) {
		s.ReturnTo = ""
	}
	gone := func(f FormerOwner) bool { return f.Hold && !connected(f.Region) }
	if slices.ContainsFunc(s.Former, gone) {
		s.Former = slices.Clone(s.Former)
		for i := range s.Former {
			s.Former[i].Hold = s.Former[i].Hold && !gone(s.Former[i])
		}
	}
	return s
}

// vacated returns the slot after its owner has confirmed that it runs nothing of the slot. It
// returns nil if no former owner may run the slot either.
func (s Slot) vacated() *Slot {
	if !slices.ContainsFunc(s.Former, func(f FormerOwner) bool { return f.MayRun }) {
		return nil
	}
	s.Vacant, s.UnlessConnected, s.ReturnTo, s.Hold = true, false, "", 0
	s.Bound, s.StopTime, s.Unbound = false, 0, false
	if s.Desired == DesiredRun {
		s.Desired = DesiredRevoke
	}
	return &s
}

// Without returns the change that drops some former owners. If the slot is vacant and no region may
// run it any more, the change deletes the slot.
func (s Slot) Without(gone func(FormerOwner) bool) Change {
	old := s
	s.Former = slices.DeleteFunc(slices.Clone(s.Former), gone)
	if s.Vacant && s.vacated() == nil {
		return Change{Delete: true, Slot: old}
	}
	return Change{Slot: s}
}

// GiveUp returns the change of a slot whose owner runs nothing of the slot any more.
func GiveUp(s Slot) Change {
	if next := s.released(Answer{}); next != nil {
		return Change{Slot: *next}
	}
	return Change{Delete: true, Slot: s}
}

// Disown returns the change of a done slot whose region is gone. The record stays, without an
// owner, so that a cluster that takes the region's name does not run completed work again.
func Disown(s Slot) Change {
	s.Region, s.Home, s.ReturnTo, s.Bound, s.StopTime, s.Unbound = "", "", "", false, 0, false
	return Change{Slot: s}
}

// ReturnPart returns the changes that revoke the indices from ≤ i < to of a slot. The region gets
// them once the owner has confirmed. There are no changes if the slot already returns, is done, or
// is being stopped.
func ReturnPart(s Slot, from, to int, region string) []Change {
	from, to = max(from, s.From), min(to, s.To)
	if from >= to || s.Desired == DesiredStop || s.State == Done || s.ReturnTo != "" || s.Region == region || s.System || s.Vacant {
		return nil
	}
	middle := s
	middle.Desired, middle.UnlessConnected, middle.ReturnTo = DesiredRevoke, false, region
	return replace(s, from, to, &middle)
}
