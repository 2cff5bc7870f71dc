package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// maxLeavingGroups bounds the groups of a draining node that Get returns.
const maxLeavingGroups = 64

// nodes is the Nodes service. It lists, cordons, drains and removes the region's nodes.
type nodes struct {
	nusav1.UnimplementedNodesServer
	s *Server
}

// List returns every node, or the nodes of a pool.
func (n nodes) List(ctx context.Context, req *nusav1.ListNodesRequest) (*nusav1.ListNodesResponse, error) {
	if err := filter.Check(req.GetStates(), filter.NodeStates); err != nil {
		return nil, err
	}
	m, err := n.s.master()
	if err != nil {
		return nil, err
	}
	out := &nusav1.ListNodesResponse{}
	if call := rights.Of(ctx); call.Filtered() && !call.May("", "") {
		return out, nil
	}
	if r := req.GetRegion(); r != "" && r != n.s.region() {
		return out, nil
	}
	view := n.s.State.View()
	for x := range view.Nodes() {
		if req.GetPool() != "" && x.Pool != req.GetPool() || !filter.Labels(x.Labels, req.GetLabels()) {
			continue
		}
		if one := n.node(m, view, x); filter.Has(req.GetStates(), filter.Node(one)...) {
			out.Nodes = append(out.Nodes, one)
		}
	}
	return out, nil
}

// findNode returns the node with that id, that name, or an id with that unique prefix.
func (n nodes) findNode(view *state.View, id, region string) (*state.Node, error) {
	if own := n.s.region(); region != "" && region != own {
		return nil, notFound(rpcerr.KindRegion, region, "this is region %q, not %q", own, region)
	}
	return findNode(view, id)
}

// findNode returns the node with that id, that name, or an id with that unique prefix.
func findNode(view *state.View, id string) (*state.Node, error) {
	if x, found := view.Node(id); found {
		return x, nil
	}
	var found []*state.Node
	for x := range view.Nodes() {
		if x.Name == id || len(id) >= minPrefix && strings.HasPrefix(x.ID, id) {
			found = append(found, x)
		}
	}
	switch len(found) {
	case 0:
		return nil, notFound(rpcerr.KindNode, id, "no node of region %q has the name %q or an id that begins with it: `nusa node list` shows them", view.Cluster().Region, id)
	case 1:
		return found[0], nil
	}
	return nil, status.Errorf(codes.InvalidArgument, "node %q: several match (%s, %s): give the id", id, found[0].ID, found[1].ID)
}

// Get returns one node. If the node is being drained, the result lists the groups that must
// still move to other nodes.
func (n nodes) Get(_ context.Context, req *nusav1.GetNodeRequest) (*nusav1.Node, error) {
	m, err := n.s.master()
	if err != nil {
		return nil, err
	}
	view := n.s.State.View()
	x, err := n.findNode(view, req.GetId(), req.GetRegion())
	if err != nil {
		return nil, err
	}
	out := n.node(m, view, x)
	out.GpuUses = wire.GPUUsesToProto(view, x, n.s.region())
	if x.Draining {
		out.Leaving, out.Drain = n.leaving(m, view, x), drainToProto(view, x, m.Planner.Input(view).NowUnixNano)
	}
	return out, nil
}

// leaving returns the groups that must still move to other nodes, each with the reason why
// it cannot. If there are too many, leaving returns the groups that cannot move first.
func (n nodes) leaving(m *Master, view *state.View, x *state.Node) []*nusav1.LeavingGroup {
	var out []*nusav1.LeavingGroup
	all := sched.DrainingGroups(m.Planner.Input(view), x.ID)
	if len(all) > maxLeavingGroups {
		slices.SortStableFunc(all, func(a, b sched.DrainingGroup) int { return cmp.Compare(min(len(b.Reason), 1), min(len(a.Reason), 1)) })
		all = all[:maxLeavingGroups]
	}
	for _, g := range all {
		out = append(out, &nusav1.LeavingGroup{
			Namespace: g.Key.Namespace, Job: wire.JobName(g.Key.Job, g.Key.Local, n.s.region()), Group: g.Key.Group,
			Count: g.Count, Fits: g.Fits, Reason: wire.ReasonToProto(g.Reason), Message: g.Message,
		})
	}
	return out
}

// AllNodes returns every node of the region, with its statistics and silence.
func AllNodes(s *Server, m *Master) []*nusav1.Node {
	n, view := nodes{s: s}, s.State.View()
	var out []*nusav1.Node
	for x := range view.Nodes() {
		out = append(out, n.node(m, view, x))
	}
	return out
}

// node converts a node and adds what the log does not have: the node's statistics and
// silence.
func (n nodes) node(m *Master, view *state.View, x *state.Node) *nusav1.Node {
	out := nodeWithStats(m, view, x, n.s.Clock())
	out.Silent = m.Nodes.Silence(x)
	return out
}

// nodeWithStats converts a node and adds its latest statistics.
func nodeWithStats(m *Master, view *state.View, x *state.Node, now time.Duration) *nusav1.Node {
	out := wire.NodeToProto(view, x, m.Cluster.Region)
	out.Stats, out.StatsAge = m.Nodes.StatsToProto(x.ID, now)
	return out
}

// Drain begins or ends a drain. A drain moves the node's work to other nodes.
func (n nodes) Drain(ctx context.Context, req *nusav1.DrainNodeRequest) (*nusav1.Node, error) {
	check := func(x *state.Node) error {
		if !req.GetDrain() && !x.Draining && x.Cordoned {
			return status.Errorf(codes.FailedPrecondition, "node %s is not being drained, it is cordoned: uncordon it to let it take work again", x.Name)
		}
		return nil
	}
	cmd, err := n.drainCommand(req)
	if err != nil {
		return nil, err
	}
	entry := audit.Entry{Verb: "drain", Reason: "off"}
	if req.GetDrain() {
		entry.Reason = "on"
	}
	return n.change(ctx, req.GetId(), req.GetRegion(), check, entry, func(id string) state.Command {
		of := cmd
		of.ID = id
		return state.Command{DrainNode: &of}
	})
}

// maxDrain bounds the deadline of a drain.
const maxDrain = 30 * 24 * time.Hour

// drainCommand returns the command of a request, without the id of the node.
func (n nodes) drainCommand(req *nusav1.DrainNodeRequest) (state.DrainNode, error) {
	out := state.DrainNode{Drain: req.GetDrain(), KeepSystem: req.GetIgnoreSystem()}
	limit := req.GetDeadline()
	switch {
	case limit == nil && !req.GetIgnoreSystem():
		return out, nil
	case !req.GetDrain():
		return out, status.Error(codes.InvalidArgument, "deadline and ignore_system are of a drain that begins or goes on, not of its end")
	case limit != nil && (limit.CheckValid() != nil || limit.AsDuration() < time.Second || limit.AsDuration() > maxDrain):
		return out, status.Errorf(codes.InvalidArgument, "deadline: %v is not within 1s..720h", limit.AsDuration())
	case n.s.State.View().Cluster().FeatureLevel < state.DrainLevel:
		return out, status.Errorf(codes.FailedPrecondition, "a deadline, and system jobs that stay, need feature level %d of each server of region %q: upgrade them first, or drain without both",
			state.DrainLevel, n.s.region())
	}
	if limit != nil {
		out.DeadlineUnixNano = time.Now().Add(limit.AsDuration()).UnixNano()
	}
	return out, nil
}

// drainToProto says how far the drain of a node is.
func drainToProto(view *state.View, x *state.Node, now int64) *nusav1.NodeDrain {
	left := sched.Left(view, x)
	out := &nusav1.NodeDrain{IgnoreSystem: x.KeepSystem, Left: left.Others, SystemLeft: left.System}
	if x.DrainUntilUnixNano > 0 {
		out.Deadline = durationpb.New(max(0, time.Duration(x.DrainUntilUnixNano-now)))
	}
	return out
}

// Cordon begins or ends a cordon. A cordoned node gets no new work.
func (n nodes) Cordon(ctx context.Context, req *nusav1.CordonNodeRequest) (*nusav1.Node, error) {
	check := func(x *state.Node) error {
		if !req.GetCordon() && !x.Cordoned && x.Draining {
			return status.Errorf(codes.FailedPrecondition, "node %s is not cordoned, it is being drained: end the drain to let it take work again", x.Name)
		}
		return nil
	}
	entry := audit.Entry{Verb: "cordon", Reason: "off"}
	if req.GetCordon() {
		entry.Reason = "on"
	}
	return n.change(ctx, req.GetId(), req.GetRegion(), check, entry, func(id string) state.Command {
		return state.Command{CordonNode: &state.CordonNode{ID: id, Cordon: req.GetCordon()}}
	})
}

// Remove removes a node that is lost or has left. It frees the name of the node for another machine.
func (n nodes) Remove(ctx context.Context, req *nusav1.RemoveNodeRequest) (*nusav1.RemoveNodeResponse, error) {
	m, err := n.s.master()
	if err != nil {
		return nil, err
	}
	view := n.s.State.View()
	x, err := n.findNode(view, req.GetId(), req.GetRegion())
	if status.Code(err) == codes.NotFound && (req.GetRegion() == "" || req.GetRegion() == n.s.region()) {
		return n.removeMember(ctx, req.GetId(), err)
	}
	if err != nil {
		return nil, err
	}
	removed := n.node(m, view, x)
	if x.Status == state.NodeReady {
		return nil, n.stillReady(removed)
	}
	if left := sched.BoundLeft(m.Planner.Input(view), x.ID); left > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "node %s may still run instances that must not run twice, until its lease is certainly over: remove it in %v",
			x.Name, left.Round(time.Second)+time.Second)
	}
	// The member comes first: a call that is repeated after a failure finds the node.
	if !sharesName(view, x) {
		if _, err := n.s.Enroll.Members().Remove(ctx, x.Name); err != nil {
			return nil, err
		}
	}
	_, err = m.Log.Commit(ctx, n.s.audited(ctx, state.Command{RemoveNode: &state.RemoveNode{ID: x.ID}}, audit.Entry{Verb: "remove", Kind: "node", Name: x.Name}))
	switch {
	case errors.Is(err, state.ErrNodeReady):
		return nil, n.stillReady(removed)
	case err != nil:
		return nil, raftlog.StatusError(err)
	}
	return &nusav1.RemoveNodeResponse{Node: removed}, nil
}

// sharesName reports whether another node has the name of a node. That one owns the name.
func sharesName(view *state.View, x *state.Node) bool {
	for other := range view.Nodes() {
		if other.Name == x.Name && other.ID != x.ID {
			return true
		}
	}
	return false
}

// removeMember removes an agent that has joined, and whose node is not registered any more, or not
// yet. It returns unknown if there is no such agent.
func (n nodes) removeMember(ctx context.Context, name string, unknown error) (*nusav1.RemoveNodeResponse, error) {
	removed, err := n.s.Enroll.Members().Remove(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case !removed:
		return nil, unknown
	}
	return &nusav1.RemoveNodeResponse{Node: &nusav1.Node{Name: name, Region: n.s.region()}}, nil
}

// stillReady returns the error that says why a ready node cannot be removed.
func (n nodes) stillReady(x *nusav1.Node) error {
	if x.GetSilent() != nil {
		return status.Errorf(codes.FailedPrecondition, "node %s is silent but not lost yet: it is lost after %v of silence, try again then", x.GetName(), n.s.NodeLease)
	}
	return status.Errorf(codes.FailedPrecondition, "node %s is ready: only one that is lost or has left can be removed; drain it and stop its agent first", x.GetName())
}

// change commits a command about a node if check allows it. It returns the node after the
// command. entry has the verb and the reason of the entry in the audit trail.
func (n nodes) change(
	ctx context.Context, id, region string, check func(*state.Node) error, entry audit.Entry, command func(id string) state.Command,
) (*nusav1.Node, error) {
	m, err := n.s.master()
	if err != nil {
		return nil, err
	}
	x, err := n.findNode(n.s.State.View(), id, region)
	if err != nil {
		return nil, err
	}
	if err := check(x); err != nil {
		return nil, err
	}
	entry.Kind, entry.Name = "node", x.Name
	if _, err := m.Log.Commit(ctx, n.s.audited(ctx, command(x.ID), entry)); err != nil {
		return nil, raftlog.StatusError(err)
	}
	return n.Get(ctx, &nusav1.GetNodeRequest{Id: x.ID})
}
