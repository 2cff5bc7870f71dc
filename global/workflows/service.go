package workflows

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/recorder"
)

const (
	maxKey    = 128
	maxReason = 256
	// maxSize bounds the items of the steps of one run.
	maxSize = 10_000
	// names bounds how many names are tried for a run.
	names = 4
	// kindRun is the kind of the objects in errors.
	kindRun = "run"
)

// errRepeated: there is a run of this name.
var errRepeated = errors.New("the run exists")

// Service is the Workflows service of a global server.
type Service struct {
	nusav1.UnimplementedWorkflowsServer
	// Current returns the book of the present term, or nil if this server is not active.
	Current func() *Book
}

// book returns the book once its records are read.
func (s *Service) book(ctx context.Context) (*Book, error) {
	b := s.Current()
	if b == nil {
		return nil, state.RPCErrors.Err(state.ErrNotActive)
	}
	return b, state.AwaitRecords(ctx, b.term.Context.Done(), b.ready)
}

func invalid(field, format string, args ...any) error {
	return rpcerr.Invalid(&nusav1.Problem{Field: field, Message: fmt.Sprintf(format, args...)})
}

// refKey returns the key that a reference names.
func refKey(field string, ref *nusav1.JobRef) (state.JobKey, error) {
	k := state.JobKey{Namespace: ref.GetNamespace(), Name: ref.GetName()}
	if k.Namespace == "" {
		k.Namespace = job.DefaultNamespace
	}
	if !job.ValidReference(k.Name) || !job.ValidName(k.Namespace) || ref.GetRegion() != "" {
		return k, invalid(field, "must be NAME or NAMESPACE/NAME of the federation")
	}
	return k, nil
}

// found returns a run.
func (s *Service) found(ctx context.Context, ref *nusav1.JobRef) (*Book, *run, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, nil, err
	}
	k, err := refKey("run", ref)
	if err != nil {
		return nil, nil, err
	}
	b.st.Lock()
	defer b.st.Unlock()
	r := b.runs[k]
	if r != nil && !r.forgetting {
		return b, r, nil
	}
	text := fmt.Sprintf("there is no run %s: `nusa workflow list` shows the runs", k)
	if len(b.byWorkflow[k]) > 0 {
		text = fmt.Sprintf("%s is a workflow: name one of its runs, such as %s", k, slices.Sorted(maps.Keys(b.byWorkflow[k]))[0])
	}
	return nil, nil, rpcerr.NotFound(kindRun, k.String(), text)
}

// Run implements nusav1.WorkflowsServer.
func (s *Service) Run(ctx context.Context, req *nusav1.RunWorkflowRequest) (*nusav1.WorkflowRun, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	k, err := refKey("job.name", req.GetJob())
	if err != nil {
		return nil, err
	}
	record, spec, err := b.workflow(k)
	if err != nil {
		return nil, err
	}
	return b.runBy(ctx, k, record, spec, given{"parameters", req.GetParameters(), req.GetPayload(), req.GetIdempotencyKey()})
}

// given is what a caller gives to a run. field is the name of the parameters in the request.
type given struct {
	field   string
	params  map[string]string
	payload []byte
	key     string
}

// runBy begins a run that a caller asks for.
func (b *Book) runBy(ctx context.Context, k state.JobKey, record *state.Record, spec *nusav1.JobSpec, by given) (*nusav1.WorkflowRun, error) {
	if len(by.key) > maxKey || strings.ContainsRune(by.key, 0) {
		return nil, invalid("idempotency_key", "must be at most %d bytes", maxKey)
	}
	if err := checkPayload(spec, by.payload); err != nil {
		return nil, err
	}
	p, err := prepare(b, k, record, spec, by)
	if err != nil {
		return nil, err
	}
	p.rec.Run.Trigger = nusav1.JobRunTrigger_JOB_RUN_TRIGGER_DISPATCH
	if by.key != "" {
		p.rec.Fingerprint = fingerprintOf(by.params, by.payload)
	}
	for range names {
		name := state.JobKey{Namespace: k.Namespace, Name: k.Name + string(job.RunMark) + runID(by.key)}
		_, err = b.term.Commit.SubmitBy(recorder.Of(ctx), func(t *state.Tx) error { return b.beginAsked(t, name, p) })(ctx)
		if !errors.Is(err, errRepeated) || by.key != "" {
			return b.begun(name, p.rec.GetFingerprint(), err)
		}
	}
	return nil, status.Errorf(codes.Unavailable, "no free name for a run of %s: run it again", k)
}

// runID returns the id of a run. The same idempotency key gives the same id.
func runID(key string) string {
	if key != "" {
		sum := sha256.Sum256([]byte(key))
		return "k" + hex.EncodeToString(sum[:6])
	}
	var id [4]byte
	_, _ = rand.Read(id[:]) // it never fails
	return hex.EncodeToString(id[:])
}

// fingerprintOf returns a hash of what a caller gives to a run.
func fingerprintOf(params map[string]string, payload []byte) []byte {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(params)) {
		_, _ = h.Write([]byte(name + "\x00" + params[name] + "\x00"))
	}
	_, _ = h.Write(payload)
	return h.Sum(nil)
}

// workflow returns the stored record of a workflow that runs can be begun of.
func (b *Book) workflow(k state.JobKey) (*state.Record, *nusav1.JobSpec, error) {
	b.st.Lock()
	j := b.st.Jobs[k]
	b.st.Unlock()
	switch {
	case j == nil || j.Record == nil:
		return nil, nil, rpcerr.NotFound(rpcerr.KindJob, k.String(), fmt.Sprintf("job %s does not exist", k))
	case j.Record.Type() != place.Workflow:
		return nil, nil, status.Errorf(codes.FailedPrecondition, "job %s is no workflow%s", k, beginsBy(k.Name, j.Record.Spec()))
	case j.Record.Stopped():
		return nil, nil, status.Errorf(codes.FailedPrecondition, "workflow %s is stopped: run its file again", k)
	}
	return j.Record, j.Record.Spec(), nil
}

// beginsBy says how a run of a job that is no workflow begins.
func beginsBy(name string, spec *nusav1.JobSpec) string {
	switch {
	case spec.GetParameterized() != nil:
		return ": begin a run with nusa job dispatch " + name
	case spec.GetSchedule() != nil:
		return ": begin a run with nusa job schedule trigger " + name
	}
	return ", so it has no runs: nusa job status " + name
}

// definition returns the definition of a spec.
func (b *Book) definition(namespace, id string, spec *nusav1.JobSpec) (*definition, error) {
	b.st.Lock()
	def := b.defs[namespace+"/"+id]
	b.st.Unlock()
	if def != nil {
		return def, nil
	}
	return define(spec)
}

// checkParameters checks the parameters of a run.
func checkParameters(field string, spec *nusav1.JobSpec, given map[string]string) error {
	known := spec.GetWorkflow().GetParameters()
	sum := 0
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if known[name] == nil {
			return invalid(field, "the workflow has no parameter %q; it has %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if err := job.CheckValue(given[name]); err != nil {
			return invalid(field, "%s %s", name, err)
		}
		sum += len(name) + len(given[name])
	}
	if sum > job.MaxMetaSum {
		return invalid(field, "have %d bytes, at most %d are allowed", sum, job.MaxMetaSum)
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if _, is := given[name]; !is && known[name].Default == nil {
			return invalid(field, "%s is missing: it has no default", name)
		}
	}
	values, checked := parameters(spec, given), map[string]bool{}
	for _, s := range spec.GetWorkflow().GetSteps() {
		p := s.GetForeach().GetParameter()
		if p == "" || checked[p] {
			continue
		}
		checked[p] = true
		if _, err := job.ItemsOf(values[p]); err != nil {
			return invalid(field, "%s %s", p, err)
		}
	}
	return nil
}

// beginAsked adds a run that a caller asks for to a transaction.
func (b *Book) beginAsked(t *state.Tx, k state.JobKey, p *prepared) error {
	if err := begin(b, t, k, p); err != nil {
		return err
	}
	return t.Audit(audit.Entry{Verb: "dispatch", Kind: "job", Namespace: p.of.Namespace, Name: p.of.Name, Reason: "run " + k.Name})
}

// begun answers a request to begin a run.
func (b *Book) begun(k state.JobKey, fingerprint []byte, err error) (*nusav1.WorkflowRun, error) {
	if err != nil && !errors.Is(err, errRepeated) {
		return nil, api.StatusOf(err)
	}
	b.st.Lock()
	defer b.st.Unlock()
	r := b.runs[k]
	switch {
	case r == nil:
		return nil, status.Errorf(codes.Unavailable, "run %s is not stored yet, or was forgotten: try again", k)
	case err != nil && string(r.rec.GetFingerprint()) != string(fingerprint):
		return nil, status.Errorf(codes.AlreadyExists, "the idempotency key was used for run %s with other values", k)
	}
	return messageOf(b, r), nil
}

// change commits a change of a run that a caller asks for, with an entry of the audit trail.
func (b *Book) change(ctx context.Context, r *run, verb, reason string, change func(*state.Tx) error) (*nusav1.WorkflowRun, error) {
	r.one.Lock()
	defer r.one.Unlock()
	err := schedules.Recalling(ctx, b.term, func() error {
		_, err := b.term.Commit.SubmitBy(recorder.Of(ctx), func(t *state.Tx) error {
			if err := b.may(); err != nil {
				return status.Error(codes.FailedPrecondition, err.Error())
			}
			if b.runs[r.key] != r || r.forgetting {
				return rpcerr.NotFound(kindRun, r.key.String(), fmt.Sprintf("run %s was forgotten", r.key))
			}
			if err := change(t); err != nil {
				return err
			}
			return t.Audit(audit.Entry{Verb: verb, Kind: "job", Namespace: r.key.Namespace, Name: r.key.Name, Reason: reason})
		})(ctx)
		return err
	})
	if err != nil {
		return nil, api.StatusOf(err)
	}
	b.st.Lock()
	defer b.st.Unlock()
	b.clock.Sooner(r, time.Now())
	b.st.Templates.StepWake.Notify()
	return messageOf(b, r), nil
}

// Cancel implements nusav1.WorkflowsServer.
func (s *Service) Cancel(ctx context.Context, req *nusav1.CancelWorkflowRequest) (*nusav1.WorkflowRun, error) {
	if len(req.GetReason()) > maxReason {
		return nil, invalid("reason", "has %d bytes, at most %d are allowed", len(req.GetReason()), maxReason)
	}
	b, r, err := s.found(ctx, req.GetRun())
	if err != nil {
		return nil, err
	}
	return b.change(ctx, r, "cancel", req.GetReason(), func(t *state.Tx) error {
		switch r.rec.GetRun().GetState() {
		case nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELING, nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELED:
			return nil
		case nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_EXITING:
			step, how := r.def.graph.OnExit, "stop its job"
			if r.inner(step) {
				how = "cancel its run"
			}
			return status.Errorf(codes.FailedPrecondition, "only the step on_exit of run %s still runs: %s %s", r.key, how, r.childName(step, 0, int(r.recs[step][0].GetAttempts())))
		}
		if !r.live() {
			return status.Errorf(codes.FailedPrecondition, "run %s has ended", r.key)
		}
		next := proto.CloneOf(r.rec)
		next.Run.State, next.Run.Message = nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELING, "by a caller"+prefixed(": ", req.GetReason())
		return state.PutOther(t, runKey(r.key), next)
	})
}

// Retry implements nusav1.WorkflowsServer.
func (s *Service) Retry(ctx context.Context, req *nusav1.RetryWorkflowRequest) (*nusav1.WorkflowRun, error) {
	b, r, err := s.found(ctx, req.GetRun())
	if err != nil {
		return nil, err
	}
	return b.change(ctx, r, "dispatch", "again from step "+req.GetFrom(), func(t *state.Tx) error {
		switch {
		case r.live():
			return status.Errorf(codes.FailedPrecondition, "run %s has not ended: wait for its end, or cancel it", r.key)
		case b.active >= mostActive:
			return status.Errorf(codes.ResourceExhausted, "%d runs of workflows have not ended, the most there may be: wait for the end of some", b.active)
		}
		if root, path := pathOf(b, r); root != r {
			return status.Errorf(codes.FailedPrecondition, "run %s is a part of run %s: retry that one, from %s/%s", r.key, root.key, path, req.GetFrom())
		}
		next, err := resetting(b, r, req.GetFrom())
		if err != nil {
			return err
		}
		return state.PutOther(t, runKey(r.key), next)
	})
}

// awaited is the end of an error. It names the steps of a run that wait for an approval. The lock is held.
func awaited(r *run) string {
	var names []string
	for i := range r.snap.Steps {
		if r.snap.Steps[i].Items[0].Stage == flow.Approval {
			names = append(names, r.def.graph.Steps[i].Name)
		}
	}
	if len(names) == 0 {
		return fmt.Sprintf(": `nusa workflow status %s` shows its steps", r.key.Name)
	}
	return ": those that wait are " + topo.ListNames(names)
}

// Approve implements nusav1.WorkflowsServer.
func (s *Service) Approve(ctx context.Context, req *nusav1.ApproveWorkflowRequest) (*nusav1.WorkflowRun, error) {
	if len(req.GetReason()) > maxReason {
		return nil, invalid("reason", "has %d bytes, at most %d are allowed", len(req.GetReason()), maxReason)
	}
	b, r, err := s.found(ctx, req.GetRun())
	if err != nil {
		return nil, err
	}
	b.st.Lock()
	in, step, err := at(b, r, "step", req.GetStep())
	if err != nil && in != nil {
		err = invalid("step", "run %s has no step %q%s", in.key, step, awaited(in))
	}
	b.st.Unlock()
	if err != nil {
		return nil, err
	}
	r = in
	i, _ := r.def.graph.Index(step)
	verb, who := "approve", recorder.Of(ctx).Who
	if req.GetReject() {
		verb = "reject"
	}
	return b.change(ctx, r, verb, "step "+step+prefixed(": ", req.GetReason()), func(t *state.Tx) error {
		old := r.recs[i][0]
		if r.snap.Steps[i].Items[0].Stage != flow.Approval || r.snap.Phase != flow.Running {
			return status.Errorf(codes.FailedPrecondition, "step %s of run %s does not wait for an approval%s", step, r.key, awaited(r))
		}
		next := &nusav1.WorkflowStepRecord{Began: old.GetBegan(), Round: r.rec.GetRound(), Attempts: old.GetAttempts()}
		if req.GetReject() {
			next.State, next.Ended = nusav1.StepState_STEP_STATE_FAILED, timestamppb.Now()
			next.Message = "refused" + prefixed(" by ", who) + prefixed(": ", req.GetReason())
		} else {
			next.State, next.Approved = nusav1.StepState_STEP_STATE_PENDING, true
			next.Message = "approved" + prefixed(" by ", who) + prefixed(": ", req.GetReason())
		}
		next.Message = clip(next.GetMessage())
		return state.PutOther(t, r.stepKey(i, 0, false), next)
	})
}
