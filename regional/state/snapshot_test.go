package state

import (
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"testing"
)

// recordsOf copies the records of a view.
func recordsOf(v *View) []Record {
	var all []Record
	for r := range v.Records() {
		if r.Alloc != nil { // valid until the next one
			c := *r.Alloc
			r.Alloc = &c
		}
		if r.Instance != nil {
			c := *r.Instance
			r.Instance = &c
		}
		all = append(all, r)
	}
	return all
}

func seq(records []Record) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// TestRestoreCostIsLinear: the cost of restoring many attempts of one instance, and many
// versions of one job, grows with their number, not with the square of it.
func TestRestoreCostIsLinear(t *testing.T) {
	const many = 3000
	l := running(t, func(g *Group) { g.Reschedule.Attempts = many })
	own := *testJob(0, nil)
	own.Key = JobKey{"default", "api", true}
	for i := range many {
		id := fmt.Sprintf("%03x%d", i, i)
		l.ok(testPlace(id, 1, "n2", 1))
		l.ok(testReport("n2", AllocReport{ID: id, State: Failed}))
		own.Spec = fmt.Append(nil, i)
		l.ok(Command{SubmitLocalJob: &SubmitLocalJob{Job: own}})
	}
	records := recordsOf(l.Snapshot())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s, err := Restore(seq(records))
	runtime.ReadMemStats(&after)
	if err != nil || s.Snapshot().Hash() != l.Snapshot().Hash() {
		t.Fatalf("the restored state differs: %v", err)
	}
	if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 16 {
		t.Errorf("restored with %d MiB", mib)
	}
}

func TestDamagedSnapshotIsRefused(t *testing.T) {
	l := running(t, nil)
	all := recordsOf(l.Snapshot())
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

func TestSnapshotAndForkAreIndependent(t *testing.T) {
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

// TestRestoreDropsInstancesWithoutNode: Restore drops system instances whose node was
// removed, because earlier versions wrote such instances.
func TestRestoreDropsInstancesWithoutNode(t *testing.T) {
	l := newLog(t)
	job := testJob(1, nil)
	job.Type = System
	l.ok(testOrder(0, 1, 10, job, nil))
	records := recordsOf(l.Snapshot())
	end := len(records) - 1
	gid := records[end-1].Group.GID
	records = slices.Insert(records, end, Record{Instance: &InstanceRecord{gid, Instance{Index: 7, Failures: 1}}})
	records[end+1].End = &EndRecord{uint64(end + 1)}
	if s, err := Restore(seq(records)); err != nil || s.Snapshot().Hash() != l.Snapshot().Hash() {
		t.Errorf("the restored state differs from one without them: %v", err)
	}
}
