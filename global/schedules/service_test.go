package schedules

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// newService returns the service of a term in memory with one job, whose loop does not run.
func newService(t *testing.T, text string) (*Service, *Book) {
	t.Helper()
	mem := store.NewMemory().Client()
	e, err := mem.Campaign(t.Context(), state.ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	if err := st.Load(t.Context(), mem); err != nil {
		t.Fatal(err)
	}
	st.GlobalLevel = state.TemplateLevel
	commit := state.NewCommitter(st, mem, e.Guard())
	b := New(api.NewTerm(api.TermConfig{Context: t.Context(), State: st, Store: mem, Commit: commit, Log: slog.New(slog.DiscardHandler)}))
	close(b.ready)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = commit.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; mem.Close() })
	storeJob(t, b, text)
	return &Service{Current: func() *Book { return b }}, b
}

// storeJob stores a job.
func storeJob(t *testing.T, b *Book, text string) {
	t.Helper()
	spec := specOfText(t, text)
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256(encoded)
	_, err = b.term.Commit.Do(t.Context(), func(t *state.Tx) error {
		_, err := t.SubmitJob(state.JobKey{Namespace: "default", Name: spec.GetName()}, state.Submission{Spec: state.NewSpec(spec), Encoded: encoded, Hash: hash[:]})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAnOldCopyOfTheStoreBeginsNoRun: a server whose store is an old copy, or that runs beside earlier ones,
// refuses every request that may begin a run.
func TestAnOldCopyOfTheStoreBeginsNoRun(t *testing.T) {
	s, b := newService(t, `name: nightly
schedule: {cron: ["0 2 * * *"]}
groups: {main: {tasks: {main: {driver: docker, config: {image: nightly}}}}}
`)
	ref := &nusav1.JobRef{Namespace: "default", Name: "nightly"}
	day := func(n int) *timestamppb.Timestamp { return timestamppb.New(time.Now().AddDate(0, 0, n)) }
	calls := map[string]func() error{
		"trigger": func() error { _, err := s.Trigger(t.Context(), &nusav1.TriggerScheduleRequest{Job: ref}); return err },
		"backfill": func() error {
			_, err := s.Backfill(t.Context(), &nusav1.BackfillScheduleRequest{Job: ref, From: day(-3), To: day(-1)})
			return err
		},
	}
	set := func(level uint32, leadership *nusav1.LeadershipRecord) {
		b.st.Lock()
		defer b.st.Unlock()
		b.st.GlobalLevel, b.st.Leadership = level, leadership
	}
	before := b.st.Leadership
	for name, call := range calls {
		set(state.TemplateLevel, &nusav1.LeadershipRecord{Conflict: &nusav1.RevisionConflict{}})
		if err := call(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s with an old copy: %v", name, err)
		}
		set(state.TemplateLevel-1, before)
		if err := call(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s beside an earlier version: %v", name, err)
		}
		if b.total != 0 {
			t.Fatalf("%s began %d runs", name, b.total)
		}
		set(state.TemplateLevel, before)
	}
	for name, call := range calls {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAnEndedRunLeavesNoEntry: the book forgets a workflow without a schedule when its last run has ended, and when
// a request names it. An entry that was forgotten takes no other one of the same job with it.
func TestAnEndedRunLeavesNoEntry(t *testing.T) {
	t.Parallel()
	s, b := newService(t, "name: flow\nworkflow: {steps: {gate: {approval: true}}}\n")
	of, run := state.JobKey{Namespace: "default", Name: "flow"}, state.JobKey{Namespace: "default", Name: "flow.1"}
	active := map[state.JobKey]bool{}
	b.Serve(Workflows{
		Ready: func() bool { return true },
		State: func(k state.JobKey) (to nusav1.JobRunState, message string, stopping, known bool) {
			if active[k] {
				return nusav1.JobRunState_JOB_RUN_STATE_ACTIVE, "", false, true
			}
			return nusav1.JobRunState_JOB_RUN_STATE_COMPLETE, "", false, true
		},
	})
	notice := func(is bool) *entry {
		b.st.Lock()
		defer b.st.Unlock()
		active[run] = is
		b.Noticed(of, run)
		return b.byJob[of]
	}
	if _, _, err := s.found(t.Context(), &nusav1.JobRef{Namespace: "default", Name: "flow"}, ""); status.Code(err) != codes.FailedPrecondition || b.byJob[of] != nil {
		t.Errorf("after a request: %v, %v", err, b.byJob[of])
	}
	first := notice(true)
	if err := b.advance(t.Context(), first); err != nil || b.byJob[of] != first {
		t.Errorf("an active run: %v, %v", err, b.byJob[of])
	}
	if e := notice(false); e != nil {
		t.Errorf("the run has ended: %v", e)
	}
	second := notice(true)
	first.live = nil
	if err := b.advance(t.Context(), first); err != nil || b.byJob[of] != second {
		t.Errorf("a former entry is decided: %v, %v", err, b.byJob[of])
	}
}
