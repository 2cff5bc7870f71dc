package workflows

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// prepared is a run that is to begin, except for its name.
type prepared struct {
	of     state.JobKey
	record *state.Record
	def    *definition
	// inside are the workflows that it contains.
	inside  map[string]pinned
	rec     *nusav1.WorkflowRunRecord
	payload []byte
	// size is the number of items of its steps.
	size int
}

// prepare makes a run of a workflow. record is the stored job with the spec.
func prepare(b *Book, k state.JobKey, record *state.Record, spec *nusav1.JobSpec, by given) (*prepared, error) {
	params := by.params
	if err := checkParameters(by.field, spec, params); err != nil {
		return nil, err
	}
	p := &prepared{of: k, record: record, payload: by.payload}
	id := specID(spec)
	var err error
	if p.def, err = b.definition(k.Namespace, id, spec); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	p.rec = &nusav1.WorkflowRunRecord{Spec: id, Run: &nusav1.WorkflowRun{
		Workflow: k.Name, State: nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_RUNNING, Parameters: params, Began: timestamppb.Now(),
	}}
	if p.inside, err = contained(b, k, spec); err != nil {
		return nil, err
	}
	for name, of := range p.inside {
		if p.rec.Workflows == nil {
			p.rec.Workflows = map[string]string{}
		}
		p.rec.Workflows[name] = of.id
	}
	p.size = p.def.size(parameters(spec, params)) // the run itself would take memory for each item
	if p.size > maxSize {
		return nil, invalid(by.field, "the steps have %d items, at most %d are allowed in a run", p.size, maxSize)
	}
	return p, nil
}

// begin adds a run to a transaction.
func begin(b *Book, t *state.Tx, k state.JobKey, p *prepared) error {
	if err := b.may(); err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	runs, items, _ := beginning(b, t, nil)
	switch now, _ := t.Job(p.of); {
	case now != p.record:
		return status.Errorf(codes.Unavailable, "workflow %s has just changed: run it again", p.of)
	case b.runs[k] != nil:
		return errRepeated
	case b.active+runs >= mostActive:
		return status.Errorf(codes.ResourceExhausted, "%d runs of workflows have not ended, the most there may be: wait for the end of some", b.active+runs)
	case len(b.runs)+runs >= mostRuns || b.steps+items+p.size > mostSteps:
		return status.Error(codes.ResourceExhausted, "there are too many runs of workflows: lower history.count and history.age of workflows with many")
	}
	if _, changed := state.OtherOf(t, runKey(k)); changed {
		return errRepeated
	}
	stored := map[string]*definition{p.rec.GetSpec(): p.def}
	for _, of := range p.inside {
		stored[of.id] = of.def
	}
	bytes := proto.Size(p.rec) + len(p.payload)
	maps.DeleteFunc(stored, func(id string, d *definition) bool {
		gone, changed := state.OtherOf(t, specKey(p.of.Namespace, id))
		stores := changed && gone == nil || !changed && b.defs[p.of.Namespace+"/"+id] == nil
		bytes += one(stores) * proto.Size(d.spec)
		return !stores
	})
	if err := state.CheckRoom(t, k, bytes); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(stored)) {
		b.compiled[p.of.Namespace+"/"+id] = stored[id]
		if err := state.PutOther(t, specKey(p.of.Namespace, id), &nusav1.WorkflowSpecRecord{Spec: stored[id].spec}); err != nil {
			return err
		}
	}
	if len(p.payload) > 0 {
		if b.bytes+payloadBytes(state.OthersOf(t, payloadKind))+len(p.payload) > mostBytes {
			return status.Errorf(codes.ResourceExhausted, "the payloads and outputs of all runs of workflows would have more than %d bytes: lower history.count and history.age of workflows with many", mostBytes)
		}
		if err := state.PutOther(t, payloadKey(k), &nusav1.WorkflowPayloadRecord{Payload: p.payload}); err != nil {
			return err
		}
	}
	t.Event("workflow.began", k.String(), "")
	return state.PutOther(t, runKey(k), p.rec)
}

// serveSchedules lets schedules begin runs.
func serveSchedules(b *Book) {
	b.schedules.Serve(schedules.Workflows{
		Prepare: func(k state.JobKey, record *state.Record, spec *nusav1.JobSpec) (any, error) {
			p, err := prepare(b, k, record, spec, given{field: "parameters"})
			if err != nil {
				return nil, err
			}
			return p, nil
		},
		Begin: func(t *state.Tx, run state.JobKey, of any, trigger nusav1.JobRunTrigger, at time.Time) error {
			made, _ := of.(*prepared)
			p := *made
			p.rec = proto.CloneOf(made.rec)
			p.rec.Run.Trigger, p.rec.Run.Time, p.rec.Run.Began = trigger, timestamppb.New(at), timestamppb.Now()
			return begin(b, t, run, &p)
		},
		Dispatch: func(ctx context.Context, k state.JobKey, req *nusav1.DispatchJobRequest) (*nusav1.JobRun, error) {
			return dispatch(ctx, b, k, req)
		},
		Ready:  func() bool { return b.loaded },
		State:  func(k state.JobKey) (nusav1.JobRunState, string, bool, bool) { return resultOf(b, k) },
		Stop:   func(t *state.Tx, k state.JobKey, why string) error { return cancel(t, b.runs[k], why) },
		Active: func(k state.JobKey) int { return b.live[k] },
	})
}

// resultOf returns the state of a run as its schedule knows it. The lock is held.
func resultOf(b *Book, k state.JobKey) (to nusav1.JobRunState, message string, stopping, known bool) {
	r := b.runs[k]
	switch {
	case r == nil:
		return nusav1.JobRunState_JOB_RUN_STATE_ACTIVE, "", false, !b.loaded
	case r.live():
		s := r.rec.GetRun().GetState()
		return nusav1.JobRunState_JOB_RUN_STATE_ACTIVE, "", s == nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELING || s == nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_EXITING, true
	}
	ended := map[nusav1.WorkflowRunState]nusav1.JobRunState{
		nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED: nusav1.JobRunState_JOB_RUN_STATE_COMPLETE,
		nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELED:  nusav1.JobRunState_JOB_RUN_STATE_STOPPED,
	}
	to, is := ended[r.rec.GetRun().GetState()]
	if !is {
		to = nusav1.JobRunState_JOB_RUN_STATE_FAILED
	}
	return to, r.rec.GetRun().GetMessage(), false, true
}

// cancel adds the order to cancel a run to a transaction, unless the run has ended or its step on_exit runs.
func cancel(t *state.Tx, r *run, why string) error {
	if r == nil || !r.live() {
		return nil
	}
	switch r.rec.GetRun().GetState() {
	case nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELING, nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_EXITING:
		return nil
	}
	rec := r.rec
	if m, changed := state.OtherOf(t, runKey(r.key)); changed { // an earlier request of the transaction changes it
		rec, _ = m.(*nusav1.WorkflowRunRecord)
	}
	if rec.GetRun() == nil || rec.GetRun().GetEnded() != nil || rec.GetRun().GetState() == nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_EXITING {
		return nil
	}
	next := proto.CloneOf(rec)
	next.Run.State, next.Run.Message = nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELING, why
	return state.PutOther(t, runKey(r.key), next)
}

// scheduled reports whether a workflow has a schedule: then package schedules describes it. The lock is held.
func scheduled(b *Book, k state.JobKey) bool {
	j := b.st.Jobs[k]
	return j != nil && j.Record.Scheduled()
}
