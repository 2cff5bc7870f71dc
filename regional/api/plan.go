package api

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// Plan is the dry run of a submit. It applies the command to a fork of the state and lets
// the scheduler plan over the fork.
func (j jobs) Plan(ctx context.Context, req *nusav1.PlanRequest) (*nusav1.PlanResponse, error) {
	m, err := j.s.master()
	if err != nil {
		return nil, err
	}
	spec := req.GetSpec()
	if err := rights.MaySubmit(ctx, spec.GetNamespace(), spec.GetName()); err != nil {
		return nil, err
	}
	if err := checkJob(j.s, spec); err != nil {
		return nil, err
	}
	if err := rights.Plan(ctx, j.s.Rights, spec, j.s.region()); err != nil {
		return nil, err
	}
	raw, err := wire.Deterministic.Marshal(spec)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "encode the spec: %v", err)
	}
	view := j.s.State.View()
	stored, revision, err := j.storedSpec(view, spec)
	if err != nil {
		return nil, err
	}
	out := &nusav1.PlanResponse{
		Diff: planDiff(view, stored, spec), Warnings: job.Warnings(spec), Revision: revision,
		Unplaced: map[string]int32{}, Explanation: &nusav1.Explanation{},
	}
	if own, found := view.LocalJob(spec.GetNamespace(), spec.GetName()); found && !own.Stopped {
		out.Warnings = append(out.Warnings, job.Rebound(stored, spec, true)...)
	}
	candidate := wire.JobFromProto(spec, raw, true, 0)
	in := m.Planner.Input(view)
	fork := view.Fork()
	if r := fork.Apply(view.Index()+1, state.Command{NowUnixNano: in.NowUnixNano, SubmitLocalJob: &state.SubmitLocalJob{Job: *candidate}}); r.Err != nil {
		return nil, raftlog.StatusError(r.Err)
	}
	in.View = fork.Snapshot()
	submitted := in.View
	for g := range submitted.JobGroups(candidate.Key) {
		out.Changes = append(out.Changes, groupChanges(sched.Changes(in, g.Key), g.Key.Group, candidate.Type == state.System)...)
	}
	plan := planDry(&in, fork)
	reasons := wire.PlanReasons(plan)
	for g := range submitted.JobGroups(candidate.Key) {
		for _, s := range g.Slots {
			out.Slots = append(out.Slots, wire.SlotToProto(s, j.s.region()))
		}
		ge := &nusav1.GroupExplanation{Group: g.Key.Group, Desired: g.Wanted}
		ge.Unplaced, _ = plan.PendingCounts(g.Key)
		if candidate.Type == state.System { // one instance on each node
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
		ge.Nodes = j.nodeVerdicts(m, addPlaced(sched.ExplainAsk(m.Planner.Input(view), candidate, g.Key.Group), plan, g.Key))
		out.Explanation.Groups = append(out.Explanation.Groups, ge)
	}
	return out, nil
}

const (
	// maxDryPlans bounds the plans of a dry run. Each plan may place thousands of
	// instances.
	maxDryPlans = 64
	// placesPerCommand bounds the placements of one command, like the bound of the master's
	// planner.
	placesPerCommand = 512
)

// planDry plans over a fork of the state until nothing is left to decide, as the master
// would if no agent reported anything. It returns the last plan, with the placements of all
// plans in it. in.View becomes the last state.
func planDry(in *sched.Input, fork *state.State) *sched.Plan {
	var places []sched.Place
	for i := 0; ; i++ {
		plan := sched.Make(*in)
		if plan.Empty() || i == maxDryPlans {
			plan.Places = places
			return plan
		}
		places = append(places, plan.Places...)
		for _, c := range plan.Commands(uuid.NewString, placesPerCommand) {
			fork.Apply(in.View.Index()+1, state.Command{NowUnixNano: in.NowUnixNano, ApplyPlan: &c})
		}
		in.View = fork.Snapshot()
	}
}

// groupChanges joins the changes of instances that have the same consequence.
func groupChanges(all []sched.InstanceChange, group string, system bool) (out []*nusav1.GroupChange) {
	var ranges [][]sched.Range
	for _, c := range all {
		i := slices.IndexFunc(out, func(g *nusav1.GroupChange) bool { return g.GetMessage() == c.Problem })
		if i < 0 {
			i = len(out)
			out, ranges = append(out, &nusav1.GroupChange{Group: group, InPlace: c.Problem == "", Message: c.Problem}), append(ranges, nil)
		}
		if system {
			out[i].Instances = strings.TrimPrefix(out[i].GetInstances()+", "+c.NodeName, ", ")
			continue
		}
		if n := len(ranges[i]); n > 0 && ranges[i][n-1].To == c.Index {
			ranges[i][n-1].To++
		} else {
			ranges[i] = append(ranges[i], sched.Range{From: c.Index, To: c.Index + 1})
		}
		out[i].Instances = sched.RangesText(ranges[i])
	}
	return out
}

// planDiff returns the changes that a submit would make. They include the restart of a
// stopped job.
func planDiff(view *state.View, stored, spec *nusav1.JobSpec) []*nusav1.DiffLine {
	var out []*nusav1.DiffLine
	if own, found := view.LocalJob(spec.GetNamespace(), spec.GetName()); found && own.Stopped {
		out = append(out, &nusav1.DiffLine{Field: "stopped", Old: "true"})
	}
	return append(out, job.Diff(stored, spec)...)
}

// addPlaced adds the plan's placements to the verdicts of their nodes.
func addPlaced(vs []sched.NodeFit, plan *sched.Plan, key state.GroupKey) []sched.NodeFit {
	for i := range vs {
		for _, p := range plan.Places {
			if p.Key == key && p.NodeID == vs[i].NodeID {
				vs[i].Live++
			}
		}
	}
	return vs
}

// storedSpec returns the stored spec and the revision of the region's own job of that name.
// They are nil and 0 when there is no such job.
func (j jobs) storedSpec(view *state.View, spec *nusav1.JobSpec) (*nusav1.JobSpec, int64, error) {
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
		return nil, 0, status.Errorf(codes.Internal, "stored spec of job %s: %v", own.Key().In(j.s.region()), err)
	}
	return out, int64(own.Revision), nil
}
