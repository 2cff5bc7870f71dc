package api

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

const (
	// minPrefix is the least length of a prefix that may stand for an id.
	minPrefix = 4
	// defaultAllocs and maxAllocs bound the allocations in a list.
	defaultAllocs = 1000
	maxAllocs     = 10_000
)

// allocations is the Allocations service. Lists come from the committed state. Output,
// statistics and the output of commands come from the agents, through their tunnels.
type allocations struct {
	nusav1.UnimplementedAllocationsServer
	s *Server
}

// List returns the requested allocations from the committed state.
func (a allocations) List(ctx context.Context, req *nusav1.ListAllocationsRequest) (*nusav1.ListAllocationsResponse, error) {
	m, err := a.s.master()
	if err != nil {
		return nil, err
	}
	if err := filter.Check(req.GetStates(), filter.AllocationStates); err != nil {
		return nil, err
	}
	call := rights.Of(ctx)
	filtered := call.Filtered()
	out := &nusav1.ListAllocationsResponse{Selects: true}
	if r := req.GetRegion(); r != "" && r != a.s.region() {
		return out, nil
	}
	limit := int(req.GetLimit())
	if limit <= 0 {
		limit = defaultAllocs
	}
	limit = min(limit, maxAllocs)
	view := a.s.State.View()
	wanted, err := a.filter(view, req)
	if err != nil {
		return nil, err
	}
	for x := range view.Allocs() {
		if !wanted(x) || filtered && !call.May(x.Namespace, "") {
			continue
		}
		if len(out.Allocations) == limit {
			out.Truncated = true
			break
		}
		out.Allocations = append(out.Allocations, a.alloc(m, view, x))
	}
	return out, nil
}

// filter returns the function that selects the allocations of a list. It returns an error
// when this region does not know the requested node or job.
func (a allocations) filter(view *state.View, req *nusav1.ListAllocationsRequest) (func(*state.Alloc) bool, error) {
	node := ""
	if id := req.GetNodeId(); id != "" {
		n, err := findNode(view, id)
		if err != nil {
			return nil, err
		}
		node = n.ID
	}
	ofJob := func(*state.Alloc) bool { return true }
	if req.GetJob().GetName() != "" {
		k, err := findJob(view, req.GetJob())
		if err != nil {
			return nil, err
		}
		ofJob = func(x *state.Alloc) bool { return x.Key().JobKey() == k }
	} else if ns := req.GetJob().GetNamespace(); ns != "" {
		ofJob = func(x *state.Alloc) bool { return x.Namespace == ns }
	}
	all, labeled := req.GetAll() || filter.HasEnded(req.GetStates()), ofLabels(view, req.GetLabels())
	return func(x *state.Alloc) bool {
		return (all || x.Live()) && (node == "" || x.NodeID == node) && ofJob(x) && labeled(x) &&
			filter.Has(req.GetStates(), filter.Allocation(nusav1.AllocState(x.DisplayState()), nusav1.AllocDesired(x.Desired))...)
	}, nil
}

// ofLabels returns the function that selects the allocations of jobs with some labels. It reads each version of a job
// once.
func ofLabels(view *state.View, want map[string]string) func(*state.Alloc) bool {
	if len(want) == 0 {
		return func(*state.Alloc) bool { return true }
	}
	type version struct {
		job state.JobKey
		n   int64
	}
	known := map[version]bool{}
	return func(x *state.Alloc) bool {
		v := version{x.Key().JobKey(), x.JobVersion}
		has, read := known[v]
		if !read {
			var labels map[string]string
			if j, ok := view.Job(v.job, v.n); ok {
				labels, _ = wire.EncodedLabels(j.Spec) // a spec that cannot be read has none
			}
			has = filter.Labels(labels, want)
			known[v] = has
		}
		return has
	}
}

// findAlloc returns the allocation whose id begins with prefix. More than one match is an
// error.
func findAlloc(view *state.View, prefix string) (*state.Alloc, error) {
	if len(prefix) < minPrefix {
		return nil, status.Errorf(codes.InvalidArgument, "allocation %q: give at least %d characters of its id", prefix, minPrefix)
	}
	var found *state.Alloc
	for x := range view.AllocsByPrefix(prefix) {
		if found != nil {
			return nil, status.Errorf(codes.InvalidArgument, "allocation %q: several ids begin with it (%s, %s): give more of the id", prefix, found.ID, x.ID)
		}
		found = x
	}
	if found == nil {
		return nil, notFound(rpcerr.KindAlloc, prefix, "no allocation has an id that begins with %q: `nusa alloc list --all` shows them", prefix)
	}
	return found, nil
}

// findAllowed is findAlloc, and returns an error if the caller may not do to the allocation what the
// call does.
func findAllowed(ctx context.Context, view *state.View, prefix string) (*state.Alloc, error) {
	call := rights.Of(ctx)
	x, err := findAlloc(view, prefix)
	switch {
	case err == nil:
		return x, call.Find(x.Namespace, "", x.ID, func() error { return notFound(rpcerr.KindAlloc, prefix, "%s", call.Missing(prefix)) })
	case call.Confined() && status.Code(err) == codes.NotFound:
		return nil, notFound(rpcerr.KindAlloc, prefix, "%s", call.Missing(prefix))
	case call.Confined() && status.Code(err) == codes.InvalidArgument && len(prefix) >= minPrefix:
		return nil, status.Errorf(codes.InvalidArgument, "allocation %q: give the whole id: several ids may begin with this", prefix) // err names the ids
	}
	return nil, err
}

// Get returns one allocation.
func (a allocations) Get(ctx context.Context, req *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	m, err := a.s.master()
	if err != nil {
		return nil, err
	}
	view := a.s.State.View()
	x, err := findAllowed(ctx, view, req.GetId())
	if err != nil {
		return nil, err
	}
	return a.alloc(m, view, x), nil
}

// alloc converts an allocation. If the allocation is live, the result includes the silence
// of its node.
func (a allocations) alloc(m *Master, view *state.View, x *state.Alloc) *nusav1.Allocation {
	out := wire.AllocToProto(x, a.s.region())
	if n, found := view.Node(x.NodeID); found && x.Live() {
		out.NodeSilent = m.Nodes.Silence(n)
	}
	out.Retry = wire.RetryDecision(view, x)
	return out
}

// Stop ends one allocation. The scheduler then replaces it.
func (a allocations) Stop(ctx context.Context, req *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	m, err := a.s.master()
	if err != nil {
		return nil, err
	}
	x, err := findAllowed(ctx, a.s.State.View(), req.GetId())
	if err != nil {
		return nil, err
	}
	r, err := m.Log.Commit(ctx, a.s.audited(ctx, state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{
		ID: x.ID, Reason: state.ReasonStoppedByUser, Message: "stopped by an operator",
	}}}}, entryOf("stop", audit.Done, x)))
	if err != nil {
		return nil, raftlog.StatusError(err)
	}
	if len(r.Skipped) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "allocation %s: %s", x.ID, r.Skipped[0].Message)
	}
	return a.Get(ctx, &nusav1.GetAllocationRequest{Id: x.ID})
}

// started is agentOf for a call with an entry in the audit trail. The entry is durable when
// started returns.
func (a allocations) started(ctx context.Context, verb, prefix string) (nusav1.AllocationsClient, *state.Alloc, error) {
	agent, x, err := a.agentOf(ctx, prefix)
	if err != nil {
		return nil, nil, err
	}
	m, err := a.s.master()
	if err == nil {
		err = a.s.record(ctx, m, entryOf(verb, audit.Started, x))
	}
	return agent, x, err
}

// agentOf returns the Allocations service of the agent whose node has an allocation.
func (a allocations) agentOf(ctx context.Context, prefix string) (nusav1.AllocationsClient, *state.Alloc, error) {
	m, err := a.s.master()
	if err != nil {
		return nil, nil, err
	}
	x, err := findAllowed(ctx, a.s.State.View(), prefix)
	if err != nil {
		return nil, nil, err
	}
	conn, err := m.Nodes.Conn(x.NodeID)
	if err != nil {
		return nil, nil, err
	}
	return nusav1.NewAllocationsClient(conn), x, nil
}

// Logs streams a task's output from the agent of its node.
func (a allocations) Logs(req *nusav1.LogsRequest, down grpc.ServerStreamingServer[nusav1.LogChunk]) error {
	agent, x, err := a.started(down.Context(), "logs", req.GetAllocation())
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

// Stats returns an allocation's statistics from the agent of its node.
func (a allocations) Stats(ctx context.Context, req *nusav1.AllocationStatsRequest) (*nusav1.AllocationStats, error) {
	agent, x, err := a.agentOf(ctx, req.GetAllocation())
	if err != nil {
		return nil, err
	}
	return agent.Stats(ctx, &nusav1.AllocationStatsRequest{Allocation: x.ID})
}

// Exec runs a command beside a task, through the agent of its node.
func (a allocations) Exec(down grpc.BidiStreamingServer[nusav1.ExecRequest, nusav1.ExecResponse]) error {
	first, err := down.Recv()
	if err != nil {
		return err
	}
	if first.GetStart() == nil {
		return status.Error(codes.InvalidArgument, "the first message of an exec session must have start")
	}
	agent, x, err := a.started(down.Context(), "exec", first.GetStart().GetAllocation())
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
	a.s.Streams.Go(func() {
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
				return // the agent ended the stream: Recv below returns its status
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

// Restart restarts tasks, through the agent of their node.
func (a allocations) Restart(ctx context.Context, req *nusav1.RestartAllocationRequest) (*nusav1.RestartAllocationResponse, error) {
	agent, x, err := a.started(ctx, "restart", req.GetAllocation())
	if err != nil {
		return nil, err
	}
	out, err := agent.Restart(ctx, &nusav1.RestartAllocationRequest{Allocation: x.ID, Task: req.GetTask()})
	return out, ofAgent(x, err)
}

// Signal sends a signal to tasks, through the agent of their node.
func (a allocations) Signal(ctx context.Context, req *nusav1.SignalAllocationRequest) (*nusav1.SignalAllocationResponse, error) {
	agent, x, err := a.started(ctx, "signal", req.GetAllocation())
	if err != nil {
		return nil, err
	}
	out, err := agent.Signal(ctx, &nusav1.SignalAllocationRequest{Allocation: x.ID, Task: req.GetTask(), Signal: req.GetSignal()})
	return out, ofAgent(x, err)
}

// ListFiles lists files of an allocation, through the agent of its node.
func (a allocations) ListFiles(ctx context.Context, req *nusav1.ListFilesRequest) (*nusav1.ListFilesResponse, error) {
	agent, x, err := a.started(ctx, "files", req.GetAllocation())
	if err != nil {
		return nil, err
	}
	out, err := agent.ListFiles(ctx, &nusav1.ListFilesRequest{Allocation: x.ID, Path: req.GetPath(), Limit: req.GetLimit()})
	return out, ofAgent(x, err)
}

// ReadFile sends a file of an allocation, through the agent of its node.
func (a allocations) ReadFile(req *nusav1.ReadFileRequest, down grpc.ServerStreamingServer[nusav1.FileChunk]) error {
	agent, x, err := a.started(down.Context(), "files", req.GetAllocation())
	if err != nil {
		return err
	}
	req.Allocation = x.ID
	up, err := agent.ReadFile(down.Context(), req)
	if err != nil {
		return err
	}
	for {
		chunk, err := up.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return ofAgent(x, err)
		}
		if err := down.Send(chunk); err != nil {
			return err
		}
	}
}

// ofAgent returns an agent's error. An agent of an earlier version does not have the call.
func ofAgent(x *state.Alloc, err error) error {
	if status.Code(err) == codes.Unimplemented {
		return status.Errorf(codes.Unimplemented, "the agent of node %s is of an earlier version and cannot do this: upgrade it", x.NodeName)
	}
	return err
}
