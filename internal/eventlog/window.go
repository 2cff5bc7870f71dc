package eventlog

import (
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/notify"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Window holds the newest events of a log in memory: durable ones, with ascending numbers, and
// others. A Window is safe for concurrent use.
type Window struct {
	log string

	mu     sync.Mutex
	events []Event // the event at position p is at p % len
	next   uint64  // position of the next event
	last   uint64  // number of the latest durable event
	lost   uint64  // position after the latest event without a number that is not in the window any more
	before uint64  // number of the latest durable event that is not in the window any more
	added  notify.Signal
}

// NewWindow returns an empty window of a log with this id. It holds Retained events.
func NewWindow(log string) *Window { return &Window{log: log, events: make([]Event, Retained)} }

// Log returns the id of the log.
func (w *Window) Log() string { return w.log }

// Begin notes the number of the latest durable event before those that Append adds.
func (w *Window) Begin(last uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.before = last, last
}

// Append adds events. The numbers of durable events ascend.
func (w *Window) Append(events ...Event) {
	if len(events) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range events {
		at := &w.events[w.next%uint64(len(w.events))]
		w.before = max(w.before, at.Number)
		if size := uint64(len(w.events)); at.Number == 0 && w.next >= size {
			w.lost = w.next - size + 1
		}
		*at = events[i]
		w.last = max(w.last, events[i].Number)
		w.next++
	}
	w.added.Notify()
}

// Last returns the number of the latest durable event.
func (w *Window) Last() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// Added returns a channel that is closed when an event is added after the call.
func (w *Window) Added() <-chan struct{} { return w.added.C() }

// first returns the first position of the window. The lock is held.
func (w *Window) first() uint64 { return w.next - min(w.next, uint64(len(w.events))) }

// position returns the position of the first event after durable event n. ok is false if the window
// does not have all events after n. The lock is held.
func (w *Window) position(n uint64) (at uint64, ok bool) {
	if n < w.before {
		return 0, false
	}
	for at = w.next; at > w.first(); at-- {
		if number := w.events[(at-1)%uint64(len(w.events))].Number; number > 0 && number <= n {
			break
		}
	}
	return at, true
}

// Jump is how far a recovery of the store lets the numbers go on, at least. So an event that was
// stored after the copy was made, and that is lost, does not share its number with another event.
const Jump = 1_000_000_000_000

// NextAfterRecovery returns the number of the first event after a recovery. last is the number of the
// latest event in the store.
func NextAfterRecovery(last uint64) uint64 { return (last/Jump+1)*Jump + 1 }

// Missed returns how many events are lost between number n and the event with number first. If a
// recovery of the store is between them, their number is unknown, and Missed returns 1.
func Missed(n, first uint64) uint64 {
	missed := first - n - 1
	if missed > 0 && first/Jump > n/Jump {
		return 1
	}
	return missed
}

// Behind returns how many events a consumer has not handled: those after a cursor, up to the last one. See
// Missed for a recovery between them.
func Behind(cursor, last uint64) uint64 {
	if last <= cursor {
		return 0
	}
	return max(1, Missed(cursor, last+1))
}

// After returns durable events with numbers above n, in order, at most max, and what Missed returns for
// the first of them. The list ends before a later gap in the numbers. ok is false if the window does
// not have all events after n.
func (w *Window) After(n uint64, max int) (events []*nusav1.Event, missed uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok := w.position(n)
	if !ok {
		return nil, 0, false
	}
	for before := uint64(0); at < w.next && len(events) < max; at++ {
		e := &w.events[at%uint64(len(w.events))]
		switch {
		case e.Number == 0:
			continue
		case before == 0:
			missed = Missed(n, e.Number)
		case e.Number != before+1:
			return events, missed, true
		}
		before = e.Number
		events = append(events, e.Proto(w.log, Token(w.log, e.Number)))
	}
	return events, missed, true
}

// Since returns the number after which the durable events that are not older than a time begin. ok is
// false if the window may lack some of them.
func (w *Window) Since(from time.Time) (n uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n = w.last
	for at := w.next; at > w.first(); at-- {
		e := &w.events[(at-1)%uint64(len(w.events))]
		if e.Number == 0 {
			continue
		}
		if e.At.Before(from) {
			return n, true
		}
		n = e.Number - 1
	}
	return n, w.before == 0
}

// batch returns the events from a position on, at most max. number is that of the latest durable
// event before the position.
func (w *Window) batch(at, number uint64, max int) (events []*nusav1.Event, next, last uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at < w.first() {
		return nil, at, number, false
	}
	for ; at < w.next && len(events) < max; at++ {
		e := &w.events[at%uint64(len(w.events))]
		if e.Number > 0 {
			if e.Number != number+1 {
				if len(events) > 0 {
					break
				}
				return nil, at, number, false // a gap in the numbers
			}
			number = e.Number
		}
		events = append(events, e.Proto(w.log, Token(w.log, number)))
	}
	return events, at, number, true
}

// has reports whether the window has the event at a position, or the position is that of the next
// event.
func (w *Window) has(at uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return at >= w.first()
}

// enter returns the position of the first event after durable event n, if the window has all durable
// events after n. was is the position of an earlier watch, or 0. behind: the window has lost events
// without a number since.
func (w *Window) enter(n, was uint64) (at uint64, behind, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok = w.position(n)
	return at, ok && was > 0 && w.lost > was, ok
}
