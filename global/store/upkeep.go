package store

import "time"

// Step is one way to make space in a store.
type Step string

// The steps.
const (
	StepNone       Step = ""
	StepCompact    Step = "compact"
	StepDefragment Step = "defragment"
	StepResume     Step = "resume"
)

const (
	// compactEvery is how often the history is dropped when more than half of the quota is in use.
	// compactSoon is how often that happens above crowded.
	compactEvery, compactSoon = time.Minute, 5 * time.Second
	// crowded is a part of the quota, in percent.
	crowded = 85
	// quickBytes is the greatest number of bytes in use with which a defragmentation is quick. A
	// defragmentation copies the bytes in use, and the store does not respond meanwhile. To copy
	// quickBytes takes less time than an election timeout.
	quickBytes = 256 << 20
	// leastBytes is the smallest database that is defragmented.
	leastBytes = 64 << 20
	// defragmentEvery is the least time between two defragmentations. defragmentSoon is the least
	// time for a database of at least two quotas.
	defragmentEvery, defragmentSoon = 10 * time.Minute, time.Minute
	// turnMin is the least time that a member gets for its defragmentation before the next member
	// begins. copyRate is the least number of bytes that a member copies in a second.
	turnMin, copyRate = 5 * time.Second, 50 << 20
)

// Place is the place of a server among the servers that make space in the same store.
type Place struct {
	// Lead: the server is the active one, which drops the history for all servers.
	Lead bool
	// Embedded: the database belongs to the server's own process.
	Embedded bool
	// Turn is how many members defragment before this one. Members is the number of all members.
	// The active server is the last one.
	Turn, Members int
}

// wait returns how long the server waits for the other members' defragmentations. If two of three
// members stood still at the same time, the store would have no quorum.
func (p Place) wait(use Usage) time.Duration {
	if p.Lead && p.Members > 1 {
		return turns(p.Members, use)
	}
	return turns(p.Turn, use)
}

// all returns how long the defragmentations of all members take. Writes are not allowed before
// that, because they would fail at a member that has no space yet.
func (p Place) all(use Usage) time.Duration {
	if p.Members <= 1 {
		return 0
	}
	return turns(p.Members+1, use)
}

// turns returns the time for n turns.
func turns(n int, use Usage) time.Duration {
	return time.Duration(n) * max(turnMin, time.Duration(use.InUse/copyRate)*time.Second)
}

// long reports whether the store must be defragmented although that takes long.
func (u Usage) long() bool {
	return u.NoSpace || u.Quota > 0 && u.Bytes >= 2*u.Quota && u.Bytes-u.InUse >= u.Bytes/2
}

// Upkeep decides when space is made in a store. The zero value has taken no step yet.
type Upkeep struct {
	compacted, defragmented time.Duration
	did                     bool
	// longSince is since when a long defragmentation has been due. It is valid only if due is set.
	longSince time.Duration
	due       bool
}

// Seen takes a measurement of the store.
func (u Upkeep) Seen(now time.Duration, use Usage) Upkeep {
	if !u.due {
		u.longSince = now
	}
	u.due = use.long()
	return u
}

// Next returns the next step of a server.
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

// Did notes that a step was taken.
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
