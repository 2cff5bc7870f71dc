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
	// IgnoredGeneration: the indices are this region's, by another offer.
	IgnoredGeneration Ignored = "other_generation"
	// IgnoredRepeated: the slot says so already, or something later.
	IgnoredRepeated Ignored = "repeated"
	// IgnoredPartial: accepted, but only a part of a slot. The region will say
	// what becomes of the rest, and repeat this for what is left then.
	IgnoredPartial Ignored = "partial"
	// IgnoredNotAsked: stopped, revoked or kept, and nobody asked for that.
	IgnoredNotAsked Ignored = "not_asked"
	// IgnoredMalformed: an empty range, no generation, or a state that is no answer.
	IgnoredMalformed Ignored = "malformed"
)

// Outcome tells what an answer did.
type Outcome struct {
	// Changes to write in one transaction; none = nothing to do.
	Changes []Change
	// Released are the index ranges [from,to) that lost their owner, ascending.
	Released [][2]int
	// Ignored is set when no part of the answer changed anything.
	Ignored Ignored
}

// ApplyAnswer judges an answer of the named region against the stored slots of
// the answered group (any order; those of other regions are left alone). Its
// range may be a part of a slot, which is then split (see Change), or cover
// several of one generation. Rejected, returned, revoked and stopped indices
// lose their owner; accepted and done only advance the state; kept ones are the
// region's by a new offer, so that what it said while they were to be given up
// is void. Repeating an answer changes nothing.
func ApplyAnswer(slots []Slot, region string, a Answer) Outcome {
	if a.From < 0 || a.From >= a.To || a.Generation <= 0 || !a.State.isAnswer() {
		return Outcome{Ignored: IgnoredMalformed}
	}
	out := Outcome{Ignored: IgnoredUnknown}
	for _, s := range sorted(slots) {
		from, to := max(s.From, a.From), min(s.To, a.To)
		if s.Region != region || s.Namespace != a.Namespace || s.Job != a.Job || s.Group != a.Group || from >= to {
			continue
		}
		changes, freed, why := applyPart(s, from, to, a)
		if why != IgnoredNone {
			if len(out.Changes) == 0 {
				out.Ignored = why
			}
			continue
		}
		out.Ignored = IgnoredNone
		out.Changes = append(out.Changes, changes...)
		if freed {
			out.Released = append(out.Released, [2]int{from, to})
		}
	}
	return out
}

// applyPart judges an answer about from ≤ i < to, which lies inside s.
func applyPart(s Slot, from, to int, a Answer) (changes []Change, freed bool, why Ignored) {
	if s.Generation != a.Generation {
		return nil, false, IgnoredGeneration
	}
	switch a.State {
	case Accepted, Done:
		if a.State.rank() <= s.State.rank() {
			return nil, false, IgnoredRepeated
		}
		if a.State == Accepted && to-from < s.Count() {
			return nil, false, IgnoredPartial
		}
		middle := s
		middle.State, middle.Reason, middle.Message = a.State, a.Reason, a.Message
		return replace(s, from, to, &middle), false, IgnoredNone
	case Stopped, Revoked:
		// A slot that is revoked may be stopped meanwhile: either answer says that
		// nothing runs. Of a slot that shall run neither can be meant.
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
		// The region has given these up for good, whatever we wanted of them. An
		// index that is done has nothing left to give.
		if s.State == Done {
			return nil, false, IgnoredRepeated
		}
	}
	return replace(s, from, to, nil), true, IgnoredNone
}

// replace puts middle (nil = nothing) in the place of from ≤ i < to of s. What
// stays under the key of s is still the same offer. A part that gets a key of
// its own becomes an offer of its own, with a new generation: the region may
// have said of it meanwhile that it gives some of it back, and forgets that
// with the old range; so that answer must be void, not come true later.
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

// StopPart are the changes that give the indices from ≤ i < to of a slot the
// desired state (DesiredStop or DesiredRevoke); the rest keeps running as it
// is. What of the range lies outside the slot is ignored; no changes if it
// wants that already.
func StopPart(s Slot, from, to int, desired Desired) []Change {
	from, to = max(from, s.From), min(to, s.To)
	if from >= to || desired.rank() <= s.Desired.rank() {
		return nil
	}
	middle := s
	middle.Desired, middle.UnlessConnected = desired, false
	return replace(s, from, to, &middle)
}

// RevokeUnlessConnected is as StopPart with DesiredRevoke, of what the region does
// not hear of.
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
