package state

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

func TestStatesOnlyAdvance(t *testing.T) {
	all := []AllocState{Pending, Starting, Running, Complete, Failed, Stopped}
	for _, from := range all {
		for _, to := range all {
			l := newLog(t)
			l.ok(testNode("n1"))
			l.ok(testOrder(0, 1, 10, testJob(1, nil), nil))
			l.ok(testPlace("a1", 0, "n1", 1))
			l.ok(testReport("n1", AllocReport{ID: "a1", State: from}))
			l.do(testReport("n1", AllocReport{ID: "a1", State: to}))
			want := max(from, to)
			if from.Terminal() {
				want = from
			}
			if a, _ := l.Alloc("a1"); a.State != want || a.Charged != !want.Terminal() {
				t.Errorf("%s then %s: %s, charged %v", from, to, a.State, a.Charged)
			}
			if n := l.Use("n1").Allocs; (n == 0) != want.Terminal() {
				t.Errorf("%s then %s: the node is charged for %d", from, to, n)
			}
		}
	}
}

func TestReports(t *testing.T) {
	l := running(t, nil)
	l.skipped(testReport("n2", AllocReport{ID: "a1", State: Failed}), ReasonStaleOrder) // n2 is not its node
	l.skipped(testReport("n1", AllocReport{ID: "zz", State: Failed}), ReasonStaleOrder)
	l.skipped(testReport("n1", AllocReport{ID: "a1", State: Starting}), ReasonStaleOrder)
	l.skipped(testReport("n1", AllocReport{ID: "a1", State: 99}), ReasonStaleOrder)
	l.fails(testReport("nobody", AllocReport{ID: "a1", State: Failed}), ErrUnknownNode)

	at := func(epoch string, seq uint64) Command {
		return Command{AgentReports: &AgentReports{NodeID: "n1", Position: Position{epoch, seq}}}
	}
	l.ok(at("s1", 5))
	l.fails(at("s1", 4), ErrStalePosition)
	if r := l.ok(at("s1", 5)); r.Changed {
		t.Error("the same position again has changed something")
	}
	l.ok(at("s2", 1)) // another store of the agent, with numbers from 1
	if got := l.Reports("n1"); got != (Position{"s2", 1}) {
		t.Errorf("position %v", got)
	}
}

func TestEndsUpdateTheInstance(t *testing.T) {
	type want struct {
		failures        int32
		wait            int64
		done, exhausted bool
		declined        []string
	}
	batch := func(l *log) { l.ok(batchOrder()) }
	cases := []struct {
		name   string
		before func(*log)
		report AllocReport
		want   want
	}{
		{"failed", nil, AllocReport{State: Failed}, want{failures: 1, wait: 5 * second}},
		{"complete service", nil, AllocReport{State: Complete}, want{failures: 1, wait: 5 * second}},
		{"complete batch", batch, AllocReport{State: Complete}, want{done: true}},
		{"failed batch", batch, AllocReport{State: Failed}, want{failures: 1, wait: 5 * second}},
		{"declined", nil, AllocReport{State: Failed, Declined: true}, want{declined: []string{"n1"}}},
		{"stopped by itself", nil, AllocReport{State: Stopped}, want{failures: 1, wait: 5 * second}},
		{"lease expired", nil, AllocReport{State: Stopped, Reason: ReasonLeaseExpired}, want{}},
		{"lease expired, as agents report it", nil, AllocReport{State: Failed, Reason: ReasonLeaseExpired}, want{}},
		{"agent leaving", nil, AllocReport{State: Stopped, Reason: ReasonAgentLeaving}, want{}},
		{"stopped as asked", func(l *log) { l.ok(testStop("a1")) }, AllocReport{State: Stopped}, want{}},
		{"failed while stopping", func(l *log) { l.ok(testStop("a1")) }, AllocReport{State: Failed}, want{}},
		{"second failure", func(l *log) { fail(l, 1) }, AllocReport{State: Failed}, want{failures: 2, wait: 10 * second}},
		{"third failure", func(l *log) { fail(l, 2) }, AllocReport{State: Failed}, want{failures: 3, exhausted: true}},
		{"after a long run", func(l *log) { fail(l, 2); l.now += 11 * 60 * second }, AllocReport{State: Failed}, want{failures: 1, wait: 5 * second}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := running(t, nil)
			if c.before != nil {
				c.before(l)
			}
			for a := range l.InstanceAllocs(webKey, 0) {
				if a.Live() {
					c.report.ID = a.ID
				}
			}
			l.ok(testReport("n1", c.report))
			in := l.Instance(webKey, 0)
			if in.Failures != c.want.failures || in.Done != c.want.done || in.Exhausted != c.want.exhausted || !slices.Equal(in.Declined, c.want.declined) {
				t.Errorf("got %+v", in)
			}
			if c.want.wait > 0 && in.NotBeforeUnixNano != l.now+c.want.wait || c.want.wait == 0 && !in.Exhausted && in.NotBeforeUnixNano != 0 {
				t.Errorf("the instance waits for %s", time.Duration(in.NotBeforeUnixNano-l.now))
			}
			if a, _ := l.Alloc(c.report.ID); a.Live() || a.Desired != Stop || in.EndedUnixNano != l.now {
				t.Errorf("%+v, ended %d", a, in.EndedUnixNano)
			}
		})
	}
}

// batchOrder makes the job of a running log a batch job, in its present version.
func batchOrder() Command {
	job := testJob(2, func(g *Group) { g.Hash = 1 })
	job.Type = Batch
	return testOrder(0, 2, 11, job, nil)
}

// fail lets the instance fail n times. It starts again each time.
func fail(l *log, n int) {
	l.t.Helper()
	for i := range n {
		id := fmt.Sprint("a", i+1)
		next := fmt.Sprint("a", i+2)
		l.ok(testReport("n1", AllocReport{ID: id, State: Failed}))
		l.now += 60 * second
		l.ok(testPlace(next, 0, "n1", 1))
		l.ok(testReport("n1", AllocReport{ID: next, State: Running}))
	}
}

func TestEpochsGrow(t *testing.T) {
	l := running(t, nil)
	fail(l, 2)
	var last *Alloc
	for a := range l.InstanceAllocs(webKey, 0) {
		if last != nil && (a.Generation < last.Generation || a.Generation == last.Generation && a.Epoch <= last.Epoch) {
			t.Errorf("(%d, %d) after (%d, %d)", a.Generation, a.Epoch, last.Generation, last.Epoch)
		}
		last = a
	}
	// Purged attempts are still counted.
	l.ok(Command{Purge: &Purge{EndedBeforeUnixNano: l.now + 1}})
	if n := len(slices.Collect(l.InstanceAllocs(webKey, 0))); n != 1 {
		t.Fatalf("%d attempts are left", n)
	}
	l.ok(testReport("n1", AllocReport{ID: "a3", State: Stopped, Reason: ReasonLeaseExpired}))
	l.ok(Command{Purge: &Purge{EndedBeforeUnixNano: l.now + 1}})
	l.ok(testPlace("a4", 0, "n1", 1))
	if a, _ := l.Alloc("a4"); a.Epoch != 4 {
		t.Errorf("epoch %d after three attempts", a.Epoch)
	}
}

func TestStalePlacementIsSkipped(t *testing.T) {
	place := func(change func(*PlaceGroup, *PlaceAlloc)) Command {
		c := testPlace("new", 1, "n1", 1)
		change(&c.ApplyPlan.Places[0], &c.ApplyPlan.Places[0].Allocs[0])
		return c
	}
	cases := []struct {
		name   string
		before func(*log)
		change func(*PlaceGroup, *PlaceAlloc)
		reason Reason
	}{
		{"live already", nil, func(_ *PlaceGroup, a *PlaceAlloc) { a.Index = 0 }, ReasonStaleOrder},
		{"index not wanted", nil, func(_ *PlaceGroup, a *PlaceAlloc) { a.Index = 2 }, ReasonStaleOrder},
		{"other version", nil, func(g *PlaceGroup, _ *PlaceAlloc) { g.JobVersion = 2 }, ReasonStaleOrder},
		{"other group", nil, func(g *PlaceGroup, _ *PlaceAlloc) { g.Key.Group = "x" }, ReasonStaleOrder},
		{"id in use", nil, func(_ *PlaceGroup, a *PlaceAlloc) { a.ID = "a1" }, ReasonStaleOrder},
		{"no such node", nil, func(_ *PlaceGroup, a *PlaceAlloc) { a.NodeID = "zz" }, ReasonNodeLost},
		{"node lost", func(l *log) { l.ok(Command{SetNodeStatus: &SetNodeStatus{ID: "n1", Status: NodeLost}}) }, nil, ReasonNodeLost},
		{"node cordoned", func(l *log) { l.ok(Command{CordonNode: &CordonNode{"n1", true}}) }, nil, ReasonNodeCordoned},
		{"node draining", func(l *log) { l.ok(Command{DrainNode: &DrainNode{ID: "n1", Drain: true}}) }, nil, ReasonNodeDraining},
		{"no cpu left", func(l *log) { l.ok(smaller("n1", Resources{1999, 8 << 30, 0})) }, nil, ReasonInsufficientCPU},
		{"no memory left", func(l *log) { l.ok(smaller("n1", Resources{4000, 2<<30 - 1, 0})) }, nil, ReasonInsufficientMemory},
		{"port twice", nil, func(_ *PlaceGroup, a *PlaceAlloc) { a.Ports = []PortGrant{{"a", 80}, {"b", 80}} }, ReasonPortConflict},
		{"gpu gone", nil, func(_ *PlaceGroup, a *PlaceAlloc) { a.GPUs = []GPUGrant{{"g7", 100}} }, ReasonInsufficientGPU},
		{"gpu full", nil, func(_ *PlaceGroup, a *PlaceAlloc) { a.GPUs = []GPUGrant{{"g0", 600}, {"g0", 600}} }, ReasonInsufficientGPU},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := running(t, nil)
			if c.before != nil {
				c.before(l)
			}
			if c.change == nil {
				c.change = func(*PlaceGroup, *PlaceAlloc) {}
			}
			use := l.Use("n1")
			l.skipped(place(c.change), c.reason)
			if got := l.Use("n1"); got.Allocs != use.Allocs || got.Resources != use.Resources {
				t.Errorf("charged for %+v", got)
			}
		})
	}
}

func smaller(id string, capacity Resources) Command {
	c := testNode(id)
	c.UpsertNode.Node.Capacity = capacity
	return c
}

func TestStops(t *testing.T) {
	l := running(t, nil)
	l.skipped(testStop("zz"), ReasonStaleOrder)
	giveUp := Command{ApplyPlan: &ApplyPlan{Stops: []StopAlloc{{ID: "a1", Reason: ReasonNodeLost, GiveUp: true}}}}
	l.skipped(giveUp, ReasonStaleOrder) // the node is connected
	r := l.ok(testStop("a1"))
	if a, _ := l.Alloc("a1"); !slices.Equal(r.Orders, []*Alloc{a}) || a.OrderIndex != a.ModifyIndex {
		t.Errorf("orders %v for %+v", r.Orders, a)
	}
	l.skipped(testStop("a1"), ReasonStaleOrder)
	l.ok(testReport("n1", AllocReport{ID: "a1", State: Stopped}))
	if a, _ := l.Alloc("a1"); a.Reason != ReasonSuperseded {
		t.Errorf("the reason of the stop is lost: %+v", a)
	}
	l.skipped(testStop("a1"), ReasonStaleOrder)
}

func TestLostAllocIsChargedUntilItsNodeConfirms(t *testing.T) {
	giveUp := func(t *testing.T) *log {
		l := running(t, nil)
		l.ok(Command{SetNodeStatus: &SetNodeStatus{ID: "n1", Status: NodeLost}})
		if a, _ := l.Alloc("a1"); a.State != Running || a.DisplayState() != Lost {
			t.Fatalf("%s, shown %s", a.State, a.DisplayState())
		}
		l.ok(Command{ApplyPlan: &ApplyPlan{Stops: []StopAlloc{{ID: "a1", Reason: ReasonNodeLost, GiveUp: true}}}})
		if a, _ := l.Alloc("a1"); a.State != Lost || !a.Charged || l.Use("n1").Allocs != 1 {
			t.Fatalf("%+v", a)
		}
		l.ok(Command{SetNodeStatus: &SetNodeStatus{ID: "n1", Status: NodeReady}})
		return l
	}
	free := func(t *testing.T, l *log) {
		if a, _ := l.Alloc("a1"); a != nil && (a.State != Lost || a.Charged) || l.Use("n1").Allocs != 0 {
			t.Errorf("%+v, use %+v", a, l.Use("n1"))
		}
	}
	t.Run("report", func(t *testing.T) {
		l := giveUp(t)
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Running}))
		if l.Use("n1").Allocs != 1 {
			t.Error("it still runs, and its node is not charged")
		}
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Stopped}))
		free(t, l)
	})
	t.Run("unmentioned", func(t *testing.T) {
		l := giveUp(t)
		l.ok(Command{AgentReports: &AgentReports{NodeID: "n1", Full: true}})
		free(t, l)
	})
	t.Run("removed", func(t *testing.T) {
		l := giveUp(t)
		l.fails(Command{RemoveNode: &RemoveNode{"n1"}}, ErrNodeReady)
		l.ok(Command{SetNodeStatus: &SetNodeStatus{ID: "n1", Status: NodeLeft}})
		l.ok(Command{RemoveNode: &RemoveNode{"n1"}})
		free(t, l)
		l.ok(testNode("n1"))
		if n, _ := l.Node("n1"); n.Num != 3 {
			t.Errorf("number %d was used before", n.Num)
		}
	})
}

// TestViewsAreReadConcurrently: views are read while the state changes. It is meant for
// -race.
func TestViewsAreReadConcurrently(t *testing.T) {
	l := running(t, nil)
	l.ok(testOrder(0, 50, 11, testJob(1, nil), nil))
	var group errgroup.Group
	for i := range 40 {
		view := l.Snapshot()
		group.Go(func() error {
			if a, b := view.Hash(), view.Hash(); a != b {
				return fmt.Errorf("view %d has changed", i)
			}
			view.Fork().Apply(view.Index()+1, testStop("a1"))
			return nil
		})
		l.do(testPlace(fmt.Sprint("b", i), int32(i), "n2", 1))
		l.do(testReport("n2", AllocReport{ID: fmt.Sprint("b", i), State: Failed}))
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func TestNodes(t *testing.T) {
	l := running(t, nil)
	if r := l.ok(testNode("n1")); r.Changed {
		t.Error("the same inventory again has changed something")
	}
	n, _ := l.Node("n1")
	was := n.InventoryIndex
	l.ok(Command{CordonNode: &CordonNode{"n1", true}})
	n, _ = l.Node("n1")
	if n.InventoryIndex != was || n.ModifyIndex == was || n.Eligible() {
		t.Errorf("%+v", n)
	}
	// The devices are reported in another order, and the used shares stay the same.
	l.ok(Command{CordonNode: &CordonNode{"n1", false}})
	c := testPlace("a2", 1, "n1", 1)
	c.ApplyPlan.Places[0].Allocs[0].GPUs = []GPUGrant{{"g0", 300}}
	l.ok(c)
	turned := testNode("n1")
	slices.Reverse(turned.UpsertNode.Node.GPUs)
	l.ok(turned)
	if u := l.Use("n1"); !slices.Equal(u.GPUMilli, []int32{0, 300}) {
		t.Errorf("%v", u.GPUMilli)
	}
	for _, c := range []Command{
		{SetNodeStatus: &SetNodeStatus{ID: "zz", Status: NodeLost}},
		{CordonNode: &CordonNode{"zz", true}}, {DrainNode: &DrainNode{ID: "zz", Drain: true}}, {RemoveNode: &RemoveNode{"zz"}},
	} {
		l.fails(c, ErrUnknownNode)
	}
	l.fails(Command{UpsertNode: &UpsertNode{}}, ErrInvalid)
	l.fails(Command{SetNodeStatus: &SetNodeStatus{ID: "n1", Status: 9}}, ErrInvalid)
	l.fails(Command{Bootstrap: &Bootstrap{"c", "other"}}, ErrOtherCluster)
	l.fails(Command{}, ErrUnknownCommand)
	l.ok(Command{BumpIncarnation: &BumpIncarnation{Incarnation: 7}})
	if r := l.ok(Command{BumpIncarnation: &BumpIncarnation{Incarnation: 3}}); r.Changed || r.Incarnation != 7 {
		t.Errorf("%+v", r)
	}
}

func TestBatch(t *testing.T) {
	l := newLog(t)
	r := l.do(Command{Batch: []Command{testNode("n1"), {CordonNode: &CordonNode{"zz", true}}, testNode("n2")}})
	if len(r.Batch) != 3 || r.Batch[0].Err != nil || !errors.Is(r.Batch[1].Err, ErrUnknownNode) || l.NodeCount() != 2 || !r.Changed {
		t.Errorf("%+v", r)
	}
	r = l.do(Command{Batch: []Command{{Batch: []Command{testNode("n3")}}}})
	if !errors.Is(r.Batch[0].Err, ErrNestedBatch) || errors.Is(r.Batch[0].Err, ErrUnknownCommand) || l.NodeCount() != 2 {
		t.Errorf("a batch inside a batch: %+v", r)
	}
}

func TestPrefix(t *testing.T) {
	l := newLog(t)
	l.ok(testNode("n1"))
	l.ok(testOrder(0, 4, 10, testJob(1, nil), nil))
	for i, id := range []string{"abc1", "abc2", "abd1", "b"} {
		l.ok(testPlace(id, int32(i), "n1", 1))
	}
	var got []string
	for a := range l.AllocsByPrefix("abc") {
		got = append(got, a.ID)
	}
	if !slices.Equal(got, []string{"abc1", "abc2"}) {
		t.Errorf("%v", got)
	}
}

// TestSystemGroupDropsRemovedNode: a system group counts no instance of a removed node,
// whether the allocations of that node are purged before or after the removal.
func TestSystemGroupDropsRemovedNode(t *testing.T) {
	for _, first := range []string{"allocation", "node"} {
		t.Run(first, func(t *testing.T) {
			l := newLog(t)
			l.ok(testNode("n1"))
			l.ok(testNode("n2"))
			job := testJob(1, nil)
			job.Type = System
			l.ok(testOrder(0, 1, 10, job, nil))
			n, _ := l.Node("n2")
			l.ok(testPlace("a1", int32(n.Num), "n2", 1))
			l.ok(testReport("n2", AllocReport{ID: "a1", State: Failed, Reason: ReasonExited}))
			if g, _ := l.Group(webKey); g.Wanted != 1 || g.Counts.Pending != 1 {
				t.Fatalf("the instance is not to be tried again: %+v", g)
			}
			l.ok(Command{SetNodeStatus: &SetNodeStatus{ID: "n2", Status: NodeLost}})
			remove := Command{RemoveNode: &RemoveNode{ID: "n2"}}
			if first == "node" {
				l.ok(remove)
			}
			l.now += second
			l.ok(Command{Purge: &Purge{EndedBeforeUnixNano: l.now}})
			if first != "node" {
				l.ok(remove)
			}
			if g, _ := l.Group(webKey); g.Wanted != 0 || g.Counts != (Counts{}) {
				t.Errorf("wanted %d, counts %+v", g.Wanted, g.Counts)
			}
			if all := slices.Collect(l.Instances(webKey)); len(all) != 0 {
				t.Errorf("instances without a node are stored: %+v", all)
			}
		})
	}
}
