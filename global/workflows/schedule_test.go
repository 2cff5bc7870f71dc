package workflows

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/golden"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// term is a leadership term with the loops of schedules and workflows, in the time of a bubble. It has no regions,
// so its steps wait for approvals.
type term struct {
	t         testing.TB
	schedules *schedules.Service
	flows     *Service
	book      *Book
	commit    *state.Committer
	stop      func()
}

// elect begins a term.
func elect(t testing.TB, mem *store.Memory) *term {
	t.Helper()
	kv := mem.Client()
	ctx, cancel := context.WithCancel(context.Background())
	e, err := kv.Campaign(ctx, state.ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	if err := st.Load(ctx, kv); err != nil {
		t.Fatal(err)
	}
	st.GlobalLevel = state.InlineLevel
	commit := state.NewCommitter(st, kv, e.Guard())
	at := api.NewTerm(api.TermConfig{Context: ctx, State: st, Store: kv, Commit: commit, Log: slog.New(slog.DiscardHandler)})
	s := schedules.New(at)
	b := New(at, s)
	loops := []func(context.Context) error{commit.Run, s.Run, b.Run}
	ended := make(chan struct{}, len(loops))
	for _, run := range loops {
		go func() {
			_ = run(ctx)
			ended <- struct{}{}
		}()
	}
	stop := func() {
		cancel()
		for range loops {
			<-ended
		}
		_ = e.Resign(context.Background())
		kv.Close()
	}
	synctest.Wait()
	return &term{t, &schedules.Service{Current: func() *schedules.Book { return s }}, &Service{Current: func() *Book { return b }}, b, commit, stop}
}

// submit stores a job.
func (x *term) submit(text string) {
	x.t.Helper()
	spec, err := job.Parse([]byte(text), "job.yaml")
	if err != nil {
		x.t.Fatal(err)
	}
	job.Default(spec)
	if err := job.Validate(spec); err != nil {
		x.t.Fatal(err)
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		x.t.Fatal(err)
	}
	hash, k := sha256.Sum256(encoded), state.JobKey{Namespace: "default", Name: spec.GetName()}
	rec := &nusav1.Job{Spec: spec, Submitted: timestamppb.Now()}
	_, err = x.commit.Do(context.Background(), func(t *state.Tx) error {
		_, err := t.SubmitJob(k, state.Submission{Spec: state.NewSpec(rec.GetSpec()), Encoded: encoded, Hash: hash[:]})
		return err
	})
	if err != nil {
		x.t.Fatal(err)
	}
	synctest.Wait()
}

// describe describes a schedule and the runs of its workflow.
func (x *term) describe(name string) string {
	x.t.Helper()
	synctest.Wait()
	ref := &nusav1.JobRef{Namespace: "default", Name: name}
	s, err := x.schedules.Get(context.Background(), &nusav1.GetScheduleRequest{Job: ref, Next: 1})
	if err != nil {
		x.t.Fatal(err)
	}
	x.book.st.Lock()
	line := x.book.st.Templates.Lines[state.JobKey{Namespace: "default", Name: name}]
	x.book.st.Unlock()
	out := fmt.Sprintf("%s: %s", time.Now().UTC().Format("15:04:05"), line)
	if s.GetSkipped()+s.GetMissed() > 0 {
		out += fmt.Sprintf("; skipped %d (%s), missed %d", s.GetSkipped(), s.GetSkipReason(), s.GetMissed())
	}
	runs, err := x.flows.List(context.Background(), &nusav1.ListWorkflowRunsRequest{Namespace: "default", Workflow: name})
	if err != nil {
		x.t.Fatal(err)
	}
	for _, r := range slices.Backward(s.GetRuns()) {
		flow := "no run"
		if i := slices.IndexFunc(runs.GetRuns(), func(f *nusav1.WorkflowRun) bool { return f.GetName() == r.GetName() }); i >= 0 {
			f := runs.GetRuns()[i]
			flow = strings.ToLower(strings.TrimPrefix(f.GetState().String(), "WORKFLOW_RUN_STATE_")) + " of " + f.GetTime().AsTime().Format("15:04:05")
		}
		out += fmt.Sprintf("\n    %s %s (%s)", r.GetName(), strings.ToLower(strings.TrimPrefix(r.GetState().String(), "JOB_RUN_STATE_")), flow)
		if r.GetMessage() != "" {
			out += ": " + r.GetMessage()
		}
	}
	return out + "\n"
}

const gated = `name: %s
schedule: {every: 1m, overlap: %s%s}
workflow: {steps: {gate: {approval: true, timeout: %s}}}
`

// TestSchedulesOfWorkflows tells how schedules run workflows: the overlap rules, failures, trigger, backfill, and
// what a new active server does.
func TestSchedulesOfWorkflows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := store.NewMemory()
		time.Sleep(time.Second)
		x := elect(t, mem)
		var out strings.Builder
		see := func(title, name string, after time.Duration) {
			time.Sleep(after)
			fmt.Fprintf(&out, "%s\n  %s", title, x.describe(name))
		}
		ref := func(name string) *nusav1.JobRef { return &nusav1.JobRef{Namespace: "default", Name: name} }
		stop := func(name string) {
			k := state.JobKey{Namespace: "default", Name: name}
			if _, err := x.commit.Do(t.Context(), func(tx *state.Tx) error { return schedules.Stop(tx, k, "test") }); err != nil {
				t.Fatal(err)
			}
		}
		x.submit(fmt.Sprintf(gated, "skips", "skip", ", pause_after_failures: 2", "90s"))
		see("nothing is due", "skips", 30*time.Second)
		see("a run begins", "skips", 30*time.Second)
		see("a time is skipped", "skips", time.Minute)
		see("a run has failed, and another one begins", "skips", time.Minute)
		see("the second failure pauses the schedule", "skips", 2*time.Minute)
		if _, err := x.schedules.Resume(t.Context(), &nusav1.ResumeScheduleRequest{Job: ref("skips")}); err != nil {
			t.Fatal(err)
		}
		see("after resume", "skips", time.Minute)
		stop("skips")
		x.submit(fmt.Sprintf(gated, "cancels", "cancel", "", "1h"))
		see("a run begins", "cancels", time.Minute)
		see("the next time cancels it", "cancels", time.Minute)
		stop("cancels")
		x.submit(fmt.Sprintf(gated, "waits", "buffer_one", ", catch_up: 2m", "1h"))
		see("a run begins", "waits", time.Minute)
		if _, err := x.schedules.Trigger(t.Context(), &nusav1.TriggerScheduleRequest{Job: ref("waits")}); err == nil {
			t.Error("a trigger begins a run beside another one")
		}
		see("the next time waits", "waits", time.Minute)
		x.stop()
		time.Sleep(10 * time.Minute)
		x = elect(t, mem)
		see("another server, ten minutes later", "waits", 0)
		if _, err := x.flows.Cancel(t.Context(), &nusav1.CancelWorkflowRequest{Run: ref("waits.20000101-000900")}); err != nil {
			t.Fatal(err)
		}
		see("after a cancel, the time that waited has its run", "waits", time.Second)
		stop("waits")
		x.submit("name: quick\nschedule: {cron: ['0 0 1 1 *']}\nworkflow: {parameters: {go: {default: 'no'}}, steps: {a: {ref: x, when: 'params.go == \"yes\"'}}}\n")
		if _, err := x.schedules.Trigger(t.Context(), &nusav1.TriggerScheduleRequest{Job: ref("quick")}); err != nil {
			t.Fatal(err)
		}
		see("a trigger", "quick", time.Second)
		to := time.Now()
		if _, err := x.schedules.Backfill(t.Context(), &nusav1.BackfillScheduleRequest{Job: ref("quick"), From: timestamppb.New(to.AddDate(-3, 0, 0)), To: timestamppb.New(to)}); err != nil {
			t.Fatal(err)
		}
		see("a backfill", "quick", time.Minute)
		stop("quick")
		x.submit(fmt.Sprintf(gated, "again", "skip", "", "90s"))
		time.Sleep(210 * time.Second)
		x.submit(fmt.Sprintf(gated, "again", "skip", "", "1h"))
		see("a run has failed", "again", 0)
		runs, err := x.flows.List(t.Context(), &nusav1.ListWorkflowRunsRequest{Workflow: "again", State: nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_FAILED})
		if err != nil || len(runs.GetRuns()) != 1 {
			t.Fatal(runs, err)
		}
		failed := runs.GetRuns()[0].GetName()
		if _, err := x.flows.Retry(t.Context(), &nusav1.RetryWorkflowRequest{Run: ref(failed), From: "gate"}); err != nil {
			t.Fatal(err)
		}
		see("a retry of it goes on beside the next run", "again", time.Second)
		x.stop()
		x = elect(t, mem)
		see("once the next run has ended, the retry lets times be skipped, also with another server", "again", 85*time.Second)
		if err := x.approve(failed, "gate", false); err != nil {
			t.Error(err)
		}
		see("after its end, runs begin again; what has been counted stays", "again", time.Minute)
		x.stop()
		golden.File(t, "testdata/schedules.txt", out.String())
	})
}
