package api

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

// Explain returns for every node why it runs instances of a job, or why it cannot. The job
// has instances in this region, or the request has its spec.
func (j jobs) Explain(_ context.Context, req *nusav1.ExplainRequest) (*nusav1.Explanation, error) {
	m, err := j.s.master()
	if err != nil {
		return nil, err
	}
	view := j.s.State.View()
	k, err := findJob(view, req.GetJob())
	if req.GetSpec() != nil && (req.GetAsGiven() || status.Code(err) == codes.NotFound) {
		return j.explainSpec(m, view, req)
	}
	if err != nil {
		return nil, err
	}
	out := &nusav1.Explanation{}
	in := m.Planner.Input(view)
	decided := int64(0)
	for g := range view.JobGroups(k) {
		if req.GetGroup() != "" && g.Key.Group != req.GetGroup() || len(g.Slots) == 0 {
			continue
		}
		e, at := j.explainGroup(m, in, g)
		out.Groups = append(out.Groups, e)
		decided = max(decided, at)
	}
	if req.GetGroup() != "" && len(out.Groups) == 0 {
		return nil, status.Errorf(codes.NotFound, "job %s has no group %q here", k.In(j.s.region()), req.GetGroup())
	}
	if decided > 0 {
		out.Age = durationpb.New(time.Duration(max(0, in.NowUnixNano-decided)))
	}
	return out, nil
}

// explainGroup explains one group. It also returns the time of the decision. While
// instances are pending, that is the time of the newest plan, otherwise of the newest
// placement.
func (j jobs) explainGroup(m *Master, in sched.Input, g *state.GroupView) (*nusav1.GroupExplanation, int64) {
	out := &nusav1.GroupExplanation{Group: g.Key.Group, Desired: g.Wanted}
	plan, decided := m.Planner.Latest()
	reasons := m.Planner.Pending(g.Key)
	out.Pending = m.Reporter.Reasons(in.View, g)
	waiting := int32(0)
	if plan != nil {
		out.Unplaced, waiting = plan.PendingCounts(g.Key)
	}
	if out.Unplaced > 0 {
		out.Queue = j.s.queue.place(in.View, g.Key)
	}
	live := map[int32]bool{}
	placed := int64(0)
	for a := range in.View.GroupAllocs(g.Key) {
		if a.Live() && a.Desired == state.Run {
			live[a.Index] = true
			placed = max(placed, a.CreatedUnixNano)
		}
	}
	verdict := &nusav1.RegionVerdict{Region: j.s.region(), Taken: int32(len(live))}
	if job, found := in.View.Job(g.Key.JobKey(), newestVersion(g)); found && job.Group(g.Key.Group) != nil {
		verdict.Fits = int32(len(live) + sched.FitCount(in, &job.Group(g.Key.Group).Ask, state.MaxInstances-len(live)))
		if job.Type == state.System { // a system job wants one instance on each node, so unplaced ones count as desired
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
	if d := m.Reporter.Disconnected(in.View, g.Key); len(d) > 0 {
		verdict.Reason, verdict.Message = d[0].GetReason(), d[0].GetMessage()
	}
	out.Regions = []*nusav1.RegionVerdict{verdict}
	out.Nodes = j.nodeVerdicts(m, sched.Explain(in, g.Key))
	return out, placed
}

// remedy describes the smallest change that would make one more instance fit. It is empty
// if no change is known.
func remedy(in sched.Input, job *state.Job, group string) string {
	if c := sched.Remedy(in, job, group); c != nil {
		return c.String()
	}
	return ""
}

// newestVersion returns the newest job version of a group's slots.
func newestVersion(g *state.GroupView) int64 {
	version := int64(0)
	for _, s := range g.Slots {
		version = max(version, s.JobVersion)
	}
	return version
}

// explainSpec explains a spec that is not stored in this region, or is stored in another
// version. It returns how many instances would fit, and how each node is scored.
func (j jobs) explainSpec(m *Master, view *state.View, req *nusav1.ExplainRequest) (*nusav1.Explanation, error) {
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
	in := m.Planner.Input(view)
	for i := range candidate.Groups {
		g := &candidate.Groups[i]
		if req.GetGroup() != "" && g.Name != req.GetGroup() {
			continue
		}
		verdict := &nusav1.RegionVerdict{Region: j.s.region(), Fits: int32(sched.FitCount(in, &g.Ask, state.MaxInstances))}
		e := &nusav1.GroupExplanation{Group: g.Name, Regions: []*nusav1.RegionVerdict{verdict}}
		if verdict.Fits == 0 {
			reason, message := sched.ExplainNoFit(in, &g.Ask)
			verdict.Reason, verdict.Message = wire.ReasonToProto(reason), message
			e.Remedy = remedy(in, candidate, g.Name)
		}
		if !req.GetAsGiven() { // a caller that asks with as_given only needs the counts
			e.Nodes = j.nodeVerdicts(m, sched.ExplainAsk(in, candidate, g.Name))
		}
		out.Groups = append(out.Groups, e)
	}
	return out, nil
}

// nodeVerdicts converts the scheduler's verdicts and adds the age of each node's
// statistics.
func (j jobs) nodeVerdicts(m *Master, vs []sched.NodeFit) []*nusav1.NodeVerdict {
	var out []*nusav1.NodeVerdict
	for _, v := range vs {
		w := wire.NodeFitToProto(v)
		if s, known := m.Nodes.Stats(v.NodeID, j.s.Clock()); known {
			w.Inputs = append(w.Inputs, &nusav1.InputAge{Name: "statistics", Age: durationpb.New(s.Age)})
		}
		out = append(out, w)
	}
	return out
}
