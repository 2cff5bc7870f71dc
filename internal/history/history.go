// Package history keeps the latest events of a server in office, so that whoever
// follows them can go on where a connection broke, or hears of the gap.
package history

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Kept bounds the events that can be resumed from.
const Kept = 4096

// Ring is a bounded history. Safe for concurrent use.
type Ring struct {
	epoch string

	mu      sync.Mutex
	events  []entry       // the one numbered n is at n % Kept
	next    uint64        // number of the next event, from 1
	changed chan struct{} // closed and replaced at every event
}

// entry is an event that is put into words when somebody reads it.
type entry struct {
	at                    time.Time
	kind, subject, format string
	args                  []any
}

// New begins a history. epoch tells its tokens from those of any other.
func New(epoch string) *Ring {
	return &Ring{epoch: epoch, events: make([]entry, Kept), next: 1, changed: make(chan struct{})}
}

// Add remembers an event. The arguments must not change any more.
func (r *Ring) Add(kind, subject, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[r.next%Kept] = entry{time.Now(), kind, subject, format, args}
	r.next++
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Ring) token(n uint64) string { return r.epoch + "-" + strconv.FormatUint(n, 10) }

// maxToken is the longest token, in bytes.
const maxToken = 256

// IsToken says whether a text could be the token of an event of some history:
// its epoch, a minus and a number. The empty one, which is now, is one too.
func IsToken(token string) bool {
	at := strings.LastIndexByte(token, '-')
	_, err := strconv.ParseUint(token[at+1:], 10, 64)
	return token == "" || at > 0 && err == nil && len(token) <= maxToken
}

// After is the number of the event after a token, for From; 0 when it is of
// another history, or too old. The empty token is now.
func (r *Ring) After(token string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if token == "" {
		return r.next
	}
	number, ok := strings.CutPrefix(token, r.epoch+"-")
	n, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || n >= r.next || n+Kept < r.next {
		return 0
	}
	return n + 1
}

// Before is the token of the event before the one numbered n.
func (r *Ring) Before(n uint64) string {
	if n == 0 {
		return "" // the reset that comes has one
	}
	return r.token(n - 1)
}

// From answers the events numbered n and later, or the reset (and where to go
// on) when some of them are no longer held, and a channel that is closed at
// the next event.
func (r *Ring) From(n uint64) (events []*nusav1.Event, next uint64, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n == 0 || n+Kept < r.next {
		reset := &nusav1.Event{Reset_: true, Token: r.token(r.next - 1), Time: timestamppb.New(time.Now())}
		return []*nusav1.Event{reset}, r.next, r.changed
	}
	for ; n < r.next; n++ {
		e := r.events[n%Kept]
		events = append(events, &nusav1.Event{
			Token: r.token(n), Time: timestamppb.New(e.at), Type: e.kind, Subject: e.subject, Message: fmt.Sprintf(e.format, e.args...),
		})
	}
	return events, n, r.changed
}
