package region

import "slices"

// former returns the position of a former owner in the slot's list, -1 for none.
func (s Slot) former(region string) int {
	return slices.IndexFunc(s.Former, func(f FormerOwner) bool { return f.Region == region })
}

// without returns the slot's former owners without one.
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

// applyFormer applies an answer of a former owner about from ≤ i < to, which lies
// inside s. An instance that has completed there returns, and so does one that runs there, if
// the region was ordered to hold it: the present owner is revoked, and the region gets the
// slot once that is confirmed. A region that has nothing left is forgotten, also when it
// completed what the present owner has completed too, or has to stop. The owner of the slot
// does not change here, unless the slot is vacant.
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
		case s.Desired == DesiredStop, s.State == Done: // nothing has to return, and nothing is left there
			return replace(s, from, to, s.confirmed(f.Region)), IgnoredNone
		case s.ReturnTo != "":
			return nil, IgnoredRepeated // it returns already, to this region or to another one
		}
		middle.Desired, middle.ReturnTo, middle.UnlessConnected = DesiredRevoke, f.Region, false
		if s.Vacant { // nobody has to confirm
			return replace(s, from, to, middle.released(Answer{})), IgnoredNone
		}
	case Revoked, Stopped:
		if a.MayRun {
			return mayRun(s, i, from, to)
		}
		return replace(s, from, to, s.confirmed(f.Region)), IgnoredNone
	default: // an answer of a session before the verdict
		return nil, IgnoredNotAsked
	}
	return replace(s, from, to, &middle), IgnoredNone
}

// mayRun notes that a lost node of a former owner may still run the slot, although the former
// owner has ended everything else.
func mayRun(s Slot, i, from, to int) ([]Change, Ignored) {
	if s.Former[i].MayRun {
		return nil, IgnoredRepeated
	}
	middle := s
	middle.Former = slices.Clone(s.Former)
	middle.Former[i].MayRun = true
	return replace(s, from, to, &middle), IgnoredNone
}

// confirmed returns the slot after a former owner has confirmed that nothing of it runs there.
func (s Slot) confirmed(former string) *Slot {
	s.Former = s.without(former)
	if s.Vacant {
		return s.vacated()
	}
	return &s
}

// OfferedAgain returns the slot as a new offer to another cluster that takes the owner's name. Nothing of
// the former cluster runs, and the new one does not know which epochs that one has used.
func (s Slot) OfferedAgain() Slot {
	s.Generation, s.Unbound = 0, false
	if s.State == Accepted {
		s.State = Offered
	}
	return s
}

// released returns the slot after its owner has given it up: nil if nothing is left to
// remember. A slot that is returning goes to the region that gets it, otherwise to a former
// owner that holds it. Without such a region, a slot that a former owner may still run
// becomes vacant. An owner that may still run the slot is a former owner then.
func (s Slot) released(a Answer) *Slot {
	if a.MayRun {
		s.Former = slices.Concat(s.Former, []FormerOwner{{Region: s.Region, Generation: s.Generation, Moved: a.At, MayRun: true}})
		if len(s.Former) > MaxFormer {
			s.Former = s.forgetOldest()
		}
	}
	next := s
	next.State, next.Generation, next.Hold = Offered, 0, 0
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
	next.bindFormer(s) // what it runs may be of an earlier version
	next.Former = s.without(next.Region)
	if next.Region == s.Home {
		next.Home = ""
	}
	return &next
}

// Reachable returns the slot as it returns only to regions that are connected. A region that
// says hello again is ordered again to hold it.
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

// vacated returns the slot after its owner has confirmed that nothing of it runs there: nil
// if nobody else may run it either.
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

// Without returns the change that drops former owners. A vacant slot that nobody may run any
// more goes with them.
func (s Slot) Without(gone func(FormerOwner) bool) Change {
	old := s
	s.Former = slices.DeleteFunc(slices.Clone(s.Former), gone)
	if s.Vacant && s.vacated() == nil {
		return Change{Delete: true, Slot: old}
	}
	return Change{Slot: s}
}

// GiveUp returns the change of a slot whose owner runs nothing of it any more.
func GiveUp(s Slot) Change {
	if next := s.released(Answer{}); next != nil {
		return Change{Slot: *next}
	}
	return Change{Delete: true, Slot: s}
}

// Disown returns the change of a done slot whose region is gone. What has completed stays on
// record without an owner, so that no cluster that takes the region's name runs it again.
func Disown(s Slot) Change {
	s.Region, s.Home, s.ReturnTo, s.Bound, s.StopTime, s.Unbound = "", "", "", false, 0, false
	return Change{Slot: s}
}

// ReturnPart returns the changes that revoke the indices from ≤ i < to of a slot, which
// go to a region once the owner has confirmed. There are no changes if the slot returns
// already, is done or is being stopped.
func ReturnPart(s Slot, from, to int, region string) []Change {
	from, to = max(from, s.From), min(to, s.To)
	if from >= to || s.Desired == DesiredStop || s.State == Done || s.ReturnTo != "" || s.Region == region || s.System || s.Vacant {
		return nil
	}
	middle := s
	middle.Desired, middle.UnlessConnected, middle.ReturnTo = DesiredRevoke, false, region
	return replace(s, from, to, &middle)
}
