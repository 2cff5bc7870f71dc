package state

import (
	"fmt"
	"testing"
)

func ofRun(run int64) func(*Slot) { return func(s *Slot) { s.Run = run } }

func batch(g func(*Group)) func(version int64) *Job {
	return func(version int64) *Job {
		j := testJob(version, func(spec *Group) { spec.Hash = 1 })
		if g != nil {
			g(&j.Groups[0])
		}
		j.Type = Batch
		return j
	}
}

// TestNewRunStartsFromTheBeginning: the results of an instance in an earlier run do not
// count in a new run. Its live allocations do not belong to the new run.
func TestNewRunStartsFromTheBeginning(t *testing.T) {
	job := batch(nil)
	begin := func(t *testing.T) *log {
		l := newLog(t)
		l.ok(testNode("n1"))
		l.ok(testOrder(0, 2, 10, job(1), ofRun(10)))
		l.ok(testPlace("a1", 0, "n1", 1))
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Running}))
		return l
	}
	t.Run("done", func(t *testing.T) {
		l := begin(t)
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Complete}))
		l.ok(testOrder(0, 2, 20, job(2), ofRun(10))) // another version of the same work
		if !l.Instance(webKey, 0).Done {
			t.Error("completed work is to be done again without a new run")
		}
		l.ok(testOrder(0, 2, 30, job(3), ofRun(30)))
		if in := l.Instance(webKey, 0); in.Done || in.Run != 30 || in.Reason != "" {
			t.Errorf("in the next run: %+v", in)
		}
		if g, _ := l.Group(webKey); g.Counts != (Counts{Pending: 2}) {
			t.Errorf("counted %+v", g.Counts)
		}
	})
	t.Run("purged and submitted again", func(t *testing.T) {
		l := begin(t)
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Complete}))
		l.ok(Command{ApplyOrders: &ApplyOrders{Removed: []string{SlotID("default", "api", "web", 0)}}})
		l.ok(testOrder(0, 2, 40, job(1), ofRun(40))) // the same version and spec
		if in := l.Instance(webKey, 0); in.Done {
			t.Errorf("%+v", in)
		}
	})
	t.Run("exhausted", func(t *testing.T) {
		l := begin(t)
		fail(l, 2)
		l.ok(testReport("n1", AllocReport{ID: "a3", State: Failed}))
		if !l.Instance(webKey, 0).Exhausted {
			t.Fatalf("%+v", l.Instance(webKey, 0))
		}
		l.ok(testOrder(0, 2, 30, job(2), ofRun(30)))
		if in := l.Instance(webKey, 0); in.Exhausted || in.Failures != 0 || in.NotBeforeUnixNano != 0 || in.Declined != nil {
			t.Errorf("%+v", in)
		}
		l.ok(testPlace("b1", 0, "n1", 2))
		if a, _ := l.Alloc("b1"); a.Proving {
			t.Error("the first attempt of a run must prove itself")
		}
	})
	t.Run("another version after a failure", func(t *testing.T) {
		l := begin(t)
		l.ok(Command{SetLimits: &SetLimits{FeatureLevel: AgainLevel}})
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Failed}))
		l.ok(testOrder(0, 2, 30, job(2), ofRun(10)))
		if in := l.Instance(webKey, 0); in.Failures != 0 || in.Reason != ReasonSuperseded {
			t.Errorf("%+v", in)
		}
		l.ok(testPlace("b1", 0, "n1", 2))
		if a, _ := l.Alloc("b1"); !a.Proving {
			t.Error("the version counts as running at once, although the one before had failed there")
		}
	})
	t.Run("still running", func(t *testing.T) {
		l := begin(t)
		l.ok(testOrder(0, 2, 30, job(2), ofRun(30)))
		if a, _ := l.Alloc("a1"); a.JobVersion != 1 {
			t.Errorf("an instance of the run before was carried over to version %d", a.JobVersion)
		}
		if g, _ := l.Group(webKey); g.Counts.Outdated != 1 {
			t.Errorf("counted %+v", g.Counts)
		}
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Complete}))
		if l.Instance(webKey, 0).Done {
			t.Error("an instance that ended in the run before completes this one")
		}
	})
	t.Run("still running under the same version", func(t *testing.T) {
		l := begin(t)
		l.ok(testOrder(0, 2, 40, job(1), ofRun(40)))
		a, _ := l.Alloc("a1")
		if a.JobVersion != 0 {
			t.Errorf("the allocation counts as version %d of the next job", a.JobVersion)
		}
		if _, known := l.Job(webKey.JobKey(), a.JobVersion); !known {
			t.Error("the version with which it was started is not stored")
		}
	})
	t.Run("moved to other slots", func(t *testing.T) {
		l := begin(t)
		l.ok(testPlace("a2", 1, "n1", 1))
		l.ok(testReport("n1", AllocReport{ID: "a2", State: Complete}))
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Complete}))
		l.ok(Command{ApplyOrders: &ApplyOrders{Removed: []string{SlotID("default", "api", "web", 0)}}})
		if g, _ := l.Group(webKey); g.Counts != (Counts{}) {
			t.Errorf("without a slot counted %+v", g.Counts)
		}
		l.ok(testOrder(1, 2, 30, job(2), ofRun(30))) // in this run, index 0 belongs to another region
		if g, _ := l.Group(webKey); g.Counts != (Counts{Pending: 1}) {
			t.Errorf("in the next run counted %+v, want only the instance that is wanted here", g.Counts)
		}
	})
	t.Run("written before there were runs", func(t *testing.T) {
		l := newLog(t)
		l.ok(testNode("n1"))
		l.ok(testOrder(0, 2, 10, job(1), nil))
		l.ok(testPlace("a1", 0, "n1", 1))
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Complete}))
		l.ok(testOrder(0, 2, 20, job(2), ofRun(10)))
		if !l.Instance(webKey, 0).Done {
			t.Error("an upgrade starts a run")
		}
	})
}

// TestLocalRuns: the region's own jobs follow the same rules.
func TestLocalRuns(t *testing.T) {
	l := newLog(t)
	l.ok(testNode("n1"))
	key := GroupKey{"default", "api", "web", true}
	submit := func(step string, again bool) Command {
		job := batch(func(g *Group) { g.Count, g.Hash = 1, uint64(len(step)) })(0)
		job.Key, job.Spec = key.JobKey(), []byte(step)
		return Command{SubmitLocalJob: &SubmitLocalJob{Job: *job, Again: again}}
	}
	n := 0
	complete := func() {
		t.Helper()
		g, _ := l.Group(key)
		if g.Counts != (Counts{Pending: 1}) {
			t.Fatalf("counted %+v, want one to run", g.Counts)
		}
		n++
		id := fmt.Sprint("a", n)
		l.ok(Command{ApplyPlan: &ApplyPlan{Places: []PlaceGroup{{Key: key, JobVersion: g.Slots[0].JobVersion,
			Allocs: []PlaceAlloc{{ID: id, NodeID: "n1"}}}}}})
		l.ok(testReport("n1", AllocReport{ID: id, State: Running}))
		l.fails(submit("a", true), ErrStillWanted)
		l.ok(testReport("n1", AllocReport{ID: id, State: Complete}))
	}
	first := l.ok(submit("a", false))
	complete()
	if r := l.ok(submit("a", false)); !r.Same || r.Changed {
		t.Errorf("the same once more: %+v", r)
	}
	if r := l.ok(submit("a", true)); r.Same || r.Version != first.Version+1 {
		t.Errorf("again: %+v", r)
	}
	complete()
	l.ok(submit("bb", false)) // other work
	complete()
	l.ok(Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "api"}})
	l.ok(submit("bb", false))
	complete()
	service := testJob(0, func(g *Group) { g.Count = 1 })
	service.Key = JobKey{"default", "web", true}
	l.fails(Command{SubmitLocalJob: &SubmitLocalJob{Job: *service, Again: true}}, ErrStillWanted)
}
