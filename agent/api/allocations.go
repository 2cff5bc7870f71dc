package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/engine"
	"github.com/nusa-scheduler/nusa/internal/filter"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of the service Allocations.
const (
	defaultList = 1000
	maxList     = 10_000
	// maxLogs bounds the concurrent streams of logs. Each stream may hold a connection to a
	// supervisor, and a supervisor allows 64 connections in all, leases included.
	maxLogs = 32
)

// Allocations is the service Allocations over one node. Its method Stop returns an
// error, because the master decides about stops.
type Allocations struct {
	nusav1.UnimplementedAllocationsServer
	engine *engine.Engine
	log    *slog.Logger
	logs   chan struct{} // bounds the streams of logs
	execs  chan struct{} // bounds the commands that run at the same time
	files  chan struct{} // bounds the calls of ReadFile that run at the same time
}

// New returns the service over an engine.
func New(e *engine.Engine, log *slog.Logger) *Allocations {
	return &Allocations{engine: e, log: log, logs: make(chan struct{}, maxLogs), execs: make(chan struct{}, MaxExecs),
		files: make(chan struct{}, maxFiles)}
}

// List returns the allocations on this node. With `all` the result includes the ended
// allocations whose records the agent still has.
func (s *Allocations) List(ctx context.Context, req *nusav1.ListAllocationsRequest) (*nusav1.ListAllocationsResponse, error) {
	limit := int(req.GetLimit())
	if limit < 0 || limit > maxList {
		return nil, status.Errorf(codes.InvalidArgument, "limit: %d is not within 1..%d", limit, maxList)
	}
	limit = cmp.Or(limit, defaultList)
	if err := filter.Check(req.GetStates(), filter.AllocationStates); err != nil {
		return nil, err
	}
	if len(req.GetLabels()) > 0 {
		return nil, status.Error(codes.Unimplemented, "labels: an agent does not know the labels of jobs; ask a regional server")
	}
	all := req.GetAll() || filter.HasEnded(req.GetStates())
	out, err := s.engine.List(ctx, func(a *nusav1.Allocation, ended bool) bool { return (all || !ended) && matches(req, a) })
	if err != nil {
		return nil, lookupError(err)
	}
	slices.SortFunc(out, func(a, b *nusav1.Allocation) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetJob(), b.GetJob()),
			strings.Compare(a.GetGroup(), b.GetGroup()), cmp.Compare(a.GetIndex(), b.GetIndex()), cmp.Compare(a.GetCreateIndex(), b.GetCreateIndex()))
	})
	return &nusav1.ListAllocationsResponse{Allocations: out[:min(limit, len(out))], Truncated: len(out) > limit, Selects: true}, nil
}

func matches(req *nusav1.ListAllocationsRequest, a *nusav1.Allocation) bool {
	j := req.GetJob()
	return (j.GetNamespace() == "" || j.GetNamespace() == a.GetNamespace()) &&
		(j.GetName() == "" || j.GetName() == a.GetJob()) &&
		(req.GetNodeId() == "" || strings.HasPrefix(a.GetNodeId(), req.GetNodeId())) &&
		filter.Has(req.GetStates(), filter.Allocation(a.GetState(), a.GetDesired())...)
}

// Get returns one allocation by its id or by a unique prefix of its id.
func (s *Allocations) Get(ctx context.Context, req *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	a, err := s.engine.Get(ctx, req.GetId())
	return a, lookupError(err)
}

// Stop returns an error: only the master decides about stops.
func (s *Allocations) Stop(context.Context, *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	return nil, status.Error(codes.Unimplemented, "an agent stops only what its master orders; send the stop to a regional server")
}

// Logs streams the output of all runs of a task whose output is retained. With follow the
// stream continues with later runs until the allocation has ended.
func (s *Allocations) Logs(req *nusav1.LogsRequest, out nusav1.Allocations_LogsServer) error {
	select {
	case s.logs <- struct{}{}:
		defer func() { <-s.logs }()
	default:
		return status.Errorf(codes.ResourceExhausted, "logs: this node streams at most %d logs at a time; end one", maxLogs)
	}
	ctx := out.Context()
	o, err := logOptions(req)
	if err != nil {
		return err
	}
	emit := func(c driver.LogChunk) error {
		return out.Send(&nusav1.LogChunk{Stderr: c.Stderr, Data: slices.Clone(c.Data)})
	}
	next, removed := 0, error(nil)
	for {
		run, err := s.awaitRun(ctx, req, next)
		if err != nil {
			return lookupError(err)
		}
		if run.ID.Run == 0 {
			return removed
		}
		if next == 0 && o.TailBytes == 0 && o.TailLines == 0 {
			run.ID.Run = max(1, run.ID.Run-engine.RetainedRuns+1)
		}
		next = run.ID.Run + 1
		err = run.Driver.Logs(ctx, run.ID, o, emit)
		removed = nil
		switch {
		case errors.Is(err, driver.ErrNotFound) && ctx.Err() == nil: // a later run may have output
			removed = status.Errorf(codes.NotFound, "logs: the output of run %s is not retained any more", run.ID)
		case err != nil:
			return logError(ctx, err)
		}
		o.TailBytes, o.TailLines = 0, 0 // later runs are streamed as a whole
	}
}

// logOptions converts and checks the options of a request.
func logOptions(req *nusav1.LogsRequest) (driver.LogOptions, error) {
	o := driver.LogOptions{Stdout: req.GetStdout(), Stderr: req.GetStderr(), Follow: req.GetFollow(), TailBytes: req.GetTailBytes(), TailLines: int(req.GetTailLines())}
	if !o.Stdout && !o.Stderr {
		o.Stdout, o.Stderr = true, true
	}
	switch {
	case o.TailBytes < 0:
		return o, status.Errorf(codes.InvalidArgument, "tail_bytes: %d is negative", o.TailBytes)
	case o.TailLines < 0 || o.TailLines > driver.MaxTailLines:
		return o, status.Errorf(codes.InvalidArgument, "tail_lines: %d is not within 0..%d", o.TailLines, driver.MaxTailLines)
	case o.TailBytes > 0 && o.TailLines > 0:
		return o, status.Error(codes.InvalidArgument, "tail_lines: give it or tail_bytes, not both")
	}
	return o, nil
}

// awaitRun returns the latest run of a task if next is 0, else the first retained run whose
// number is at least next. With follow it waits for such a run. The zero LogRun means that
// no such run exists, and with follow that none will begin.
func (s *Allocations) awaitRun(ctx context.Context, req *nusav1.LogsRequest, next int) (engine.LogRun, error) {
	for {
		changed := s.engine.Changed()
		run, err := s.engine.LogRun(ctx, req.GetAllocation(), req.GetTask(), next)
		if err != nil || run.ID.Run != 0 || run.Last || !req.GetFollow() {
			return run, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return engine.LogRun{}, ctx.Err()
		}
	}
}
