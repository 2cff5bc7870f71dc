package events

import (
	"context"
	"strconv"
	"strings"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Log is the committed state: *raftlog.FSM.
type Log interface {
	View() *state.View
	// Watch returns the view and a channel that is closed when a newer view exists.
	Watch() (*state.View, <-chan struct{})
}

// Source reads the events of a log. It may be used on every server of the region.
type Source struct{ Log Log }

// After returns the events with numbers above n, in order, at most limit of them. missed is the number of
// events above n that retention has removed.
func (s Source) After(ctx context.Context, n uint64, limit int) (list []*nusav1.Event, missed uint64, err error) {
	view := s.Log.View()
	missed, _ = view.Events().Gap(n)
	for number, e := range view.Events().After(n) {
		if len(list) == limit {
			break
		}
		list = append(list, message(view.Cluster(), number, e))
	}
	return list, missed, ctx.Err()
}

// Added returns a channel that is closed when an event is added after the call. It may be closed
// without an event, too.
func (s Source) Added() <-chan struct{} {
	_, changed := s.Log.Watch()
	return changed
}

// Last returns the number of the latest event.
func (s Source) Last() uint64 { return s.Log.View().Events().Last() }

// Token returns the token of the event with a number.
func (s Source) Token(n uint64) string { return token(s.Log.View().Cluster().ID, n) }

func token(log string, n uint64) string { return log + "-" + strconv.FormatUint(n, 10) }

// Resume returns the number to go on from after a token. gap is a reset event if events are missing
// after the token: retention has removed them, the log was restored from an old copy, or the token is
// of another log.
func (s Source) Resume(from string) (n uint64, gap *nusav1.Event) {
	view := s.Log.View()
	c, log := view.Cluster(), view.Events()
	number, own := strings.CutPrefix(from, c.ID+"-")
	n, err := strconv.ParseUint(number, 10, 64)
	if !own || err != nil {
		return log.Last(), reset(c, log.Last(), 0, "the token is of another log: the events from now on follow")
	}
	missed, gone := log.Gap(n)
	switch {
	case !gone:
		return n, nil
	case missed > 0:
		n = log.Oldest() - 1
		return n, reset(c, n, missed, "the oldest events are not retained")
	}
	return log.Last(), reset(c, log.Last(), 0, "the log was restored from an old copy: the events from now on follow")
}

// Since returns the number to go on from for the events that are not older than a time. gap is a reset
// event if the state does not have all of them.
func (s Source) Since(at time.Time) (n uint64, gap *nusav1.Event) {
	view := s.Log.View()
	n, whole := view.Events().Since(at.UnixNano())
	if whole {
		return n, nil
	}
	return n, reset(view.Cluster(), n, 0, "the oldest events are not retained")
}

func reset(c state.Cluster, n, missed uint64, message string) *nusav1.Event {
	return &nusav1.Event{Reset_: true, Token: token(c.ID, n), Log: c.ID, Region: c.Region, Missed: missed, Message: message}
}
