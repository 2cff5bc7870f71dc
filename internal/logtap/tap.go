package logtap

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxFollowers bounds the followers of a process, and queue the records that wait for one.
	maxFollowers, queue = 16, 1024
	// maxText bounds the bytes of a message or a value, and maxAttributes the attributes of a record.
	maxText, maxAttributes = 4 << 10, 64
	// recent is how many of the latest records a new follower gets first. They have at least recentLevel, so a process
	// does not format its debug records for nobody. recentBytes bounds their texts.
	recent, recentLevel, recentBytes = 50, slog.LevelInfo, 256 << 10
)

// ErrFull is returned when a process has 16 followers.
var ErrFull = errors.New("16 callers follow the log of this process: end one of them")

// Record is one line of a log.
type Record struct {
	Time       time.Time
	Level      slog.Level
	Message    string
	Attributes []Attribute
}

// Attribute is a key with its value. The keys of groups are joined with dots.
type Attribute struct{ Key, Value string }

// size returns the bytes of the texts of a record.
func (r *Record) size() int {
	n := len(r.Message)
	for _, a := range r.Attributes {
		n += len(a.Key) + len(a.Value)
	}
	return n
}

// Tap gives the records of a logger to followers. A follower that is too slow loses records; the process
// never waits for a follower.
type Tap struct {
	mu        sync.Mutex
	followers map[*Follower]struct{}
	latest    []Record     // at most recent, and of recentBytes, the oldest first
	bytes     int          // the size of latest
	least     atomic.Int64 // the lowest level that is wanted
}

// Follower receives records.
type Follower struct {
	tap     *Tap
	level   slog.Level
	records chan Record
	dropped atomic.Uint64
}

// New returns a tap without followers.
func New() *Tap {
	t := &Tap{followers: map[*Follower]struct{}{}}
	t.setLeast()
	return t
}

// Follow returns a follower of the records with at least a level. The latest ones come first. The caller must call
// Stop.
func (t *Tap) Follow(level slog.Level) (*Follower, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.followers) == maxFollowers {
		return nil, ErrFull
	}
	f := &Follower{tap: t, level: level, records: make(chan Record, queue)}
	for _, r := range t.latest {
		if r.Level >= level {
			f.records <- r // the queue is longer
		}
	}
	t.followers[f] = struct{}{}
	t.setLeast()
	return f, nil
}

// Stop ends a follower. It may be called several times.
func (f *Follower) Stop() {
	f.tap.mu.Lock()
	defer f.tap.mu.Unlock()
	delete(f.tap.followers, f)
	f.tap.setLeast()
}

// Records returns the queue of a follower. It is never closed.
func (f *Follower) Records() <-chan Record { return f.records }

// TakeDropped returns how many records were dropped since it was called last.
func (f *Follower) TakeDropped() uint64 { return f.dropped.Swap(0) }

// setLeast computes the lowest level. The lock is held.
func (t *Tap) setLeast() {
	least := int64(recentLevel)
	for f := range t.followers {
		least = min(least, int64(f.level))
	}
	t.least.Store(least)
}

// wants reports whether a follower wants records of a level, or a later one may.
func (t *Tap) wants(level slog.Level) bool { return int64(level) >= t.least.Load() }

// give gives a record to the followers.
func (t *Tap) give(r Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Level >= recentLevel {
		t.latest, t.bytes = append(t.latest, r), t.bytes+r.size()
		for len(t.latest) > recent || t.bytes > recentBytes {
			t.bytes -= t.latest[0].size()
			t.latest = slices.Delete(t.latest, 0, 1)
		}
	}
	for f := range t.followers {
		if r.Level < f.level {
			continue
		}
		select {
		case f.records <- r:
		default:
			f.dropped.Add(1)
		}
	}
}
