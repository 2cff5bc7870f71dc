package global

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// eventsKept bounds the history that Events.Watch can resume in.
const eventsKept = 4096

// eventRing is the bounded history of what happened in this reign. It has a
// lock of its own: it is written under the state's and read without it.
type eventRing struct {
	epoch string

	mu      sync.Mutex
	events  []*nusav1.Event // the one numbered n is at n % eventsKept
	next    uint64          // number of the next event, from 1
	changed chan struct{}
}

func newEventRing(epoch string) *eventRing {
	return &eventRing{epoch: epoch, events: make([]*nusav1.Event, eventsKept), next: 1, changed: make(chan struct{})}
}

// add remembers an event.
func (r *eventRing) add(kind, subject, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[r.next%eventsKept] = &nusav1.Event{
		Token: r.token(r.next), Time: timestamppb.New(time.Now()),
		Type: kind, Subject: subject, Message: fmt.Sprintf(format, args...),
	}
	r.next++
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *eventRing) token(n uint64) string { return r.epoch + "-" + strconv.FormatUint(n, 10) }

// position is the number after a token; 0 when it is not of this reign or too
// old. The empty token is now.
func (r *eventRing) position(token string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if token == "" {
		return r.next
	}
	number, ok := strings.CutPrefix(token, r.epoch+"-")
	n, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || n >= r.next || n+eventsKept < r.next {
		return 0
	}
	return n + 1
}

// from answers the events numbered n and later, or the reset (and where to go
// on) when some of them are no longer held, and a channel that is closed at
// the next event.
func (r *eventRing) from(n uint64) (events []*nusav1.Event, next uint64, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n == 0 || n+eventsKept < r.next {
		reset := &nusav1.Event{Reset_: true, Token: r.token(r.next - 1), Time: timestamppb.New(time.Now())}
		return []*nusav1.Event{reset}, r.next, r.changed
	}
	for ; n < r.next; n++ {
		events = append(events, r.events[n%eventsKept])
	}
	return events, n, r.changed
}
