package regional

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Explain says for every node why instances are or are not there, for any job
// that has instances in this region.
func (j jobs) Explain(_ context.Context, req *nusav1.ExplainRequest) (*nusav1.Explanation, error) {
	l, err := j.s.leading()
	if err != nil {
		return nil, err
	}
	view := j.s.fsm.View()
	k, err := l.findJob(view, req.GetJob())
	if err != nil {
		return nil, err
	}
	in := l.input(view)
	out := &nusav1.Explanation{}
	for g := range view.JobGroups(k) {
		if req.GetGroup() != "" && g.Key.Group != req.GetGroup() {
			continue
		}
		unplaced := int32(0)
		if plan := l.sched.plan(); plan != nil {
			for _, u := range plan.Unplaced {
				if u.Key == g.Key {
					unplaced += instances(u.Ranges)
				}
			}
		}
		out.Groups = append(out.Groups, &nusav1.GroupExplanation{
			Group: g.Key.Group, Desired: g.Wanted, Unplaced: unplaced,
			Nodes: l.verdicts(sched.Explain(in, g.Key)),
		})
	}
	if req.GetGroup() != "" && len(out.Groups) == 0 {
		return nil, status.Errorf(codes.NotFound, "job %s has no group %q here", k.In(l.s.cfg.Region.GetName()), req.GetGroup())
	}
	return out, nil
}

// verdicts are the scheduler's, with how old a node's statistics are.
func (l *leader) verdicts(vs []sched.Verdict) []*nusav1.NodeVerdict {
	var out []*nusav1.NodeVerdict
	for _, v := range vs {
		w := verdictToWire(v)
		if s := l.agents.statsOf(v.NodeID); s != nil {
			w.Inputs = append(w.Inputs, &nusav1.InputAge{Name: "statistics", Age: durationpb.New(s.age)})
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
	spec, err := l.checkSpec(req.GetSpec())
	if err != nil {
		return nil, err
	}
	raw, err := stable.Marshal(spec)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "encode the spec: %v", err)
	}
	view := j.s.fsm.View()
	stored, revision, err := l.storedSpec(view, spec)
	if err != nil {
		return nil, err
	}
	out := &nusav1.PlanResponse{
		Diff: job.Diff(stored, spec), Warnings: job.Warnings(spec), Revision: revision,
		Unplaced: map[string]int32{}, Explanation: &nusav1.Explanation{},
	}
	candidate := jobOf(spec, raw, true, 0)
	in := l.input(view)
	now := in.NowUnixNano
	fork := view.Fork()
	if r := fork.Apply(view.Index()+1, state.Command{NowUnixNano: now, SubmitLocalJob: &state.SubmitLocalJob{Job: *candidate}}); r.Err != nil {
		return nil, wireError(r.Err)
	}
	in.View = fork.Snapshot()
	plan := sched.Make(in)
	for g := range in.View.JobGroups(candidate.Key) {
		for _, s := range g.Slots {
			out.Slots = append(out.Slots, slotToWire(s, l.s.cfg.Region.GetName()))
		}
		ge := &nusav1.GroupExplanation{Group: g.Key.Group, Desired: g.Wanted}
		for _, u := range plan.Unplaced {
			if u.Key == g.Key {
				ge.Unplaced += instances(u.Ranges)
			}
		}
		if ge.Unplaced > 0 {
			out.Unplaced[g.Key.Group] = ge.Unplaced
		}
		ge.Nodes = l.verdicts(planned(sched.ExplainAsk(l.input(view), candidate, g.Key.Group), plan, g.Key))
		out.Explanation.Groups = append(out.Explanation.Groups, ge)
	}
	return out, nil
}

// planned adds the plan's placements to the verdicts.
func planned(vs []sched.Verdict, plan *sched.Plan, key state.GroupKey) []sched.Verdict {
	for i := range vs {
		for _, p := range plan.Places {
			if p.Key == key && p.NodeID == vs[i].NodeID {
				vs[i].Taken++
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
