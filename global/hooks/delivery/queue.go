package delivery

import (
	"cmp"
	"slices"
	"time"
)

const (
	// MaxPending bounds the deliveries that wait for one endpoint. While so many wait, later events
	// stay in the event log.
	MaxPending = 256
	// recovery is the number of attempts in a row that must have failed for a success to mean that
	// the endpoint works again.
	recovery = 10
)

// Entry is a delivery that waits for an attempt or for its response.
type Entry struct {
	Number uint64
	// Failed is the number of attempts that failed.
	Failed int
	// Due is when the next attempt is made.
	Due time.Time
	// InFlight: an attempt is in progress.
	InFlight bool
	// again: another delivery was asked for during the attempt in progress.
	again bool
}

// Saved is what a Queue stores.
type Saved struct {
	Cursor  uint64
	Entries []Entry
	Counts  Counts
}

// Counts are the totals of a Queue.
type Counts struct {
	Delivered, GivenUp, Dropped uint64
}

// Queue holds what waits for one endpoint. Every event with a number up to the cursor is delivered,
// given up, dropped, not selected, or an entry.
type Queue struct {
	parallel int
	cursor   uint64
	entries  []Entry // sorted by number
	inFlight int
	// paused: no attempt before this time.
	paused time.Time
	// failures is the number of attempts that failed since the latest success.
	failures int
	counts   Counts
}

// New returns a queue that continues after what was saved. No attempt is in flight. A due time that
// is too far in the future comes from a wrong clock, and is brought forward.
func New(s Saved, parallel int, now time.Time) *Queue {
	q := &Queue{parallel: max(1, parallel), cursor: s.Cursor, counts: s.Counts}
	for _, e := range s.Entries {
		if e.Number == 0 || e.Number > s.Cursor || len(q.entries) == MaxPending {
			continue
		}
		e.InFlight = false
		e.Failed = min(max(0, e.Failed), MaxAttempts-1)
		if latest := now.Add(maxDelay * 11 / 10); e.Due.After(latest) {
			e.Due = latest
		}
		q.insert(e)
	}
	return q
}

// Save returns what must be stored so that New can continue. It shares nothing with the queue.
func (q *Queue) Save() Saved {
	return Saved{Cursor: q.cursor, Entries: slices.Clone(q.entries), Counts: q.counts}
}

// SetParallel sets the number of attempts at the same time.
func (q *Queue) SetParallel(n int) { q.parallel = max(1, n) }

// Cursor returns the number of the latest event that was read.
func (q *Queue) Cursor() uint64 { return q.cursor }

// Room returns how many events may be added.
func (q *Queue) Room() int { return MaxPending - len(q.entries) }

// Pending and InFlight return the number of entries, and of attempts in progress.
func (q *Queue) Pending() int  { return len(q.entries) }
func (q *Queue) InFlight() int { return q.inFlight }

// Failures returns the number of attempts that failed since the latest success.
func (q *Queue) Failures() int { return q.failures }

// Counts returns the totals.
func (q *Queue) Counts() Counts { return q.counts }

func (q *Queue) find(number uint64) (int, bool) {
	return slices.BinarySearchFunc(q.entries, number, func(e Entry, n uint64) int { return cmp.Compare(e.Number, n) })
}

func (q *Queue) insert(e Entry) {
	if i, has := q.find(e.Number); !has {
		q.entries = slices.Insert(q.entries, i, e)
	}
}

// Read notes that the event with a number above the cursor was read. selected: the event is sent.
// It reports whether the event fits; if not, nothing changes.
func (q *Queue) Read(number uint64, selected bool, now time.Time) bool {
	if number <= q.cursor {
		return true
	}
	if selected {
		i, has := q.find(number)
		switch {
		case has: // read before Rewind
			q.entries[i].again = q.entries[i].InFlight
		case q.Room() == 0:
			return false
		default:
			q.insert(Entry{Number: number, Due: now})
		}
	}
	q.cursor = number
	return true
}

// Missed notes that retention removed events before they were read.
func (q *Queue) Missed(n uint64) { q.counts.Dropped += n }

// Next returns an entry whose attempt is due, and marks it as in flight. The one that was due first
// comes first.
func (q *Queue) Next(now time.Time) (Entry, bool) {
	i := q.first()
	if i < 0 || q.paused.After(now) || q.entries[i].Due.After(now) {
		return Entry{}, false
	}
	q.entries[i].InFlight = true
	q.inFlight++
	return q.entries[i], true
}

// first returns the position of the entry that is due first and not in flight. It returns -1 if
// there is none, or no attempt may begin.
func (q *Queue) first() int {
	first := -1
	if q.inFlight >= q.parallel {
		return first
	}
	for i := range q.entries {
		if e := &q.entries[i]; !e.InFlight && (first < 0 || e.Due.Before(q.entries[first].Due)) {
			first = i
		}
	}
	return first
}

// Due returns when Next can return an entry. ok is false if only the end of an attempt, or another
// event, can change that.
func (q *Queue) Due() (at time.Time, ok bool) {
	i := q.first()
	if i < 0 {
		return time.Time{}, false
	}
	at = q.entries[i].Due
	if q.paused.After(at) {
		at = q.paused
	}
	return at, true
}

// Done notes the outcome of an attempt, and returns what follows.
func (q *Queue) Done(number uint64, o Outcome, now time.Time, random float64) Decision {
	i, has := q.find(number)
	if !has || !q.entries[i].InFlight {
		return Decision{Verdict: Delivered}
	}
	e := &q.entries[i]
	again := e.again
	e.InFlight, e.again = false, false
	q.inFlight--
	d := Decide(e.Failed, o, random)
	if until := now.Add(d.Pause); d.Pause > 0 && until.After(q.paused) {
		q.paused = until
	}
	switch d.Verdict {
	case Delivered:
		q.counts.Delivered++
		q.remove(i, again, now)
		if q.failures >= recovery {
			q.Hurry(now)
		}
		q.failures = 0
		return d
	case GiveUp:
		q.counts.GivenUp++
		q.remove(i, again, now)
	case Retry:
		e.Failed++
		e.Due = now.Add(d.Wait)
	case Disable:
		e.Due = now
	}
	q.failures++
	return d
}

// remove removes the entry at a position. again: the entry stays, and its next delivery is due now.
func (q *Queue) remove(i int, again bool, now time.Time) {
	if again {
		q.entries[i].Failed, q.entries[i].Due = 0, now
		return
	}
	q.entries = slices.Delete(q.entries, i, i+1)
}

// Interrupted notes that an attempt ended without an outcome, because the server stops or the event
// could not be read. The next attempt is due at a time.
func (q *Queue) Interrupted(number uint64, due time.Time) {
	if i, has := q.find(number); has && q.entries[i].InFlight {
		q.entries[i].InFlight, q.entries[i].again, q.entries[i].Due = false, false, due
		q.inFlight--
	}
}

// Drop notes that retention removed the event of an entry in flight.
func (q *Queue) Drop(number uint64) {
	i, has := q.find(number)
	if !has {
		return
	}
	if q.entries[i].InFlight {
		q.inFlight--
	}
	q.entries = slices.Delete(q.entries, i, i+1)
	q.counts.Dropped++
}

// Hurry makes all entries due now, and ends a pause.
func (q *Queue) Hurry(now time.Time) {
	q.paused = time.Time{}
	for i := range q.entries {
		if q.entries[i].Due.After(now) {
			q.entries[i].Due = now
		}
	}
}

// Again makes one event that was read due now, with all its attempts. An event whose attempt is in
// progress is sent once more after that attempt. Again reports whether there is room for the event.
func (q *Queue) Again(number uint64, now time.Time) bool {
	i, has := q.find(number)
	switch {
	case number == 0 || number > q.cursor:
		return false
	case has:
		e := &q.entries[i]
		e.Failed, e.Due, e.again = 0, now, e.InFlight
		return true
	case q.Room() == 0:
		return false
	}
	q.insert(Entry{Number: number, Due: now})
	return true
}

// Rewind makes all events after a number be read again.
func (q *Queue) Rewind(cursor uint64) { q.cursor = min(q.cursor, cursor) }

// Skip drops everything that waits and is not in flight, and continues after a number.
func (q *Queue) Skip(cursor uint64) {
	q.entries = slices.DeleteFunc(q.entries, func(e Entry) bool { return !e.InFlight })
	q.cursor = max(q.cursor, cursor)
}

// Entry returns the entry with a number.
func (q *Queue) Entry(number uint64) (Entry, bool) {
	i, has := q.find(number)
	if !has {
		return Entry{}, false
	}
	return q.entries[i], true
}
