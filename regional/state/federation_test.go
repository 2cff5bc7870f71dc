package state

import (
	"reflect"
	"testing"
	"time"
)

func join(federation string, term uint64, nonce string, fence uint64, revision int64) Command {
	return Command{JoinFederation: &JoinFederation{FederationID: federation, Term: term, Nonce: nonce, Fence: fence, StoreRevision: revision, Lease: 15 * time.Second}}
}

// numbers are the fields of Cluster that JoinFederation changes.
type numbers struct {
	federation string
	term       uint64
	nonce      string
	fence      uint64
	revision   int64
}

func (l *log) numbers() numbers {
	c := l.Cluster()
	return numbers{c.FederationID, c.LeadershipTerm, c.LeadershipNonce, c.Fence, c.StoreRevision}
}

func TestWelcomesNeverGoBack(t *testing.T) {
	base := numbers{"fed", 5, "n5", 3, 100}
	for _, c := range []struct {
		what string
		cmd  Command
		err  error
		want numbers
	}{
		{"the same again", join("fed", 5, "n5", 3, 100), nil, base},
		{"a later term", join("fed", 6, "n6", 3, 101), nil, numbers{"fed", 6, "n6", 3, 101}},
		{"a greater fence", join("fed", 5, "n5", 4, 101), nil, numbers{"fed", 5, "n5", 4, 101}},
		{"a lower fence and revision", join("fed", 6, "n6", 1, 7), nil, numbers{"fed", 6, "n6", 3, 100}},
		{"an earlier term", join("fed", 4, "n4", 9, 999), ErrOldLeadership, base},
		{"another term of the same number", join("fed", 5, "other", 9, 999), ErrOldLeadership, base},
		{"another federation", join("wiped", 9, "n9", 9, 999), ErrOtherFederation, base},
	} {
		l := newLog(t)
		l.ok(join("fed", 5, "n5", 3, 100))
		if c.err != nil {
			l.fails(c.cmd, c.err)
		} else if r := l.ok(c.cmd); r.Changed != (c.want != base) {
			t.Errorf("%s: changed %v", c.what, r.Changed)
		}
		if got := l.numbers(); got != c.want {
			t.Errorf("%s: the log has %+v, want %+v", c.what, got, c.want)
		}
	}
}

func TestOrdersRaiseTheStoreRevision(t *testing.T) {
	l := newLog(t)
	l.ok(testOrder(0, 1, 40, testJob(1, nil), nil))
	if got := l.Cluster().StoreRevision; got != 0 {
		t.Errorf("before the first welcome the log has revision %d: servers of an earlier version would not", got)
	}
	l.ok(join("fed", 1, "n", 1, 41))
	l.ok(testOrder(0, 1, 50, testJob(1, nil), nil))
	l.skipped(testOrder(0, 1, 45, testJob(1, nil), nil), ReasonStaleOrder)
	if got := l.Cluster().StoreRevision; got != 50 {
		t.Errorf("revision %d, want 50", got)
	}
}

func TestRebindForgetsTheFormerFederation(t *testing.T) {
	l := running(t, nil)
	l.ok(join("fed", 5, "n5", 3, 100))
	l.fails(Command{RebindFederation: &RebindFederation{}}, ErrInvalid)
	l.ok(Command{RebindFederation: &RebindFederation{"new"}})
	if r := l.ok(Command{RebindFederation: &RebindFederation{"new"}}); r.Changed {
		t.Error("the same again has changed something")
	}
	if got, want := l.numbers(), (numbers{federation: "new"}); got != want {
		t.Errorf("after the rebind the log has %+v", got)
	}
	if a, _ := l.Alloc("a1"); a.Desired != Run || !a.Live() {
		t.Errorf("the rebind has stopped %+v", a)
	}
	l.fails(join("fed", 6, "n6", 4, 101), ErrOtherFederation)
	l.ok(join("new", 1, "m1", 1, 2))
	// The new federation has revisions of its own, so they may be lower.
	l.ok(testOrder(0, 2, 3, testJob(1, nil), func(s *Slot) { s.Desired = Stop }))
	if s, _ := l.Group(webKey); s.Slots[0].Desired != Stop {
		t.Error("an order of the new federation was skipped")
	}
	restored, err := Restore(seq(recordsOf(l.Snapshot())))
	if err != nil || restored.Snapshot().Hash() != l.Snapshot().Hash() {
		t.Errorf("after a snapshot the state differs: %v", err)
	}
	// Back in the former federation, the log still knows that federation's numbers. So
	// messages that the federation sent earlier count as old.
	l.ok(Command{RebindFederation: &RebindFederation{"fed"}})
	if got, want := l.numbers(), (numbers{"fed", 5, "n5", 3, 100}); got != want {
		t.Errorf("back in the former federation the log has %+v, want %+v", got, want)
	}
}

func TestLimits(t *testing.T) {
	l := newLog(t)
	set := func(c SetLimits) bool { return l.ok(Command{SetLimits: &c}).Changed }
	if !set(SetLimits{FeatureLevel: 1, NodeLease: time.Minute}) || set(SetLimits{FeatureLevel: 1, NodeLease: time.Minute}) {
		t.Error("only the first has changed something")
	}
	set(SetLimits{NodeLease: 10 * time.Second})
	if c := l.Cluster(); c.FeatureLevel != 1 || c.NodeLeaseMax != 10*time.Second {
		t.Errorf("%+v", c)
	}
	l.ok(join("fed", 1, "n1", 1, 2))
	longest := l.Cluster().RegionLeaseMax
	if longest == 0 || set(SetLimits{RegionLease: longest / 2, LeadershipNonce: "n0"}) {
		t.Error("the length of an earlier leadership term counts")
	}
	if !set(SetLimits{RegionLease: longest / 2, LeadershipNonce: "n1"}) || l.Cluster().RegionLeaseMax != longest/2 {
		t.Errorf("%s, want half of %s", l.Cluster().RegionLeaseMax, longest)
	}
	if set(SetLimits{LeasesOver: true}) {
		t.Error("nothing was recovered")
	}
}

// TestEpochsDoNotRepeatAfterARecovery: a log is restored from an old copy and has forgotten
// the attempts of its last hours.
func TestEpochsDoNotRepeatAfterARecovery(t *testing.T) {
	l := running(t, nil)
	copied := l.Snapshot().Fork()
	l.ok(testReport("n1", AllocReport{ID: "a1", State: Failed}))
	l.ok(testPlace("a2", 0, "n2", 1))
	lost, _ := l.Alloc("a2")

	old := &log{t: t, State: copied, now: l.now, idx: copied.Index()}
	old.ok(Command{BumpIncarnation: &BumpIncarnation{Incarnation: 2, RestoreID: "x"}})
	if c := old.Cluster(); c.Incarnation != 2 || c.RestoreID != "x" || !c.Recovered {
		t.Fatalf("after the recovery: %+v", c)
	}
	old.ok(testReport("n1", AllocReport{ID: "a1", State: Failed}))
	old.ok(testPlace("b2", 0, "n2", 1))
	again, _ := old.Alloc("b2")
	if again.Generation != lost.Generation || again.Epoch <= lost.Epoch {
		t.Errorf("epoch %d.%d after %d.%d of the lost log", again.Generation, again.Epoch, lost.Generation, lost.Epoch)
	}
	old.ok(testReport("n2", AllocReport{ID: "b2", State: Failed}))
	old.ok(testPlace("b3", 0, "n2", 1))
	if third, _ := old.Alloc("b3"); third.Epoch != again.Epoch+1 {
		t.Errorf("epoch %d after %d", third.Epoch, again.Epoch)
	}
	old.ok(Command{SetLimits: &SetLimits{LeasesOver: true}})
	if old.Cluster().Recovered {
		t.Error("the leases of the old incarnation are over, the log says otherwise")
	}
}

// TestAnOfferAfterARecoveryOfTheStore: the store was restored from a copy, and the log has
// a later generation than the copy. The recovery offers the slot again. Running instances
// go on as they are, and the next attempt has the greatest epoch.
func TestAnOfferAfterARecoveryOfTheStore(t *testing.T) {
	l := running(t, func(g *Group) { g.Singleton = true })
	l.ok(Command{SetLimits: &SetLimits{FeatureLevel: 1}})
	l.ok(join("fed", 1, "n", 1, 11))
	job, _ := l.Job(webKey.JobKey(), 1)
	l.ok(testOrder(0, 2, 40, job, nil)) // after the copy was made
	l.skipped(testOrder(0, 2, 10, job, nil), ReasonStaleOrder)
	l.ok(testPlace("b1", 1, "n2", 1))
	l.ok(testReport("n2", AllocReport{ID: "b1", State: Running}))
	before := map[string]*Alloc{}
	for _, id := range []string{"a1", "b1"} {
		before[id], _ = l.Alloc(id)
	}
	l.ok(testOrder(0, 2, 100, job, func(s *Slot) { s.State = SlotAccepted }))
	if g, _ := l.Group(webKey); len(g.Slots) != 1 || g.Slots[0].Generation != 100 {
		t.Errorf("the log has %+v", g.Slots)
	}
	for id, was := range before {
		if a, _ := l.Alloc(id); !reflect.DeepEqual(a, was) {
			t.Errorf("%+v became %+v", was, a)
		}
	}
	l.ok(testReport("n2", AllocReport{ID: "b1", State: Failed}))
	l.ok(testPlace("b2", 1, "n2", 1))
	if next, _ := l.Alloc("b2"); next.Generation != 100 || next.Generation <= before["b1"].Generation {
		t.Errorf("the next attempt has epoch %d.%d after %d.%d", next.Generation, next.Epoch, before["b1"].Generation, before["b1"].Epoch)
	}
}

// TestAHeldSlotAfterARecoveryOfTheStore: a former owner is ordered to hold with the
// generation of the copy and a new revision. Its log has a later generation. Its running
// instances go on. When the slot returns, the next attempt has the greatest epoch.
func TestAHeldSlotAfterARecoveryOfTheStore(t *testing.T) {
	l := running(t, nil)
	l.ok(Command{SetLimits: &SetLimits{FeatureLevel: 1}})
	job, _ := l.Job(webKey.JobKey(), 1)
	l.ok(testOrder(0, 2, 40, job, nil)) // after the copy was made
	l.ok(testOrder(0, 2, 10, job, func(s *Slot) { s.Desired, s.Revision = Hold, 100 }))
	if g, _ := l.Group(webKey); g.Slots[0].Desired != Hold || g.Slots[0].Generation != 10 {
		t.Errorf("the log has %+v", g.Slots[0])
	}
	if a, _ := l.Alloc("a1"); !a.Live() || a.Desired != Run {
		t.Errorf("the held instance is %+v", a)
	}
	l.ok(testOrder(0, 2, 110, job, nil)) // the slot returned
	if a, _ := l.Alloc("a1"); !a.Live() || a.Desired != Run {
		t.Errorf("the instance that returned is %+v", a)
	}
	l.ok(testReport("n1", AllocReport{ID: "a1", State: Failed}))
	l.ok(testPlace("a2", 0, "n1", 1))
	if next, _ := l.Alloc("a2"); next.Generation != 110 {
		t.Errorf("the next attempt has generation %d", next.Generation)
	}
}

// TestChangedBindingNeedsAnotherAttempt: the agent follows the version that it was ordered
// to run. It would not stop an instance when a lease ends that binds only a later version.
func TestChangedBindingNeedsAnotherAttempt(t *testing.T) {
	for _, c := range []struct {
		level   uint32
		change  func(*Group)
		carried bool
	}{
		{1, func(g *Group) { g.Disconnect.After = time.Minute }, true},
		{1, func(g *Group) { g.Disconnect.StopRunning = true }, false},
		{1, func(g *Group) { g.Disconnect.StopInRegion = true }, false},
		{0, func(g *Group) { g.Disconnect.StopRunning = true }, true}, // like servers of an earlier version
	} {
		l := running(t, nil)
		l.ok(Command{SetLimits: &SetLimits{FeatureLevel: c.level}})
		next := testJob(2, func(g *Group) { g.Hash = 1; c.change(g) })
		l.ok(testOrder(0, 2, 20, next, nil))
		if a, _ := l.Alloc("a1"); (a.JobVersion == 2) != c.carried {
			t.Errorf("level %d: the instance has version %d", c.level, a.JobVersion)
		}
	}
}
