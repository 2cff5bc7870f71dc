package global

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/reason"
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

// lifted is one word for what was set and one for what was taken back.
func lifted(set bool, yes, no string) string {
	if set {
		return yes
	}
	return no
}

// silent tells of nodes that a region lost or has again, by its reports.
func (r *eventRing) silent(name string, was, is *nusav1.RegionReport) {
	switch d := is.GetNodesLost() - was.GetNodesLost(); {
	case was == nil && is.GetNodesLost() == 0 || d == 0:
	case d > 0:
		r.add("node.lost", name, "%d more silent, %d in all; %d ready", d, is.GetNodesLost(), is.GetNodesReady())
	default:
		r.add("node.back", name, "%d no longer silent or forgotten, %d still are; %d ready", -d, is.GetNodesLost(), is.GetNodesReady())
	}
}

// troubled tells of instances of a job that a region lost, or gave up, by its
// summaries.
func (r *eventRing) troubled(from, subject string, was, is *nusav1.JobSummary) {
	for _, group := range slices.Sorted(maps.Keys(is.GetGroups())) {
		old, now := was.GetGroups()[group], is.GetGroups()[group]
		if n := now.GetFailed() - old.GetFailed(); n > 0 {
			why := ""
			for _, c := range is.GetReasons()[group].GetReasons() {
				if c.GetWhat() == "instance" && c.GetReason() != nusav1.Reason_REASON_BACKOFF {
					why = ": " + reason.With(c.GetReason(), c.GetMessage())
				}
			}
			r.add("instance.failed", subject, "%s: %d at %s will not be tried again%s", group, n, from, why)
		}
		if n := now.GetLost() - old.GetLost(); n > 0 {
			r.add("instance.lost", subject, "%s: %d at %s on silent nodes", group, n, from)
		}
	}
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
