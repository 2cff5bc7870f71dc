package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of the service.
const (
	minPrefix   = 4
	defaultList = 1000
	maxList     = 10_000
	// maxLogs streamed at a time. Each may hold a connection to a supervisor,
	// of which that has 64 for everything, leases included.
	maxLogs = 32
)

// allocations is the service Allocations over what this agent has. It is
// called by the region through a tunnel. Stop stays unimplemented: stopping is
// the master's decision. Exec and Stats are in exec.go.
type allocations struct {
	nusav1.UnimplementedAllocationsServer
	engine *engine
	logs   chan struct{} // a place for each stream of logs
	execs  chan struct{} // a place for each further command
}

func newAllocations(e *engine) *allocations {
	return &allocations{engine: e, logs: make(chan struct{}, maxLogs), execs: make(chan struct{}, maxExecs)}
}

// List answers what runs here, and with `all` what has ended and is not yet
// forgotten.
func (s *allocations) List(ctx context.Context, req *nusav1.ListAllocationsRequest) (*nusav1.ListAllocationsResponse, error) {
	limit := int(req.GetLimit())
	if limit < 0 || limit > maxList {
		return nil, status.Errorf(codes.InvalidArgument, "limit: %d is not within 1..%d", limit, maxList)
	}
	limit = cmp.Or(limit, defaultList)
	var out []*nusav1.Allocation
	if !s.engine.do(ctx, func() {
		for _, a := range s.engine.allocs {
			if matches(req, a) {
				out = append(out, s.engine.show(a))
			}
		}
	}) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	slices.SortFunc(out, func(a, b *nusav1.Allocation) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetJob(), b.GetJob()),
			strings.Compare(a.GetGroup(), b.GetGroup()), cmp.Compare(a.GetIndex(), b.GetIndex()), cmp.Compare(a.GetCreateIndex(), b.GetCreateIndex()))
	})
	return &nusav1.ListAllocationsResponse{Allocations: out[:min(limit, len(out))], Truncated: len(out) > limit}, nil
}

func matches(req *nusav1.ListAllocationsRequest, a *alloc) bool {
	w, j := a.wire.GetAllocation(), req.GetJob()
	return (req.GetAll() || a.act.End == nil) &&
		(j.GetNamespace() == "" || j.GetNamespace() == w.GetNamespace()) &&
		(j.GetName() == "" || j.GetName() == w.GetJob()) &&
		(req.GetNodeId() == "" || strings.HasPrefix(w.GetNodeId(), req.GetNodeId()))
}

// show is an allocation with its state here.
func (e *engine) show(a *alloc) *nusav1.Allocation {
	out := proto.CloneOf(a.wire.GetAllocation())
	rep := makeReport(a.order, a.act, a.details)
	for name, d := range rep.GetTasks() {
		id := driver.ID{Alloc: a.alloc.ID, Task: name, Run: a.act.Tasks[name].Run}
		if s, ok := e.checks.state(id); ok {
			d.Check = checkState(a.tasks[name].check, s)
		}
	}
	out.State, out.Tasks = rep.GetState(), rep.GetTasks()
	if rep.GetReason() != 0 || rep.GetMessage() != "" {
		out.Reason, out.Message = rep.GetReason(), rep.GetMessage()
	}
	return out
}

// find an allocation by a unique prefix of its id. For the engine's goroutine.
func (e *engine) find(prefix string) (*alloc, error) {
	if len(prefix) < minPrefix {
		return nil, status.Errorf(codes.InvalidArgument, "id: %q is shorter than %d characters", prefix, minPrefix)
	}
	if a := e.allocs[prefix]; a != nil {
		return a, nil
	}
	var found *alloc
	for id, a := range e.allocs {
		if !strings.HasPrefix(id, prefix) {
			continue
		}
		if found != nil {
			return nil, status.Errorf(codes.InvalidArgument, "id: %q names several allocations: give more of it", prefix)
		}
		found = a
	}
	if found == nil {
		return nil, status.Errorf(codes.NotFound, "no allocation %q on this node", prefix)
	}
	return found, nil
}

// Get answers one allocation.
func (s *allocations) Get(ctx context.Context, req *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	var out *nusav1.Allocation
	var err error
	if !s.engine.do(ctx, func() {
		var a *alloc
		if a, err = s.engine.find(req.GetId()); err == nil {
			out = s.engine.show(a)
		}
	}) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return out, err
}

// Stop is the master's to decide.
func (s *allocations) Stop(context.Context, *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	return nil, status.Error(codes.Unimplemented, "an agent stops what its master orders; ask the region")
}

// Logs streams a task's output: of the runs whose output is kept, and with
// follow of all later ones, until no further run comes.
func (s *allocations) Logs(req *nusav1.LogsRequest, out nusav1.Allocations_LogsServer) error {
	select {
	case s.logs <- struct{}{}:
		defer func() { <-s.logs }()
	default:
		return status.Errorf(codes.ResourceExhausted, "logs: %d are being read from this node, which is the most; end one", maxLogs)
	}
	ctx := out.Context()
	o := driver.LogOptions{Stdout: req.GetStdout(), Stderr: req.GetStderr(), Follow: req.GetFollow(), TailBytes: req.GetTailBytes(), TailLines: int(req.GetTailLines())}
	if !o.Stdout && !o.Stderr {
		o.Stdout, o.Stderr = true, true
	}
	switch {
	case o.TailBytes < 0:
		return status.Error(codes.InvalidArgument, "tail_bytes: negative")
	case o.TailLines < 0 || o.TailLines > driver.MaxTailLines:
		return status.Errorf(codes.InvalidArgument, "tail_lines: %d is not 0..%d", o.TailLines, driver.MaxTailLines)
	case o.TailBytes > 0 && o.TailLines > 0:
		return status.Error(codes.InvalidArgument, "tail_lines: give it or tail_bytes, not both")
	}
	emit := func(c driver.LogChunk) error {
		return out.Send(&nusav1.LogChunk{Stderr: c.Stderr, Data: slices.Clone(c.Data)})
	}
	next, gone := 0, error(nil)
	for {
		run, err := s.awaitRun(ctx, req, next)
		if err != nil {
			return err
		}
		if run.id.Run == 0 {
			return gone
		}
		if next == 0 && o.TailBytes == 0 && o.TailLines == 0 {
			run.id.Run = max(1, run.id.Run-keptRuns+1)
		}
		next = run.id.Run + 1
		err = run.driver.Logs(ctx, run.id, o, emit)
		gone = nil
		switch {
		case errors.Is(err, driver.ErrNotFound) && ctx.Err() == nil: // perhaps of a later run
			gone = status.Errorf(codes.NotFound, "logs: the output of run %s is not kept any more", run.id)
		case err != nil:
			return logError(ctx, err)
		}
		o.TailBytes, o.TailLines = 0, 0 // of later runs: everything
	}
}

// logRun is a run whose output can be read.
type logRun struct {
	id     driver.ID
	driver driver.Driver
}

// awaitRun returns the latest run of a task (next = 0) or the run of that
// number; with follow it waits for it. A zero run: there will be none.
func (s *allocations) awaitRun(ctx context.Context, req *nusav1.LogsRequest, next int) (logRun, error) {
	for {
		changed := s.engine.changed.next()
		var run logRun
		var over bool
		var err error
		if !s.engine.do(ctx, func() { run, over, err = s.engine.logRun(req, next) }) {
			return logRun{}, status.FromContextError(ctx.Err()).Err()
		}
		if err != nil || run.id.Run != 0 || over || !req.GetFollow() {
			return run, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return logRun{}, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// findTask finds a task by its name, "" = the only one, and the prefix of its
// allocation's id. For the engine's goroutine.
func (e *engine) findTask(prefix, name string) (*alloc, string, error) {
	a, err := e.find(prefix)
	if err != nil {
		return nil, "", err
	}
	if name == "" && len(a.alloc.Tasks) == 1 {
		name = a.alloc.Tasks[0].Name
	}
	if _, ok := a.tasks[name]; !ok {
		var names []string
		for _, t := range a.alloc.Tasks {
			names = append(names, t.Name)
		}
		if name == "" {
			return nil, "", status.Errorf(codes.InvalidArgument, "task: there are several, name one of: %s", strings.Join(names, ", "))
		}
		return nil, "", status.Errorf(codes.InvalidArgument, "task: %q is not one of: %s", name, strings.Join(names, ", "))
	}
	return a, name, nil
}

// logRun looks for a run that has begun. over: the task will not run again.
func (e *engine) logRun(req *nusav1.LogsRequest, next int) (run logRun, over bool, err error) {
	a, name, err := e.findTask(req.GetAllocation(), req.GetTask())
	if err != nil {
		return run, true, err
	}
	drv := e.drivers[a.tasks[name].driver]
	if drv == nil {
		return run, true, status.Error(codes.FailedPrecondition, noDriver(a.tasks[name].driver))
	}
	t := a.act.Tasks[name]
	begun := t.Run
	if t.Phase == reconcile.Launching || t.Phase == reconcile.Waiting || t.Phase == reconcile.Ended && t.Reason == reconcile.ReasonUnsupported {
		begun-- // the driver may not know it yet
	}
	switch {
	case next == 0 && begun > 0:
		next = begun
	case next == 0 || next > begun:
		return run, a.act.End != nil, nil
	}
	// What was missed meanwhile may be removed.
	id := driver.ID{Alloc: a.alloc.ID, Task: name, Run: max(next, begun-keptRuns+1)}
	return logRun{id: id, driver: drv}, false, nil
}

// logError turns a driver's error into the service's.
func logError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Errorf(codes.Internal, "logs: %v", err)
}
