package state

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state/persist"
)

// EventLevel is the feature level from which on Apply stores events.
const EventLevel = 5

// TaskLevel is the feature level from which on the events include EventInstancePlaced and
// EventInstanceStarting.
const TaskLevel = 13

// MaxEvents, EventBytes and EventAge bound the events in the state. The oldest events beyond are
// removed. The events of one log entry are removed together, so the state may have some more.
const (
	MaxEvents  = 32_768
	EventBytes = 16 << 20
	EventAge   = 7 * 24 * time.Hour
)

// EventKind says what happened. The numbers are part of the format of snapshots.
type EventKind uint8

// The kinds of events.
const (
	EventInstanceRunning EventKind = iota + 1
	EventInstanceRestarted
	EventInstanceComplete
	EventInstanceFailed
	EventInstanceDeclined
	EventInstanceStopped
	EventInstanceLost
	EventJobSubmitted
	EventJobStopped
	EventJobPurged
	EventNodeRegistered
	EventNodeReady
	EventNodeLost
	EventNodeLeft
	EventNodeRemoved
	EventNodeCordoned
	EventNodeUncordoned
	EventNodeDraining
	EventNodeUndrained
	EventRegionJoined
	EventRegionRebound
	EventRegionRecovered
	EventJobOverridden
	EventOverrideCleared
	EventOverrideEnded
	// The next two need TaskLevel.
	EventInstancePlaced
	EventInstanceStarting
)

// endEvents are the kinds of the ends of allocations.
var endEvents = map[AllocState]EventKind{
	Complete: EventInstanceComplete, Failed: EventInstanceFailed, Stopped: EventInstanceStopped, Lost: EventInstanceLost,
}

// Event is something that a command changed. Apply derives it, so the log has no bytes of it.
type Event struct {
	UnixNano int64
	Kind     EventKind
	// Local, Namespace and Job name the job of an event about a job or an instance.
	Local bool
	// Index, Group, Version and ID are those of the instance and its allocation. Version is the
	// version of the job in an event about a job, the incarnation in an event about a recovery. ID is
	// the node in an event about a node.
	Index int32
	// Restarts is how often tasks were restarted so far. Agents send only the latest state, so one
	// event may stand for several restarts: NewRestarts.
	Restarts    int32
	NewRestarts int32
	Version     int64
	Namespace   string
	Job         string
	Group       string
	ID          string
	// Node is the name of the node.
	Node   string
	Reason Reason
	// Message is a text of the agent in an event about an instance, the pool of a registered node,
	// or the federation that the region joined.
	Message string
	// Nano is how long a lost node was silent.
	Nano int64
}

// JobKey returns the job of the event.
func (e *Event) JobKey() JobKey { return JobKey{e.Namespace, e.Job, e.Local} }

// size returns about how many bytes the event takes.
func (e *Event) size() int {
	const numbers = 192 // bytes of the numbers, the id, and the headers of the texts
	return numbers + len(e.Namespace) + len(e.Job) + len(e.Group) + len(e.Node) + len(e.Message)
}

// EventChunk has the events of one log entry. They have the numbers from First on.
type EventChunk struct {
	Index  uint64
	First  uint64
	Events []Event
}

// EventsRecord is the record of the numbers of events in a snapshot: see Events.
type EventsRecord struct {
	Next, Began, Before uint64
	Newest              int64
}

// Events are the latest events of a state, with ascending numbers. A restore of the log begins
// other numbers, so that no number names two events.
type Events struct {
	// chunks are the chunks by the lower bits of their positions, from first to before end.
	chunks     persist.Array[EventChunk]
	first, end uint32
	count      int
	bytes      int
	// next is the number of the next event, less one: the zero value begins with number 1.
	// began is the first number of the present incarnation, before is the last number of the
	// incarnation before it. Both are 0 in a log that was never restored.
	next, began, before uint64
	// newest is the greatest time of an event.
	newest int64
}

// chunkMask is the lower bits of a chunk's position. There are at most as many chunks as events.
const chunkMask = 1<<17 - 1

func (l *Events) chunk(at uint32) *EventChunk {
	c, _ := l.chunks.Get(at & chunkMask)
	return c
}

// addEvent stores an event of the command.
func addEvent(t *txn, e Event) {
	if t.cluster.FeatureLevel >= EventLevel {
		e.UnixNano = t.now
		t.newEvents = append(t.newEvents, e)
	}
}

// storeEvents adds the new events to the chunk of their entry, and removes old ones. What remains does
// not depend on how many calls the entry takes.
func (s *State) storeEvents(index uint64) {
	if len(s.newEvents) == 0 {
		return
	}
	l := &s.events
	for i := range s.newEvents {
		l.bytes += s.newEvents[i].size()
		l.newest = max(l.newest, s.newEvents[i].UnixNano)
	}
	c := &EventChunk{Index: index, First: l.next + 1}
	if l.first != l.end {
		if last := l.chunk(l.end - 1); last.Index == index && last.First+uint64(len(last.Events)) == c.First {
			c.First, c.Events = last.First, last.Events
			l.end--
		}
	}
	c.Events = slices.Concat(c.Events, s.newEvents)
	l.chunks.Set(s.own, l.end&chunkMask, c)
	l.end++
	l.count += len(s.newEvents)
	l.next += uint64(len(s.newEvents))
	clear(s.newEvents)
	s.newEvents = s.newEvents[:0]
	l.trim(s.own)
}

// trim removes the oldest chunks beyond the bounds. The newest chunk stays.
func (l *Events) trim(own *persist.Owner) {
	for l.end-l.first > 1 {
		oldest := l.chunk(l.first)
		if l.count-len(oldest.Events) < MaxEvents && l.bytes <= EventBytes && oldest.Events[0].UnixNano >= l.newest-int64(EventAge) {
			return
		}
		l.count -= len(oldest.Events)
		for i := range oldest.Events {
			l.bytes -= oldest.Events[i].size()
		}
		l.chunks.Delete(own, l.first&chunkMask)
		l.first++
	}
}

// beginNumbers begins numbers that no earlier copy of the log has used. They depend on the wall clock
// of the master, in µs: fewer than a million events happen in a second.
func beginNumbers(t *txn) {
	if t.cluster.FeatureLevel < EventLevel {
		return
	}
	t.storeEvents(t.index) // those of earlier commands of the entry
	l := &t.events
	l.before = l.next
	l.next = max(l.next, uint64(max(t.now, 0))/1000)
	l.began = l.next + 1
}

// Last returns the number of the latest event.
func (l *Events) Last() uint64 { return l.next }

// Len returns how many events the state has.
func (l *Events) Len() int { return l.count }

// Oldest returns the number of the oldest event that the state has. It is the number of the next
// event if the state has none.
func (l *Events) Oldest() uint64 {
	if l.first == l.end {
		return l.next + 1
	}
	return l.chunk(l.first).First
}

// find returns the position of the first chunk that has an event for which the condition holds for
// its last event. The condition must hold for all later events, too.
func (l *Events) find(holds func(c *EventChunk) bool) uint32 {
	low, n := l.first, l.end-l.first
	for n > 0 {
		half := n / 2
		if holds(l.chunk(low + half)) {
			n = half
		} else {
			low, n = low+half+1, n-half-1
		}
	}
	return low
}

// After yields the events with numbers above n, in order.
func (l *Events) After(n uint64) iter.Seq2[uint64, *Event] {
	return func(yield func(uint64, *Event) bool) {
		at := l.find(func(c *EventChunk) bool { return c.First+uint64(len(c.Events)) > n+1 })
		for ; at != l.end; at++ {
			c := l.chunk(at)
			for i := range c.Events {
				if number := c.First + uint64(i); number > n && !yield(number, &c.Events[i]) {
					return
				}
			}
		}
	}
}

// has reports whether the state has an event with number n.
func (l *Events) has(n uint64) bool {
	for number := range l.After(n - 1) {
		return number == n
	}
	return false
}

// Gap reports whether a reader that has read up to number n cannot go on without a gap. missed is the
// number of the events that retention removed. It is 0 if the gap has another cause: the log was
// restored from an old copy, or the number is not of this log.
func (l *Events) Gap(n uint64) (missed uint64, gap bool) {
	oldest := l.Oldest()
	switch {
	case n > l.next || n > l.before && n+1 < l.began:
		return 0, true // a restore of the log has undone events that the reader saw
	case n >= oldest:
		return 0, !l.has(n) && !l.has(n+1)
	case n+1 == oldest:
		return 0, false
	case n < l.began && oldest >= l.began:
		return l.before - n + oldest - l.began, true
	}
	return oldest - 1 - n, true
}

// Since returns the number before the oldest event that is not older than a time. The state has all
// events since that time only if whole is true.
func (l *Events) Since(unixNano int64) (n uint64, whole bool) {
	at := l.find(func(c *EventChunk) bool { return c.Events[len(c.Events)-1].UnixNano >= unixNano })
	if at == l.end {
		return l.next, true
	}
	c := l.chunk(at)
	for i := range c.Events {
		if c.Events[i].UnixNano >= unixNano {
			n = c.First + uint64(i) - 1
			break
		}
	}
	return n, n+1 > l.Oldest() || l.Oldest() == 1
}

// records puts the records of the events.
func (l *Events) records(put func(Record) bool) bool {
	if l.next == 0 {
		return true
	}
	if !put(Record{Events: &EventsRecord{l.next, l.began, l.before, l.newest}}) {
		return false
	}
	for at := l.first; at != l.end; at++ {
		if !put(Record{EventChunk: l.chunk(at)}) {
			return false
		}
	}
	return true
}

// restoreChunk adds the next chunk of a snapshot.
func (s *State) restoreChunk(rec *EventChunk) error {
	l := &s.events
	last := uint64(0)
	if l.first != l.end {
		c := l.chunk(l.end - 1)
		last = c.First + uint64(len(c.Events)) - 1
	}
	if len(rec.Events) == 0 || rec.First <= last || rec.First > l.next || l.next-rec.First < uint64(len(rec.Events)-1) || l.end-l.first > chunkMask {
		return fmt.Errorf("%w: events %d to %d after event %d of %d", ErrSnapshot, rec.First, rec.First+uint64(len(rec.Events)), last, l.next)
	}
	l.chunks.Set(s.own, l.end&chunkMask, rec)
	l.end++
	l.count += len(rec.Events)
	for i := range rec.Events {
		l.bytes += rec.Events[i].size()
	}
	return nil
}

// allocEvent returns an event about an allocation.
func allocEvent(kind EventKind, a *Alloc, newRestarts int32) Event {
	e := Event{
		Kind: kind, Local: a.Local, Namespace: a.Namespace, Job: a.Job, Group: a.Group, Index: a.Index, Version: a.JobVersion,
		ID: a.ID, Node: a.NodeName, Restarts: a.Restarts, NewRestarts: newRestarts,
	}
	if a.State.Terminal() || a.Restarts > 0 {
		e.Reason, e.Message = a.Reason, a.Message
	}
	return e
}

// reportedEvent stores the event about a change that an agent reported, unless the instance does not
// run yet.
func reportedEvent(t *txn, a *Alloc, newRestarts int32) {
	kind := endEvents[a.State]
	switch {
	case a.Declined:
		kind = EventInstanceDeclined
	case a.State == Running && a.Restarts > 0:
		kind = EventInstanceRestarted
	case a.State == Running:
		kind = EventInstanceRunning
	case a.State == Starting && t.cluster.FeatureLevel >= TaskLevel:
		kind = EventInstanceStarting
	case !a.State.Terminal():
		return
	}
	addEvent(t, allocEvent(kind, a, newRestarts))
}

// jobEvent stores an event about one of the region's own jobs.
func jobEvent(t *txn, kind EventKind, key JobKey, version int64) {
	addEvent(t, Event{Kind: kind, Local: key.Local, Namespace: key.Namespace, Job: key.Job, Version: version})
}

// nodeEvent stores an event about a node.
func nodeEvent(t *txn, kind EventKind, n *Node) {
	e := Event{Kind: kind, Node: n.Name, ID: n.ID}
	switch kind {
	case EventNodeRegistered:
		e.Message = n.Pool
	case EventNodeLost:
		e.Nano = max(0, t.now-n.StatusUnixNano)
	}
	addEvent(t, e)
}
