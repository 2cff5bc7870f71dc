package regional

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// minPrefix is the shortest prefix of an id that names something.
	minPrefix = 4
	// allocsListed and maxAllocsListed bound a list.
	allocsListed    = 1000
	maxAllocsListed = 10_000
)

// allocations looks at what runs on the region's nodes; output and commands
// come from the agents, through their tunnels.
type allocations struct {
	nusav1.UnimplementedAllocationsServer
	s *server
}

// List answers from the committed state.
func (a allocations) List(_ context.Context, req *nusav1.ListAllocationsRequest) (*nusav1.ListAllocationsResponse, error) {
	l, err := a.s.leading()
	if err != nil {
		return nil, err
	}
	region := a.s.cfg.Region.GetName()
	out := &nusav1.ListAllocationsResponse{}
	if r := req.GetRegion(); r != "" && r != region {
		return out, nil
	}
	limit := int(req.GetLimit())
	if limit <= 0 {
		limit = allocsListed
	}
	limit = min(limit, maxAllocsListed)
	view := a.s.fsm.View()
	node := ""
	if id := req.GetNodeId(); id != "" {
		n, err := nodes{s: a.s}.findNode(view, id, "")
		if err != nil {
			return nil, err
		}
		node = n.ID
	}
	wanted := func(*state.Alloc) bool { return true }
	if req.GetJob().GetName() != "" {
		k, err := l.findJob(view, req.GetJob())
		if err != nil {
			return nil, err // also that nothing of it is here
		}
		wanted = func(x *state.Alloc) bool { return x.Key().JobKey() == k }
	} else if ns := req.GetJob().GetNamespace(); ns != "" {
		wanted = func(x *state.Alloc) bool { return x.Namespace == ns }
	}
	for x := range view.Allocs() {
		if !req.GetAll() && !x.Live() || node != "" && x.NodeID != node || !wanted(x) {
			continue
		}
		if len(out.Allocations) == limit {
			out.Truncated = true
			break
		}
		out.Allocations = append(out.Allocations, l.alloc(view, x))
	}
	return out, nil
}

// findAlloc is the one allocation that a prefix of its id names.
func findAlloc(view *state.View, prefix string) (*state.Alloc, error) {
	if len(prefix) < minPrefix {
		return nil, status.Errorf(codes.InvalidArgument, "allocation %q: give at least %d characters of its id", prefix, minPrefix)
	}
	var found *state.Alloc
	for x := range view.AllocsByPrefix(prefix) {
		if found != nil {
			return nil, status.Errorf(codes.InvalidArgument, "allocation %q: several begin so (%s, %s): give more of the id", prefix, found.ID, x.ID)
		}
		found = x
	}
	if found == nil {
		return nil, status.Errorf(codes.NotFound, "no allocation has an id that begins with %q: `nusa alloc list --all` shows them", prefix)
	}
	return found, nil
}

// Get answers one allocation.
func (a allocations) Get(_ context.Context, req *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	l, err := a.s.leading()
	if err != nil {
		return nil, err
	}
	view := a.s.fsm.View()
	x, err := findAlloc(view, req.GetId())
	if err != nil {
		return nil, err
	}
	return l.alloc(view, x), nil
}

// alloc is an allocation with the silence of its node, while it lives there.
func (l *leader) alloc(view *state.View, x *state.Alloc) *nusav1.Allocation {
	out := wire.AllocToProto(x, l.s.cfg.Region.GetName())
	if n, found := view.Node(x.NodeID); found && x.Live() {
		out.NodeSilent = l.agents.Silence(n)
	}
	return out
}

// Stop ends one allocation; the scheduler replaces it.
func (a allocations) Stop(ctx context.Context, req *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	l, err := a.s.leading()
	if err != nil {
		return nil, err
	}
	x, err := findAlloc(a.s.fsm.View(), req.GetId())
	if err != nil {
		return nil, err
	}
	r, err := l.seq.Commit(ctx, state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{
		ID: x.ID, Reason: state.ReasonStoppedByUser, Message: "stopped by an operator",
	}}}})
	if err != nil {
		return nil, wireError(err)
	}
	if len(r.Skipped) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "allocation %s: %s", x.ID, r.Skipped[0].Message)
	}
	return a.Get(ctx, &nusav1.GetAllocationRequest{Id: x.ID})
}

// agentOf is the allocations service of the agent that has an allocation.
func (a allocations) agentOf(prefix string) (nusav1.AllocationsClient, *state.Alloc, error) {
	l, err := a.s.leading()
	if err != nil {
		return nil, nil, err
	}
	x, err := findAlloc(a.s.fsm.View(), prefix)
	if err != nil {
		return nil, nil, err
	}
	conn, err := l.agents.Conn(x.NodeID)
	if err != nil {
		return nil, nil, err
	}
	return nusav1.NewAllocationsClient(conn), x, nil
}

// Logs streams a task's output from its agent.
func (a allocations) Logs(req *nusav1.LogsRequest, down grpc.ServerStreamingServer[nusav1.LogChunk]) error {
	agent, x, err := a.agentOf(req.GetAllocation())
	if err != nil {
		return err
	}
	req.Allocation = x.ID
	up, err := agent.Logs(down.Context(), req)
	if err != nil {
		return err
	}
	for {
		chunk, err := up.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := down.Send(chunk); err != nil {
			return err
		}
	}
}

// Stats asks the agent.
func (a allocations) Stats(ctx context.Context, req *nusav1.AllocationStatsRequest) (*nusav1.AllocationStats, error) {
	agent, x, err := a.agentOf(req.GetAllocation())
	if err != nil {
		return nil, err
	}
	return agent.Stats(ctx, &nusav1.AllocationStatsRequest{Allocation: x.ID})
}

// Exec runs a command next to a task, on its agent.
func (a allocations) Exec(down grpc.BidiStreamingServer[nusav1.ExecRequest, nusav1.ExecResponse]) error {
	first, err := down.Recv()
	if err != nil {
		return err
	}
	if first.GetStart() == nil {
		return status.Error(codes.InvalidArgument, "the first message of an exec session must have start")
	}
	agent, x, err := a.agentOf(first.GetStart().GetAllocation())
	if err != nil {
		return err
	}
	first.Start.Allocation = x.ID
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	up, err := agent.Exec(ctx)
	if err != nil {
		return err
	}
	if err := up.Send(first); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	a.s.streams.Go(func() {
		for {
			m, err := down.Recv()
			if errors.Is(err, io.EOF) {
				_ = up.CloseSend()
				return
			}
			if err != nil {
				cancel()
				return
			}
			if up.Send(m) != nil {
				return // the agent ended it: Recv below has its status
			}
		}
	})
	for {
		m, err := up.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := down.Send(m); err != nil {
			return err
		}
	}
}
