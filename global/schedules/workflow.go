package schedules

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Workflows are the functions of package workflows that a schedule of a workflow needs: its runs are no jobs, but
// runs of the workflow. The lock of the state is held in all calls except Prepare and Dispatch.
type Workflows struct {
	// Prepare makes what Begin needs of a stored workflow. It may take a second.
	Prepare func(k state.JobKey, record *state.Record, spec *nusav1.JobSpec) (prepared any, err error)
	// Begin adds a run to a transaction.
	Begin func(t *state.Tx, run state.JobKey, prepared any, trigger nusav1.JobRunTrigger, at time.Time) error
	// Ready reports whether the stored runs are read. Before that, State takes every run for one that is active.
	Ready func() bool
	// State is RunState for a run of a workflow. known is false if there is none.
	State func(run state.JobKey) (to nusav1.JobRunState, message string, stopping, known bool)
	// Stop adds the order to cancel a run to a transaction.
	Stop func(t *state.Tx, run state.JobKey, why string) error
	// Dispatch begins a run of a workflow with parameterized. The lock is not held.
	Dispatch func(ctx context.Context, k state.JobKey, req *nusav1.DispatchJobRequest) (*nusav1.JobRun, error)
	// Active returns the number of runs of a workflow that have not ended.
	Active func(k state.JobKey) int
}

// waits reports whether nothing can be decided about an entry yet. The lock is held.
func waits(b *Book, e *entry) bool { return e.ofWorkflow() && !b.flows.Ready() }

// dispatchFlow begins a run if a dispatch names a workflow. is: it does.
func (s *Service) dispatchFlow(ctx context.Context, req *nusav1.DispatchJobRequest) (run *nusav1.JobRun, is bool, err error) {
	b := s.Current()
	if b == nil || b.flows.Dispatch == nil || req.GetJob().GetRegion() != "" {
		return nil, false, nil
	}
	k := keyOf(req.GetJob())
	b.st.Lock()
	j := b.st.Jobs[k]
	is = j != nil && j.Record != nil && j.Record.Type() == place.Workflow
	b.st.Unlock()
	if is {
		run, err = b.flows.Dispatch(ctx, k, req)
	}
	return run, is, err
}

// begins reports whether a stored job begins runs by this package. The lock is held.
func begins(rec *state.Record) bool {
	return rec.Template() && (rec.Type() != place.Workflow || rec.Scheduled())
}

// ofWorkflow reports whether the job of an entry is a workflow. The lock is held.
func (e *entry) ofWorkflow() bool { return e.spec.GetWorkflow() != nil }

// prepare makes what the next run of an entry needs, if its job is a workflow.
func prepare(b *Book, e *entry) (prepared any, err error) {
	b.st.Lock()
	rec, spec, is := e.record, e.spec, e.ofWorkflow()
	b.st.Unlock()
	if !is {
		return nil, nil
	}
	return b.flows.Prepare(e.key, rec, spec)
}

// next is a run that a transaction may begin.
type next struct {
	name    string
	at      time.Time
	trigger nusav1.JobRunTrigger
	// prepared is that of a workflow.
	prepared any
}

// beginNext begins a run. why: it cannot begin, and neither can a later one of the same job.
func beginNext(b *Book, t *state.Tx, e *entry, n next) (why string, err error) {
	k := state.JobKey{Namespace: e.key.Namespace, Name: n.name}
	switch {
	case exists(b, t, e, n.name):
		return "run " + n.name + " exists already", nil
	case b.total >= mostRunsOfAll:
		return errRunsOfAll.Error(), nil
	case e.ofWorkflow():
		if err := b.flows.Begin(t, k, n.prepared, n.trigger, n.at); err != nil {
			return "", err
		}
		_, err := note(t, e.key, n.name, n.at, n.trigger, nil)
		return "", err
	}
	r, err := newRun(e.spec, n.name, n.at, input{})
	if err != nil { // the next run is as large
		return "the run cannot be made: " + status.Convert(err).Message(), nil
	}
	_, err = begin(t, e.key, r, n.trigger, nil)
	return "", err
}

// exists reports whether a run of this name exists.
func exists(b *Book, t *state.Tx, e *entry, name string) bool {
	k := state.JobKey{Namespace: e.key.Namespace, Name: name}
	rec, _ := t.Job(k)
	return e.runs[name] != nil || rec != nil || state.InHistory(b.st, k) || e.ofWorkflow() && hasFlow(b, k)
}

func hasFlow(b *Book, k state.JobKey) bool {
	if b.flows.State == nil {
		return false
	}
	_, _, _, known := b.flows.State(k)
	return known
}

// stop stops a run.
func stop(b *Book, t *state.Tx, k state.JobKey, why string) error {
	if rec, _ := t.Job(k); rec != nil || !hasFlow(b, k) {
		return Stop(t, k, why)
	}
	return b.flows.Stop(t, k, why)
}

// errUnprepared: a run of a workflow is to begin, and nothing is prepared for it.
var errUnprepared = errors.New("the run of a workflow is not prepared")
