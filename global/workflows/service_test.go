package workflows

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/room"
	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// newService returns the service of a term in memory with one workflow, whose loops do not run.
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
	st.GlobalLevel = state.WorkflowLevel
	commit := state.NewCommitter(st, mem, e.Guard())
	term := api.NewTerm(api.TermConfig{Context: t.Context(), State: st, Store: mem, Commit: commit, Log: slog.New(slog.DiscardHandler)})
	b := New(term, schedules.New(term))
	close(b.ready)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = commit.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; mem.Close() })
	spec, err := job.Parse([]byte(text), "job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	job.Default(spec)
	if err := job.Validate(spec); err != nil {
		t.Fatal(err)
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256(encoded)
	_, err = commit.Do(ctx, func(t *state.Tx) error {
		_, err := t.SubmitJob(state.JobKey{Namespace: "default", Name: spec.GetName()}, state.Submission{Spec: state.NewSpec(spec), Encoded: encoded, Hash: hash[:]})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return &Service{Current: func() *Book { return b }}, b
}

// TestRunsOfOneTransactionCountTogether: the bounds of all runs hold also for runs that begin in one transaction, with
// the first run of a workflow among them.
func TestRunsOfOneTransactionCountTogether(t *testing.T) {
	s, b := newService(t, "name: tree\nworkflow: {steps: {a: {ref: work}, b: {ref: work}}}\n")
	k := state.JobKey{Namespace: "default", Name: "tree"}
	record, spec, err := s.Current().workflow(k)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		bound string
		near  func(up int)
	}{
		{"items", func(up int) { b.steps += up * (mostSteps - 5) }},
		{"active runs", func(up int) { b.active += up * (mostActive - 2) }},
	} {
		p, err := prepare(b, k, record, spec, given{field: "parameters"})
		if err != nil {
			t.Fatal(err)
		}
		begun := 0
		_, err = b.term.Commit.Do(t.Context(), func(t *state.Tx) error {
			c.near(1)
			defer c.near(-1)
			for i := range 3 {
				if err := begin(b, t, state.JobKey{Namespace: "default", Name: fmt.Sprintf("tree.%s%d", c.bound[:1], i)}, p); err != nil {
					return err
				}
				begun++
			}
			return nil
		})
		if status.Code(err) != codes.ResourceExhausted || begun != 2 {
			t.Errorf("%s: %d runs have begun in one transaction: %v", c.bound, begun, err)
		}
	}
}

// TestAFullStoreTakesNoRuns: the beginning of a run stores up to a job with its parameters. It finds room under the
// same condition as a submit.
func TestAFullStoreTakesNoRuns(t *testing.T) {
	s, b := newService(t, "name: tree\nworkflow:\n  parameters: {to: {default: \"\"}}\n  steps: {a: {ref: work}}\n")
	run := func() error {
		_, err := s.Run(t.Context(), &nusav1.RunWorkflowRequest{
			Job: &nusav1.JobRef{Namespace: "default", Name: "tree"}, Parameters: map[string]string{"to": strings.Repeat("x", job.MaxMeta)},
		})
		return err
	}
	if err := run(); err != nil {
		t.Fatal(err)
	}
	b.st.Lock()
	b.st.Room.Measured(room.Usage{Bytes: 100 << 20, InUse: 91 << 20, Quota: 100 << 20})
	b.st.Unlock()
	if err := run(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "the store has") {
		t.Errorf("with a full store: %v", err)
	}
	if len(b.runs) != 1 {
		t.Errorf("%d runs are stored", len(b.runs))
	}
}
