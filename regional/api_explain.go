package regional

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// Explain says for every node why instances are or are not there, for any job
// that has instances in this region, or whose spec comes along.
func (j jobs) Explain(_ context.Context, req *nusav1.ExplainRequest) (*nusav1.Explanation, error) {
	l, err := j.s.leading()
	if err != nil {
		return nil, err
	}
	view, region := j.s.fsm.View(), j.s.cfg.Region.GetName()
	k, err := l.findJob(view, req.GetJob())
	if req.GetSpec() != nil && (req.GetAsGiven() || status.Code(err) == codes.NotFound) {
		return l.explainElsewhere(view, req)
	}
	if err != nil {
		return nil, err
	}
	out := &nusav1.Explanation{}
	now := l.input(view)
	decided := int64(0)
	for g := range view.JobGroups(k) {
		if req.GetGroup() != "" && g.Key.Group != req.GetGroup() || len(g.Slots) == 0 {
			continue
		}
		e, at := l.explainGroup(now, g)
		out.Groups = append(out.Groups, e)
		decided = max(decided, at)
	}
	if req.GetGroup() != "" && len(out.Groups) == 0 {
		return nil, status.Errorf(codes.NotFound, "job %s has no group %q here", k.In(region), req.GetGroup())
	}
	if decided > 0 {
		out.Age = durationpb.New(time.Duration(max(0, now.NowUnixNano-decided)))
	}
	return out, nil
}

// explainGroup explains one group, and when it was decided about last: by the
// newest plan while something of it waits, else when its newest instance was
// placed.
func (l *leader) explainGroup(in sched.Input, g *state.GroupView) (*nusav1.GroupExplanation, int64) {
	out := &nusav1.GroupExplanation{Group: g.Key.Group, Desired: g.Wanted}
	plan, decided := l.sched.planned()
	reasons := l.sched.pending(g.Key)
	out.Pending = l.reporter.Reasons(in.View, g)
	waiting := int32(0)
	if plan != nil {
		out.Unplaced, waiting = plan.PendingCounts(g.Key)
	}
	live := map[int32]bool{}
	placed := int64(0)
	for a := range in.View.GroupAllocs(g.Key) {
		if a.Live() && a.Desired == state.Run {
			live[a.Index] = true
			placed = max(placed, a.CreatedUnixNano)
		}
	}
	verdict := &nusav1.RegionVerdict{Region: l.s.cfg.Region.GetName(), Taken: int32(len(live))}
	if job, found := in.View.Job(g.Key.JobKey(), newestVersion(g)); found && job.Group(g.Key.Group) != nil {
		verdict.Fits = int32(len(live) + sched.FitCount(in, &job.Group(g.Key.Group).Ask, state.MaxInstances-len(live)))
		if job.Type == state.System { // its instances are nodes: those without room are wanted too
			out.Desired = int32(len(live)) + out.Unplaced + waiting
			verdict.Fits = int32(len(live))
		}
		if out.Unplaced > 0 {
			out.Remedy = remedy(in, job, g.Key.Group)
		}
	}
	if len(reasons) > 0 {
		verdict.Reason, verdict.Message = wire.ReasonToProto(reasons[0].Reason), reasons[0].Message
		placed = decided
	}
	if away := l.reporter.Disconnected(in.View, g.Key); len(away) > 0 {
		verdict.Reason, verdict.Message = away[0].GetReason(), away[0].GetMessage()
	}
	out.Regions = []*nusav1.RegionVerdict{verdict}
	out.Nodes = l.verdicts(sched.Explain(in, g.Key))
	return out, placed
}

// remedy says what change would make one more instance fit.
func remedy(in sched.Input, job *state.Job, group string) string {
	if c := sched.Remedy(in, job, group); c != nil {
		return c.String()
	}
	return ""
}

func newestVersion(g *state.GroupView) int64 {
	version := int64(0)
	for _, s := range g.Slots {
		version = max(version, s.JobVersion)
	}
	return version
}

// explainElsewhere explains a job of the federation of which nothing is here, or
// another version than is: how many instances fit, and how each node would fare.
func (l *leader) explainElsewhere(view *state.View, req *nusav1.ExplainRequest) (*nusav1.Explanation, error) {
	if n := proto.Size(req.GetSpec()); n > job.MaxSize {
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "spec", Message: fmt.Sprintf("%d bytes, at most %d", n, job.MaxSize)})
	}
	spec := proto.CloneOf(req.GetSpec())
	job.Default(spec)
	if err := job.Validate(spec); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	candidate := wire.JobFromProto(spec, nil, false, 0)
	out := &nusav1.Explanation{Age: durationpb.New(0)}
	in := l.input(view)
	for i := range candidate.Groups {
		g := &candidate.Groups[i]
		if req.GetGroup() != "" && g.Name != req.GetGroup() {
			continue
		}
		verdict := &nusav1.RegionVerdict{Region: l.s.cfg.Region.GetName(), Fits: int32(sched.FitCount(in, &g.Ask, state.MaxInstances))}
		e := &nusav1.GroupExplanation{Group: g.Name, Regions: []*nusav1.RegionVerdict{verdict}}
		if verdict.Fits == 0 {
			reason, message := sched.ExplainNoFit(in, &g.Ask)
			verdict.Reason, verdict.Message = wire.ReasonToProto(reason), message
			e.Remedy = remedy(in, candidate, g.Name)
		}
		if !req.GetAsGiven() { // who counts does not ask for each node
			e.Nodes = l.verdicts(sched.ExplainAsk(in, candidate, g.Name))
		}
		out.Groups = append(out.Groups, e)
	}
	return out, nil
}

// verdicts are the scheduler's, with how old a node's statistics are.
func (l *leader) verdicts(vs []sched.NodeFit) []*nusav1.NodeVerdict {
	var out []*nusav1.NodeVerdict
	for _, v := range vs {
		w := wire.VerdictToProto(v)
		if s, told := l.agents.Stats(v.NodeID, l.s.cfg.Clock()); told {
			w.Inputs = append(w.Inputs, &nusav1.InputAge{Name: "statistics", Age: durationpb.New(s.Age)})
		}
		out = append(out, w)
	}
	return out
}

// Plan is a dry run of a job of the region's own: the submit is applied to a
// fork of the state, and the scheduler asked what it would do.
func (j jobs) Plan(_ context.Context, req *nusav1.PlanRequest) (*nusav1.PlanResponse, error) {
	l, err := j.s.leading()
	if err != nil {
		return nil, err
	}
	spec := req.GetSpec()
	if err := l.checkSpec(spec); err != nil {
		return nil, err
	}
	raw, err := wire.Deterministic.Marshal(spec)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "encode the spec: %v", err)
	}
	view := j.s.fsm.View()
	stored, revision, err := l.storedSpec(view, spec)
	if err != nil {
		return nil, err
	}
	out := &nusav1.PlanResponse{
		Diff: l.planDiff(view, stored, spec), Warnings: job.Warnings(spec), Revision: revision,
		Unplaced: map[string]int32{}, Explanation: &nusav1.Explanation{},
	}
	candidate := wire.JobFromProto(spec, raw, true, 0)
	in := l.input(view)
	now := in.NowUnixNano
	fork := view.Fork()
	if r := fork.Apply(view.Index()+1, state.Command{NowUnixNano: now, SubmitLocalJob: &state.SubmitLocalJob{Job: *candidate}}); r.Err != nil {
		return nil, wireError(r.Err)
	}
	in.View = fork.Snapshot()
	submitted := in.View
	plan := carriedOut(&in, fork)
	reasons := wire.PlanReasons(plan)
	for g := range submitted.JobGroups(candidate.Key) {
		for _, s := range g.Slots {
			out.Slots = append(out.Slots, wire.SlotToProto(s, l.s.cfg.Region.GetName()))
		}
		ge := &nusav1.GroupExplanation{Group: g.Key.Group, Desired: g.Wanted}
		ge.Unplaced, _ = plan.PendingCounts(g.Key)
		if candidate.Type == state.System { // its instances are nodes
			ge.Desired += ge.Unplaced
			for _, p := range plan.Places {
				if p.Key == g.Key {
					ge.Desired++
				}
			}
		}
		if ge.Unplaced > 0 {
			out.Unplaced[g.Key.Group] = ge.Unplaced
			ge.Remedy = remedy(in, candidate, g.Key.Group)
		}
		ge.Pending = wire.CountedReasonsToProto(reasons[g.Key])
		ge.Nodes = l.verdicts(planned(sched.ExplainAsk(l.input(view), candidate, g.Key.Group), plan, g.Key))
		out.Explanation.Groups = append(out.Explanation.Groups, ge)
	}
	return out, nil
}

// dryPlans bounds the plans of a dry run: each places thousands.
const dryPlans = 64

// carriedOut plans over a fork of the state until nothing is left to decide, as
// the master would while no agent reports. It answers what is placed, and what
// is left as the last plan says it; in.View is the state then.
func carriedOut(in *sched.Input, fork *state.State) *sched.Plan {
	var places []sched.Place
	for i := 0; ; i++ {
		plan := sched.Make(*in)
		if plan.Empty() || i == dryPlans {
			plan.Places = places
			return plan
		}
		places = append(places, plan.Places...)
		for _, c := range plan.Commands(newID, perCommand) {
			fork.Apply(in.View.Index()+1, state.Command{NowUnixNano: in.NowUnixNano, ApplyPlan: &c})
		}
		in.View = fork.Snapshot()
	}
}

// planDiff is what a submit would change: a stopped job would run again.
func (l *leader) planDiff(view *state.View, stored, spec *nusav1.JobSpec) []*nusav1.DiffLine {
	var out []*nusav1.DiffLine
	if own, found := view.LocalJob(spec.GetNamespace(), spec.GetName()); found && own.Stopped {
		out = append(out, &nusav1.DiffLine{Field: "stopped", Old: "true"})
	}
	return append(out, job.Diff(stored, spec)...)
}

// planned adds the plan's placements to the verdicts.
func planned(vs []sched.NodeFit, plan *sched.Plan, key state.GroupKey) []sched.NodeFit {
	for i := range vs {
		for _, p := range plan.Places {
			if p.Key == key && p.NodeID == vs[i].NodeID {
				vs[i].Live++
			}
		}
	}
	return vs
}

// storedSpec is the present spec of the region's own job of that name, and its
// revision; nil and 0 when there is none.
func (l *leader) storedSpec(view *state.View, spec *nusav1.JobSpec) (*nusav1.JobSpec, int64, error) {
	own, found := view.LocalJob(spec.GetNamespace(), spec.GetName())
	if !found {
		return nil, 0, nil
	}
	stored, found := view.Job(own.Key(), own.Version)
	if !found {
		return nil, int64(own.Revision), nil
	}
	out := &nusav1.JobSpec{}
	if err := proto.Unmarshal(stored.Spec, out); err != nil {
		return nil, 0, status.Errorf(codes.Internal, "stored spec of job %s: %v", own.Key().In(l.s.cfg.Region.GetName()), err)
	}
	return out, int64(own.Revision), nil
}
