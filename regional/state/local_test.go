package state

import (
	"fmt"
	"slices"
	"testing"
)

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
	for range 2 { // the second time is a retry
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
		t.Error("the local job is found as a job of the global tier")
	}
	l.ok(stop(0, false))
	if g, _ := l.Group(key); g.Wanted != 0 {
		t.Errorf("%+v", g)
	}
	if r := l.ok(submit("b", 1, 0, "")); r.Version != 3 { // the job was stopped: the same spec starts it again
		t.Errorf("%+v", r)
	}
	if r := l.ok(stop(0, true)); !r.Changed {
		t.Errorf("%+v", r)
	}
	if _, ok := l.LocalJob("default", "api"); ok {
		t.Error("no instance runs, and the job is still there after the purge")
	}
	late := l.Snapshot().Purgeable(l.now, l.now+20*second, 1000)
	l.now += 20 * second
	again := l.ok(submit("b", 1, -1, ""))
	l.ok(Command{Purge: late})
	if _, ok := l.Job(JobKey{"default", "api", true}, again.Version); !ok {
		t.Error("a purge removed a version that was used after it was found unused")
	}
	l.ok(stop(0, true))
	l.ok(Command{Purge: l.Snapshot().Purgeable(l.now, l.now, 1000)})
	if l.Snapshot().Purgeable(l.now, l.now, 1000) != nil {
		t.Error("there is something left to purge")
	}
	if _, ok := l.Key("k1"); ok {
		t.Error("the key has not expired")
	}
	if n := len(slices.Collect(l.Groups())); n != 0 || l.jobs.Len() != 0 {
		t.Errorf("%d groups, %d jobs are left", n, l.jobs.Len())
	}
	bad := submit("a", -1, 0, "")
	l.fails(bad, ErrInvalid)
}

// TestJobIsPurgedWithItsLastInstance: a job that is to be purged is removed when its last
// instance ends. The slots of a dropped group are removed when the group's last instance
// ends.
func TestJobIsPurgedWithItsLastInstance(t *testing.T) {
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
		t.Errorf("no instance runs any more, and the group is still there: %+v", g)
	}
	l.ok(Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "api", Purge: true}})
	if own, ok := l.LocalJob("default", "api"); !ok || !own.Purge {
		t.Error("the job is gone before its instance has ended")
	}
	l.ok(ends("w1"))
	if _, ok := l.LocalJob("default", "api"); ok {
		t.Error("the job is there although all its instances have ended")
	}
}

func TestIdempotencyKeysAreBounded(t *testing.T) {
	l := newLog(t)
	for i := range MaxIdempotencyKeys {
		l.keys.Set(l.own, str(fmt.Sprint(i)), &KeyRecord{})
	}
	job := testJob(0, nil)
	job.Key = JobKey{"default", "api", true}
	l.fails(Command{SubmitLocalJob: &SubmitLocalJob{Job: *job, Idempotency: Idempotency{Key: "one more"}}}, ErrFull)
}

// TestSystemJobStaysSystemJob: a job cannot become a system job, and a system job cannot
// become another type, because the indices of a system job stand for nodes.
func TestSystemJobStaysSystemJob(t *testing.T) {
	l := newLog(t)
	of := func(typ JobType) Command {
		job := testJob(0, func(g *Group) { g.Count = 1 })
		job.Key, job.Type, job.Spec = JobKey{"default", "api", true}, typ, []byte(fmt.Sprint("of type ", typ))
		return Command{SubmitLocalJob: &SubmitLocalJob{Job: *job}}
	}
	purge := Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "api", Purge: true}}
	l.ok(of(Service))
	l.ok(of(Batch))
	l.fails(of(System), ErrOtherType)
	l.ok(Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "api"}})
	l.fails(of(System), ErrOtherType)
	l.ok(purge)
	l.ok(of(System))
	l.fails(of(Service), ErrOtherType)
	l.ok(purge)
	l.ok(of(Service))
}
