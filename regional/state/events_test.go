package state

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

var levelFive = Command{SetLimits: &SetLimits{FeatureLevel: EventLevel}}

// kinds returns the kinds of the events after number n, with the numbers that do not follow the
// number before them.
func kinds(v *View, n uint64) (out []string) {
	for number, e := range v.Events().After(n) {
		if number != n+1 {
			out = append(out, fmt.Sprint("#", number))
		}
		n = number
		out = append(out, fmt.Sprint(e.Kind, " ", e.Node, e.Job))
	}
	return out
}

// TestApplyDerivesEvents: each change leaves one event, in the order of the changes. A command that
// changes nothing leaves none.
func TestApplyDerivesEvents(t *testing.T) {
	l := newLog(t)
	l.ok(testNode("n0"))
	if l.Events().Len() != 0 {
		t.Fatal("events before the feature level")
	}
	l.ok(levelFive)
	for range 2 { // the second time changes nothing
		l.ok(testNode("n1"))
		l.ok(Command{CordonNode: &CordonNode{"n1", true}})
		l.ok(Command{DrainNode: &DrainNode{ID: "n0", Drain: true}})
	}
	l.ok(testOrder(0, 2, 10, testJob(1, nil), nil))
	l.ok(Command{CordonNode: &CordonNode{"n1", false}})
	l.ok(testPlace("a1", 0, "n1", 1))
	l.ok(testPlace("a2", 1, "n1", 1))
	report := func(r AllocReport) { l.ok(testReport("n1", r)) }
	report(AllocReport{ID: "a1", State: Starting})
	report(AllocReport{ID: "a1", State: Running})
	report(AllocReport{ID: "a1", State: Running})
	report(AllocReport{ID: "a1", State: Running, Restarts: 3})
	report(AllocReport{ID: "a1", State: Failed, Restarts: 3, Reason: ReasonExited, Message: "code 1"})
	l.ok(Command{SetNodeStatus: &SetNodeStatus{ID: "n1", Status: NodeLost, SinceUnixNano: l.now - 5*second}})
	l.ok(Command{RemoveNode: &RemoveNode{ID: "n1"}})
	own := *testJob(0, nil)
	own.Key = JobKey{"default", "own", true}
	l.ok(Command{SubmitLocalJob: &SubmitLocalJob{Job: own}})
	l.ok(Command{SubmitLocalJob: &SubmitLocalJob{Job: own}})
	l.ok(Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "own", Purge: true}})
	l.ok(Command{JoinFederation: &JoinFederation{FederationID: "f", Term: 1}})
	l.ok(Command{RebindFederation: &RebindFederation{FederationID: "g"}})
	var got []EventKind
	for _, e := range l.Events().After(0) {
		got = append(got, e.Kind)
		switch e.Kind {
		case EventInstanceFailed:
			if e.Reason != ReasonExited || e.Message != "code 1" || e.ID != "a1" || e.Node != "n1" || e.Group != "web" {
				t.Errorf("%+v", e)
			}
		case EventInstanceRestarted:
			if e.Restarts != 3 || e.NewRestarts != 3 {
				t.Errorf("%+v", e)
			}
		case EventNodeLost:
			if e.Nano != 5*second {
				t.Errorf("%+v", e)
			}
		}
	}
	want := []EventKind{
		EventNodeRegistered, EventNodeCordoned, EventNodeDraining, EventNodeUncordoned, EventInstanceRunning, EventInstanceRestarted,
		EventInstanceFailed, EventNodeLost, EventInstanceLost, EventNodeRemoved, EventJobSubmitted, EventJobStopped, EventJobPurged,
		EventRegionJoined, EventRegionRebound,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestEventsOfCommandsInOneEntry: the events do not depend on how an entry is applied: one command at
// a time with views between them, as on the master, or at once.
func TestEventsOfCommandsInOneEntry(t *testing.T) {
	master, follower := newLog(t), newLog(t)
	master.ok(levelFive)
	follower.ok(levelFive)
	var views []*View
	var batch []Command
	for i := range 40 {
		c := testNode(fmt.Sprint("n", i))
		c.NowUnixNano = master.now
		batch = append(batch, c)
		if i%3 == 0 { // speculative work that is thrown away
			master.Snapshot().Fork().Apply(master.idx+1, testNode("other"))
		}
		master.Apply(master.idx+1, c)
		views = append(views, master.Snapshot())
	}
	follower.Apply(follower.idx+1, Command{Batch: batch})
	if master.Snapshot().Hash() != follower.Snapshot().Hash() {
		t.Error("the states differ")
	}
	for i, v := range views {
		if n := v.Events().Len(); n != i+1 || v.Events().Last() != uint64(i+1) {
			t.Errorf("view %d has %d events", i, n)
		}
		for number, e := range v.Events().After(0) {
			if want := fmt.Sprint("n", number-1); e.Node != want {
				t.Fatalf("view %d: event %d is of %s", i, number, e.Node)
			}
		}
	}
}

// TestOldEventsAreRemoved by number, by bytes and by age. A reader learns how many it missed.
func TestOldEventsAreRemoved(t *testing.T) {
	l := newLog(t)
	l.ok(levelFive)
	l.ok(testNode("n1"))
	cordon := func(n int) {
		for i := range n {
			l.ok(Command{CordonNode: &CordonNode{"n1", i%2 == 0}})
		}
	}
	cordon(MaxEvents + 10) // an even number
	e := l.Events()
	if e.Len() != MaxEvents || e.Oldest() != 12 || e.Last() != MaxEvents+11 {
		t.Errorf("%d events from %d to %d", e.Len(), e.Oldest(), e.Last())
	}
	for n, want := range map[uint64]uint64{0: 11, 3: 8, 10: 1, 11: 0, 12: 0, 500: 0, e.Last(): 0} {
		if missed, gap := e.Gap(n); missed != want || gap != (want > 0) {
			t.Errorf("after %d: %d missed, %v", n, missed, gap)
		}
	}
	if missed, gap := e.Gap(e.Last() + 1); missed != 0 || !gap {
		t.Error("a number of the future is no gap")
	}
	if n, whole := e.Since(l.now); n != 11 || whole {
		t.Errorf("since a time: after %d, %v", n, whole)
	}
	l.now += int64(EventAge) + 1
	cordon(2)
	e = l.Events()
	if e.Len() != 2 || e.Last() != MaxEvents+13 {
		t.Errorf("%d events are left after their age", e.Len())
	}
	if n, whole := e.Since(l.now); n != e.Last()-2 || whole {
		t.Errorf("since a time: after %d, %v", n, whole)
	}
	for range 100 {
		l.ok(Command{UpsertNode: &UpsertNode{Node{ID: "n1", Name: string(make([]byte, 1<<20))}}})
		cordon(2)
	}
	e = l.Events()
	if e.bytes > EventBytes || e.Len() > 20 || e.Len() < 10 {
		t.Errorf("%d events of %d bytes", e.Len(), e.bytes)
	}
}

// TestRestoredLogUsesNoNumberTwice: after a restore from an old copy, a reader that saw later events
// learns of a gap, whatever happened since.
func TestRestoredLogUsesNoNumberTwice(t *testing.T) {
	l := newLog(t)
	l.ok(levelFive)
	l.ok(testNode("n1"))
	l.ok(testNode("n2"))
	old := l.Snapshot()
	l.ok(testNode("n3"))
	lost := l.Events().Last()

	l.State = old.Fork()
	for i := range uint64(2) {
		l.now += second
		l.ok(Command{BumpIncarnation: &BumpIncarnation{Incarnation: 2 + i}})
		l.ok(testNode(fmt.Sprint("m", i)))
		e := l.Events()
		if missed, gap := e.Gap(lost); missed != 0 || !gap {
			t.Errorf("restore %d: event %d that was undone: %d, %v", i, lost, missed, gap)
		}
		for _, n := range []uint64{0, 1, 2, e.began - 1, e.began, e.Last()} {
			if missed, gap := e.Gap(n); missed != 0 || gap {
				t.Errorf("restore %d: after event %d: %d missed", i, n, missed)
			}
		}
	}
	want := []string{
		"11 n1", "11 n2", fmt.Sprint("#", 1001*second/1000+1), "22 ", "11 m0", fmt.Sprint("#", 1002*second/1000+1), "22 ", "11 m1",
	}
	if got := kinds(l.Snapshot(), 0); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for range MaxEvents {
		l.ok(Command{CordonNode: &CordonNode{"n1", l.idx%2 == 0}})
	}
	e := l.Events()
	missed, gap := e.Gap(e.before - 1)
	if want := 1 + e.Oldest() - e.began; missed != want || !gap {
		t.Errorf("after the event before the last of the former incarnation: %d missed, want %d", missed, want)
	}
}

// TestEventsInSnapshots: a snapshot has the events with their numbers, and the restored state goes on
// like the state that was never restored.
func TestEventsInSnapshots(t *testing.T) {
	l := newLog(t)
	l.ok(levelFive)
	for i := range 100 {
		l.ok(testNode(fmt.Sprint("n", i%50)))
		l.ok(Command{CordonNode: &CordonNode{fmt.Sprint("n", i%50), i < 50}})
	}
	records := recordsOf(l.Snapshot())
	s, err := Restore(seq(records))
	if err != nil || s.Snapshot().Hash() != l.Snapshot().Hash() {
		t.Fatalf("the restored state differs: %v", err)
	}
	restored := &log{t: t, State: s, now: l.now, idx: l.idx}
	for _, x := range []*log{l, restored} {
		x.ok(testNode("later"))
		x.now += int64(EventAge) - 1
		x.ok(testNode("latest"))
	}
	if l.Snapshot().Hash() != restored.Snapshot().Hash() || !slices.Equal(kinds(l.Snapshot(), 0), kinds(restored.Snapshot(), 0)) {
		t.Error("the restored state goes on in another way")
	}
	for name, damage := range map[string]func(c *EventChunk){
		"number":   func(c *EventChunk) { c.First = 1 },
		"overlap":  func(c *EventChunk) { c.First-- },
		"too late": func(c *EventChunk) { c.First = l.Events().Last() + 1 },
		"too many": func(c *EventChunk) { c.Events = make([]Event, 1000) },
		"empty":    func(c *EventChunk) { c.Events = nil },
	} {
		damaged := slices.Clone(records)
		at := slices.IndexFunc(damaged, func(r Record) bool { return r.EventChunk != nil && r.EventChunk.First > 20 })
		c := *damaged[at].EventChunk
		damage(&c)
		damaged[at].EventChunk = &c
		if _, err := Restore(seq(damaged)); !errors.Is(err, ErrSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHashBeforeEvents: a state of an earlier feature level has the hash that servers of the earlier
// version compute.
func TestHashBeforeEvents(t *testing.T) {
	l := newLog(t)
	l.ok(testNode("n1"))
	if got, want := l.Snapshot().Hash(), "f95db142ce13738bc2acc11b88c9d2721729014e206967b39992d255a19aaab3"; got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
}
