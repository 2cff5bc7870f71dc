package state

import (
	"testing"
)

func TestOrders(t *testing.T) {
	l := running(t, nil)
	l.skipped(testOrder(2, 2, 12, testJob(1, nil), nil), ReasonStaleOrder)
	l.skipped(testOrder(0, 1, 9, testJob(1, nil), nil), ReasonStaleOrder) // an older revision
	l.skipped(Command{ApplyOrders: &ApplyOrders{Removed: []string{"nonsense"}}}, ReasonStaleOrder)

	position := func(epoch string, seq uint64, more bool) Command {
		return Command{ApplyOrders: &ApplyOrders{Position: Position{epoch, seq}, More: more}}
	}
	l.ok(position("e", 9, true))
	if c := l.Cluster(); !c.OrdersIncomplete || c.Orders.Sequence != 0 {
		t.Errorf("%+v", c)
	}
	l.ok(position("e", 9, false))
	if c := l.Cluster(); c.OrdersIncomplete || c.Orders != (Position{"e", 9}) {
		t.Errorf("%+v", c)
	}
	l.fails(position("e", 8, false), ErrStalePosition)
	l.fails(position("e", 8, true), ErrStalePosition)
	if l.Cluster().OrdersIncomplete {
		t.Error("a part of a stale change makes the orders incomplete")
	}
	l.ok(position("f", 1, false))
}

// TestUnsupportedOrdersAreRejected: an order that cannot run is stored as rejected, as a
// whole. A slot can be ended without its job.
func TestUnsupportedOrdersAreRejected(t *testing.T) {
	noJob := func(c Command) Command { c.ApplyOrders.Orders[0].Job = nil; return c }
	for name, order := range map[string]Command{
		"no job":          noJob(testOrder(4, 9, 12, testJob(7, nil), nil)),
		"no such group":   testOrder(4, 9, 12, testJob(1, nil), func(s *Slot) { s.Group = "x" }),
		"too many":        testOrder(4, MaxInstances+1, 12, testJob(1, nil), nil),
		"unknown desired": testOrder(4, 9, 12, testJob(1, nil), func(s *Slot) { s.Desired = Hold + 1 }),
		"a change":        noJob(testOrder(0, 2, 12, testJob(7, nil), nil)),
	} {
		l := running(t, nil)
		l.skipped(order, ReasonUnsupported)
		want := order.ApplyOrders.Orders[0].Slot
		var held *Slot
		for s := range l.Slots() {
			if s.ID() == want.ID() {
				held = s
			}
		}
		if held == nil || len(held.Returned) != 1 || len(held.Ranges()) > 0 {
			t.Errorf("%s: held as %+v", name, held)
			continue
		}
		if a := held.Returned[0]; a.State != SlotRejected || a.From != want.From || a.To != want.To || a.Generation != want.Generation || a.Message == "" {
			t.Errorf("%s: answer %+v", name, a)
		}
	}
	running(t, nil).ok(noJob(testOrder(4, 9, 12, testJob(7, nil), func(s *Slot) { s.Desired = Stop })))
}

func TestWanted(t *testing.T) {
	l := running(t, nil)
	wanted := func(n int32, pending int32) {
		t.Helper()
		g, _ := l.Group(webKey)
		if g.Wanted != n || g.Counts.Pending != pending {
			t.Errorf("wanted %d, pending %d; want %d, %d", g.Wanted, g.Counts.Pending, n, pending)
		}
	}
	wanted(2, 1)
	l.ok(testOrder(2, 6, 10, testJob(1, nil), nil))
	wanted(6, 5)
	back := func(from, to int32, generation int64) Command {
		return Command{AnswerSlots: &AnswerSlots{Answers: []Answer{{
			Namespace: "default", Job: "api", Group: "web", From: from, To: to, Generation: generation, State: SlotReturned, Reason: ReasonInsufficientCPU,
		}}}}
	}
	l.skipped(back(0, 2, 10), ReasonStaleOrder) // index 0 is live
	l.skipped(back(1, 3, 10), ReasonStaleOrder) // the range covers two slots
	l.skipped(back(1, 2, 9), ReasonStaleOrder)  // the slot has another generation
	l.ok(back(1, 2, 10))
	l.skipped(back(1, 2, 10), ReasonStaleOrder) // already given back
	wanted(5, 4)
	l.ok(back(3, 5, 10))
	wanted(3, 2)
	// The global tier's new orders follow. They cut the slots but keep the generations.
	l.ok(testOrder(0, 1, 10, testJob(1, nil), nil))
	l.ok(testOrder(2, 3, 10, testJob(1, nil), nil))
	l.ok(testOrder(5, 6, 10, testJob(1, nil), nil))
	wanted(3, 2)
	for s := range l.Slots() {
		if len(s.Returned) > 0 {
			t.Errorf("%s still answers %v", s.ID(), s.Returned)
		}
	}
	// The same indices are offered again with a new generation.
	l.ok(testOrder(3, 5, 20, testJob(1, nil), nil))
	wanted(5, 4)
	l.ok(Command{ApplyOrders: &ApplyOrders{Removed: []string{"default/api/web/3", "default/api/web/2"}}})
	wanted(2, 1)
}

// TestReturnedInstanceHasNotFailed: an instance that was given back waits for another
// region. It does not count as failed, even if an agent declined it or its attempt failed
// once. Only an exhausted instance counts as failed.
func TestReturnedInstanceHasNotFailed(t *testing.T) {
	for name, end := range map[string]AllocReport{
		"declined":    {State: Failed, Declined: true},
		"failed once": {State: Failed},
		"ended once":  {State: Complete},
	} {
		t.Run(name, func(t *testing.T) {
			l := running(t, nil)
			end.ID = "a1"
			l.ok(testReport("n1", end))
			counted := func(when string, want Counts) {
				t.Helper()
				if g, _ := l.Group(webKey); g.Counts != want {
					t.Errorf("%s counted %+v, want %+v", when, g.Counts, want)
				}
			}
			counted("while it waits here", Counts{Pending: 2})
			l.ok(Command{AnswerSlots: &AnswerSlots{Answers: []Answer{{Namespace: "default", Job: "api", Group: "web",
				From: 0, To: 1, Generation: 10, State: SlotReturned, Reason: ReasonDeclined}}}})
			counted("given back", Counts{Pending: 1})
			l.ok(Command{ApplyOrders: &ApplyOrders{Removed: []string{SlotID("default", "api", "web", 0)}}})
			counted("another region's", Counts{})
		})
	}
}

func TestVersions(t *testing.T) {
	same := running(t, nil)
	same.ok(testOrder(0, 2, 11, testJob(2, func(g *Group) { g.Hash = 1 }), nil))
	if a, _ := same.Alloc("a1"); a.JobVersion != 2 {
		t.Errorf("an unchanged group was not carried over: version %d", a.JobVersion)
	}
	other := running(t, nil)
	other.ok(testOrder(0, 2, 11, testJob(2, nil), nil))
	if a, _ := other.Alloc("a1"); a.JobVersion != 1 {
		t.Errorf("a changed group was carried over: version %d", a.JobVersion)
	}
	// An exhausted instance is tried again with a new generation.
	tired := running(t, nil)
	fail(tired, 2)
	tired.ok(testReport("n1", AllocReport{ID: "a3", State: Failed}))
	if in := tired.Instance(webKey, 0); !in.Exhausted || in.Reason != ReasonReschedulesExhausted {
		t.Fatalf("%+v", in)
	}
	tired.ok(testOrder(0, 2, 11, testJob(1, nil), nil))
	if in := tired.Instance(webKey, 0); in.Exhausted || in.Failures != 0 || in.Epoch != 3 {
		t.Errorf("%+v", in)
	}
	// A failure of the old version of the group does not count for the new one.
	other.ok(testReport("n1", AllocReport{ID: "a1", State: Failed}))
	if in := other.Instance(webKey, 0); in.Failures != 0 {
		t.Errorf("%+v", in)
	}
}

// TestEachOldSpecIsKept: after restores of the store, a version may get another spec again and
// again. An instance follows the spec with which it was started, whatever comes later.
func TestEachOldSpecIsKept(t *testing.T) {
	l := running(t, nil)
	l.ok(Command{SetLimits: &SetLimits{FeatureLevel: oldVersionsLevel}})
	started, _ := l.Job(webKey.JobKey(), 1)
	for i, spec := range []string{"second", "third", "second", "fourth"} {
		next := testJob(1, func(g *Group) { g.Hash, g.Disconnect.StopRunning = uint64(70+i), true })
		next.Spec = []byte(spec)
		l.ok(testOrder(0, 2, int64(20+i), next, nil))
		a, _ := l.Alloc("a1")
		if j, ok := l.Job(webKey.JobKey(), a.JobVersion); !ok || string(j.Spec) != string(started.Spec) || j.Groups[0].Disconnect.StopRunning {
			t.Fatalf("after %s the instance follows version %d: %+v", spec, a.JobVersion, j)
		}
		if j, _ := l.Job(webKey.JobKey(), 1); string(j.Spec) != spec {
			t.Errorf("version 1 is %s, want %s", j.Spec, spec)
		}
	}
}

// TestPurgedNameCanBeUsedAgain: a job that was purged and submitted again begins with
// version 1. It is not confused with the purged job.
func TestPurgedNameCanBeUsedAgain(t *testing.T) {
	l := running(t, nil)
	again := testJob(1, func(g *Group) { g.Hash = 77; g.Ask.Resources.CPUMilli = 5 })
	again.Spec = []byte("another")
	l.ok(testOrder(0, 2, 20, again, nil))
	if j, _ := l.Job(webKey.JobKey(), 1); j.Groups[0].Ask.Resources.CPUMilli != 5 {
		t.Error("the old job's spec is used")
	}
	a, _ := l.Alloc("a1")
	if a.JobVersion == 1 {
		t.Error("the old job's instance counts as the new one's")
	}
	if j, ok := l.Job(webKey.JobKey(), a.JobVersion); !ok || j.Groups[0].Ask.Resources.CPUMilli == 5 {
		t.Error("the old version is not stored, so its instance cannot be ordered to stop")
	}
	l.skipped(testOrder(0, 2, 10, testJob(1, nil), nil), ReasonStaleOrder) // an order for the purged job
	if j, _ := l.Job(webKey.JobKey(), 1); j.Groups[0].Ask.Resources.CPUMilli != 5 {
		t.Error("a stale order has changed the job")
	}
}
