package state

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/versions"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// versionWorld submits versions of one job.
type versionWorld struct {
	*testing.T
	store  *store.MemoryClient
	st     *State
	commit *Committer
	k      JobKey
	update *nusav1.Update // of each version
}

func (w *versionWorld) do(change func(*Tx) error) {
	w.Helper()
	b := &batch{tx: NewTx(w.st)}
	done := make(chan commitResult, 1)
	w.st.Lock()
	b.add(commitRequest{prepare: change, done: done})
	w.st.Unlock()
	if _, err := w.commit.write(w.Context(), b); err != nil {
		w.Fatal(err)
	}
}

// submit stores a version whose environment has a text, and returns the answer.
func (w *versionWorld) submit(text, tag string) (out *nusav1.SubmitResponse, err error) {
	w.Helper()
	spec := testJob(w.k.Name, 1)
	spec.Namespace = w.k.Namespace
	for _, t := range spec.Groups["web"].Tasks {
		t.Env = map[string]string{"V": text}
	}
	spec.Groups["web"].Update = proto.CloneOf(w.update)
	job.Default(spec)
	w.do(func(tx *Tx) error {
		out, err = tx.Submit(w.k, &nusav1.SubmitRequest{Spec: spec, Tag: tag})
		return nil
	})
	return out, err
}

// stored returns the numbers of the versions whose specs are in the store.
func (w *versionWorld) stored() map[string]bool {
	w.Helper()
	out := map[string]bool{}
	prefix := versionPrefix + w.k.String() + "/"
	_, err := w.store.List(w.Context(), prefix, func(kv store.KV) error {
		out[strings.TrimPrefix(kv.Key, prefix)] = true
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	return out
}

// listed returns the numbers of the earlier versions that the job's record lists.
func (w *versionWorld) listed() (out []int64) {
	for _, v := range w.st.Jobs[w.k].Record.Versions()[1:] {
		out = append(out, v.GetVersion())
	}
	return out
}

func newVersionWorld(t *testing.T) *versionWorld {
	w := &versionWorld{T: t, store: store.NewMemory().Client(), k: JobKey{"default", "web"}}
	t.Cleanup(func() { w.store.Close() })
	w.st, w.commit = loadedState(t, w.store)
	return w
}

// TestVersionsAreBounded: the store has the specs of the versions that the job's record lists, also
// after many submits and a new term. None is left when the job is gone.
func TestVersionsAreBounded(t *testing.T) {
	w := newVersionWorld(t)
	for i := range versions.Most + 10 {
		tag := ""
		if i == 1 {
			tag = "v1.0"
		}
		if out, err := w.submit(fmt.Sprint(i), tag); err != nil || !out.GetChanged() {
			t.Fatal(out, err)
		}
	}
	check := func() {
		t.Helper()
		listed, stored := w.listed(), w.stored()
		if len(listed) != versions.Most+1 || listed[0] != versions.Most+9 || listed[versions.Most] != 2 || len(stored) != len(listed) {
			t.Errorf("listed %v, stored %v", listed, stored)
		}
		for _, v := range listed {
			if !stored[fmt.Sprint(v)] {
				t.Errorf("version %d is listed and not stored", v)
			}
		}
	}
	check()
	if _, err := w.submit("again", "v1.0"); status.Code(err) != codes.AlreadyExists {
		t.Errorf("a tag that another version has: %v", err)
	}
	if out, err := w.submit(fmt.Sprint(versions.Most+9), ""); err != nil || out.GetChanged() {
		t.Errorf("the same spec again: %v, %v", out, err)
	}
	w.st, w.commit = loadedState(t, w.store)
	check()
	weight := w.st.Jobs[w.k].weight
	w.do(func(tx *Tx) error { return tx.DeleteJob(w.k) })
	if left := w.stored(); len(left) != 0 || weight < (versions.Most+1)*versions.Overhead {
		t.Errorf("left %v, weight was %d", left, weight)
	}
}

// TestStoppedJobTakesItsTag: the same spec with the same tag runs a stopped job again. Another spec cannot have the tag.
func TestStoppedJobTakesItsTag(t *testing.T) {
	w := newVersionWorld(t)
	if _, err := w.submit("a", "v1.0"); err != nil {
		t.Fatal(err)
	}
	w.do(func(tx *Tx) error {
		stopped := w.st.Jobs[w.k].Record.Full()
		stopped.Job.Stopped = true
		return tx.PutJob(w.k, stopped)
	})
	if _, err := w.submit("b", "v1.0"); status.Code(err) != codes.AlreadyExists {
		t.Errorf("another spec: %v", err)
	}
	out, err := w.submit("a", "v1.0")
	if all := w.st.Jobs[w.k].Record.Versions(); err != nil || !out.GetChanged() || len(all) != 1 || all[0].GetTag() != "v1.0" || all[0].GetVersion() != 2 {
		t.Errorf("%v, %v: %v", out, err, all)
	}
}

// TestLargeSpecsCanBeReplaced: two specs of nearly 1 MiB that cannot be compressed do not fit into one
// transaction, so the earlier one is not stored.
func TestLargeSpecsCanBeReplaced(t *testing.T) {
	w := newVersionWorld(t)
	noise := func(seed uint64, n int) string {
		r := rand.New(rand.NewPCG(seed, 1))
		out := make([]byte, n)
		for i := range out {
			out[i] = byte(' ' + r.IntN(95))
		}
		return string(out)
	}
	for i, n := range []int{1000, 1000 << 10, 1000 << 10, 300 << 10, 1000 << 10} {
		if out, err := w.submit(noise(uint64(i), n), ""); err != nil || !out.GetChanged() {
			t.Fatal(i, out, err)
		}
	}
	if got := fmt.Sprint(w.listed()); got != "[4 1]" || len(w.stored()) != 2 {
		t.Errorf("listed %s, stored %v", got, w.stored())
	}
}

// TestTagsOfPastJobs: a tag does not bring a job back that has ended: it would run again.
func TestTagsOfPastJobs(t *testing.T) {
	w := newVersionWorld(t)
	wideJob(t, w.store, "sum", 1)
	w.st, w.commit = loadedState(t, w.store)
	k := JobKey{"default", "sum"}
	w.do(func(tx *Tx) error { return Depart(tx, k, time.Unix(7, 0)) })
	w.st, w.commit = loadedState(t, w.store)
	if past, err := Past(t.Context(), w.st, w.store, k); err != nil || past == nil {
		t.Fatal(past, err)
	}
	var err error
	w.do(func(tx *Tx) error {
		_, err = tx.TagVersion(k, 1, "v1")
		return nil
	})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "kept as history") {
		t.Error(err)
	}
	if j := w.st.Jobs[k]; j != nil || !InHistory(w.st, k) {
		t.Errorf("the job is back: %+v", j)
	}
}

// TestReplaceStoresTheFailedVersion: a job that is taken back lists the version that failed.
func TestReplaceStoresTheFailedVersion(t *testing.T) {
	w := newVersionWorld(t)
	for _, text := range []string{"good", "bad"} {
		if _, err := w.submit(text, ""); err != nil {
			t.Fatal(err)
		}
	}
	good := w.st.Jobs[w.k].Record
	spec := proto.CloneOf(good.Spec())
	for _, task := range spec.Groups["web"].Tasks {
		task.Env["V"] = "good"
	}
	healthy, err := NewRecord(&nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Run: 1}})
	if err != nil {
		t.Fatal(err)
	}
	w.do(func(tx *Tx) error {
		old, rev := tx.Job(w.k)
		_, err := tx.Replace(w.k, old, rev, healthy, &nusav1.Reverted{Version: 2, To: 1, Why: "it failed"})
		return err
	})
	all := w.st.Jobs[w.k].Record.Versions()
	if len(all) != 3 || all[0].GetVersion() != 3 || all[0].GetReverted().GetTo() != 1 || all[1].GetVersion() != 2 || all[1].GetReverted() != nil || !w.stored()["2"] {
		t.Errorf("%v, stored %v", all, w.stored())
	}
}
