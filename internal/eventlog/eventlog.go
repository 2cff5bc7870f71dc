package eventlog

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/notify"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Retained is the number of latest events that a log holds.
const Retained = 4096

// Log is a bounded list of events, numbered from 1. A Log is safe for
// concurrent use.
type Log struct {
	epoch string
	began time.Time

	mu     sync.Mutex
	events []entry // event n is at n % Retained
	next   uint64  // number of the next event
	added  notify.Signal
}

// entry is an event. Its message is formatted only when a client reads the event.
type entry struct {
	at                    time.Time
	kind, subject, format string
	args                  []any
}

// New returns an empty log. The tokens of the log begin with epoch, so that the log
// recognises tokens of other logs.
func New(epoch string) *Log {
	return &Log{epoch: epoch, began: time.Now(), events: make([]entry, Retained), next: 1}
}

// Add appends an event. The message is formatted later, so the caller must not change args
// afterwards.
func (l *Log) Add(kind, subject, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events[l.next%Retained] = entry{time.Now(), kind, subject, format, args}
	l.next++
	l.added.Notify()
}

func (l *Log) token(n uint64) string { return Token(l.epoch, n) }

// After returns the number of the event that follows the token's event. It
// returns 0 when the token belongs to another log or its event is no longer
// retained. The empty token stands for the latest event.
func (l *Log) After(token string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if token == "" {
		return l.next
	}
	number, ok := strings.CutPrefix(token, l.epoch+"-")
	n, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || n >= l.next || n+Retained < l.next {
		return 0
	}
	return n + 1
}

// Start returns the number of the first event for a new watch: the event after the token's
// event, or without a token the first event that is not older than since. If the log does not
// retain all events of that time, missing is a reset event. Its message says how far back the
// events reach.
func (l *Log) Start(token string, since time.Duration) (n uint64, missing *nusav1.Event) {
	if token != "" || since <= 0 {
		return l.After(token), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	from := time.Now().Add(-since)
	retained := func(n uint64) bool { return n > 0 && n+Retained >= l.next }
	for n = l.next; retained(n-1) && !l.events[(n-1)%Retained].at.Before(from); {
		n--
	}
	if l.began.After(from) || n > 1 && !retained(n-1) {
		first := l.began
		if n > 1 && n < l.next {
			first = l.events[n%Retained].at
		}
		missing = &nusav1.Event{
			Reset_: true, Token: l.token(n - 1), Time: timestamppb.New(time.Now()),
			Message: fmt.Sprintf("the server has only the events of the last %s", max(time.Second, time.Since(first).Truncate(time.Second))),
		}
	}
	return n, missing
}

// Before returns the token of the event before number n. For n = 0 it returns the empty
// token; the reset event that From then returns has a token.
func (l *Log) Before(n uint64) string {
	if n == 0 {
		return ""
	}
	return l.token(n - 1)
}

// From returns the events from number n on, the number to continue from, and a channel
// that is closed when the next event is added. If event n is no longer retained, or n is
// 0, From returns a single reset event instead of the events.
func (l *Log) From(n uint64) (events []*nusav1.Event, next uint64, added <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n == 0 || n+Retained < l.next {
		reset := &nusav1.Event{Reset_: true, Token: l.token(l.next - 1), Time: timestamppb.New(time.Now())}
		return []*nusav1.Event{reset}, l.next, l.added.C()
	}
	for ; n < l.next; n++ {
		e := l.events[n%Retained]
		events = append(events, &nusav1.Event{
			Token: l.token(n), Time: timestamppb.New(e.at), Type: e.kind, Subject: e.subject, Message: fmt.Sprintf(e.format, e.args...),
		})
	}
	return events, n, l.added.C()
}
