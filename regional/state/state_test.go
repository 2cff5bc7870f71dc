package state

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

const second = int64(time.Second)

// log applies commands to a state, each at the next index.
type log struct {
	t *testing.T
	*State
	now int64
	idx uint64
}

func newLog(t *testing.T) *log {
	l := &log{t: t, State: New(), now: 1000 * second}
	l.ok(Command{Bootstrap: &Bootstrap{"c", "r"}})
	return l
}

func (l *log) do(c Command) Result {
	l.idx++
	c.NowUnixNano = l.now
	return l.Apply(l.idx, c)
}

// ok applies a command that must hold in all its parts.
func (l *log) ok(c Command) Result {
	l.t.Helper()
	r := l.do(c)
	if r.Err != nil || len(r.Skipped) > 0 {
		l.t.Fatalf("%v, skipped %v", r.Err, r.Skipped)
	}
	return r
}

func (l *log) fails(c Command, want error) {
	l.t.Helper()
	before := l.Snapshot().Hash()
	if r := l.do(c); !errors.Is(r.Err, want) || r.Changed {
		l.t.Fatalf("got %v, changed %v, want %v", r.Err, r.Changed, want)
	}
	l.idx-- // only the index may differ
	l.View.index--
	if l.Snapshot().Hash() != before {
		l.t.Fatal("a command that failed has changed the state")
	}
}

func (l *log) skipped(c Command, reason Reason) {
	l.t.Helper()
	r := l.do(c)
	if len(r.Skipped) != 1 || r.Skipped[0].Reason != reason || r.Skipped[0].Message == "" {
		l.t.Fatalf("got %+v, want one %s", r.Skipped, reason)
	}
}

func testNode(id string) Command {
	return Command{UpsertNode: &UpsertNode{Node{
		ID: id, Name: id, Pool: "default", PortMin: 20000, PortMax: 20009,
		Capacity: Resources{4000, 8 << 30, 100 << 30},
		GPUs:     []GPU{{ID: "g0", Model: "t4"}, {ID: "g1", Model: "t4"}},
	}}}
}

var webKey = GroupKey{Namespace: "default", Job: "api", Group: "web"}

func testJob(version int64, change func(*Group)) *Job {
	g := Group{
		Name: "web", Hash: uint64(version),
		Ask:        Ask{Resources: Resources{1000, 1 << 30, 0}, Pool: "default"},
		Reschedule: Reschedule{Attempts: 2, From: 5 * time.Second, To: 60 * time.Second},
	}
	if change != nil {
		change(&g)
	}
	return &Job{Version: version, Type: Service, Spec: []byte(fmt.Sprint("spec", version)), Groups: []Group{g}}
}

func testOrder(from, to int32, generation int64, job *Job, change func(*Slot)) Command {
	s := Slot{
		Namespace: "default", Job: "api", Group: "web", From: from, To: to,
		Generation: generation, Revision: generation, JobVersion: job.Version, Desired: Run, State: SlotOffered,
	}
	if change != nil {
		change(&s)
	}
	return Command{ApplyOrders: &ApplyOrders{Orders: []SlotOrder{{s, job}}}}
}

func testPlace(id string, index int32, node string, version int64) Command {
	return Command{ApplyPlan: &ApplyPlan{Places: []PlaceGroup{{
		Key: webKey, JobVersion: version, Allocs: []PlaceAlloc{{ID: id, Index: index, NodeID: node, Why: "test"}},
	}}}}
}

func testReport(node string, r AllocReport) Command {
	return Command{AgentReports: &AgentReports{NodeID: node, Reports: []AllocReport{r}}}
}

func testStop(id string) Command {
	return Command{ApplyPlan: &ApplyPlan{Stops: []StopAlloc{{ID: id, Reason: ReasonSuperseded}}}}
}

// running is a log with one running instance on n1.
func running(t *testing.T, change func(*Group)) *log {
	l := newLog(t)
	l.ok(testNode("n1"))
	l.ok(testNode("n2"))
	l.ok(testOrder(0, 2, 10, testJob(1, change), nil))
	l.ok(testPlace("a1", 0, "n1", 1))
	l.ok(testReport("n1", AllocReport{ID: "a1", State: Running}))
	return l
}

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
	l.skipped(testReport("n2", AllocReport{ID: "a1", State: Failed}), ReasonStaleOrder) // not its node
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
	l.ok(at("s2", 1)) // another store numbers anew
	if got := l.Reports("n1"); got != (Position{"s2", 1}) {
		t.Errorf("position %v", got)
	}
}

func TestBackoff(t *testing.T) {
	p := Reschedule{From: 5 * time.Second, To: time.Minute}
	for n, want := range []time.Duration{1: 5, 2: 10, 3: 20, 4: 40, 5: 60, 6: 60, 40: 60} {
		if want > 0 {
			if got := Backoff(p, int32(n)); got != want*time.Second {
				t.Errorf("after %d failures %s, want %ds", n, got, want)
			}
		}
	}
	if got := Backoff(Reschedule{}, 3); got != 0 {
		t.Errorf("without a policy %s", got)
	}
}

func TestEnds(t *testing.T) {
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
				t.Errorf("waits %s", time.Duration(in.NotBeforeUnixNano-l.now))
			}
			if a, _ := l.Alloc(c.report.ID); a.Live() || a.Desired != Stop || in.FreedUnixNano != l.now {
				t.Errorf("%+v, freed %d", a, in.FreedUnixNano)
			}
		})
	}
}

// batchOrder makes the job of running a batch job, in its present version.
func batchOrder() Command {
	job := testJob(2, func(g *Group) { g.Hash = 1 })
	job.Type = Batch
	return testOrder(0, 2, 11, job, nil)
}

// fail lets the instance fail n times and start again.
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

func TestPlaceThatNoLongerHolds(t *testing.T) {
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
		{"node draining", func(l *log) { l.ok(Command{DrainNode: &DrainNode{"n1", true}}) }, nil, ReasonNodeDraining},
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
	l.skipped(giveUp, ReasonStaleOrder) // the node is there
	r := l.ok(testStop("a1"))
	if a, _ := l.Alloc("a1"); !slices.Equal(r.Orders, []*Alloc{a}) || a.OrderIndex != a.ModifyIndex {
		t.Errorf("orders %v for %+v", r.Orders, a)
	}
	l.skipped(testStop("a1"), ReasonStaleOrder)
	l.ok(testReport("n1", AllocReport{ID: "a1", State: Stopped}))
	if a, _ := l.Alloc("a1"); a.Reason != ReasonSuperseded {
		t.Errorf("it forgot why it was stopped: %+v", a)
	}
	l.skipped(testStop("a1"), ReasonStaleOrder)
}

func TestLostStaysChargedUntilItsNodeConfirms(t *testing.T) {
	giveUp := func(t *testing.T) *log {
		l := running(t, nil)
		l.ok(Command{SetNodeStatus: &SetNodeStatus{ID: "n1", Status: NodeLost}})
		if a, _ := l.Alloc("a1"); a.State != Running || a.Shown() != Lost {
			t.Fatalf("%s, shown %s", a.State, a.Shown())
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
			t.Error("it still runs and nobody pays")
		}
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Stopped}))
		free(t, l)
	})
	t.Run("forgotten", func(t *testing.T) {
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
		t.Error("a part of a stale change holds everything up")
	}
	l.ok(position("f", 1, false))
}

// An order that cannot be run is held as rejected, whole; to end it nothing
// need be known about its job.
func TestOrdersThatCannotBeRun(t *testing.T) {
	noJob := func(c Command) Command { c.ApplyOrders.Orders[0].Job = nil; return c }
	for name, order := range map[string]Command{
		"no job":          noJob(testOrder(4, 9, 12, testJob(7, nil), nil)),
		"no such group":   testOrder(4, 9, 12, testJob(1, nil), func(s *Slot) { s.Group = "x" }),
		"too many":        testOrder(4, MaxInstances+1, 12, testJob(1, nil), nil),
		"unknown desired": testOrder(4, 9, 12, testJob(1, nil), func(s *Slot) { s.Desired = Revoke + 1 }),
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
	l.skipped(back(1, 3, 10), ReasonStaleOrder) // of two slots
	l.skipped(back(1, 2, 9), ReasonStaleOrder)  // of another generation
	l.ok(back(1, 2, 10))
	l.skipped(back(1, 2, 10), ReasonStaleOrder) // given back already
	wanted(5, 4)
	l.ok(back(3, 5, 10))
	wanted(3, 2)
	// The orders follow: the slots are cut, generations stay.
	l.ok(testOrder(0, 1, 10, testJob(1, nil), nil))
	l.ok(testOrder(2, 3, 10, testJob(1, nil), nil))
	l.ok(testOrder(5, 6, 10, testJob(1, nil), nil))
	wanted(3, 2)
	for s := range l.Slots() {
		if len(s.Returned) > 0 {
			t.Errorf("%s still answers %v", s.ID(), s.Returned)
		}
	}
	// Offered again under a new generation.
	l.ok(testOrder(3, 5, 20, testJob(1, nil), nil))
	wanted(5, 4)
	l.ok(Command{ApplyOrders: &ApplyOrders{Removed: []string{"default/api/web/3", "default/api/web/2"}}})
	wanted(2, 1)
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
	// An instance that had given up is tried again with a new generation.
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
	// A failure of the old form says nothing about the new one.
	other.ok(testReport("n1", AllocReport{ID: "a1", State: Failed}))
	if in := other.Instance(webKey, 0); in.Failures != 0 {
		t.Errorf("%+v", in)
	}
}

// A job that was purged and submitted anew begins with version 1 again.
func TestNameUsedAgain(t *testing.T) {
	l := running(t, nil)
	again := testJob(1, func(g *Group) { g.Hash = 77; g.Ask.Resources.CPUMilli = 5 })
	again.Spec = []byte("another")
	l.ok(testOrder(0, 2, 20, again, nil))
	if j, _ := l.Job(webKey.JobKey(), 1); j.Groups[0].Ask.Resources.CPUMilli != 5 {
		t.Error("the old job's spec is used")
	}
	a, _ := l.Alloc("a1")
	if a.JobVersion == 1 {
		t.Error("the old job's instance passes for the new one's")
	}
	if j, ok := l.Job(webKey.JobKey(), a.JobVersion); !ok || j.Groups[0].Ask.Resources.CPUMilli == 5 {
		t.Error("nobody knows how the old job's instance was started, so its agent cannot be told to stop it")
	}
	l.skipped(testOrder(0, 2, 10, testJob(1, nil), nil), ReasonStaleOrder) // an order from before
	if j, _ := l.Job(webKey.JobKey(), 1); j.Groups[0].Ask.Resources.CPUMilli != 5 {
		t.Error("an overtaken order has changed the job")
	}
}

// Views are read while the state goes on: run with -race.
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
	if n, _ = l.Node("n1"); n.InventoryIndex != was || n.ModifyIndex == was || n.Eligible() {
		t.Errorf("%+v", n)
	}
	// The devices come in another order: what is in use stays in use.
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
		{CordonNode: &CordonNode{"zz", true}}, {DrainNode: &DrainNode{"zz", true}}, {RemoveNode: &RemoveNode{"zz"}},
	} {
		l.fails(c, ErrUnknownNode)
	}
	l.fails(Command{UpsertNode: &UpsertNode{}}, ErrInvalid)
	l.fails(Command{SetNodeStatus: &SetNodeStatus{ID: "n1", Status: 9}}, ErrInvalid)
	l.fails(Command{Bootstrap: &Bootstrap{"c", "other"}}, ErrOtherCluster)
	l.fails(Command{}, ErrUnknownCommand)
	l.ok(Command{BumpIncarnation: &BumpIncarnation{7}})
	if r := l.ok(Command{BumpIncarnation: &BumpIncarnation{3}}); r.Changed || r.Incarnation != 7 {
		t.Errorf("%+v", r)
	}
}

func TestLocalJobs(t *testing.T) {
	l := newLog(t)
	submit := func(spec string, count int32, check int64, key string) Command {
		job := testJob(0, func(g *Group) { g.Count = count; g.Hash = uint64(len(spec)) })
		job.Key = JobKey{"default", "api", true}
		job.Spec = []byte(spec)
		return Command{SubmitLocalJob: &SubmitLocalJob{Job: *job, CheckRevision: check, Idempotency: Idempotency{key, spec, l.now + 10*second}}}
	}
	stop := func(check int64, purge bool) Command {
		return Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "api", Purge: purge, CheckRevision: check}}
	}
	l.fails(stop(0, false), ErrNotFound)
	l.fails(submit("a", 1, 99, ""), ErrStaleRevision)
	first := l.ok(submit("a", 2, -1, "k1"))
	if first.Version != 1 || first.Revision != l.idx {
		t.Errorf("%+v", first)
	}
	l.fails(submit("b", 2, -1, ""), ErrStaleRevision)
	l.fails(submit("b", 2, 0, "k1"), ErrKeyReused)
	if r := l.ok(submit("a", 2, -1, "k1")); r.Changed || r.Same || r.Revision != first.Revision {
		t.Errorf("a retry: %+v", r)
	}
	for range 2 { // and a retry
		if r := l.ok(submit("a", 2, 0, "k2")); !r.Same || r.Version != 1 {
			t.Errorf("the same spec: %+v", r)
		}
	}
	if r := l.ok(submit("b", 3, int64(first.Revision), "")); r.Version != 2 {
		t.Errorf("another spec: %+v", r)
	}
	key := GroupKey{"default", "api", "web", true}
	if g, _ := l.Group(key); g.Wanted != 3 || g.Slots[0].JobVersion != 2 {
		t.Errorf("%+v", g)
	}
	if _, clash := l.Group(webKey); clash {
		t.Error("it shows as the global tier's job")
	}
	l.ok(stop(0, false))
	if g, _ := l.Group(key); g.Wanted != 0 {
		t.Errorf("%+v", g)
	}
	if r := l.ok(submit("b", 1, 0, "")); r.Version != 3 { // stopped: the same spec starts it again
		t.Errorf("%+v", r)
	}
	if r := l.ok(stop(0, true)); !r.Changed {
		t.Errorf("%+v", r)
	}
	if _, ok := l.LocalJob("default", "api"); ok {
		t.Error("nothing of it runs, and it is still there after the purge")
	}
	late := l.Snapshot().Purgeable(l.now, l.now+20*second, 1000)
	l.now += 20 * second
	again := l.ok(submit("b", 1, -1, ""))
	l.ok(Command{Purge: late})
	if _, ok := l.Job(JobKey{"default", "api", true}, again.Version); !ok {
		t.Error("a purge forgot a version that was taken into use after it was found unused")
	}
	l.ok(stop(0, true))
	l.ok(Command{Purge: l.Snapshot().Purgeable(l.now, l.now, 1000)})
	if l.Snapshot().Purgeable(l.now, l.now, 1000) != nil {
		t.Error("there is something left to purge")
	}
	if _, ok := l.Key("k1"); ok {
		t.Error("the key has not expired")
	}
	if n := len(slices.Collect(l.Groups())); n != 0 || l.jobs.size != 0 {
		t.Errorf("%d groups, %d versions are left", n, l.jobs.size)
	}
	bad := submit("a", -1, 0, "")
	l.fails(bad, ErrInvalid)
}

// TestPurgedWithItsLastInstance: a job to be purged goes when the last of it has
// ended, and the slots of a dropped group with the group's last instance.
func TestPurgedWithItsLastInstance(t *testing.T) {
	l := newLog(t)
	l.ok(testNode("n1"))
	job := testJob(0, func(g *Group) { g.Count = 1 })
	job.Key = JobKey{"default", "api", true}
	other := job.Groups[0]
	other.Name = "aux"
	two := *job
	two.Groups = []Group{other, job.Groups[0]}
	place := func(id, group string, version int64) Command {
		return Command{ApplyPlan: &ApplyPlan{Places: []PlaceGroup{{
			Key: GroupKey{"default", "api", group, true}, JobVersion: version, Allocs: []PlaceAlloc{{ID: id, NodeID: "n1"}}}}}}
	}
	ends := func(id string) Command { return testReport("n1", AllocReport{ID: id, State: Stopped}) }
	l.ok(Command{SubmitLocalJob: &SubmitLocalJob{Job: two}})
	l.ok(place("a1", "aux", 1))
	l.ok(place("w1", "web", 1))
	job.Spec = []byte("without aux")
	l.ok(Command{SubmitLocalJob: &SubmitLocalJob{Job: *job}})
	aux := GroupKey{"default", "api", "aux", true}
	if g, _ := l.Group(aux); len(g.Slots) != 1 {
		t.Errorf("its instance still runs: %+v", g)
	}
	l.ok(ends("a1"))
	if g, _ := l.Group(aux); len(g.Slots) != 0 {
		t.Errorf("nothing of it runs any more: %+v", g)
	}
	l.ok(Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "api", Purge: true}})
	if own, ok := l.LocalJob("default", "api"); !ok || !own.Purge {
		t.Error("it is gone before its instance has ended")
	}
	l.ok(ends("w1"))
	if _, ok := l.LocalJob("default", "api"); ok {
		t.Error("it is there though all of it has ended")
	}
}

func TestIdempotencyKeysAreBounded(t *testing.T) {
	l := newLog(t)
	for i := range MaxIdempotencyKeys {
		l.keys.set(l.own, str(fmt.Sprint(i)), &KeyRecord{})
	}
	job := testJob(0, nil)
	job.Key = JobKey{"default", "api", true}
	l.fails(Command{SubmitLocalJob: &SubmitLocalJob{Job: *job, Idempotency: Idempotency{Key: "one more"}}}, ErrFull)
}

func TestSnapshotThatIsDamaged(t *testing.T) {
	l := running(t, nil)
	var all []Record
	for r := range l.Snapshot().Records() {
		all = append(all, r)
	}
	seq := func(records []Record) iter.Seq2[Record, error] {
		return func(yield func(Record, error) bool) {
			for _, r := range records {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
	if s, err := Restore(seq(all)); err != nil || s.Snapshot().Hash() != l.Snapshot().Hash() {
		t.Fatalf("a whole snapshot: %v", err)
	}
	for name, records := range map[string][]Record{
		"empty":     nil,
		"truncated": all[:len(all)-1],
		"headless":  all[1:],
		"hole":      slices.Delete(slices.Clone(all), 2, 3),
		"unknown":   slices.Insert(slices.Clone(all), 2, Record{}),
	} {
		if _, err := Restore(seq(records)); !errors.Is(err, ErrSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("disk")
	if _, err := Restore(func(yield func(Record, error) bool) { yield(Record{}, broken) }); !errors.Is(err, broken) {
		t.Errorf("a read error: %v", err)
	}
}

func TestSnapshotsAndForksAreApart(t *testing.T) {
	l := running(t, nil)
	view := l.Snapshot()
	was := view.Hash()
	fork := view.Fork()
	l.ok(testPlace("a2", 1, "n2", 1))
	fork.Apply(l.idx+1, testStop("a1"))
	if view.Hash() != was {
		t.Error("the view has changed")
	}
	if _, ok := fork.Alloc("a2"); ok {
		t.Error("the fork sees what the state did")
	}
	if a, _ := l.Alloc("a1"); a.Desired != Run {
		t.Error("the state sees what the fork did")
	}
}

func TestBatch(t *testing.T) {
	l := newLog(t)
	r := l.do(Command{Batch: []Command{testNode("n1"), {CordonNode: &CordonNode{"zz", true}}, testNode("n2")}})
	if len(r.Batch) != 3 || r.Batch[0].Err != nil || !errors.Is(r.Batch[1].Err, ErrUnknownNode) || l.NodeCount() != 2 || !r.Changed {
		t.Errorf("%+v", r)
	}
	r = l.do(Command{Batch: []Command{{Batch: []Command{testNode("n3")}}}})
	if !errors.Is(r.Batch[0].Err, ErrUnknownCommand) || l.NodeCount() != 2 {
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
