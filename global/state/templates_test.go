package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestJobsThatBeginRuns: such a job has no instances, its changes and those of its runs are noted, and the
// number of these jobs is bounded.
func TestJobsThatBeginRuns(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.Lock()
	defer st.Unlock()
	revision := int64(5)
	submit := func(tx *Tx, name string, template bool) error {
		spec := testJob(name, 3)
		if template {
			spec.Schedule = &nusav1.Schedule{Every: durationpb.New(time.Minute)}
		}
		job.Default(spec)
		_, err := tx.Submit(KeyOf(spec), &nusav1.SubmitRequest{Spec: spec})
		return err
	}
	store := func(name string, template bool) {
		t.Helper()
		tx := NewTx(st)
		if err := submit(tx, name, template); err != nil {
			t.Fatal(err)
		}
		revision++
		for _, ch := range tx.changes {
			if ch.job != nil {
				st.applyJob(ch.key[len(jobPrefix):], ch.job, revision)
			}
		}
	}
	taken := func() string {
		var names []string
		for k := range TakeTemplates(st) {
			names = append(names, k.Name)
		}
		slices.Sort(names)
		return strings.Join(names, " ")
	}
	store("nightly", true)
	store("web", false)
	store("nightly.20261128-023000", false)
	if got, want := taken(), "nightly nightly.20261128-023000"; got != want {
		t.Errorf("changed: %q, want %q", got, want)
	}
	j := st.Jobs[JobKey{"default", "nightly"}]
	st.Templates.Lines[j.Key] = "next run soon"
	if s := j.Status(st.Sight()); len(s.GetGroups()) != 0 || s.GetState() != nusav1.JobState_JOB_STATE_RUNNING || s.GetMessage() != "next run soon" {
		t.Errorf("status: %v", s)
	}
	st.applyJob(j.Key.String(), nil, revision+1)
	if got := taken(); got != "nightly" || len(st.Templates.Lines) != 0 {
		t.Errorf("after the removal: %q changed, %d left", got, len(st.Templates.Lines))
	}
	store("nightly", true)
	for i := len(st.Templates.Lines); i < MaxTemplates-1; i++ {
		st.Templates.Lines[JobKey{"default", fmt.Sprint("other-", i)}] = ""
	}
	tx := NewTx(st)
	if err := submit(tx, "last", true); err != nil {
		t.Error(err)
	}
	if err := submit(tx, "further", true); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more in the same transaction: %v", err)
	}
	if err := submit(tx, "plain", false); err != nil {
		t.Error(err)
	}
	next := testJob("last", 4)
	next.Schedule = &nusav1.Schedule{Every: durationpb.New(time.Hour)}
	job.Default(next)
	if _, err := tx.Submit(KeyOf(next), &nusav1.SubmitRequest{Spec: next}); err != nil {
		t.Errorf("another version in the same transaction: %v", err)
	}
	if err := submit(NewTx(st), "nightly", true); err != nil {
		t.Errorf("again: %v", err)
	}
	store("api", false)
	tx = NewTx(st)
	if err := submit(tx, "web", true); err != nil {
		t.Errorf("a stored job becomes the last one: %v", err)
	}
	if err := submit(tx, "api", true); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("another stored job in the same transaction: %v", err)
	}
}
