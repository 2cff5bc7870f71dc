package events

import (
	"errors"
	"fmt"
	"sort"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// segmentBytes is the size from which on a segment is complete. A reader that begins in the middle
	// of a segment reads the segment from its beginning.
	segmentBytes = 256 << 10
	// ageParts says how old a segment becomes: this part of the retention time.
	ageParts = 16
	// recordCost is what a record takes in the store besides its key and value: the store has an index of
	// all keys in memory.
	recordCost = 256
	// maxSegments bounds the segments of a stored index, and maxExpired how many segments a transaction
	// removes.
	maxSegments, maxExpired = 1 << 16, 8
)

// ErrIndex says that the stored index is damaged.
var ErrIndex = errors.New("the index of the events is damaged")

// segment is a run of consecutive records.
type segment struct {
	first uint64 // number of the first event
	time  int64  // of the first event, in milliseconds
	bytes int64
}

// index has the segments of the stored events, the oldest first.
type index []segment

// begins reports whether a record begins a segment. at is the time of its first event.
func (x index) begins(at int64, age time.Duration) bool {
	if len(x) == 0 {
		return true
	}
	last := &x[len(x)-1]
	return last.bytes >= segmentBytes || age > 0 && at-last.time >= (age/ageParts).Milliseconds()
}

// add returns the index with a record. began reports whether the record begins a segment.
func (x index) add(first uint64, at, bytes int64, age time.Duration) (next index, began bool) {
	began = x.begins(at, age)
	if began {
		x = append(x, segment{first: first, time: at})
	}
	x[len(x)-1].bytes += bytes
	return x, began
}

// expired returns how many of the oldest segments retention removes: those whose events are all older
// than before, and those in excess of this many bytes. It returns at most maxExpired. The latest
// segment stays, because its last record has the number with which the log continues.
func (x index) expired(most int64, before time.Time) (n int) {
	total := int64(0)
	for i := range x {
		total += x[i].bytes
	}
	for n < len(x)-1 && n < maxExpired && (total > most || x[n+1].time <= before.UnixMilli()) {
		total -= x[n].bytes
		n++
	}
	return n
}

// segmentOf returns the number of the first event of the segment that has an event. An event before
// the first segment is in the first segment.
func (x index) segmentOf(number uint64) uint64 {
	if len(x) == 0 {
		return 1
	}
	i := sort.Search(len(x), func(i int) bool { return x[i].first > number })
	return x[max(0, i-1)].first
}

// reaching returns the number of the first event of the latest segment that begins before a time. ok
// is false if no segment does.
func (x index) reaching(from time.Time) (first uint64, ok bool) {
	for i := len(x) - 1; i >= 0; i-- {
		if x[i].time < from.UnixMilli() {
			return x[i].first, true
		}
	}
	return 0, false
}

func (x index) proto() *nusav1.EventIndex {
	out := &nusav1.EventIndex{}
	for _, s := range x {
		out.First, out.Time, out.Bytes = append(out.First, s.first), append(out.Time, s.time), append(out.Bytes, s.bytes)
	}
	if n := len(x); n > 0 {
		out.Bytes[n-1] = 0
	}
	return out
}

// indexOf returns the index of a stored message.
func indexOf(m *nusav1.EventIndex) (index, error) {
	n := len(m.GetFirst())
	if n > maxSegments || len(m.GetTime()) != n || len(m.GetBytes()) != n {
		return nil, fmt.Errorf("%w: %d, %d and %d segments", ErrIndex, n, len(m.GetTime()), len(m.GetBytes()))
	}
	out := make(index, n)
	for i := range out {
		out[i] = segment{m.GetFirst()[i], m.GetTime()[i], max(0, m.GetBytes()[i])}
		if out[i].first == 0 || i > 0 && out[i].first <= out[i-1].first {
			return nil, fmt.Errorf("%w: a segment begins at number %d", ErrIndex, out[i].first)
		}
	}
	return out, nil
}
