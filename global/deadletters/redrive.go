package deadletters

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// reserved begins the names of the variables that no job file may set.
const reserved = "NUSA_"

// variables are the values of reserved variables of a run, by task. A run has them in its spec.
type variables map[string]map[string]string

// spec returns the job that runs the instance of a dead letter again, as a caller could submit it, and the
// reserved variables of its tasks.
func specOf(ctx context.Context, b *Book, l *nusav1.DeadLetter) (*nusav1.JobSpec, variables, error) {
	kv, ok, _, err := b.cfg.Term.Store.Get(ctx, specKey(sourceOf(l)))
	if err != nil {
		return nil, nil, state.RPCErrors.Err(err)
	}
	rec, spec := &nusav1.DeadLetterSource{}, &nusav1.JobSpec{}
	if ok {
		err = state.Decode(kv, rec)
	}
	var raw []byte
	if err == nil && ok {
		raw, err = compact.Unpack(rec.GetSpec())
	}
	if err == nil {
		err = proto.Unmarshal(raw, spec)
	}
	if err != nil {
		return nil, nil, state.RPCErrors.Err(err)
	}
	g := spec.GetGroups()[l.GetGroup()]
	if g == nil {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "the spec of job %s is not stored any more: redrive with a job file", jobOf(l))
	}
	vars := reduce(spec, l, g)
	return spec, vars, nil
}

// labelsIn returns the labels of a packed spec. A spec that cannot be read has none.
func labelsIn(packed []byte) map[string]string {
	spec := &nusav1.JobSpec{}
	raw, err := compact.Unpack(packed)
	if err != nil || proto.Unmarshal(raw, spec) != nil {
		return nil
	}
	return spec.GetLabels()
}

// reduce changes a spec into the spec of one instance of a group. It removes the reserved variables and returns
// them.
func reduce(spec *nusav1.JobSpec, l *nusav1.DeadLetter, g *nusav1.Group) variables {
	base, _, _ := strings.Cut(l.GetJob(), string(job.RunMark))
	spec.Namespace, spec.Name = l.GetNamespace(), base
	spec.Groups, spec.Colocate, spec.Schedule, spec.Parameterized = map[string]*nusav1.Group{l.GetGroup(): g}, nil, nil, nil
	g.Count, g.Parallel = proto.Int32(1), 0
	for _, r := range []*nusav1.RegionsSpec{spec.GetRegions(), g.GetRegions()} {
		if r != nil {
			r.Spread = nil
		}
	}
	vars := variables{}
	for name, t := range g.GetTasks() {
		of := map[string]string{}
		for k, v := range t.GetEnv() {
			if strings.HasPrefix(k, reserved) {
				of[k] = v
			}
		}
		maps.DeleteFunc(t.GetEnv(), func(k, _ string) bool { return of[k] != "" || strings.HasPrefix(k, reserved) })
		if len(of) > 0 {
			vars[name] = of
		}
	}
	giveOutput(spec, l, vars)
	return vars
}

const (
	outputVariable = reserved + "OUTPUT"
	// outputOfRedrive is a file in the folder of the task.
	outputOfRedrive = "${" + reserved + "TASK_DIR}/nusa-output"
)

// giveOutput lets a job that replaces the job of a step of a workflow write an output. An agent gives the file only
// to the jobs of steps. No step reads the output of a redrive.
func giveOutput(spec *nusav1.JobSpec, l *nusav1.DeadLetter, vars variables) {
	if !job.OfStep(l.GetJob()) {
		return
	}
	for _, g := range spec.GetGroups() {
		for name, t := range g.GetTasks() {
			schedules.Fill(t, map[string]string{outputVariable: outputOfRedrive})
			delete(t.Env, outputVariable) // complete sets it
			if vars[name] == nil {
				vars[name] = map[string]string{}
			}
			vars[name][outputVariable] = outputOfRedrive
		}
	}
}

// complete gives the tasks of a checked spec their reserved variables, and the number of the instance.
func complete(spec *nusav1.JobSpec, l *nusav1.DeadLetter, vars variables) {
	for _, g := range spec.GetGroups() {
		for name, t := range g.GetTasks() {
			if t.Env == nil && len(vars[name]) > 0 {
				t.Env = map[string]string{}
			}
			maps.Copy(t.GetEnv(), vars[name])
			if l.GetIndex() > 0 {
				schedules.Fill(t, map[string]string{reserved + "INDEX": strconv.Itoa(int(l.GetIndex()))})
			}
		}
	}
	if spec.Labels == nil {
		spec.Labels = map[string]string{}
	}
	spec.Labels[labelRedrive] = l.GetId()
	spec.Name += string(job.RunMark) + "r" + l.GetId()
}

// edited returns an error if a job cannot replace that of a dead letter.
func edited(spec *nusav1.JobSpec) error {
	switch {
	case job.IsTemplate(spec):
		return invalid("spec", "has a schedule, parameters or steps: submit it with nusa job run")
	case len(spec.GetGroups()) != 1:
		return invalid("spec.groups", "has %d groups: a redrive has one", len(spec.GetGroups()))
	}
	for name, g := range spec.GetGroups() {
		if g.Count != nil && g.GetCount() != 1 {
			return invalid("spec.groups."+name+".count", "must be 1: a redrive runs one instance")
		}
	}
	if spec.GetType() != nusav1.JobType_JOB_TYPE_BATCH {
		return invalid("spec.type", "must be batch")
	}
	return nil
}

// Redrive implements nusav1.DeadLettersServer.
func (s *Service) Redrive(ctx context.Context, req *nusav1.RedriveRequest) (*nusav1.DeadLetter, error) {
	b, l, err := s.found(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	base, _, _ := strings.Cut(l.GetJob(), string(job.RunMark))
	if err := rights.MaySubmit(ctx, l.GetNamespace(), base); err != nil {
		return nil, err
	}
	spec, vars, err := specOf(ctx, b, l)
	if given := req.GetSpec(); given != nil {
		spec = proto.CloneOf(given)
		spec.Namespace, spec.Name = l.GetNamespace(), base
		if vars == nil {
			vars = variables{}
		}
		giveOutput(spec, l, vars)
		err = edited(spec)
	}
	if err != nil {
		return nil, err
	}
	if err := api.CheckSubmit(ctx, b.cfg.Term, spec); err != nil {
		return nil, err
	}
	complete(spec, l, vars)
	child, err := schedules.JobOf(spec)
	if err != nil {
		return nil, err
	}
	by := recorder.Of(ctx)
	var out *nusav1.DeadLetter
	err = schedules.Recalling(ctx, b.cfg.Term, func() error {
		_, err := b.cfg.Term.Commit.SubmitBy(by, func(t *state.Tx) (err error) {
			out, err = redrive(t, b, l, child, spec.GetName(), by.Who)
			return err
		})(ctx)
		return err
	})
	if err != nil {
		return nil, api.StatusOf(err)
	}
	return out, nil
}

// redrive stores the job of a redrive and the change of its dead letter. The lock is held.
func redrive(t *state.Tx, b *Book, l *nusav1.DeadLetter, child *schedules.Child, name, by string) (*nusav1.DeadLetter, error) {
	now := b.present(t, l.GetId())
	switch {
	case now == nil:
		return nil, status.Errorf(codes.NotFound, "dead letter %s was dropped", l.GetId())
	case now.GetState() != nusav1.DeadLetterState_DEAD_LETTER_STATE_OPEN:
		return nil, status.Errorf(codes.FailedPrecondition, "dead letter %s was redriven as job %s: see nusa job status %s", l.GetId(), now.GetRedrivenAs(), now.GetRedrivenAs())
	}
	out := proto.CloneOf(now)
	out.State, out.RedrivenAs, out.Redriven, out.RedrivenBy = nusav1.DeadLetterState_DEAD_LETTER_STATE_REDRIVEN, name, timestamppb.Now(), by
	t.EventAt(l.GetRegion(), "deadletter.redriven", jobOf(l).String(), "%s[%d] as job %s: %s", l.GetGroup(), l.GetIndex(), name, l.GetId())
	return out, errors.Join(
		t.Audit(audit.Entry{Verb: "redrive", Kind: kindLetter, Namespace: l.GetNamespace(), Name: l.GetId(), Reason: "as job " + name}),
		state.PutOther(t, letterKey(l.GetId()), &nusav1.DeadLetterRecord{DeadLetter: out}),
		child.Submit(t, l.GetNamespace()))
}
