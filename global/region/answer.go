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
	// IgnoredGeneration: the region owns the indices, but under another generation.
	IgnoredGeneration Ignored = "other_generation"
	// IgnoredRepeated: the slot has this state already, or a later one.
	IgnoredRepeated Ignored = "repeated"
	// IgnoredPartial: the answer accepts only a part of a slot. The region answers for the rest of
	// the slot too, and then repeats this answer for the part that remains.
	IgnoredPartial Ignored = "partial"
	// IgnoredNotAsked: the answer says stopped, revoked or kept, but the slot had no such order.
	IgnoredNotAsked Ignored = "not_asked"
	// IgnoredCrowded: the slot has MaxFormer former owners that may run it, so the record cannot
	// hold one more. The region repeats the answer.
	IgnoredCrowded Ignored = "crowded"
	// IgnoredMalformed: the answer has an empty range, no generation, or a state that is not an
	// answer.
	IgnoredMalformed Ignored = "malformed"
)

// Outcome says what an answer changed.
type Outcome struct {
	// Changes are the writes of one transaction. Empty: nothing has to be written.
	Changes []Change
	// Released are the index ranges [from,to) that lost their owner, in ascending order: no region
	// owns them, or their slot is vacant. Moved are the ranges that have another owner now.
	Released [][2]int
	// ReleasedVersion is the earliest version of the job that Released had; 0: nothing was released.
	ReleasedVersion int64
	Moved           []Moved
	// Ignored says why nothing changed. It is IgnoredNone if some part of the answer was applied.
	Ignored Ignored
}

// Moved is an index range [From,To) that has a new owner, because the former owner's answer gave
// the range up.
type Moved struct {
	From, To int
	Region   string
}

// ApplyAnswer applies an answer of the named region to the stored slots of the answered group. The
// slots may be in any order. Slots of other regions do not change, except that a former owner
// answers for what it had (see applyFormer). The answer's range may cover several slots of one
// generation, or a part of a slot, which is then split (see Change).
//
// Rejected, returned, revoked and stopped indices lose their owner: another region gets them, or
// they become vacant, or their slot ends (see Slot.released). Accepted and done only advance the
// state. Kept indices get a new offer to the same region, so that earlier answers to the revoke are
// ignored. An answer that is repeated changes nothing.
func ApplyAnswer(slots []Slot, region string, a Answer) Outcome {
	if a.From < 0 || a.From >= a.To || a.Generation <= 0 || !a.State.isAnswer() {
		return Outcome{Ignored: IgnoredMalformed}
	}
	out := Outcome{Ignored: IgnoredUnknown}
	for _, i := range byFrom(slots) {
		s := slots[i]
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
		if s.Parallel > 0 && s.Desired != DesiredRun {
			shareOnce(changes, slots, out.Changes)
		}
		if out.Changes == nil {
			out.Changes = changes
		} else {
			out.Changes = append(out.Changes, changes...)
		}
		if !gaveUp {
			continue
		}
		if next := s.released(a); next != nil && !next.Vacant {
			out.Moved = append(out.Moved, Moved{from, to, next.Region})
		} else {
			out.Released = append(out.Released, [2]int{from, to})
			if out.ReleasedVersion == 0 || s.JobVersion < out.ReleasedVersion {
				out.ReleasedVersion = s.JobVersion
			}
		}
	}
	if len(out.Released) > 0 || len(out.Moved) > 0 {
		out.Changes = passShareOn(slots, region, a, out.Changes)
	}
	return out
}

// passShareOn gives what the region may run of the group to a slot that stays, if the slots that the region gave up
// had that share. Otherwise instances of the other slots would run without a share, and other regions would get it. A slot
// that was being revoked had as much as the whole region may run, or less.
func passShareOn(slots []Slot, region string, a Answer, changes []Change) []Change {
	runs := func(s *Slot) bool {
		return s.Region == region && !s.Vacant && s.Desired == DesiredRun && s.Namespace == a.Namespace && s.Job == a.Job && s.Group == a.Group
	}
	changed := func(s *Slot) int {
		return slices.IndexFunc(changes, func(c Change) bool { return c.Slot.From == s.From })
	}
	had, has, revoked := 0, 0, 0
	var heir *Slot
	take := func(s *Slot) {
		if !runs(s) {
			return
		}
		has += s.Parallel
		if heir == nil && s.State != Done {
			heir = s
		}
	}
	for i := range slots {
		s := &slots[i]
		if runs(s) {
			had += s.Parallel
		}
		if changed(s) < 0 {
			take(s)
		} else if s.Region == region && s.Desired == DesiredRevoke {
			revoked = max(revoked, s.Parallel)
		}
	}
	for i := range changes {
		if !changes[i].Delete {
			take(&changes[i].Slot)
		}
	}
	had = max(had, revoked)
	if heir == nil || has >= had {
		return changes
	}
	next := *heir
	next.Parallel += had - has
	if k := changed(heir); k >= 0 {
		changes[k].Slot = next
		return changes
	}
	return append(changes, Change{Slot: next})
}

// shareOnce corrects Parallel of slots that must run again. What other slots of the region may run counts
// already: a split has left each part that was revoked as much as the whole slot had.
func shareOnce(changes []Change, slots []Slot, before []Change) {
	for i := range changes {
		c := &changes[i]
		if c.Delete || c.Slot.Desired != DesiredRun {
			continue
		}
		has := func(s *Slot) int {
			if s.Region != c.Slot.Region || s.Vacant || s.Desired != DesiredRun || s.Group != c.Slot.Group || s.Job != c.Slot.Job || s.Namespace != c.Slot.Namespace {
				return 0
			}
			return s.Parallel
		}
		for k := range slots {
			c.Slot.Parallel -= has(&slots[k])
		}
		for k := range before {
			if !before[k].Delete {
				c.Slot.Parallel -= has(&before[k].Slot)
			}
		}
		c.Slot.Parallel = max(0, c.Slot.Parallel)
	}
}

// applyPart applies the owner's answer to the indices from ≤ i < to, which lie inside s. gaveUp
// reports whether the owner gave these indices up.
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
				// The part has completed, and must not run again elsewhere. The new generation
				// makes earlier answers to the revoke void.
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
		// A slot that is being revoked may get the order to stop meanwhile. Both answers say that
		// nothing runs. While the desired state is run, neither answer is valid.
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
		// The region has given these instances up for good, whatever the desired state is. An
		// instance that is done cannot be given up.
		if s.State == Done {
			return nil, false, IgnoredRepeated
		}
	}
	if a.MayRun && s.Crowded() {
		return nil, false, IgnoredCrowded
	}
	return replace(s, from, to, s.released(a)), true, IgnoredNone
}

// replace puts middle (nil: nothing) in place of the indices from ≤ i < to of s. The part that
// keeps the key of s remains the same offer. A part with another key becomes a new offer with a new
// generation, for this reason: the region may have sent an answer that returns some of that part,
// and it forgets that answer together with the old range. The new generation makes that answer
// void.
//
// Of the parts that must run, the first one keeps Parallel. A part that is being stopped or revoked keeps
// it, too, because until the owner has confirmed, its instances may be those that run.
func replace(s Slot, from, to int, middle *Slot) []Change {
	changes := make([]Change, 0, 1) // most answers are about a whole slot
	shared := false
	add := func(part *Slot, from, to int) {
		if from >= to {
			return
		}
		changes = append(changes, Change{Slot: *part})
		added := &changes[len(changes)-1].Slot
		added.From, added.To = from, to
		if from != s.From {
			added.Revision, added.Generation = 0, 0
		}
		if added.Desired == DesiredRun {
			if shared {
				added.Parallel = 0
			}
			shared = true
		}
	}
	add(&s, s.From, from)
	if middle != nil {
		add(middle, from, to)
	}
	add(&s, to, s.To)
	if len(changes) == 0 || changes[0].Slot.From != s.From {
		changes = slices.Insert(changes, 0, Change{Delete: true, Slot: s})
	}
	return changes
}

// StopPart returns the changes that give the indices from ≤ i < to of a slot the desired state,
// DesiredStop or DesiredRevoke. Other indices of the slot do not change, and indices outside the
// slot are ignored. There are no changes if the slot has that desired state, or a later one. If the
// slot has no owner, the indices are removed from it.
func StopPart(s Slot, from, to int, desired Desired) []Change {
	from, to = max(from, s.From), min(to, s.To)
	if from >= to || desired.rank() <= s.Desired.rank() {
		return nil
	}
	if s.Region == "" { // no region has to confirm
		return replace(s, from, to, nil)
	}
	middle := s
	middle.Desired, middle.UnlessConnected, middle.ReturnTo = desired, false, ""
	return replace(s, from, to, &middle)
}

// RevokeUnlessConnected returns the changes that revoke a part of a slot whose instances are on
// disconnected nodes. The region keeps an instance whose node has reconnected.
func RevokeUnlessConnected(s Slot, from, to int) []Change {
	changes := StopPart(s, from, to, DesiredRevoke)
	for i := range changes {
		c := &changes[i]
		c.Slot.UnlessConnected = !c.Delete && c.Slot.Desired == DesiredRevoke
	}
	return changes
}

// byFrom returns the positions of slots in the order of their first indices.
func byFrom(slots []Slot) []int {
	order := make([]int, len(slots))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(slots[a].From, slots[b].From) })
	return order
}
