package state

import (
	"slices"
	"testing"
	"time"
)

func stops(g *Group) { g.Disconnect.StopRunning = true }

// TestUpgradeRepeatsOrdersThatALeaseBinds: a region of feature level 0 gave a running
// instance a version that the node's lease binds, without an order. The agent does not know
// that. When the level rises, the instance gets an order, and no lease counts before the
// agent has the order.
func TestUpgradeRepeatsOrdersThatALeaseBinds(t *testing.T) {
	l := running(t, nil)
	next := testJob(2, stops)
	next.Groups[0].Hash = 1
	l.ok(testOrder(0, 2, 11, next, nil))
	l.ok(testPlace("a2", 1, "n2", 2))
	a, _ := l.Alloc("a1")
	if a.JobVersion != 2 || a.OrderIndex == l.idx {
		t.Fatalf("version %d, order %d: the version changes without an order", a.JobVersion, a.OrderIndex)
	}
	r := l.ok(Command{SetLimits: &SetLimits{FeatureLevel: 2}})
	a, _ = l.Alloc("a1")
	if len(r.Orders) != 2 || !a.BindingUnknown || a.OrderIndex != l.idx || a.Binding(&next.Groups[0]) != BindNone || l.UnknownBindings() != 2 {
		t.Fatalf("after the upgrade: %d orders, %+v", len(r.Orders), a)
	}
	if r := l.ok(Command{SetLimits: &SetLimits{FeatureLevel: 2}}); r.Changed {
		t.Error("the same level again changes something")
	}
	raised := a.OrderIndex
	l.ok(Command{OrdersStored: &OrdersStored{NodeID: "n1", Index: raised - 1}})
	if l.BindingUnknownUpTo("n1", raised-1) || !l.BindingUnknownUpTo("n1", raised) || l.UnknownBindings() != 2 {
		t.Error("an earlier order counts")
	}
	restored, err := Restore(seq(recordsOf(l.Snapshot())))
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range []*State{l.State, restored} {
		st.Apply(l.idx+1, Command{OrdersStored: &OrdersStored{NodeID: "n1", Index: raised}})
		a, _ := st.Alloc("a1")
		if b, _ := st.Alloc("a2"); a.BindingUnknown || !b.BindingUnknown || a.Binding(&next.Groups[0]) != BindNode || st.UnknownBindings() != 1 {
			t.Errorf("the agent has the order: %+v", a)
		}
	}
	if l.Snapshot().Hash() != restored.Snapshot().Hash() {
		t.Error("the restored state differs")
	}
	l.idx++
	l.fails(Command{OrdersStored: &OrdersStored{NodeID: "gone", Index: 9}}, ErrUnknownNode)
	l.ok(testReport("n2", AllocReport{ID: "a2", State: Failed}))
	if n := l.UnknownBindings(); n != 0 {
		t.Errorf("%d bindings are unknown after the end of the instance", n)
	}
}

// TestUpgradeRepeatsNoOtherOrders: what no lease binds, and what has ended, gets no order.
func TestUpgradeRepeatsNoOtherOrders(t *testing.T) {
	l := running(t, nil)
	if r := l.ok(Command{SetLimits: &SetLimits{FeatureLevel: 2}}); len(r.Orders) != 0 || l.UnknownBindings() != 0 {
		t.Errorf("no lease binds it: %d orders", len(r.Orders))
	}
	l = running(t, stops)
	l.ok(testReport("n1", AllocReport{ID: "a1", State: Failed}))
	l.ok(testPlace("a2", 0, "n2", 1))
	l.ok(Command{SetNodeStatus: &SetNodeStatus{ID: "n2", Status: NodeLost}})
	l.ok(Command{ApplyPlan: &ApplyPlan{Stops: []StopAlloc{{ID: "a2", Reason: ReasonNodeLost, GiveUp: true}}}})
	r := l.ok(Command{SetLimits: &SetLimits{FeatureLevel: 2}})
	ids := []string{}
	for _, a := range r.Orders {
		ids = append(ids, a.ID)
	}
	if !slices.Equal(ids, []string{"a2"}) || l.UnknownBindings() != 1 {
		t.Errorf("orders about %v: only a2 may run, on its lost node", ids)
	}
}

// TestEpochsOfOwnJobsDoNotRepeat: another cluster of the region, and a log that was restored
// from an old copy, give the region's own jobs other generations.
func TestEpochsOfOwnJobsDoNotRepeat(t *testing.T) {
	seen := map[int64]string{}
	submit := func(l *log, what string) {
		t.Helper()
		job := testJob(0, func(g *Group) { g.Count = 1 })
		job.Key, job.Spec = JobKey{"default", "own", true}, []byte(what)
		l.ok(Command{SubmitLocalJob: &SubmitLocalJob{Job: *job}})
		g, _ := l.group(GroupKey{"default", "own", "web", true})
		generation := g.slots[0].Generation
		if was := seen[generation]; was != "" {
			t.Errorf("%s and %s share generation %d", was, what, generation)
		}
		for other := range seen {
			if other > generation {
				t.Errorf("%s has generation %d, %s has %d", what, generation, seen[other], other)
			}
		}
		seen[generation] = what
	}
	cluster := func(now int64) *log {
		l := newLog(t)
		l.now = now
		l.ok(Command{SetLimits: &SetLimits{FeatureLevel: 2}})
		return l
	}
	first := cluster(1000 * second)
	submit(first, "the first cluster")
	copied := first.Snapshot()
	first.now += second
	first.ok(testNode("n1"))
	submit(newLogAt(t, first, copied.Fork()), "the log")
	restored := newLogAt(t, first, copied.Fork())
	restored.now += int64(time.Minute)
	restored.ok(Command{BumpIncarnation: &BumpIncarnation{Incarnation: 2}})
	submit(restored, "the restored log")
	submit(cluster(first.now+int64(time.Hour)), "another cluster")
}

// newLogAt returns a log that continues from a state.
func newLogAt(t *testing.T, of *log, st *State) *log {
	return &log{t: t, State: st, now: of.now, idx: st.Index()}
}
