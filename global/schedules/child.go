package schedules

import (
	"context"
	"errors"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// Child is the job of a run that another package begins, ready to be stored.
type Child struct{ job *runJob }

// NewChild returns the job of a run of a parameterized job, with its payload. meta are its values, and labels what it
// gets besides the labels of runs. The error says which value makes the job invalid. The spec becomes the run's: the
// caller must not use it any more.
func NewChild(spec *nusav1.JobSpec, name string, at time.Time, payload []byte, meta, labels map[string]string) (*Child, error) {
	r, err := checkedRun(spec, name, at, input{payload: payload, meta: meta, labels: labels, own: true})
	if err != nil {
		return nil, err
	}
	return &Child{r}, nil
}

// JobOf returns the job of a spec that is complete, ready to be stored. Nothing checks the spec again.
func JobOf(spec *nusav1.JobSpec) (*Child, error) {
	r, err := encodedRun(spec, time.Time{})
	if err != nil {
		return nil, err
	}
	return &Child{r}, nil
}

// Fill gives a task variables, and replaces references to them. An agent has values of its own for references to
// variables that it knows. The values must be shorter than the references, so that no text grows.
func Fill(t *nusav1.Task, values map[string]string) { _ = fill(t, values, false, math.MaxInt) }

// Size returns the number of bytes of the job.
func (c *Child) Size() int { return len(c.job.encoded) }

// Submit stores the job, which must not exist.
func (c *Child) Submit(t *state.Tx, namespace string) error {
	return submit(t, state.JobKey{Namespace: namespace, Name: c.job.name}, c.job)
}

func submit(t *state.Tx, k state.JobKey, r *runJob) error {
	_, err := t.SubmitJob(k, state.Submission{Spec: r.spec, Encoded: r.encoded, Hash: r.hash[:], CheckRevision: -1})
	if errors.Is(err, state.ErrRecall) {
		return NeedsRecall{k}
	}
	return err
}

// Stop stops a run.
func Stop(t *state.Tx, k state.JobKey, why string) error {
	old, rev := t.Job(k)
	if old == nil || old.Stopped() {
		return nil
	}
	if err := t.Audit(audit.Entry{Verb: "stop", Kind: "job", Namespace: k.Namespace, Name: k.Name, Reason: why}); err != nil {
		return err
	}
	t.Event("job.stopped", k.String(), "%s", why)
	next := old.Full()
	next.Job.Stopped, next.Job.Run = true, old.Run(rev)
	return t.PutJob(k, next)
}

// Forget removes the job of a run that has ended. It returns about how many bytes it writes, and false if
// there is no such job.
func Forget(t *state.Tx, k state.JobKey) (bytes int, existed bool, err error) {
	old, rev := t.Job(k)
	switch {
	case old == nil && !state.InHistory(t.State, k), old != nil && old.Purge():
		return 0, false, nil
	case old == nil:
		return 0, true, state.Forget(t, []string{k.String()})
	case len(t.Slots(k, "")) == 0:
		return 0, true, t.DeleteJob(k)
	}
	next := old.Full()
	next.Job.Stopped, next.Job.Run, next.Purge = true, old.Run(rev), true
	return proto.Size(next), true, t.PutJob(k, next)
}

// forgetRun removes a run that has ended, and its job. It returns about how many bytes it writes.
func forgetRun(t *state.Tx, of state.JobKey, name string) (int, error) {
	if err := state.DeleteOther(t, runKey(of, name)); err != nil {
		return 0, err
	}
	bytes, _, err := Forget(t, state.JobKey{Namespace: of.Namespace, Name: name})
	return bytes, err
}

// NeedsRecall is the error of a run whose name may be in the history.
type NeedsRecall struct{ Key state.JobKey }

// Error implements error.
func (n NeedsRecall) Error() string { return "the history of " + n.Key.String() + " is not read yet" }

// recalls bounds how often a transaction is tried again because a job is in the history.
const recalls = 4

// Recalling calls commit, and reads the history for it if need be.
func Recalling(ctx context.Context, term *api.Term, commit func() error) (err error) {
	for range recalls {
		err = commit()
		var need NeedsRecall
		if !errors.As(err, &need) {
			return err
		}
		if err := state.Recall(ctx, term.State, term.Store, need.Key); err != nil {
			return err
		}
	}
	return err
}
