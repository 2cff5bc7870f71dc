package state

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// putKeys stores records, as an earlier term did.
func putKeys(t testing.TB, c *store.MemoryClient, ops []store.Op) {
	t.Helper()
	for len(ops) > 0 {
		n := min(len(ops), 100)
		if _, err := c.Txn(t.Context(), nil, ops[:n]); err != nil {
			t.Fatal(err)
		}
		ops = ops[n:]
	}
}

// wideJob stores a batch job that has ended, with this many slots.
func wideJob(t testing.TB, c *store.MemoryClient, name string, slots int) {
	t.Helper()
	spec := testJob(name, int32(slots))
	spec.Namespace, spec.Type = "default", nusav1.JobType_JOB_TYPE_BATCH
	k := JobKey{"default", name}
	record, err := Encode(&nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Run: 1}})
	if err != nil {
		t.Fatal(err)
	}
	result, err := Encode(&nusav1.ResultRecord{Version: 1, Run: 1, Status: &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_COMPLETE}})
	if err != nil {
		t.Fatal(err)
	}
	ops := []store.Op{store.Put(k.recordKey(), record), store.Put(k.resultKey(), result)}
	for i := range slots {
		slot := region.Slot{
			Namespace: "default", Job: name, Group: "web", From: i, To: i + 1, Region: fmt.Sprintf("region-%03d", i),
			State: region.Done, Desired: region.DesiredRun, JobVersion: 1, Run: 1, Generation: 1,
		}
		value, err := encodeSlot(&slot)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, store.Put(slotKey(&slot), value))
	}
	putKeys(t, c, ops)
}

// loadedState begins a term with the records of a store.
func loadedState(t testing.TB, c *store.MemoryClient) (*State, *Committer) {
	t.Helper()
	if _, err := c.Txn(t.Context(), nil, []store.Op{store.Put("/guard", nil)}); err != nil {
		t.Fatal(err)
	}
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.GlobalLevel = historyLevel
	if err := st.Load(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	guard, _, _, err := c.Get(t.Context(), "/guard")
	if err != nil {
		t.Fatal(err)
	}
	return st, NewCommitter(st, c, store.Mod("/guard", guard.ModRevision))
}

// TestJobsWithManySlotsLeaveMemory: a job with more slots than fit into a transaction moves to the
// history, too. Its last slots follow, also when a new term begins before that. If the job runs
// again before that, it keeps these slots.
func TestJobsWithManySlotsLeaveMemory(t *testing.T) {
	const slots = 3*maxDeparting + 7
	for _, again := range []bool{false, true} {
		c := store.NewMemory().Client()
		defer c.Close()
		wideJob(t, c, "wide", slots)
		k := JobKey{"default", "wide"}
		var st *State
		var commit *Committer
		do := func(change func(*Tx) error) {
			t.Helper()
			b := &batch{tx: NewTx(st)}
			st.Lock()
			b.add(commitRequest{prepare: change, done: make(chan commitResult, 1)})
			st.Unlock()
			if len(b.tx.changes) > maxDeparting {
				t.Errorf("%d writes in one transaction", len(b.tx.changes))
			}
			if _, err := commit.write(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		st, commit = loadedState(t, c)
		if keys := Leaving(st, 0, 0); len(keys) != 1 || keys[0] != k {
			t.Fatalf("leaving: %v", keys)
		}
		do(func(tx *Tx) error { return Depart(tx, k, time.Unix(7, 0)) })
		st, commit = loadedState(t, c)
		if past, err := Past(t.Context(), st, c, k); err != nil || past.GetVersion() != 1 || past.GetStatus().GetState() != nusav1.JobState_JOB_STATE_COMPLETE {
			t.Fatalf("the job is %v, %v", past, err)
		}
		if again {
			do(func(tx *Tx) error {
				rec, _, err := Stored(tx, k)
				if err != nil {
					return err
				}
				return tx.PutJob(k, rec.Full())
			})
		}
		steps := 0
		for next, some := Leftover(st); some; next, some = Leftover(st) {
			do(func(tx *Tx) error { return ForgetLeftover(tx, next) })
			steps++
		}
		switch j := st.Jobs[k]; {
		case again && (steps != 0 || j == nil || j.Record == nil || j.Slots.Len() <= slots-maxDeparting):
			t.Errorf("the job that runs again: %+v after %d steps", j, steps)
		case !again && (steps != 3 || j != nil || !InHistory(st, k)):
			t.Errorf("the job that has ended: %+v after %d steps", j, steps)
		}
	}
}

// TestRecalledJobsAreBounded: many jobs are recalled at a time, and their number and size are
// bounded.
func TestRecalledJobsAreBounded(t *testing.T) {
	small := &Record{rest: make([]byte, 100)}
	var c recalls
	key := func(i int) JobKey { return JobKey{"default", fmt.Sprint(i)} }
	for i := range 2 * recalledMost {
		c.put(&recalled{key: key(i), record: small})
		c.put(&recalled{key: key(i), record: small}) // read twice at the same time
	}
	if len(c.order) != recalledMost || len(c.by) > recalledMost || c.by[key(2*recalledMost-1)] == nil || c.by[key(2*recalledMost-1000)] == nil || c.by[key(0)] != nil {
		t.Errorf("%d jobs in %d entries", len(c.by), len(c.order))
	}
	large := &Record{rest: make([]byte, recalledBytes/10)}
	for i := range 100 {
		c.put(&recalled{key: key(i), record: large})
	}
	if c.bytes > recalledBytes || len(c.order) != 10 || len(c.by) != 10 || c.by[key(99)] == nil {
		t.Errorf("%d jobs of %d bytes", len(c.by), c.bytes)
	}
}

// TestWatchOfAPastJobSleeps: a watch of a job in the history wakes when the job returns, and not at
// changes of other jobs.
func TestWatchOfAPastJobSleeps(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.Lock()
	defer st.Unlock()
	k := JobKey{"default", "sum"}
	st.apply(k.historyKey(), &nusav1.HistoryRecord{}, 4)
	woken := PastWatched(st, k)
	isWoken := func() bool {
		select {
		case <-woken:
			return true
		default:
			return false
		}
	}
	other := JobKey{"default", "other"}
	st.apply(other.historyKey(), &nusav1.HistoryRecord{}, 5)
	st.apply(other.historyKey(), nil, 6)
	if isWoken() {
		t.Error("woken by another job")
	}
	st.apply(k.historyKey(), nil, 7)
	if !isWoken() || len(st.pastWatched) > 0 {
		t.Errorf("not woken by the return of the job; %d watches", len(st.pastWatched))
	}
	woken = PastWatched(st, k)
	for i := range pastWatchedMost {
		PastWatched(st, JobKey{"default", fmt.Sprint(i)})
	}
	if !isWoken() || len(st.pastWatched) > pastWatchedMost {
		t.Errorf("%d watches", len(st.pastWatched))
	}
}
