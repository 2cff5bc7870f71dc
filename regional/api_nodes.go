package regional

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// nodes looks at the region's nodes, cordons, drains and forgets them.
type nodes struct {
	nusav1.UnimplementedNodesServer
	s *server
}

// List answers every node, or those of a pool.
func (n nodes) List(_ context.Context, req *nusav1.ListNodesRequest) (*nusav1.ListNodesResponse, error) {
	l, err := n.s.leading()
	if err != nil {
		return nil, err
	}
	region := n.s.cfg.Region.GetName()
	out := &nusav1.ListNodesResponse{}
	if r := req.GetRegion(); r != "" && r != region {
		return out, nil
	}
	view := n.s.fsm.View()
	for x := range view.Nodes() {
		if req.GetPool() == "" || x.Pool == req.GetPool() {
			out.Nodes = append(out.Nodes, l.node(view, x))
		}
	}
	return out, nil
}

// findNode is the one node of that id, name or unique prefix of its id.
func (n nodes) findNode(view *state.View, id, region string) (*state.Node, error) {
	if region != "" && region != n.s.cfg.Region.GetName() {
		return nil, status.Errorf(codes.NotFound, "this is region %q, not %q", n.s.cfg.Region.GetName(), region)
	}
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
		return nil, status.Errorf(codes.NotFound, "no node of region %q is called %q, and no id begins so: `nusa node list` shows them", n.s.cfg.Region.GetName(), id)
	case 1:
		return found[0], nil
	}
	return nil, status.Errorf(codes.InvalidArgument, "node %q: several match (%s, %s): give the id", id, found[0].ID, found[1].ID)
}

// Get answers one node.
func (n nodes) Get(_ context.Context, req *nusav1.GetNodeRequest) (*nusav1.Node, error) {
	l, err := n.s.leading()
	if err != nil {
		return nil, err
	}
	view := n.s.fsm.View()
	x, err := n.findNode(view, req.GetId(), req.GetRegion())
	if err != nil {
		return nil, err
	}
	out := l.node(view, x)
	if x.Draining {
		out.Leaving = l.leaving(view, x)
	}
	return out, nil
}

// maxLeaving bounds the groups of a node of which it is said how they fare.
const maxLeaving = 64

// leaving is what is to move away from a node, and why it cannot.
func (l *leader) leaving(view *state.View, x *state.Node) []*nusav1.LeavingGroup {
	var out []*nusav1.LeavingGroup
	all := sched.DrainingGroups(l.input(view), x.ID)
	if len(all) > maxLeaving {
		slices.SortStableFunc(all, func(a, b sched.DrainingGroup) int { return cmp.Compare(min(len(b.Reason), 1), min(len(a.Reason), 1)) })
		all = all[:maxLeaving]
	}
	for _, g := range all {
		w := &nusav1.LeavingGroup{Namespace: g.Key.Namespace, Job: g.Key.Job, Group: g.Key.Group, Count: g.Count, Fits: g.Fits, Reason: wire.ReasonToProto(g.Reason), Message: g.Message}
		if g.Key.Local {
			w.Job += "@" + l.s.cfg.Region.GetName()
		}
		out = append(out, w)
	}
	return out
}

// node is a node with what this master knows beyond the log: its statistics and
// its silence.
func (l *leader) node(view *state.View, x *state.Node) *nusav1.Node {
	out := l.nodeWithStats(view, x)
	out.Silent = l.agents.Silence(x)
	return out
}

// nodeWithStats is a node with its latest statistics, if any.
func (l *leader) nodeWithStats(view *state.View, x *state.Node) *nusav1.Node {
	out := wire.NodeToProto(view, x, l.s.cfg.Region.GetName())
	out.Stats, out.StatsAge = l.agents.StatsToProto(x.ID, l.s.cfg.Clock())
	return out
}

// Drain moves work away, or ends that.
func (n nodes) Drain(ctx context.Context, req *nusav1.DrainNodeRequest) (*nusav1.Node, error) {
	check := func(x *state.Node) error {
		if !req.GetDrain() && !x.Draining && x.Cordoned {
			return status.Errorf(codes.FailedPrecondition, "node %s is not being drained, it is cordoned: uncordon it to let it take work again", x.Name)
		}
		return nil
	}
	event := [2]string{"node.undrained", "its drain has ended"}
	if req.GetDrain() {
		event = [2]string{"node.drained", "its work is moved away"}
	}
	return n.change(ctx, req.GetId(), req.GetRegion(), check, event, func(id string) state.Command {
		return state.Command{DrainNode: &state.DrainNode{ID: id, Drain: req.GetDrain()}}
	})
}

// Cordon keeps new work away, or ends that.
func (n nodes) Cordon(ctx context.Context, req *nusav1.CordonNodeRequest) (*nusav1.Node, error) {
	check := func(x *state.Node) error {
		if !req.GetCordon() && !x.Cordoned && x.Draining {
			return status.Errorf(codes.FailedPrecondition, "node %s is not cordoned, it is being drained: end the drain to let it take work again", x.Name)
		}
		return nil
	}
	event := [2]string{"node.uncordoned", "it takes new work again"}
	if req.GetCordon() {
		event = [2]string{"node.cordoned", "it takes no new work"}
	}
	return n.change(ctx, req.GetId(), req.GetRegion(), check, event, func(id string) state.Command {
		return state.Command{CordonNode: &state.CordonNode{ID: id, Cordon: req.GetCordon()}}
	})
}

// Remove forgets a node that is lost or has left.
func (n nodes) Remove(ctx context.Context, req *nusav1.RemoveNodeRequest) (*nusav1.RemoveNodeResponse, error) {
	l, err := n.s.leading()
	if err != nil {
		return nil, err
	}
	view := n.s.fsm.View()
	x, err := n.findNode(view, req.GetId(), req.GetRegion())
	if err != nil {
		return nil, err
	}
	was := l.node(view, x)
	_, err = l.seq.Commit(ctx, state.Command{RemoveNode: &state.RemoveNode{ID: x.ID}})
	switch {
	case errors.Is(err, state.ErrNodeReady):
		return nil, n.removeLater(was)
	case err != nil:
		return nil, wireError(err)
	}
	l.events.Add("node.removed", x.Name, "an operator removed it")
	return &nusav1.RemoveNodeResponse{Node: was}, nil
}

// removeLater is why a node cannot be removed while it is ready.
func (n nodes) removeLater(x *nusav1.Node) error {
	if x.GetSilent() != nil {
		return status.Errorf(codes.FailedPrecondition, "node %s is silent, but lost only once that is %v: try again then", x.GetName(), n.s.cfg.NodeLease)
	}
	return status.Errorf(codes.FailedPrecondition, "node %s is ready: only one that is lost or has left can be removed; drain it and stop its agent first", x.GetName())
}

// change commits a command about a node that check allows, and answers the node
// as it is then: cordoned and draining tell whether it takes work. event is the
// type and message of what is remembered of it.
func (n nodes) change(ctx context.Context, id, region string, check func(*state.Node) error, event [2]string, command func(id string) state.Command) (*nusav1.Node, error) {
	l, err := n.s.leading()
	if err != nil {
		return nil, err
	}
	x, err := n.findNode(n.s.fsm.View(), id, region)
	if err != nil {
		return nil, err
	}
	if err := check(x); err != nil {
		return nil, err
	}
	r, err := l.seq.Commit(ctx, command(x.ID))
	if err != nil {
		return nil, wireError(err)
	}
	if r.Changed {
		l.events.Add(event[0], x.Name, "%s", event[1])
	}
	return n.Get(ctx, &nusav1.GetNodeRequest{Id: x.ID})
}
