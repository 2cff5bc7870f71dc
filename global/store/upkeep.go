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
	// turnMin is the least time that a member has for its defragmentation before the next
	// one begins, copyRate the bytes that a member copies in a second, at least.
	turnMin, copyRate = 5 * time.Second, 50 << 20
)

// Place is the place of a server among those that make room in the same store.
type Place struct {
	// Lead: the server is the active one, which drops the history for all.
	Lead bool
	// Embedded: the database is that of the server.
	Embedded bool
	// Turn is the number of members whose turn to defragment is before that of this one, of
	// Members in all. The active server is the last one.
	Turn, Members int
}

// wait returns how long the server leaves the other members to their defragmentations. While two
// of three members stand still, the store has no quorum.
func (p Place) wait(use Usage) time.Duration {
	if p.Lead && p.Members > 1 {
		return turns(p.Members, use)
	}
	return turns(p.Turn, use)
}

// all returns how long all members take. Writes that go on before would only fail at a member that
// has no room yet.
func (p Place) all(use Usage) time.Duration {
	if p.Members <= 1 {
		return 0
	}
	return turns(p.Members+1, use)
}

// turns returns the time of so many turns.
func turns(n int, use Usage) time.Duration {
	return time.Duration(n) * max(turnMin, time.Duration(use.InUse/copyRate)*time.Second)
}

// long reports whether the store has to be defragmented although that takes long.
func (u Usage) long() bool {
	return u.NoSpace || u.Quota > 0 && u.Bytes >= 2*u.Quota && u.Bytes-u.InUse >= u.Bytes/2
}

// Upkeep decides when room is made in a store. The zero value has made none.
type Upkeep struct {
	compacted, defragmented time.Duration
	did                     bool
	// longSince is since when a long defragmentation is due, valid if due.
	longSince time.Duration
	due       bool
}

// Seen notes how full the store is.
func (u Upkeep) Seen(now time.Duration, use Usage) Upkeep {
	if !u.due {
		u.longSince = now
	}
	u.due = use.long()
	return u
}

// Next returns the next step of a server for a store.
func (u Upkeep) Next(now time.Duration, use Usage, at Place) Step {
	since := func(t time.Duration) time.Duration {
		if !u.did {
			return defragmentEvery
		}
		return now - t
	}
	free := use.Bytes - use.InUse
	turn := u.due && now-u.longSince >= at.wait(use)
	wait := compactEvery
	if use.InUse*100 >= use.Quota*crowded {
		wait = compactSoon
	}
	switch {
	case use.NoSpace && since(u.compacted) >= compactSoon:
		return StepCompact
	case use.NoSpace && !turn:
		return StepNone
	case use.NoSpace && (since(u.defragmented) >= defragmentEvery || free >= use.Bytes/10 && since(u.defragmented) >= compactSoon):
		return StepDefragment
	case use.NoSpace && now-u.longSince < at.all(use):
		return StepNone
	case use.NoSpace:
		return StepResume
	case at.Lead && use.Quota > 0 && use.InUse >= use.Quota/2 && since(u.compacted) >= wait:
		return StepCompact
	case !at.Embedded || use.Bytes < leastBytes:
		return StepNone
	case free >= use.Bytes/2 && use.InUse <= quickBytes && since(u.defragmented) >= defragmentEvery,
		use.long() && turn && since(u.defragmented) >= defragmentSoon:
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
