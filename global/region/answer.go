package region

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
	// IgnoredNotAsked: stopped or revoked, and nobody asked for that.
	IgnoredNotAsked Ignored = "not_asked"
	// IgnoredMalformed: an empty range, no generation, or a state that is no answer.
	IgnoredMalformed Ignored = "malformed"
)

// Outcome tells what an answer did.
type Outcome struct {
	// Changes to write in one transaction; none = nothing to do.
	Changes []Change
	// Freed are the index ranges [from,to) that lost their owner, ascending.
	Freed [][2]int
	// Ignored is set when no part of the answer changed anything.
	Ignored Ignored
}

// ApplyAnswer judges an answer of the named region against the stored slots of
// the answered group (any order; those of other regions are left alone). The
// answer may cover several slots, when they were one at the time of the offer,
// and a part of a slot, which is then split. Rejected, returned and revoked
// indices lose their owner, stopped ones too; accepted and done only advance
// the state. Repeating an answer changes nothing.
func ApplyAnswer(slots []Slot, region string, a Answer) Outcome {
	return Outcome{Ignored: IgnoredMalformed}
}

// StopPart are the changes that give the indices from ≤ i < to of a slot the
// desired state (DesiredStop or DesiredRevoke); the rest keeps running as it
// is, under the same generation. The range must lie inside the slot.
func StopPart(s Slot, from, to int, desired Desired) []Change {
	return nil
}
