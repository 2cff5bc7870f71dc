package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Keys of the store.
const (
	Prefix = "/nusa/v1/events/"
	// End is the end of the keys with Prefix.
	End      = "/nusa/v1/events0"
	IndexKey = "/nusa/v1/event-index"
)

// Defaults and bounds.
const (
	// DefaultAge and DefaultBytes are how long events are stored, and how many bytes they take.
	DefaultAge, DefaultBytes = 7 * 24 * time.Hour, 64 << 20
	// maxWaiting bounds the events that wait for a transaction.
	maxWaiting = 4096
	// pause is how long events wait for the transaction of another change, before they get one of
	// their own.
	pause = 100 * time.Millisecond
	// Writes is how many keys the events of a transaction take at least. Two more keys are written
	// if there is room.
	Writes = 1
)

// Key returns the key of the record whose first event has this number.
func Key(number uint64) string { return fmt.Sprintf("%s%020d", Prefix, number) }

// Config has the settings of a Log.
type Config struct {
	// Federation is the id of the federation, and of the log.
	Federation string
	// Age is how long events are stored. 0: without a bound.
	Age time.Duration
}

// Log is the event log of the federation at the active server. It satisfies eventlog.Source, so it is
// the source of everything that follows the durable events: use State.Events of the present term. A
// consumer asks After for the events after its cursor, and waits for Added when there are none. A
// Log is safe for concurrent use.
type Log struct {
	*eventlog.Window
	cfg Config

	mu sync.Mutex
	// waiting are events about changes that no transaction stores.
	waiting []eventlog.Event
	// skipped is the number of events since the latest record that were shown, but could not be stored.
	// The next record leaves out as many numbers.
	skipped uint64
	// unstored counts all such events of this term.
	unstored uint64
	index    index
	// expired is how many segments the next transaction removes.
	expired int
	records recent
	store   store.Store

	wake chan struct{} // has capacity 1
}

// New returns the log of a term. Load must follow before the first transaction.
func New(c Config) *Log {
	return &Log{Window: eventlog.NewWindow(c.Federation), cfg: c, wake: make(chan struct{}, 1)}
}

// SetAge sets how long events are stored.
func (l *Log) SetAge(age time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cfg.Age = age
}

// Add appends an event about a change that no transaction stores. The event is stored and shown with
// the next transaction.
func (l *Log) Add(kind, subject, format string, args ...any) {
	l.AddAt("", kind, subject, format, args...)
}

// AddAt is Add for an event about a region that its subject does not name.
func (l *Log) AddAt(region, kind, subject, format string, args ...any) {
	d := eventlog.Draft{At: time.Now(), Type: kind, Subject: subject, Region: region, Format: format, Args: args}
	e := d.Event()
	l.mu.Lock()
	full := len(l.waiting) >= maxWaiting
	if full {
		l.skipped++
		l.unstored++
	} else {
		l.waiting = append(l.waiting, e)
	}
	l.mu.Unlock()
	if full {
		l.Append(e)
		return
	}
	l.Wake()
}

// Wake lets Run ask for a transaction soon.
func (l *Log) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// ErrHeld says that the store accepts no events now.
var ErrHeld = errors.New("no event can be stored now")

// Run calls flush when events have waited for a moment. flush makes a transaction, in which Seal stores
// the events. If flush returns ErrHeld, the events are shown without being stored. Another error ends
// Run.
func (l *Log) Run(ctx context.Context, flush func(context.Context) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.wake:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		if !l.due() {
			continue
		}
		switch err := flush(ctx); {
		case errors.Is(err, ErrHeld):
			l.Release()
		case err != nil:
			return err
		}
		if l.due() {
			l.Wake()
		}
	}
}

// due reports whether a transaction has something to do.
func (l *Log) due() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)+l.expired > 0
}

// Release shows the waiting events without storing them. The next record leaves out as many numbers,
// so that consumers learn of the gap.
func (l *Log) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := uint64(len(l.waiting))
	l.skipped, l.unstored = l.skipped+n, l.unstored+n
	l.Append(l.waiting...)
	l.waiting = nil
}

// Unstored returns how many events of this term could not be stored.
func (l *Log) Unstored() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unstored
}

// Expire lets the next transaction remove events that are older than before, and the oldest events so
// that at most this many bytes are left. It reports whether there are such events.
func (l *Log) Expire(most int64, before time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expired = l.index.expired(most, before)
	return l.expired > 0
}

// Bytes returns how many bytes the stored events take.
func (l *Log) Bytes() (bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.index {
		bytes += s.bytes
	}
	return bytes
}

// Room is what a transaction has room for.
type Room struct {
	// Bytes and Writes are left for the events.
	Bytes, Writes int
	// Held: the store accepts no events now. Full: it accepts only deletions.
	Held, Full bool
	// Recovers: the transaction recovers a store that was restored from an old copy.
	Recovers bool
}

// Sealed is what a transaction writes for its events.
type Sealed struct {
	// Key and Record are the record of the events. Record is nil if there are none.
	Key    string
	Record *nusav1.EventRecord
	// Index is the new index. It is nil if it does not change.
	Index *nusav1.EventIndex
	// RemoveBefore: the records with lower keys are removed. "": none.
	RemoveBefore string

	events  []eventlog.Event // shown once the transaction is stored
	taken   int              // of Log.waiting
	left    []eventlog.Event // events that found no room
	skipped uint64
	index   index
	expired int
	bytes   int64
}

// Seal returns what a transaction writes for its events and for those that wait. Stored must follow
// before the next Seal. If the transaction fails, the term must end.
func (l *Log) Seal(drafts []eventlog.Draft, room Room) Sealed {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out Sealed
	if room.Writes > 0 && l.expired > 0 && !room.Held {
		out.expired = min(l.expired, len(l.index)-1)
		out.RemoveBefore = Key(l.index[out.expired].first)
		room.Writes--
	}
	out.index = l.index
	began := false
	if len(drafts)+len(l.waiting) > 0 {
		if room.Held || room.Full || room.Writes < 1 {
			out.events = formatted(drafts)
			return out
		}
		began = l.pack(&out, drafts, room)
		room.Writes--
	}
	if (began || out.expired > 0) && room.Writes > 0 && !room.Full {
		out.Index = out.index[out.expired:].proto()
	}
	return out
}

func formatted(drafts []eventlog.Draft) []eventlog.Event {
	out := make([]eventlog.Event, len(drafts))
	for i := range drafts {
		out[i] = drafts[i].Event()
	}
	return out
}

// pack adds the record of the events to a sealed transaction. It reports whether the record begins a
// segment.
func (l *Log) pack(out *Sealed, drafts []eventlog.Draft, room Room) (began bool) {
	own := formatted(drafts)
	left := room.Bytes
	for i := range own {
		left -= own[i].Size()
	}
	for _, e := range l.waiting {
		if left -= e.Size(); left < 0 || out.taken+len(own) >= eventlog.MaxRecord {
			break
		}
		out.taken++
	}
	all := own
	if out.taken > 0 {
		all = slices.Concat(l.waiting[:out.taken], own)
	}
	rec, packed := eventlog.Pack(all, room.Bytes)
	if packed == 0 {
		out.left, out.taken = own, 0
		return false
	}
	out.left = all[packed:]
	out.events = all[:packed]
	first := l.Last() + 1 + l.skipped
	if room.Recovers {
		first = eventlog.NextAfterRecovery(l.Last())
	}
	for i := range out.events {
		out.events[i].Number = first + uint64(i)
	}
	out.skipped = l.skipped
	out.Key, out.Record = Key(first), rec
	out.bytes = int64(len(out.Key) + 1 + proto.Size(rec) + recordCost)
	out.index, began = slices.Clone(l.index).add(first, rec.GetTime(), out.bytes, l.cfg.Age)
	return began
}

// Stored shows the events of a transaction that is stored.
func (l *Log) Stored(s Sealed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Record == nil {
		n := uint64(len(s.events)) // they could not be stored
		l.skipped, l.unstored = l.skipped+n, l.unstored+n
	} else {
		l.skipped -= s.skipped
	}
	if s.taken > 0 || len(s.left) > 0 {
		l.waiting = slices.Concat(s.left, l.waiting[s.taken:])
	}
	l.index = s.index[s.expired:]
	l.expired = max(0, l.expired-s.expired)
	l.Append(s.events...)
	if len(s.left) > 0 {
		l.Wake()
	}
}
