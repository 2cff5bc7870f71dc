package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// nodesAPI is the Nodes service over all regions.
type nodesAPI struct {
	nusav1.UnimplementedNodesServer
	s *Services
}

// List implements nusav1.NodesServer.
func (n *nodesAPI) List(ctx context.Context, req *nusav1.ListNodesRequest) (*nusav1.ListNodesResponse, error) {
	if err := filter.Check(req.GetStates(), filter.NodeStates); err != nil {
		return nil, err
	}
	term, err := n.s.term()
	if err != nil {
		return nil, err
	}
	return listNodes(ctx, term, req)
}

// listNodes returns the nodes that a request selects. A region of an earlier version returns all nodes of the pool.
func listNodes(ctx context.Context, term *Term, req *nusav1.ListNodesRequest) (*nusav1.ListNodesResponse, error) {
	var names []string
	if name := req.GetRegion(); name != "" {
		if _, err := term.region(name); err != nil {
			return nil, err
		}
		names = []string{name}
	}
	conns, errs := term.reach(names)
	lists, failed := askAll(ctx, conns, func(ctx context.Context, c regionConn) (*nusav1.ListNodesResponse, error) {
		return nusav1.NewNodesClient(c.conn).List(ctx, &nusav1.ListNodesRequest{Region: c.name, Pool: req.GetPool(), Labels: req.GetLabels(), States: req.GetStates()})
	})
	out := &nusav1.ListNodesResponse{Errors: append(errs, failed...)}
	for _, part := range lists {
		out.Nodes = append(out.Nodes, part.GetNodes()...)
		out.Errors = append(out.Errors, part.GetErrors()...)
	}
	call := rights.Of(ctx)
	filtered := call.Filtered()
	out.Nodes = slices.DeleteFunc(out.Nodes, func(x *nusav1.Node) bool {
		return filtered && !call.May("", x.GetRegion()) || !filter.Has(req.GetStates(), filter.Node(x)...) || !filter.Labels(x.GetInventory().GetLabels(), req.GetLabels())
	})
	slices.SortFunc(out.Nodes, func(x, y *nusav1.Node) int {
		return cmp.Or(cmp.Compare(x.GetRegion(), y.GetRegion()), cmp.Compare(x.GetName(), y.GetName()), cmp.Compare(x.GetId(), y.GetId()))
	})
	return out, nil
}

// findNode returns a node and the tunnel to its region. Without a named region it looks in all
// regions, and returns an error if several of them know a node with that name or id, or if the
// caller may not do to the node what the call does.
func findNode(ctx context.Context, term *Term, id, region string) (regionConn, *nusav1.Node, error) {
	if id == "" || len(id) > 253 {
		return regionConn{}, nil, invalid("id", "must be a node's name or the beginning of its id")
	}
	if region != "" {
		conn, err := term.dial(region)
		return regionConn{region, conn}, &nusav1.Node{Id: id}, err
	}
	type answer struct {
		node *nusav1.Node
		conn regionConn
	}
	conns, errs := term.reach(nil)
	answers, failed := askAll(ctx, conns, func(ctx context.Context, c regionConn) (answer, error) {
		node, err := nusav1.NewNodesClient(c.conn).Get(ctx, &nusav1.GetNodeRequest{Id: id})
		if status.Code(err) == codes.NotFound {
			return answer{}, nil
		}
		return answer{node, c}, err
	})
	answers = slices.DeleteFunc(answers, func(f answer) bool { return f.node == nil })
	switch missing := append(failed, errs...); {
	case len(answers) > 1:
		return regionConn{}, nil, invalid("id", fmt.Sprintf("%q is a node of %s and of %s; name the region", id, answers[0].conn.name, answers[1].conn.name))
	case len(answers) == 1:
		c, node := answers[0].conn, answers[0].node
		return c, node, rights.Of(ctx).Check("", c.name, node.GetName())
	case len(missing) > 0:
		return regionConn{}, nil, status.Errorf(codes.Unavailable, "no node %q in the regions that answered; %s: %s", id, missing[0].GetRegion(), missing[0].GetMessage())
	}
	return regionConn{}, nil, rpcerr.NotFound(rpcerr.KindNode, id, fmt.Sprintf("node %q does not exist: `nusa node list` shows them", id))
}

// Get implements nusav1.NodesServer.
func (n *nodesAPI) Get(ctx context.Context, req *nusav1.GetNodeRequest) (*nusav1.Node, error) {
	term, err := n.s.term()
	if err != nil {
		return nil, err
	}
	c, node, err := findNode(ctx, term, req.GetId(), req.GetRegion())
	if err != nil {
		return nil, err
	}
	return nusav1.NewNodesClient(c.conn).Get(ctx, &nusav1.GetNodeRequest{Id: node.GetId(), Region: c.name})
}

// Drain implements nusav1.NodesServer.
func (n *nodesAPI) Drain(ctx context.Context, req *nusav1.DrainNodeRequest) (*nusav1.Node, error) {
	kind := eventKind(req.GetDrain(), "draining", "undrained")
	return n.change(ctx, req, kind, func(c nusav1.NodesClient, id, region string) (*nusav1.Node, error) {
		return c.Drain(ctx, &nusav1.DrainNodeRequest{Id: id, Region: region, Drain: req.GetDrain(), Deadline: req.GetDeadline(), IgnoreSystem: req.GetIgnoreSystem()})
	})
}

// Cordon implements nusav1.NodesServer.
func (n *nodesAPI) Cordon(ctx context.Context, req *nusav1.CordonNodeRequest) (*nusav1.Node, error) {
	kind := eventKind(req.GetCordon(), "cordoned", "uncordoned")
	return n.change(ctx, req, kind, func(c nusav1.NodesClient, id, region string) (*nusav1.Node, error) {
		return c.Cordon(ctx, &nusav1.CordonNodeRequest{Id: id, Region: region, Cordon: req.GetCordon()})
	})
}

// Remove implements nusav1.NodesServer.
func (n *nodesAPI) Remove(ctx context.Context, req *nusav1.RemoveNodeRequest) (*nusav1.RemoveNodeResponse, error) {
	var out *nusav1.RemoveNodeResponse
	_, err := n.change(ctx, req, "removed", func(c nusav1.NodesClient, id, region string) (_ *nusav1.Node, err error) {
		out, err = c.Remove(ctx, &nusav1.RemoveNodeRequest{Id: id, Region: region})
		return out.GetNode(), err
	})
	return out, err
}

// change lets a node's region change the node, and adds an event.
func (n *nodesAPI) change(
	ctx context.Context, req interface {
		GetId() string
		GetRegion() string
	}, kind string,
	do func(c nusav1.NodesClient, id, region string) (*nusav1.Node, error),
) (*nusav1.Node, error) {
	term, err := n.s.term()
	if err != nil {
		return nil, err
	}
	c, node, err := findNode(ctx, term, req.GetId(), req.GetRegion())
	if err != nil {
		return nil, err
	}
	if err := term.record(ctx, nodeEntry(kind, cmp.Or(node.GetName(), node.GetId()), c.name)); err != nil {
		return nil, err
	}
	out, err := do(nusav1.NewNodesClient(c.conn), node.GetId(), c.name)
	if err != nil {
		return nil, err
	}
	term.State.Events.Add("node."+kind, c.name+"/"+out.GetName(), "by an operator")
	return out, nil
}

// nodeEntry returns the entry of the audit trail for a change of a node.
func nodeEntry(kind, name, region string) audit.Entry {
	// The region has an entry of its own once the change is done.
	e := audit.Entry{Verb: "remove", Kind: "node", Name: name, Region: region, Outcome: audit.Started}
	switch kind {
	case "draining", "undrained":
		e.Verb, e.Reason = "drain", onOff(kind == "draining")
	case "cordoned", "uncordoned":
		e.Verb, e.Reason = "cordon", onOff(kind == "cordoned")
	}
	return e
}

// eventKind returns yes if a mark was set, and no if it was removed.
func eventKind(set bool, yes, no string) string {
	if set {
		return yes
	}
	return no
}

// poolsAPI is the Pools service over all regions. Each region keeps its own policies.
type poolsAPI struct {
	nusav1.UnimplementedPoolsServer
	s *Services
}

// region returns the term of this server and the service of a region.
func (p *poolsAPI) region(name string) (*Term, nusav1.PoolsClient, error) {
	term, err := p.s.term()
	if err != nil {
		return nil, nil, err
	}
	if name == "" {
		return nil, nil, invalid("region", "must name a region, because each region has its own policies")
	}
	conn, err := term.dial(name)
	if err != nil {
		return nil, nil, err
	}
	return term, nusav1.NewPoolsClient(conn), nil
}

// List implements nusav1.PoolsServer.
func (p *poolsAPI) List(ctx context.Context, req *nusav1.ListPoolsRequest) (*nusav1.ListPoolsResponse, error) {
	term, err := p.s.term()
	if err != nil {
		return nil, err
	}
	var names []string
	if name := req.GetRegion(); name != "" {
		if _, err := term.region(name); err != nil {
			return nil, err
		}
		names = []string{name}
	}
	conns, errs := term.reach(names)
	parts, failed := askAll(ctx, conns, func(ctx context.Context, c regionConn) (*nusav1.ListPoolsResponse, error) {
		return nusav1.NewPoolsClient(c.conn).List(ctx, &nusav1.ListPoolsRequest{Region: c.name})
	})
	out := &nusav1.ListPoolsResponse{Errors: append(errs, failed...)}
	for _, part := range parts {
		out.Pools = append(out.Pools, part.GetPools()...)
	}
	if call := rights.Of(ctx); call.Filtered() {
		out.Pools = slices.DeleteFunc(out.Pools, func(x *nusav1.Pool) bool { return !call.May("", x.GetRegion()) })
	}
	slices.SortFunc(out.Pools, func(x, y *nusav1.Pool) int {
		return cmp.Or(cmp.Compare(x.GetRegion(), y.GetRegion()), cmp.Compare(x.GetName(), y.GetName()))
	})
	return out, nil
}

// Get implements nusav1.PoolsServer.
func (p *poolsAPI) Get(ctx context.Context, req *nusav1.GetPoolRequest) (*nusav1.Pool, error) {
	_, c, err := p.region(req.GetRegion())
	if err != nil {
		return nil, err
	}
	out, err := c.Get(ctx, req)
	return out, ofRegion(req.GetRegion(), err)
}

// Set implements nusav1.PoolsServer. The region has an entry of its own once the policy is stored.
func (p *poolsAPI) Set(ctx context.Context, req *nusav1.SetPoolRequest) (*nusav1.Pool, error) {
	term, c, err := p.region(req.GetRegion())
	if err != nil {
		return nil, err
	}
	e := audit.Entry{Verb: "set", Kind: "pool", Name: req.GetPool().GetName(), Region: req.GetRegion(), Outcome: audit.Started}
	if err := term.record(ctx, e); err != nil {
		return nil, err
	}
	out, err := c.Set(ctx, req)
	return out, ofRegion(req.GetRegion(), err)
}

// Remove implements nusav1.PoolsServer.
func (p *poolsAPI) Remove(ctx context.Context, req *nusav1.RemovePoolRequest) (*nusav1.RemovePoolResponse, error) {
	term, c, err := p.region(req.GetRegion())
	if err != nil {
		return nil, err
	}
	e := audit.Entry{Verb: "remove", Kind: "pool", Name: req.GetName(), Region: req.GetRegion(), Outcome: audit.Started}
	if err := term.record(ctx, e); err != nil {
		return nil, err
	}
	out, err := c.Remove(ctx, req)
	return out, ofRegion(req.GetRegion(), err)
}
