package store

import "time"

// Step is one way to make room in a store.
type Step string

// The steps.
const (
	StepNone       Step = ""
	StepCompact    Step = "compact"
	StepDefragment Step = "defragment"
	StepResume     Step = "resume"
)

const (
	// Above half of the quota the history is dropped each compactEvery, above crowded
	// each compactSoon.
	compactEvery, compactSoon = time.Minute, 5 * time.Second
	// crowded is the part of the quota, in percent.
	crowded = 85
	// A defragmentation copies what is in use, and the store stands still meanwhile. With at
	// most quickBytes in use that takes less than the time to an election.
	quickBytes = 256 << 20
	// leastBytes is the smallest database that is defragmented.
	leastBytes = 64 << 20
	// defragmentEvery is the time between two defragmentations, defragmentSoon that of a
	// database of two quotas.
	defragmentEvery, defragmentSoon = 10 * time.Minute, time.Minute
)

// Upkeep decides when room is made in a store. The zero value has made none.
type Upkeep struct {
	compacted, defragmented time.Duration
	did                     bool
}

// Next returns the next step for a store. lead: this server is the active one, which drops the
// history for all. embedded: the database is that of this server.
func (u Upkeep) Next(now time.Duration, use Usage, lead, embedded bool) Step {
	since := func(t time.Duration) time.Duration {
		if !u.did {
			return defragmentEvery
		}
		return now - t
	}
	free := use.Bytes - use.InUse
	wait := compactEvery
	if use.InUse*100 >= use.Quota*crowded {
		wait = compactSoon
	}
	switch {
	case use.NoSpace && since(u.compacted) >= compactSoon:
		return StepCompact
	case use.NoSpace && since(u.defragmented) >= compactSoon:
		return StepDefragment
	case use.NoSpace:
		return StepResume
	case lead && use.Quota > 0 && use.InUse >= use.Quota/2 && since(u.compacted) >= wait:
		return StepCompact
	case !embedded || use.Bytes < leastBytes:
		return StepNone
	case free >= use.Bytes/2 && use.InUse <= quickBytes && since(u.defragmented) >= defragmentEvery,
		use.Bytes >= 2*use.Quota && free >= use.Bytes/2 && since(u.defragmented) >= defragmentSoon:
		return StepDefragment
	}
	return StepNone
}

// Did notes a step.
func (u Upkeep) Did(now time.Duration, step Step) Upkeep {
	if !u.did {
		u.compacted, u.defragmented, u.did = now-defragmentEvery, now-defragmentEvery, true
	}
	switch step {
	case StepCompact:
		u.compacted = now
	case StepDefragment:
		u.defragmented = now
	}
	return u
}
