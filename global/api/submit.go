package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/failover"
	"github.com/nusa-scheduler/nusa/global/forms"
	"github.com/nusa-scheduler/nusa/global/placer"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/submits"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/internal/versions"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// maxIdempotencyKey bounds an idempotency key in bytes.
const maxIdempotencyKey = 128

// SubmitEncoded implements submits.Jobs.
func (j *jobsAPI) SubmitEncoded(ctx context.Context, req *submits.Request) (*nusav1.SubmitResponse, error) {
	term, err := j.s.term()
	if err != nil {
		return nil, err
	}
	resp, err := submit(ctx, term, req, recallTries)
	return resp, rpcError(err)
}

// submit stores a job. It tries at most this many times.
func submit(ctx context.Context, term *Term, req *submits.Request, tries int) (*nusav1.SubmitResponse, error) {
	finish, err := beginSubmit(ctx, term, req, tries, term.Commit.SubmitBy)
	if err != nil {
		return nil, err
	}
	return finish(ctx)
}

// SubmitWith stores a new job, and what `also` adds to the same transaction. The job must not exist
// (ABORTED). The caller needs the right of the present call for the job.
func SubmitWith(ctx context.Context, term *Term, spec *nusav1.JobSpec, also func(*state.Tx) error) error {
	raw, err := proto.Marshal(&nusav1.SubmitRequest{Spec: spec, CheckRevision: -1})
	if err != nil {
		return fmt.Errorf("encode the job: %w", err)
	}
	queue := func(by audit.Call, prepare func(*state.Tx) error) (wait func(context.Context) (int64, error)) {
		return term.Commit.SubmitBy(by, func(t *state.Tx) error {
			if err := also(t); err != nil {
				return err
			}
			return prepare(t)
		})
	}
	for range recallTries { // beginSubmit gets one try, because it would leave out `also` in the next one
		finish, e := beginSubmit(ctx, term, submits.NewRequest(raw), 1, queue)
		if err = e; err == nil {
			_, err = finish(ctx)
		}
		if !errors.Is(err, state.ErrRecall) {
			break
		}
	}
	return err
}

// CheckSubmit fills in the defaults of a spec, and returns an error if it is not valid, or if the caller of the
// present call may not submit it.
func CheckSubmit(ctx context.Context, term *Term, spec *nusav1.JobSpec) error {
	if err := checkSpec(term, spec); err != nil {
		return cmp.Or(rights.MaySubmit(ctx, spec.GetNamespace(), spec.GetName()), rpcError(err))
	}
	return rights.Plan(ctx, term.State.Auth.Load, spec, "")
}

// SubmitFor begins a submit that no call makes, for example one by a message. by is the caller for the audit
// trail. ctx has the rights: see rights.With. Submits take effect in the order in which they began. finish
// waits for the result, which is a status. FAILED_PRECONDITION is about the job, never about the server.
func SubmitFor(ctx context.Context, term *Term, req *nusav1.SubmitRequest, by audit.Call) (finish func(context.Context) error) {
	raw, err := proto.Marshal(req)
	if err != nil {
		return func(context.Context) error { return fmt.Errorf("encode the job: %w", err) }
	}
	begin := func() (finishSubmit, error) {
		return beginSubmit(ctx, term, submits.NewRequest(raw), 1, func(_ audit.Call, prepare func(*state.Tx) error) (wait func(context.Context) (int64, error)) {
			return term.Commit.SubmitBy(by, prepare)
		})
	}
	wait, err := begin()
	return func(ctx context.Context) error {
		for range recallTries {
			if err == nil {
				_, err = wait(ctx)
			}
			if !errors.Is(err, state.ErrRecall) {
				break
			}
			wait, err = begin()
		}
		if errors.Is(err, state.ErrConflict) {
			return status.Error(codes.Unavailable, err.Error())
		}
		return rpcError(err)
	}
}

// Submit stores a job like Jobs.Submit. The caller needs the right of the present call for the job.
func Submit(ctx context.Context, term *Term, req *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	raw, err := proto.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("encode the job: %w", err)
	}
	resp, err := submit(ctx, term, submits.NewRequest(raw), recallTries)
	return resp, rpcError(err)
}

// queueSubmit is Committer.SubmitBy, or waits for room.
type queueSubmit func(by audit.Call, prepare func(*state.Tx) error) (wait func(context.Context) (int64, error))

// finishSubmit waits for the result of a submit that was queued.
type finishSubmit func(context.Context) (*nusav1.SubmitResponse, error)

// beginSubmit checks everything in the request, so that a refusal changes nothing, and queues the
// write. Submits take effect in the order in which they began. If the submit cannot be decided with
// what was read first, it begins again, up to this many tries in all.
func beginSubmit(ctx context.Context, term *Term, req *submits.Request, tries int, queue queueSubmit) (finishSubmit, error) {
	f, err := req.Fields()
	if err != nil {
		return nil, err
	}
	name, spec, err := term.spec(f.Spec)
	if err != nil {
		return nil, cmp.Or(rights.MaySubmitEncoded(ctx, f.Spec), err)
	}
	err = rights.Submit(ctx, term.State.Auth.Load, rights.Submission{Namespace: spec.namespace, Name: name, Encoded: spec.rest, Asked: spec.asked})
	if err != nil {
		return nil, err
	}
	if f.Tag != "" && versions.CheckTag(f.Tag) != nil {
		return nil, invalid("tag", versions.ErrTag.Error())
	}
	key := f.Key
	if len(key) > maxIdempotencyKey || strings.ContainsAny(key, "/\x00") {
		return nil, invalid("idempotency_key", fmt.Sprintf("must be at most %d bytes without a slash", maxIdempotencyKey))
	}
	submission := state.Submission{Spec: spec.parsed, Encoded: submits.WithName(name, spec.rest), CheckRevision: f.CheckRevision, Again: f.Again, Tag: f.Tag}
	hash := sha256.Sum256(submission.Encoded)
	submission.Hash = hash[:]
	var fingerprint []byte
	if key != "" {
		fingerprint = fingerprintOf(submission)
		if resp, err := term.State.Answers.Find(ctx, term.Store, key, fingerprint); resp != nil || err != nil {
			return func(context.Context) (*nusav1.SubmitResponse, error) { return resp, err }, nil
		}
	}
	k := state.JobKey{Namespace: spec.namespace, Name: name}
	if err := state.Recall(ctx, term.State, term.Store, k); err != nil {
		return nil, err
	}
	var resp *nusav1.SubmitResponse
	wait := queue(recorder.Of(ctx), func(t *state.Tx) error {
		var err error
		resp, err = t.SubmitJob(k, submission)
		if err != nil || key == "" {
			return err
		}
		return t.RecordAnswer(key, fingerprint, resp)
	})
	return func(ctx context.Context) (*nusav1.SubmitResponse, error) {
		revision, err := wait(ctx)
		if errors.Is(err, state.ErrAnswered) {
			if resp, err := term.State.Answers.Find(ctx, term.Store, key, fingerprint); resp != nil || err != nil {
				return resp, err
			}
			// The key was used so long ago that the store has dropped the record.
			err = state.ErrRecall
		}
		switch {
		case errors.Is(err, state.ErrRecall) && tries > 1: // the job has left memory meanwhile
			return submit(ctx, term, req, tries-1)
		case err != nil:
			return nil, err
		}
		noteSubmitted(term, k, resp, revision)
		resp.Warnings = append(append(resp.Warnings, spec.warnings...), overWarning(spec.schedule)...)
		resp.Warnings = append(resp.Warnings, term.unmatched(spec.rules)...)
		if resp.GetChanged() && resp.GetVersion() > 1 {
			resp.Warnings = append(resp.Warnings, placer.BrokenBounds(term.State, k)...)
		}
		return resp, nil
	}, nil
}

// checkedSpec is a checked spec without the job's name.
type checkedSpec struct {
	parsed    *state.Spec
	rest      []byte // the encoded spec with the defaults, without the name
	namespace string
	warnings  []string
	// asked remembers what policies ask about the spec.
	asked *rights.Asked
	// regions are the regions that the spec names. All of them existed when the spec was checked.
	regions []string
	// rules name labels or domains, which may come and go.
	rules []job.Rule
	// longestName bounds the names of jobs with the spec. schedule is nil without one.
	longestName int
	schedule    *nusav1.Schedule
	// formsAt is the version of the regions' forms that was checked. Nil: all drivers are built in.
	formsAt *atomic.Uint64
}

// overWarning warns of a valid schedule that has no time left.
func overWarning(s *nusav1.Schedule) []string {
	if s == nil || len(nextRuns(s, 1)) > 0 {
		return nil
	}
	return []string{"the schedule has no time from now on: see its start, end and exclude"}
}

// unmatched warns of rules with labels that no region has, or with domains that no region serves.
func (t *Term) unmatched(rules []job.Rule) []string {
	if len(rules) == 0 {
		return nil
	}
	t.State.Lock()
	defer t.State.Unlock()
	return state.Unmatched(t.State, rules)
}

// spec checks an encoded spec, and returns the job's name and the rest of the spec.
func (t *Term) spec(raw []byte) (name string, spec *checkedSpec, err error) {
	name, spec, err = t.specs.Get(raw, t.parseSpec)
	if err != nil || t.hasRegions(spec.regions) && len(name) <= spec.longestName && !t.newForms(spec) {
		return name, spec, err
	}
	decoded := &nusav1.JobSpec{}
	if err := proto.Unmarshal(raw, decoded); err != nil {
		return "", nil, invalid("spec", err.Error())
	}
	formsAt := t.formsVersion()
	if err := checkSpec(t, decoded); err != nil {
		return name, spec, err // it names the missing region, the name, or a plugin's config
	}
	if spec.formsAt != nil {
		spec.formsAt.Store(formsAt)
	}
	return name, spec, nil
}

// newForms reports whether the config of a plugin must be checked again.
func (t *Term) newForms(spec *checkedSpec) bool {
	return spec.formsAt != nil && t.formsVersion() != spec.formsAt.Load()
}

func (t *Term) formsVersion() uint64 {
	t.State.Lock()
	defer t.State.Unlock()
	return t.State.Forms.Version()
}

// hasRegions reports whether all the named regions exist.
func (t *Term) hasRegions(names []string) bool {
	if len(names) == 0 {
		return true
	}
	t.State.Lock()
	defer t.State.Unlock()
	return !slices.ContainsFunc(names, func(name string) bool { return t.State.Regions[name] == nil })
}

// parseSpec checks a spec. It returns the value for the cache, and the size of the encoded spec.
func (t *Term) parseSpec(spec *nusav1.JobSpec) (checkedSpec, int, error) {
	var formsAt *atomic.Uint64
	if forms.Any(spec) {
		formsAt = &atomic.Uint64{}
		formsAt.Store(t.formsVersion())
	}
	if err := checkSpec(t, spec); err != nil {
		return checkedSpec{}, 0, err
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		return checkedSpec{}, 0, fmt.Errorf("encode the job: %w", err)
	}
	_, rest, _ := submits.CutName(encoded)
	return checkedSpec{
		parsed: state.NewSpec(spec), rest: rest, asked: &rights.Asked{}, namespace: spec.GetNamespace(), warnings: job.Warnings(spec), regions: job.Regions(spec),
		rules: job.Rules(spec), longestName: job.LongestName(spec), schedule: spec.GetSchedule(), formsAt: formsAt,
	}, len(rest), nil
}

// noteSubmitted completes the response of a submit, and logs the submit.
func noteSubmitted(term *Term, k state.JobKey, resp *nusav1.SubmitResponse, revision int64) {
	if resp.GetRevision() == 0 {
		resp.Revision = revision
	}
	if resp.GetChanged() {
		term.Log.Debug("job submitted", "job", k.String(), "version", resp.GetVersion(), "revision", revision)
	}
}

// checkSpec fills in the defaults and checks a spec. Its error names all problems.
func checkSpec(term *Term, spec *nusav1.JobSpec) error {
	if spec == nil {
		return invalid("spec", "is required")
	}
	if n := proto.Size(spec); n > job.MaxSize {
		return invalid("spec", fmt.Sprintf("has %d bytes, at most %d are taken", n, job.MaxSize))
	}
	job.Default(spec)
	if err := job.Validate(spec); err != nil {
		return err
	}
	if problems := job.Unsupported(spec); len(problems) > 0 {
		return problems
	}
	if problems := nestedWrongly(term, spec); len(problems) > 0 {
		return problems
	}
	term.State.Lock()
	defer term.State.Unlock()
	if job.IsTemplate(spec) && term.State.GlobalLevel < state.TemplateLevel {
		return job.Errors{{Message: "some global servers have an earlier version of Nusa, which knows neither schedule nor parameterized: upgrade them first", Reason: nusav1.Reason_REASON_UNSUPPORTED}}
	}
	if spec.GetWorkflow() != nil && term.State.GlobalLevel < state.WorkflowLevel {
		return job.Errors{{Field: "workflow", Message: "some global servers have an earlier version of Nusa, which knows no workflows: upgrade them first", Reason: nusav1.Reason_REASON_UNSUPPORTED}}
	}
	if step := job.FirstStep(spec, func(s *nusav1.Step) bool { return len(job.UsesOf(s)) > 0 }); step != "" && term.State.GlobalLevel < state.OutputLevel {
		return job.Errors{{Field: "workflow.steps." + step, Message: "some global servers have an earlier version of Nusa, which knows no outputs: upgrade them first", Reason: nusav1.Reason_REASON_UNSUPPORTED}}
	}
	if step := job.FirstStep(spec, func(s *nusav1.Step) bool { return len(s.GetSemaphores()) > 0 || s.GetData() != nil }); step != "" && term.State.GlobalLevel < state.StepNeedsLevel {
		return job.Errors{{Field: "workflow.steps." + step, Message: "some global servers have an earlier version of Nusa, which knows neither semaphores nor data: upgrade them first", Reason: nusav1.Reason_REASON_UNSUPPORTED}}
	}
	if problems := laterWorkflow(spec, term.State.GlobalLevel); len(problems) > 0 {
		return problems
	}
	if problems := missingSemaphores(term, spec); len(problems) > 0 {
		return problems
	}
	for name, g := range spec.GetGroups() {
		other := func(r *nusav1.RetryRule) bool { return r.GetOther() == nusav1.RetryOther_RETRY_OTHER_REGION }
		if slices.ContainsFunc(g.GetRetry().GetRules(), other) && term.State.GlobalLevel < state.AttemptsLevel {
			return job.Errors{{Field: "groups." + name + ".retry.rules", Message: "some global servers have an earlier version of Nusa, which does not know other: region: upgrade them first", Reason: nusav1.Reason_REASON_UNSUPPORTED}}
		}
		if g.GetParallel() > 0 && term.State.GlobalLevel < state.ParallelLevel {
			return job.Errors{{Field: "groups." + name + ".parallel", Message: "some global servers have an earlier version of Nusa, which does not know it: upgrade them first", Reason: nusav1.Reason_REASON_UNSUPPORTED}}
		}
	}
	if problems := missingGPUs(term, spec); len(problems) > 0 {
		return problems
	}
	if problems := state.WrongConfigs(term.State, spec); len(problems) > 0 {
		return problems
	}
	if problems := job.Unnoticed(spec, failover.Notice(term.State.Sessions.Lease)); len(problems) > 0 {
		return problems
	}
	problems := job.UnknownRegions(spec, term.State.RegionNames())
	for i := range problems {
		problems[i].Message += " (regions: " + topo.ListNames(term.State.RegionNames()) + ")"
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}

// missingGPUs refuses a spec that asks for accelerators if every region says that it has no such
// accelerators. The lock is held.
func missingGPUs(term *Term, spec *nusav1.JobSpec) job.Errors {
	if !job.AsksGPUs(spec) {
		return nil
	}
	have, known := state.Accelerators(term.State)
	if !known {
		return nil
	}
	return job.MissingGPUs(spec, have, "no region")
}

// missingSemaphores returns the problems of steps whose semaphores do not exist, or have too few units. The lock is
// held.
func missingSemaphores(term *Term, spec *nusav1.JobSpec) (out job.Errors) {
	for at, of := range job.Inside(spec) {
		for _, name := range slices.Sorted(maps.Keys(of.GetWorkflow().GetSteps())) {
			for _, p := range missingOf(term, spec.GetNamespace(), of.GetWorkflow().GetSteps()[name]) {
				p.Field = "workflow.steps." + at + name + ".semaphores"
				out = append(out, p)
			}
		}
	}
	return out
}

func missingOf(term *Term, namespace string, s *nusav1.Step) (out job.Errors) {
	for _, of := range s.GetSemaphores() {
		switch units := term.State.Templates.Semaphores[state.JobKey{Namespace: namespace, Name: of.GetName()}]; {
		case units == 0:
			out = append(out, job.Problem{Message: fmt.Sprintf("there is no semaphore %s in namespace %s: nusa semaphore set %s --units N", of.GetName(), namespace, of.GetName())})
		case of.GetUnits() > units:
			out = append(out, job.Problem{Message: fmt.Sprintf("needs %d units of semaphore %s, which has %d: nusa semaphore set %s --units N", of.GetUnits(), of.GetName(), units, of.GetName())})
		}
	}
	return out
}

// fingerprintOf returns a hash of a request. Different requests have different hashes.
func fingerprintOf(s state.Submission) []byte {
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(s.CheckRevision)))
	if s.Again {
		h.Write([]byte("again"))
	}
	if s.Tag != "" {
		h.Write([]byte("tag " + s.Tag + "\x00"))
	}
	h.Write(s.Encoded)
	return h.Sum(nil)
}

// SubmitManyEncoded implements submits.Jobs. Several submits wait at the same time, so they share
// transactions.
func (j *jobsAPI) SubmitManyEncoded(stream grpc.BidiStreamingServer[submits.Request, nusav1.SubmitManyResponse]) error {
	term, err := j.s.term()
	if err != nil {
		return err
	}
	return serve.SubmitMany(stream, term.Context.Done(), rpcError(state.ErrNotActive), func(ctx context.Context, req *submits.Request) serve.FinishSubmit {
		finish, err := beginSubmit(ctx, term, req, recallTries, func(by audit.Call, prepare func(*state.Tx) error) (wait func(context.Context) (int64, error)) {
			return term.Commit.SubmitStream(ctx, by, prepare)
		})
		return func(ctx context.Context) (*nusav1.SubmitResponse, error) {
			if err != nil {
				return nil, rpcError(err)
			}
			resp, err := finish(ctx)
			return resp, rpcError(err)
		}
	})
}

// laterWorkflow refuses what servers of a feature level do not know of workflows.
func laterWorkflow(spec *nusav1.JobSpec, level uint32) job.Errors {
	field, needs := "", uint32(0)
	runs := job.FirstStep(spec, func(s *nusav1.Step) bool { return s.GetWorkflow() != "" })
	inline := job.FirstStep(spec, func(s *nusav1.Step) bool { return s.GetInline() != nil })
	switch {
	case spec.GetWorkflow() == nil:
	case inline != "":
		field, needs = "workflow.steps."+inline+".inline", state.InlineLevel
	case spec.GetParameterized() != nil:
		field, needs = "parameterized", state.InlineLevel
	case runs != "":
		field, needs = "workflow.steps."+runs+".workflow", state.NestedLevel
	case len(spec.GetWorkflow().GetOutputs()) > 0:
		field, needs = "workflow.outputs", state.NestedLevel
	case spec.GetSchedule() != nil:
		field, needs = "schedule", state.ScheduledLevel
	}
	if level >= needs {
		return nil
	}
	return job.Errors{{Field: field, Message: "some global servers have an earlier version of Nusa, which does not know it in a workflow: upgrade them first", Reason: nusav1.Reason_REASON_UNSUPPORTED}}
}

// nestedWrongly refuses a workflow that contains itself inside others, or too many of them. Those that are not stored
// yet may come later: the beginning of a run checks again.
func nestedWrongly(term *Term, spec *nusav1.JobSpec) job.Errors {
	kind := ".workflow"
	first := job.FirstStep(spec, func(s *nusav1.Step) bool {
		if s.GetInline() != nil {
			kind = ".inline"
		}
		return s.GetWorkflow() != "" || s.GetInline() != nil
	})
	if first == "" {
		return nil
	}
	_, err := job.Contained(spec, func(name string) (*nusav1.JobSpec, error) {
		term.State.Lock()
		j := term.State.Jobs[state.JobKey{Namespace: spec.GetNamespace(), Name: name}]
		term.State.Unlock()
		if j == nil || j.Record == nil {
			return nil, nil
		}
		return j.Record.Spec(), nil
	})
	if err == nil {
		return nil
	}
	return job.Errors{{Field: "workflow.steps." + first + kind, Message: err.Error()}}
}
