package api

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/placer"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// Plan implements nusav1.JobsServer: a dry run of the placer.
func (j *jobsAPI) Plan(ctx context.Context, req *nusav1.PlanRequest) (*nusav1.PlanResponse, error) {
	term, err := j.s.term()
	if err != nil {
		return nil, err
	}
	spec := req.GetSpec()
	if err := rights.MaySubmit(ctx, spec.GetNamespace(), spec.GetName()); err != nil {
		return nil, err
	}
	if err := checkSpec(term, spec); err != nil {
		return nil, rpcError(err)
	}
	if err := rights.Plan(ctx, term.State.Auth.Load, spec, ""); err != nil {
		return nil, err
	}
	if err := state.Recall(ctx, term.State, term.Store, state.KeyOf(spec)); err != nil {
		return nil, rpcError(err)
	}
	out, err := placer.DryRun(ctx, term.State, spec)
	if err == nil {
		out.Warnings = append(out.Warnings, term.unmatched(job.Rules(spec))...)
	}
	if err == nil && spec.GetSchedule() != nil {
		out.NextRuns = nextRuns(spec.GetSchedule(), plannedRuns)
		out.Warnings = append(out.Warnings, overWarning(spec.GetSchedule())...)
	}
	return out, rpcError(err)
}

// plannedRuns is how many of the next times a plan shows.
const plannedRuns = 5

// nextRuns returns the next times of a valid schedule, at most so many.
func nextRuns(s *nusav1.Schedule, most int) (out []*timestamppb.Timestamp) {
	rule, err := job.RuleOf(s)
	at := time.Now()
	for err == nil && len(out) < most {
		next, ok := rule.Next(at)
		if !ok {
			break
		}
		out, at = append(out, timestamppb.New(next)), next
	}
	return out
}

// Explain implements nusav1.JobsServer. It returns the latest decision about each group. If a
// decision is no longer stored, it returns the decision that would be made now.
func (j *jobsAPI) Explain(ctx context.Context, req *nusav1.ExplainRequest) (*nusav1.Explanation, error) {
	term, err := j.s.term()
	if err != nil {
		return nil, err
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return nil, err
	}
	if client, err := regionJobs(term, req.GetJob()); client != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return client.Explain(ctx, req)
	}
	if past, err := state.Past(ctx, term.State, term.Store, k); past != nil || err != nil {
		if past != nil && req.GetGroup() != "" && past.GetSpec().GetGroups()[req.GetGroup()] == nil {
			err = invalid("group", "job "+k.String()+" has no group "+req.GetGroup())
		}
		return &nusav1.Explanation{Age: durationpb.New(0), Note: endedNote}, rpcError(err)
	}
	if note := templateNote(term, k); note != "" {
		return &nusav1.Explanation{Age: durationpb.New(0), Note: note}, nil
	}
	if err := checkGroup(term, k, req.GetGroup()); err != nil {
		return nil, err
	}
	out, ok := placer.Explain(term.State, k, req.GetGroup())
	if !ok {
		return nil, jobNotFound(k)
	}
	for _, g := range out.GetGroups() {
		if g.GetUnplaced() > 0 {
			g.GlobalQueue = term.queue.Read(term.State).Of(k, g.GetGroup())
		}
	}
	out.Note = cmp.Or(out.GetNote(), heldNote(term.State, k))
	if req.GetRegion() == "" {
		placer.AddRemedies(ctx, term.State, k, out)
		return out, nil
	}
	conn, err := term.dial(req.GetRegion())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, regionDeadline)
	defer cancel()
	// The spec is for a region that never got an offer of the job.
	nodes, err := nusav1.NewJobsClient(conn).Explain(ctx, &nusav1.ExplainRequest{
		Job: req.GetJob(), Region: req.GetRegion(), Group: req.GetGroup(), Spec: storedSpec(term, k),
	})
	switch {
	case status.Code(err) == codes.NotFound:
		return out, nil // a region of an older version returns this error if it has nothing of the job
	case status.Code(err) == codes.DeadlineExceeded:
		return nil, status.Errorf(codes.Unavailable, "region %s: %s", req.GetRegion(), failureText(err))
	case err != nil:
		return nil, err
	}
	for _, g := range out.Groups {
		i := slices.IndexFunc(nodes.GetGroups(), func(n *nusav1.GroupExplanation) bool { return n.GetGroup() == g.GetGroup() })
		if i >= 0 {
			g.Nodes, g.Remedy = nodes.GetGroups()[i].GetNodes(), nodes.GetGroups()[i].GetRemedy()
		}
	}
	return out, nil
}

// endedNote is the note in the explanation of a job that is in the history.
const endedNote = "the job has ended: nothing of it runs, and the decisions about it are no longer stored"

// templateNote returns the note in the explanation of a job that begins runs, or "" for another job.
func templateNote(term *Term, k state.JobKey) string {
	term.State.Lock()
	defer term.State.Unlock()
	if rec, _ := term.State.JobRecord(k); !rec.Template() {
		return ""
	}
	return "nothing of the job runs itself: each of its runs is a job with a name such as " + k.Name + ".20261128-023000"
}

// checkGroup refuses a group that the job does not have.
func checkGroup(term *Term, k state.JobKey, group string) error {
	term.State.Lock()
	defer term.State.Unlock()
	rec, _ := term.State.JobRecord(k)
	switch {
	case rec == nil:
		return jobNotFound(k)
	case group != "" && !rec.HasGroup(group):
		return invalid("group", "job "+k.String()+" has no group "+group)
	}
	return nil
}

// storedSpec returns a job's stored spec, or nil.
func storedSpec(term *Term, k state.JobKey) *nusav1.JobSpec {
	term.State.Lock()
	defer term.State.Unlock()
	rec, _ := term.State.JobRecord(k)
	return rec.Spec()
}

// heldNote says which regions hold instances of a job by an override, or "".
func heldNote(st *state.State, k state.JobKey) string {
	st.Lock()
	defer st.Unlock()
	if j := st.Jobs[k]; j != nil {
		return jobstatus.WithOverrides("", j.Status(st.Sight()).GetOverrides())
	}
	return ""
}
