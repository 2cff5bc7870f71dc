package state

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// historyWorld runs random requests, several in a transaction, and knows the expected result.
type historyWorld struct {
	t      *rapid.T
	c      *store.MemoryClient
	st     *State
	commit *Committer
	// version has the version of each existing job. ended has the jobs without a running
	// instance.
	version map[JobKey]int64
	ended   map[JobKey]bool
	// unread are the entries of the history that a reader has read at the beginning of the term, and
	// has not added yet.
	unread []readEntry
}

func newHistoryWorld(t *rapid.T) *historyWorld {
	c := store.NewMemory().Client()
	if _, err := c.Txn(t.Context(), nil, []store.Op{store.Put("/guard", nil)}); err != nil {
		t.Fatal(err)
	}
	w := &historyWorld{t: t, c: c, version: map[JobKey]int64{}, ended: map[JobKey]bool{}}
	w.load()
	return w
}

// load begins a term. It may begin before the history is read.
func (w *historyWorld) load() *State {
	was := w.st
	w.st, w.unread = New(Beginning{Epoch: "e", HistoryLater: rapid.Bool().Draw(w.t, "later")}, func() time.Duration { return 0 }), nil
	w.st.GlobalLevel = historyLevel
	if err := w.st.Load(w.t.Context(), w.c); err != nil {
		w.t.Fatal(err)
	}
	guard, _, _, err := w.c.Get(w.t.Context(), "/guard")
	if err != nil {
		w.t.Fatal(err)
	}
	w.commit = NewCommitter(w.st, w.c, store.Mod("/guard", guard.ModRevision))
	if w.st.History.Unread() {
		if _, err := readHistory(w.t.Context(), w.c, func(part []readEntry) { w.unread = append(w.unread, part...) }); err != nil {
			w.t.Fatal(err)
		}
	}
	return was
}

// read adds entries of the history as they were at the beginning of the term.
func (w *historyWorld) read(n int) {
	w.st.Lock()
	defer w.st.Unlock()
	applyRead(w.st, w.unread[:n])
	w.unread = w.unread[n:]
	if len(w.unread) == 0 {
		read := w.st.History.Read()
		read.Sort()
		historyRead(w.st, read)
	}
}

// submit returns a request that puts a batch job, and what must be true once it is stored.
func (w *historyWorld) submit(k JobKey, work string) (func(*Tx) error, func()) {
	spec := testJob(k.Name, 1)
	spec.Namespace, spec.Type = k.Namespace, nusav1.JobType_JOB_TYPE_BATCH
	spec.GetGroups()["web"].GetTasks()["server"].Env = map[string]string{"STEP": work}
	var resp *nusav1.SubmitResponse
	return func(tx *Tx) (err error) {
			resp, err = tx.Submit(k, &nusav1.SubmitRequest{Spec: spec})
			return err
		}, func() {
			want := w.version[k]
			if resp.GetChanged() {
				want++
				w.ended[k] = false
			}
			w.version[k] = want
			if resp.GetVersion() != want {
				w.t.Fatalf("%s: version %d, want %d", k, resp.GetVersion(), want)
			}
		}
}

// finish returns a request that stores the end of a job.
func (w *historyWorld) finish(k JobKey) (func(*Tx) error, func()) {
	return func(tx *Tx) error {
			rec, rev := tx.Job(k)
			if rec == nil || rec.Stopped() || rev == 0 {
				return errors.New("nothing runs")
			}
			for _, s := range tx.Slots(k, "") {
				if s.State == region.Done {
					return errors.New("it has ended")
				}
			}
			s := region.Slot{
				Namespace: k.Namespace, Job: k.Name, Group: "web", To: 1, State: region.Done, Desired: region.DesiredRun,
				JobVersion: rec.Version(), Run: rec.Run(rev), Revision: w.st.Jobs[k].slotRevision(k.String() + "/web/0"),
			}
			if err := tx.ChangeSlots([]region.Change{{Slot: s}}); err != nil {
				return err
			}
			return tx.PutResult(k, &nusav1.ResultRecord{Version: rec.Version(), Run: rec.Run(rev), Status: &nusav1.JobStatus{
				State:  nusav1.JobState_JOB_STATE_COMPLETE,
				Groups: map[string]*nusav1.GroupStatus{"web": {Desired: 1, Counts: &nusav1.InstanceCounts{Complete: 1}}},
			}})
		}, func() {
			w.ended[k] = true
		}
}

// stop returns a request that purges a job.
func (w *historyWorld) purge(k JobKey) (func(*Tx) error, func()) {
	return func(tx *Tx) error {
			old, _, err := Stored(tx, k)
			if err != nil {
				return err
			}
			if old == nil || len(tx.Slots(k, "")) > 0 {
				return errors.New("no such job, or it has slots")
			}
			return tx.DeleteJob(k)
		}, func() {
			delete(w.version, k)
			delete(w.ended, k)
		}
}

// request returns a random request about a job.
func (w *historyWorld) request(k JobKey) (func(*Tx) error, func()) {
	switch rapid.IntRange(0, 6).Draw(w.t, "request") {
	case 0, 1:
		return w.submit(k, rapid.SampledFrom([]string{"one", "two"}).Draw(w.t, "work"))
	case 2, 3:
		return w.finish(k)
	case 4:
		return w.purge(k)
	default:
		return func(tx *Tx) error { return Depart(tx, k, time.Unix(7, 0)) }, func() {}
	}
}

// step runs some requests in one transaction. Requests that need a record of the history
// are repeated, as the API does.
func (w *historyWorld) step(keys []JobKey) {
	if n := len(w.unread); n > 0 {
		w.read(rapid.IntRange(0, n).Draw(w.t, "read"))
	}
	b := &batch{tx: NewTx(w.st), decideMost: math.MaxInt}
	var done []func()
	for range rapid.IntRange(1, 4).Draw(w.t, "requests") {
		k := rapid.SampledFrom(keys).Draw(w.t, "job")
		if rapid.Bool().Draw(w.t, "recall") {
			if err := Recall(w.t.Context(), w.st, w.c, k); err != nil {
				w.t.Fatal(err)
			}
		}
		prepare, then := w.request(k)
		w.st.Lock()
		before := len(b.members)
		b.add(commitRequest{prepare: prepare, done: make(chan commitResult, 1)})
		w.st.Unlock()
		if len(b.members) > before {
			done = append(done, then)
		}
		if b.carry != nil {
			break
		}
	}
	if _, err := w.commit.write(w.t.Context(), b); err != nil {
		w.t.Fatal(err)
	}
	for _, then := range done {
		then()
	}
}

// check compares memory, a new term's memory, and the store with what must be.
func (w *historyWorld) check() {
	w.t.Helper()
	where := map[string][]string{}
	if _, err := w.c.List(w.t.Context(), root, func(kv store.KV) error {
		kind, name, _ := strings.Cut(strings.TrimPrefix(kv.Key, root), "/")
		if kind == "jobs" || kind == "history" {
			where[name] = append(where[name], kind)
		} else if kind == "results" || kind == "slots" {
			parts := strings.Split(name, "/")
			where[parts[0]+"/"+parts[1]] = append(where[parts[0]+"/"+parts[1]], "part")
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	w.read(len(w.unread))
	old := w.load()
	w.read(len(w.unread))
	for _, st := range []*State{old, w.st} {
		var names []string
		for name := range st.Names.After("", func(name string) bool { return Exists(st, name) }) {
			names = append(names, name)
		}
		var want []string
		for k, version := range w.version {
			want = append(want, k.String())
			rec, _ := st.JobRecord(k)
			past, err := Past(w.t.Context(), st, w.c, k)
			if err != nil {
				w.t.Fatal(err)
			}
			got := rec.Version()
			if past != nil {
				got = past.GetVersion()
				if line := Line(st, k.String()); past.GetStatus().GetMessage() != "kept as history" || line.GetStatus().GetMessage() != "kept as history" {
					w.t.Fatalf("%s is in the history, and its messages are %q and %q", k, past.GetStatus().GetMessage(), line.GetStatus().GetMessage())
				}
			}
			kinds := where[k.String()]
			if got != version || (rec == nil) == (past == nil) || slices.Contains(kinds, "history") != (past != nil) || past != nil && (len(kinds) != 1 || !w.ended[k]) {
				w.t.Fatalf("%s is in %q with version %d, want %d; ended %t", k, kinds, got, version, w.ended[k])
			}
		}
		slices.Sort(want)
		if !slices.Equal(names, want) || len(where) != len(want) {
			w.t.Fatalf("there are %q, the store has %v, want %q", names, where, want)
		}
		if st.Room.Jobs != int64(len(want)) {
			w.t.Fatalf("%d jobs count, want %d", st.Room.Jobs, len(want))
		}
	}
	if old.Room.JobBytes != w.st.Room.JobBytes || old.Room.Keys != w.st.Room.Keys {
		w.t.Fatalf("%d bytes and %d keys count, after an election %d and %d", old.Room.JobBytes, old.Room.Keys, w.st.Room.JobBytes, w.st.Room.Keys)
	}
	for _, st := range []*State{old, w.st} {
		oldest := st.History.Excess(math.MaxInt64, 0, 100)
		leftAt := func(name string) int64 { e, _ := st.History.Get(name); return e.Revision }
		if len(oldest) != st.History.Len() || !slices.IsSortedFunc(oldest, func(a, b string) int { return cmp.Compare(leftAt(a), leftAt(b)) }) {
			w.t.Fatalf("to forget: %q of %d", oldest, st.History.Len())
		}
	}
	w.load()
}

// TestAJobIsInOnePlace: whatever requests share transactions, a job is in memory or in the history,
// never in both. Its version grows. A new term loads the same jobs.
func TestAJobIsInOnePlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newHistoryWorld(t)
		defer w.c.Close()
		var keys []JobKey
		for i := range 3 {
			keys = append(keys, JobKey{"default", fmt.Sprintf("job-%d", i)})
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			w.step(keys)
			if rapid.IntRange(0, 3).Draw(t, "check") == 0 {
				w.check()
			}
		}
		w.check()
	})
}

// TestJobsStayWithOlderServers: no job moves to the history while a server of an earlier version,
// which cannot read the history, stands for election.
func TestJobsStayWithOlderServers(t *testing.T) {
	now := time.Duration(0)
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return now })
	st.Lock()
	defer st.Unlock()
	spec := testJob("api", 1)
	spec.Namespace = "default"
	st.apply(jobPrefix+"default/api", &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Stopped: true}}, 5)
	for _, c := range []struct {
		level uint32
		now   time.Duration
		most  int
		want  int
	}{{2, time.Hour, 0, 0}, {3, time.Minute, 10, 0}, {3, time.Hour, 10, 1}} {
		st.GlobalLevel, now = c.level, c.now
		if keys := Leaving(st, time.Hour, c.most); len(keys) != c.want {
			t.Errorf("level %d after %s: %v", c.level, c.now, keys)
		}
	}
}

// TestOlderServerStoresAJobAgain: a server that does not know the history was active, and stored a
// job that is in the history. The later record counts, and takes the place of the other one.
func TestOlderServerStoresAJobAgain(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.Lock()
	defer st.Unlock()
	k, spec := JobKey{"default", "api"}, testJob("api", 1)
	spec.Namespace = "default"
	st.apply(k.historyKey(), &nusav1.HistoryRecord{}, 4)
	st.apply(k.recordKey(), &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Stopped: true}}, 5)
	if rec, rev, err := Stored(NewTx(st), k); err != nil || rec.Version() != 1 || rev != 5 || InHistory(st, k) {
		t.Errorf("stored is version %d at %d, %v", rec.Version(), rev, err)
	}
	for what, change := range map[string]func(*Tx) error{
		"put":    func(tx *Tx) error { return tx.PutJob(k, st.Jobs[k].Record.Full()) },
		"delete": func(tx *Tx) error { return tx.DeleteJob(k) },
		"depart": func(tx *Tx) error { return Depart(tx, k, time.Unix(7, 0)) },
	} {
		tx := NewTx(st)
		if err := change(tx); err != nil {
			t.Fatal(err)
		}
		if ch, ok := tx.find(k.historyKey()); !ok || ch.known != 4 || ch.puts() != (what == "depart") {
			t.Errorf("%s: %+v", what, ch)
		}
	}
}

// TestLeavingIsBounded: while no job moves to the history, memory has no list of jobs that are gone.
func TestLeavingIsBounded(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.Lock()
	defer st.Unlock()
	st.GlobalLevel = historyLevel - 1
	spec := testJob("api", 1)
	spec.Namespace = "default"
	for i := range int64(10) {
		key := fmt.Sprintf("%sdefault/job-%d", jobPrefix, i)
		st.apply(key, &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Stopped: true}}, 2*i+5)
		st.apply(key, nil, 2*i+6)
	}
	if Leaving(st, time.Hour, 1); len(st.leaving) > 0 {
		t.Errorf("%d jobs are listed, and none is stored", len(st.leaving))
	}
}
