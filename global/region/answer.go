package region

import (
	"cmp"
	"slices"
)

// Ignored says why an answer, or a part of it, changed nothing.
type Ignored string

const (
	// IgnoredNone: the whole answer was applied.
	IgnoredNone Ignored = ""
	// IgnoredUnknown: no slot of this region has any of the indices (any more).
	IgnoredUnknown Ignored = "unknown_slot"
	// IgnoredGeneration: the region owns the indices, but by another offer.
	IgnoredGeneration Ignored = "other_generation"
	// IgnoredRepeated: the slot has this state already, or a later one.
	IgnoredRepeated Ignored = "repeated"
	// IgnoredPartial: accepted, but only a part of a slot. The region answers
	// for the rest, and then repeats this answer for the remaining part of the slot.
	IgnoredPartial Ignored = "partial"
	// IgnoredNotAsked: stopped, revoked or kept, although the slot had no such order.
	IgnoredNotAsked Ignored = "not_asked"
	// IgnoredCrowded: the slot has MaxFormer former owners that may run it, so one more cannot
	// be remembered. The region repeats the answer.
	IgnoredCrowded Ignored = "crowded"
	// IgnoredMalformed: an empty range, no generation, or a state that is not
	// an answer.
	IgnoredMalformed Ignored = "malformed"
)

// Outcome says what an answer changed.
type Outcome struct {
	// Changes to write in one transaction; none = nothing to do.
	Changes []Change
	// Released are the index ranges [from,to) that lost their owner, ascending: nobody owns
	// them, or their slot is vacant. Moved are those that have another owner now.
	Released [][2]int
	Moved    []Moved
	// Ignored is set when no part of the answer changed anything.
	Ignored Ignored
}

// Moved is an index range [From,To) that has a new owner, by the former one's own answer.
type Moved struct {
	From, To int
	Region   string
}

// ApplyAnswer applies an answer of the named region to the stored slots of the
// answered group. The slots may be in any order; slots of other regions are
// left alone. The answer's range may be a part of a slot, which is then split
// (see Change), or cover several slots of one generation. Rejected, returned,
// revoked and stopped indices lose their owner, or go to the next one, or become vacant:
// see Slot.released. Accepted and done only advance the state. Kept indices get a new offer
// to the same region, so that earlier answers to the revoke are ignored. Former owners
// answer for what they had, see applyFormer. Repeating an answer changes nothing.
func ApplyAnswer(slots []Slot, region string, a Answer) Outcome {
	if a.From < 0 || a.From >= a.To || a.Generation <= 0 || !a.State.isAnswer() {
		return Outcome{Ignored: IgnoredMalformed}
	}
	out := Outcome{Ignored: IgnoredUnknown}
	for _, s := range sorted(slots) {
		from, to := max(s.From, a.From), min(s.To, a.To)
		former := s.former(region)
		if (s.Region != region || s.Vacant) && former < 0 || s.Namespace != a.Namespace || s.Job != a.Job || s.Group != a.Group || from >= to {
			continue
		}
		var changes []Change
		var gaveUp bool
		var why Ignored
		if s.Region == region && !s.Vacant {
			changes, gaveUp, why = applyPart(s, from, to, a)
		} else {
			changes, why = applyFormer(s, former, from, to, a)
		}
		if why != IgnoredNone {
			if len(out.Changes) == 0 {
				out.Ignored = why
			}
			continue
		}
		out.Ignored = IgnoredNone
		out.Changes = append(out.Changes, changes...)
		if !gaveUp {
			continue
		}
		if next := s.released(a); next != nil && !next.Vacant {
			out.Moved = append(out.Moved, Moved{from, to, next.Region})
		} else {
			out.Released = append(out.Released, [2]int{from, to})
		}
	}
	return out
}

// applyPart applies an answer of the owner about from ≤ i < to, which lies inside s, and says
// whether the owner gave that part up.
func applyPart(s Slot, from, to int, a Answer) (changes []Change, gaveUp bool, why Ignored) {
	if s.Generation != a.Generation {
		return nil, false, IgnoredGeneration
	}
	switch a.State {
	case Accepted, Done:
		middle := s
		binds := a.State == Accepted && a.Bound && s.Bound && s.Unbound
		if binds {
			middle.Unbound, middle.StopTime = false, max(s.StopTime, a.StopTime)
		}
		if a.State.rank() > s.State.rank() {
			middle.State, middle.Reason, middle.Message = a.State, a.Reason, a.Message
			if a.State == Done && s.Desired == DesiredRevoke {
				// It has completed, and must not run again elsewhere. An earlier answer to
				// the revoke does not count.
				middle.Desired, middle.UnlessConnected, middle.ReturnTo, middle.Generation = DesiredRun, false, "", 0
			}
		} else if !binds {
			return nil, false, IgnoredRepeated
		}
		if a.State == Accepted && to-from < s.Count() {
			return nil, false, IgnoredPartial
		}
		return replace(s, from, to, &middle), false, IgnoredNone
	case Stopped, Revoked:
		// A slot that is being revoked may be stopped meanwhile: both answers
		// say that nothing runs. A slot with desired state run can have neither
		// answer.
		if s.Desired == DesiredRun {
			return nil, false, IgnoredNotAsked
		}
	case Kept:
		if s.Desired != DesiredRevoke || !s.UnlessConnected {
			return nil, false, IgnoredNotAsked
		}
		middle := s
		middle.Desired, middle.UnlessConnected, middle.Generation = DesiredRun, false, 0
		return replace(s, from, to, &middle), false, IgnoredNone
	case Rejected, Returned:
		// The region has given these instances up for good, whatever the desired state
		// is. An instance that is done has nothing left to give up.
		if s.State == Done {
			return nil, false, IgnoredRepeated
		}
	}
	if a.MayRun && s.Crowded() {
		return nil, false, IgnoredCrowded
	}
	return replace(s, from, to, s.released(a)), true, IgnoredNone
}

// replace puts middle (nil = nothing) in the place of from ≤ i < to of s. The
// part that keeps the key of s is still the same offer. A part with a key of
// its own becomes a new offer with a new generation. The region may have sent an
// answer that returns some of that part, and it forgets that answer with the old
// range. With the new generation, that answer is ignored.
func replace(s Slot, from, to int, middle *Slot) []Change {
	var parts []Slot
	add := func(part Slot, from, to int) {
		if from >= to {
			return
		}
		part.From, part.To = from, to
		if from != s.From {
			part.Revision, part.Generation = 0, 0
		}
		parts = append(parts, part)
	}
	add(s, s.From, from)
	if middle != nil {
		add(*middle, from, to)
	}
	add(s, to, s.To)

	var changes []Change
	if len(parts) == 0 || parts[0].From != s.From {
		changes = append(changes, Change{Delete: true, Slot: s})
	}
	for _, p := range parts {
		changes = append(changes, Change{Slot: p})
	}
	return changes
}

// StopPart returns the changes that give the indices from ≤ i < to of a slot
// the desired state (DesiredStop or DesiredRevoke). The other indices stay as
// they are, and indices outside the slot are ignored. There are no changes if
// the slot has that desired state already, or a later one. The indices of a slot without an
// owner are dropped.
func StopPart(s Slot, from, to int, desired Desired) []Change {
	from, to = max(from, s.From), min(to, s.To)
	if from >= to || desired.rank() <= s.Desired.rank() {
		return nil
	}
	if s.Region == "" { // nobody has to confirm
		return replace(s, from, to, nil)
	}
	middle := s
	middle.Desired, middle.UnlessConnected, middle.ReturnTo = desired, false, ""
	return replace(s, from, to, &middle)
}

// RevokeUnlessConnected is StopPart with DesiredRevoke for instances on
// disconnected nodes: the region keeps an instance if its node has reconnected.
func RevokeUnlessConnected(s Slot, from, to int) []Change {
	changes := StopPart(s, from, to, DesiredRevoke)
	for i := range changes {
		c := &changes[i]
		c.Slot.UnlessConnected = !c.Delete && c.Slot.Desired == DesiredRevoke
	}
	return changes
}

func sorted(slots []Slot) []Slot {
	byFrom := func(a, b Slot) int { return cmp.Compare(a.From, b.From) }
	if slices.IsSortedFunc(slots, byFrom) {
		return slots
	}
	slots = slices.Clone(slots)
	slices.SortStableFunc(slots, byFrom)
	return slots
}
