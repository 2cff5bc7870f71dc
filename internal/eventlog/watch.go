package eventlog

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Source has the durable events of a log.
type Source interface {
	// After returns events with numbers above n, in order, at most max. missed is how many events
	// between n and the first event are lost: see Missed. The list ends before a later gap.
	After(ctx context.Context, n uint64, max int) (events []*nusav1.Event, missed uint64, err error)
	// Added returns a channel that is closed when an event is added after the call.
	Added() <-chan struct{}
	// Since returns the number after which the events begin that are not older than a time. complete is
	// false if retention may have removed some of those events. The log then reaches back to begin.
	Since(ctx context.Context, from time.Time) (n uint64, complete bool, begin time.Time, err error)
}

// watchBatch is the greatest number of events that a Watch returns at once.
const watchBatch = 512

// Watch follows a log: first the events of its source, then also the other events of its window. A
// Watch is for one goroutine.
type Watch struct {
	window *Window
	source Source
	number uint64 // of the latest durable event that Next returned or skipped
	at     uint64 // position in the window, if inside
	inside bool
	first  *nusav1.Event // a reset that Next returns first
}

// NewWatch returns a watch that continues after a token, or that begins at a time before now, or now.
func NewWatch(ctx context.Context, w *Window, s Source, token string, since time.Duration) (*Watch, error) {
	out := &Watch{window: w, source: s, number: w.Last()}
	now := time.Now()
	switch log, number, ok := ParseToken(token); {
	case ok && (log == w.log || log == "") && number <= out.number:
		out.number = number
		return out, nil
	case token != "": // of another log, or of a later state of this log
		out.first = out.reset(0, "the token is not of this log")
	case since > 0:
		n, complete, begin, err := s.Since(ctx, now.Add(-since))
		if err != nil {
			return nil, err
		}
		out.number = n
		if !complete {
			out.first = out.reset(0, fmt.Sprintf("the server has only the events of the last %s", max(time.Second, now.Sub(begin).Truncate(time.Second))))
		}
		return out, nil
	}
	out.inside = true
	w.mu.Lock()
	out.at, out.number = w.next, w.last
	w.mu.Unlock()
	if out.first != nil {
		out.first.Token = out.Token()
	}
	return out, nil
}

// Token returns the token of the watch's position.
func (w *Watch) Token() string { return Token(w.window.log, w.number) }

func (w *Watch) reset(missed uint64, message string) *nusav1.Event {
	return &nusav1.Event{Reset_: true, Token: w.Token(), Time: timestamppb.Now(), Missed: missed, Message: message}
}

// Next returns the next events. If there are none, it returns a channel that is closed when an event is
// added. A gap in the numbers becomes a reset event.
func (w *Watch) Next(ctx context.Context) (events []*nusav1.Event, added <-chan struct{}, err error) {
	added = w.window.Added()
	if w.first != nil {
		events, w.first = []*nusav1.Event{w.first}, nil
		return events, added, nil
	}
	if w.inside {
		events, w.at, w.number, w.inside = w.window.batch(w.at, w.number, watchBatch)
		if w.inside {
			return events, added, nil
		}
		if w.window.has(w.at) {
			w.at = 0 // a gap in the numbers: only the source knows what is missing
			return w.fromSource(ctx, added)
		}
	}
	at, behind, ok := w.window.enter(w.number, w.at)
	if !ok {
		return w.fromSource(ctx, added)
	}
	w.at, w.inside = at, true
	if behind {
		return []*nusav1.Event{w.reset(0, "events that are not stored are lost: there were more than could be sent")}, added, nil
	}
	events, w.at, w.number, w.inside = w.window.batch(w.at, w.number, watchBatch)
	if w.inside {
		return events, added, nil
	}
	w.at = 0
	return w.fromSource(ctx, added)
}

// fromSource returns the next durable events, which the window does not have, or a gap in the numbers
// as a reset event.
func (w *Watch) fromSource(ctx context.Context, added <-chan struct{}) (_ []*nusav1.Event, _ <-chan struct{}, err error) {
	events, missed, err := w.source.After(ctx, w.number, watchBatch)
	if err != nil {
		return nil, nil, err
	}
	if missed > 0 && len(events) > 0 {
		message := fmt.Sprintf("%d events are lost", missed)
		if first := events[0].GetNumber(); first-w.number-1 != missed {
			missed, message = 0, "the store was restored from an old copy: an unknown number of events is lost"
		}
		w.number = events[0].GetNumber() - 1
		events = append([]*nusav1.Event{w.reset(missed, message)}, events...)
	}
	if n := len(events); n > 0 {
		w.number = events[n-1].GetNumber()
	}
	return events, added, nil
}
