package region_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/lease"
)

// sessionWorld is one region's sessions over several active servers with leases of
// different lengths.
type sessionWorld struct {
	t      *rapid.T
	now    time.Duration
	config region.Config
	state  region.State
	stored region.Record
	// until is the time until which work that the lease binds may run, with the stop time stop.
	until, stop time.Duration
	streams     uint64
	required    map[uint64]uint64 // by stream
	acked       map[uint64]uint64
	ids         map[uint64]uint64
}

// TestSessionsAreSafe: after any random events, nothing is granted before the orders of the welcome
// are acknowledged, to a lost region, or when another server may be active. What any lease binds
// has ended by BoundUntil, and stored numbers never decrease.
func TestSessionsAreSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &sessionWorld{
			t: t, stop: time.Duration(rapid.IntRange(0, 60).Draw(t, "stop")) * time.Second,
			required: map[uint64]uint64{}, acked: map[uint64]uint64{}, ids: map[uint64]uint64{},
			stored: region.Record{Name: "sea"},
		}
		w.elect()
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			w.now += time.Duration(rapid.IntRange(0, 4000).Draw(t, "pause")) * time.Millisecond
			if rapid.IntRange(0, 14).Draw(t, "elect") == 0 {
				w.elect()
			}
			w.step(w.event())
		}
	})
}

// elect begins the term of another server. Its predecessor may grant for 5 s more.
func (w *sessionWorld) elect() {
	if former := w.config.Lease; former > 0 {
		w.until = max(w.until, w.now+5*time.Second+lease.Over(former, w.stop))
	}
	length := rapid.SampledFrom([]time.Duration{6 * time.Second, 15 * time.Second, time.Minute}).Draw(w.t, "lease")
	w.config = region.Config{
		Lease: length, LeaseMax: max(length, w.config.LeaseMax), PredecessorUntil: w.now + 5*time.Second,
		ActiveUntil: w.now + time.Duration(rapid.IntRange(0, 60).Draw(w.t, "active"))*time.Second,
		Federation:  "fed", Term: region.Term{Number: w.config.Term.Number + 1, Nonce: "n"}, Revision: 100,
	}
	w.state = region.Open(w.config, w.stored, w.now)
}

func (w *sessionWorld) event() region.Event {
	stream := uint64(rapid.IntRange(0, 2).Draw(w.t, "stream"))
	stream = w.streams - min(stream, w.streams)
	switch rapid.IntRange(0, 7).Draw(w.t, "event") {
	case 0:
		w.streams++
		h := region.Hello{
			Stream: w.streams, ClusterID: "alpha", Incarnation: uint64(rapid.IntRange(1, 2).Draw(w.t, "incarnation")),
			Term: uint64(rapid.IntRange(1, 3).Draw(w.t, "term")), AppliedIndex: uint64(rapid.IntRange(0, 9).Draw(w.t, "index")),
			Level: uint32(rapid.IntRange(0, 1).Draw(w.t, "level")), Required: uint64(rapid.IntRange(1, 3).Draw(w.t, "required")),
			Acked: uint64(rapid.IntRange(0, 3).Draw(w.t, "acked")), KnownTerm: w.config.Term,
		}
		w.required[w.streams], w.acked[w.streams] = h.Required, h.Acked
		return h
	case 1, 2, 3:
		w.ids[stream]++
		return region.LeaseRequested{
			Stream: stream, ID: w.ids[stream], Granted: uint64(rapid.Uint64Range(0, w.ids[stream]).Draw(w.t, "granted")), Orders: 3,
		}
	case 4:
		at := uint64(rapid.IntRange(1, 3).Draw(w.t, "position"))
		w.acked[stream] = max(w.acked[stream], at)
		return region.OrdersAcked{Stream: stream, Position: at}
	case 5:
		return region.Declare{Why: "silent"}
	case 6:
		return region.StreamEnded{Stream: stream}
	}
	return region.Tick{}
}

func (w *sessionWorld) step(e region.Event) {
	before := w.state
	next, effects := region.Step(w.config, w.state, w.now, e)
	w.state = next
	for _, f := range effects {
		switch f.Kind {
		case region.Persist:
			w.stored = f.Record
		case region.Welcome, region.Grant:
			if w.now >= w.config.ActiveUntil || f.Stream != next.Stream {
				w.t.Fatalf("%s at %s, active until %s, live stream %d", f, w.now, w.config.ActiveUntil, next.Stream)
			}
		}
		if f.Kind != region.Grant {
			continue
		}
		if w.acked[f.Stream] < w.required[f.Stream] || next.Lost || f.Record.Fence != w.stored.Fence || f.Record.Incarnation != w.stored.Incarnation {
			w.t.Fatalf("%s; orders %d acknowledged of %d, stored %s", f, w.acked[f.Stream], w.required[f.Stream], w.stored)
		}
		w.until = max(w.until, w.now+lease.Over(f.Lease, w.stop))
	}
	if bound := next.BoundUntil(w.stop); bound < w.until {
		w.t.Fatalf("after %T: bound until %s, a granted lease and its stop time until %s", e, bound, w.until)
	}
	if w.stored != next.Record {
		w.t.Fatalf("after %T: stored %s, in use %s", e, w.stored, next.Record)
	}
	was, is := before.Record, next.Record
	if is.Fence < was.Fence || is.Incarnation < was.Incarnation || is.Incarnation == was.Incarnation && (is.Term < was.Term || is.AppliedIndex < was.AppliedIndex) {
		w.t.Fatalf("after %T: %s, before %s", e, is, was)
	}
	if next.LastSeen < before.LastSeen {
		w.t.Fatalf("after %T: last seen at %s, before at %s", e, next.LastSeen, before.LastSeen)
	}
}
