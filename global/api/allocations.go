package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

const (
	minPrefix           = 4
	defaultAllocations  = 1000
	maxAllocations      = 10_000
	maxPrefix           = 64
	idLength            = 36 // characters of a whole id
	allocationNotFound  = "no allocation has an id that begins with %q"
	allocationAmbiguous = "%q matches allocations in %s and %s: give more characters of the id"
)

// allocationsAPI is the Allocations service over all regions. It asks each region about its own
// allocations, through a tunnel.
type allocationsAPI struct {
	nusav1.UnimplementedAllocationsServer
	s *Services
}

// List implements nusav1.AllocationsServer.
func (l *allocationsAPI) List(ctx context.Context, req *nusav1.ListAllocationsRequest) (*nusav1.ListAllocationsResponse, error) {
	term, err := l.s.term()
	if err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	switch {
	case limit == 0:
		limit = defaultAllocations
	case limit < 1 || limit > maxAllocations:
		return nil, invalid("limit", fmt.Sprintf("must be 1..%d", maxAllocations))
	}
	if err := filter.Check(req.GetStates(), filter.AllocationStates); err != nil {
		return nil, err
	}
	if filter.HasEnded(req.GetStates()) && !req.GetAll() {
		req = proto.CloneOf(req)
		req.All = true
	}
	names, err := allocationRegions(term, req)
	if err != nil {
		return nil, err
	}
	conns, errs := term.reach(names)
	addLastReported(term, req, errs)
	lists, failed := askAll(ctx, conns, func(ctx context.Context, c regionConn) (*nusav1.ListAllocationsResponse, error) {
		part, err := nusav1.NewAllocationsClient(c.conn).List(ctx, req)
		if status.Code(err) == codes.NotFound {
			return nil, nil // the region does not know the job, or the node
		}
		if err == nil && !part.GetSelects() {
			err = selectAllocations(req, part)
		}
		return part, err
	})
	out := &nusav1.ListAllocationsResponse{Errors: append(errs, failed...), Selects: true}
	if err := checkKnown(term, req, lists, len(out.Errors) > 0); err != nil {
		return nil, err
	}
	for _, part := range lists {
		out.Allocations = append(out.Allocations, part.GetAllocations()...)
		out.Errors = append(out.Errors, part.GetErrors()...)
		out.Truncated = out.Truncated || part.GetTruncated()
	}
	if call := rights.Of(ctx); call.Filtered() {
		out.Allocations = slices.DeleteFunc(out.Allocations, func(x *nusav1.Allocation) bool { return !call.May(x.GetNamespace(), x.GetRegion()) })
	}
	slices.SortFunc(out.Allocations, func(x, y *nusav1.Allocation) int {
		return cmp.Or(cmp.Compare(x.GetNamespace(), y.GetNamespace()), cmp.Compare(x.GetJob(), y.GetJob()),
			cmp.Compare(x.GetGroup(), y.GetGroup()), cmp.Compare(x.GetIndex(), y.GetIndex()),
			x.GetCreated().AsTime().Compare(y.GetCreated().AsTime()), cmp.Compare(x.GetId(), y.GetId()))
	})
	if len(out.Allocations) > limit {
		out.Allocations, out.Truncated = out.Allocations[:limit], true
	}
	return out, nil
}

// selectAllocations applies the states of a request to the answer of a region of an earlier version.
func selectAllocations(req *nusav1.ListAllocationsRequest, part *nusav1.ListAllocationsResponse) error {
	if len(req.GetLabels()) > 0 {
		return status.Error(codes.Unimplemented, "its servers have an earlier version, which cannot select allocations by labels")
	}
	part.Allocations = slices.DeleteFunc(part.Allocations, func(x *nusav1.Allocation) bool {
		return !filter.Has(req.GetStates(), filter.Allocation(x.GetState(), x.GetDesired())...)
	})
	return nil
}

// addLastReported extends the errors about regions that are not connected. It adds what each
// of these regions reported last: the instances of the requested job, or the number of all
// allocations.
func addLastReported(term *Term, req *nusav1.ListAllocationsRequest, errs []*nusav1.PartialError) {
	if req.GetNodeId() != "" {
		return
	}
	st := term.State
	st.Lock()
	defer st.Unlock()
	see := st.Sight()
	for _, e := range errs {
		last := &nusav1.InstanceCounts{}
		r := st.Regions[e.GetRegion()]
		if r == nil {
			continue // removed meanwhile
		}
		if name := req.GetJob().GetName(); name == "" {
			a := r.Report.GetAllocations()
			last.Running, last.Starting, last.Pending = a["running"], a["starting"], a["pending"]
		} else if k, err := checkRef(req.GetJob()); err == nil && st.Jobs[k] != nil {
			for _, c := range st.Jobs[k].Summaries.Get(r.Name).GetGroups() {
				counts.Add(last, c)
			}
		}
		if proto.Size(last) == 0 {
			continue // the region reported no such instance
		}
		ago := "before the election"
		if _, awaited := see.Awaited(r.Name); !awaited {
			silent, _ := see.CutOff(r.Name)
			ago = jobstatus.Span(silent) + " ago"
		}
		e.Message += fmt.Sprintf("; as last reported, %s: %s", ago, jobstatus.LastText(last))
	}
}

// checkKnown returns NOT_FOUND if no region knows the job or the node that the request names.
// unsure says that some region did not answer. Such a region may know the node, may have its own
// job with that name, or may have ended instances of a removed job.
func checkKnown(term *Term, req *nusav1.ListAllocationsRequest, lists []*nusav1.ListAllocationsResponse, unsure bool) error {
	known := slices.ContainsFunc(lists, func(l *nusav1.ListAllocationsResponse) bool { return l != nil })
	elsewhere := req.GetNodeId() != "" || req.GetJob().GetRegion() != "" || req.GetJob().GetName() == ""
	if known || unsure && (elsewhere || req.GetAll()) || len(lists) == 0 && !unsure {
		return nil
	}
	if id := req.GetNodeId(); id != "" {
		return rpcerr.NotFound(rpcerr.KindNode, id, fmt.Sprintf("no node has the name %q or an id that begins with it: `nusa node list` shows the nodes", id))
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return err
	}
	term.State.Lock()
	defer term.State.Unlock()
	if state.MayBeInHistory(term.State, k) {
		return nil // no instance of such a job is left
	}
	if j := term.State.Jobs[k]; j != nil && (j.Record != nil || j.Slots.Len() > 0) {
		return nil // the job has no instance yet, or none any more
	}
	return jobNotFound(k)
}

// allocationRegions returns the regions to ask. If the request names a region, that is the only
// one. If the request names a job, they are the regions that own slots of the job or may still run
// instances of it. Otherwise allocationRegions returns nil, which means all regions.
func allocationRegions(term *Term, req *nusav1.ListAllocationsRequest) ([]string, error) {
	name := cmp.Or(req.GetRegion(), req.GetJob().GetRegion())
	term.State.Lock()
	defer term.State.Unlock()
	if name != "" {
		if term.State.Regions[name] == nil {
			return nil, unknownRegion(term.State, "region", name)
		}
		return []string{name}, nil
	}
	if req.GetJob().GetName() == "" {
		return nil, nil
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return nil, err
	}
	if j := term.State.Jobs[k]; j != nil && !req.GetAll() {
		names := j.Summaries.Regions()
		for s := range j.Slots.All() {
			if s.Region != "" { // a slot without an owner has instances in no region
				names = append(names, s.Region)
			}
		}
		slices.Sort(names)
		return append([]string{}, slices.Compact(names)...), nil
	}
	return nil, nil
}

// found is an allocation and the tunnel to its region.
type found struct {
	alloc *nusav1.Allocation
	conn  regionConn
	// ambiguous is the region's error if several of its allocations match.
	ambiguous error
}

// findAllocation returns the one allocation whose id begins with a prefix. It asks all regions at
// the same time. It returns an error if the caller may not do to the allocation what the call does.
func findAllocation(ctx context.Context, term *Term, prefix string) (found, error) {
	if len(prefix) < minPrefix || len(prefix) > maxPrefix {
		return found{}, invalid("id", fmt.Sprintf("must be %d..%d characters of an allocation's id", minPrefix, maxPrefix))
	}
	conns, errs := term.reach(nil)
	answers, failed := askAll(ctx, conns, func(ctx context.Context, c regionConn) (found, error) {
		alloc, err := nusav1.NewAllocationsClient(c.conn).Get(ctx, &nusav1.GetAllocationRequest{Id: prefix})
		switch status.Code(err) {
		case codes.NotFound:
			return found{}, nil
		case codes.InvalidArgument: // several allocations of the region match
			return found{conn: c, ambiguous: err}, nil
		}
		return found{alloc: alloc, conn: c}, err
	})
	answers = slices.DeleteFunc(answers, func(f found) bool { return f.alloc == nil && f.ambiguous == nil })
	call := rights.Of(ctx)
	switch {
	case call.Confined() && (len(answers) > 1 || len(answers) == 1 && answers[0].ambiguous != nil):
		return found{}, invalid("id", "give the whole id: several ids may begin with "+prefix) // the other answers name the ids
	case len(answers) > 0 && answers[0].ambiguous != nil:
		return found{}, answers[0].ambiguous
	case len(answers) > 1:
		return found{}, invalid("id", fmt.Sprintf(allocationAmbiguous, prefix, answers[0].conn.name, answers[1].conn.name))
	case len(answers) == 1:
		f := answers[0]
		return f, call.Find(f.alloc.GetNamespace(), f.conn.name, f.alloc.GetId(), func() error { return noAllocation(call, prefix) })
	case len(failed) > 0:
		return found{}, status.Errorf(codes.Unavailable, allocationNotFound+" in the regions that answered; %s: %s",
			prefix, failed[0].GetRegion(), failed[0].GetMessage())
	case len(errs) > 0:
		code := codes.NotFound
		if len(prefix) == idLength { // the prefix is a whole id, so the allocation may be in a region that is not connected
			code = codes.Unavailable
		}
		return found{}, status.Errorf(code, allocationNotFound+" in the connected regions; %s is %s",
			prefix, errs[0].GetRegion(), errs[0].GetMessage())
	}
	return found{}, noAllocation(call, prefix)
}

// noAllocation says that the caller finds no allocation with a prefix.
func noAllocation(call *rights.Call, prefix string) error {
	if call.Confined() {
		return status.Error(codes.NotFound, call.Missing(prefix))
	}
	return status.Errorf(codes.NotFound, allocationNotFound+": `nusa alloc list --all` shows them", prefix)
}

// Get implements nusav1.AllocationsServer.
func (l *allocationsAPI) Get(ctx context.Context, req *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	term, err := l.s.term()
	if err != nil {
		return nil, err
	}
	f, err := findAllocation(ctx, term, req.GetId())
	if err != nil {
		return nil, err
	}
	return f.alloc, nil
}

// Stop implements nusav1.AllocationsServer.
func (l *allocationsAPI) Stop(ctx context.Context, req *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	term, err := l.s.term()
	if err != nil {
		return nil, err
	}
	f, err := findAllocation(ctx, term, req.GetId())
	if err != nil {
		return nil, err
	}
	if err := term.record(ctx, entryOf("stop", audit.Started, f)); err != nil {
		return nil, err
	}
	return nusav1.NewAllocationsClient(f.conn.conn).Stop(ctx, &nusav1.GetAllocationRequest{Id: f.alloc.GetId()})
}

// Logs implements nusav1.AllocationsServer.
func (l *allocationsAPI) Logs(req *nusav1.LogsRequest, stream grpc.ServerStreamingServer[nusav1.LogChunk]) error {
	term, err := l.s.term()
	if err != nil {
		return err
	}
	f, err := findAllocation(stream.Context(), term, req.GetAllocation())
	if err != nil {
		return err
	}
	if err := term.record(stream.Context(), entryOf("logs", audit.Started, f)); err != nil {
		return err
	}
	req.Allocation = f.alloc.GetId()
	up, err := nusav1.NewAllocationsClient(f.conn.conn).Logs(stream.Context(), req)
	if err != nil {
		return err
	}
	return relay(up, stream.Send)
}

// Stats implements nusav1.AllocationsServer.
func (l *allocationsAPI) Stats(ctx context.Context, req *nusav1.AllocationStatsRequest) (*nusav1.AllocationStats, error) {
	term, err := l.s.term()
	if err != nil {
		return nil, err
	}
	f, err := findAllocation(ctx, term, req.GetAllocation())
	if err != nil {
		return nil, err
	}
	return nusav1.NewAllocationsClient(f.conn.conn).Stats(ctx, &nusav1.AllocationStatsRequest{Allocation: f.alloc.GetId()})
}

// Exec implements nusav1.AllocationsServer.
func (l *allocationsAPI) Exec(stream grpc.BidiStreamingServer[nusav1.ExecRequest, nusav1.ExecResponse]) error {
	term, err := l.s.term()
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetStart() == nil {
		return invalid("start", "must be in the first message")
	}
	f, err := findAllocation(stream.Context(), term, first.GetStart().GetAllocation())
	if err != nil {
		return err
	}
	if err := term.record(stream.Context(), entryOf("exec", audit.Started, f)); err != nil {
		return err
	}
	first.Start.Allocation = f.alloc.GetId()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	up, err := nusav1.NewAllocationsClient(f.conn.conn).Exec(ctx)
	if err != nil {
		return err
	}
	if err := up.Send(first); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	// This goroutine ends with the caller's stream, at the latest when the handler returns.
	go func() {
		for {
			m, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				_ = up.CloseSend()
				return
			case err != nil:
				cancel()
				return
			}
			if up.Send(m) != nil {
				return // the region ended the stream; Recv below returns its status
			}
		}
	}()
	for {
		m, err := up.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
}

// started finds an allocation and its region for a call with an entry in the audit trail. The
// entry is durable when started returns.
func (l *allocationsAPI) started(ctx context.Context, verb, prefix string) (nusav1.AllocationsClient, found, error) {
	term, err := l.s.term()
	if err != nil {
		return nil, found{}, err
	}
	f, err := findAllocation(ctx, term, prefix)
	if err != nil {
		return nil, found{}, err
	}
	if err := term.record(ctx, entryOf(verb, audit.Started, f)); err != nil {
		return nil, found{}, err
	}
	return nusav1.NewAllocationsClient(f.conn.conn), f, nil
}

// Restart implements nusav1.AllocationsServer.
func (l *allocationsAPI) Restart(ctx context.Context, req *nusav1.RestartAllocationRequest) (*nusav1.RestartAllocationResponse, error) {
	region, f, err := l.started(ctx, "restart", req.GetAllocation())
	if err != nil {
		return nil, err
	}
	out, err := region.Restart(ctx, &nusav1.RestartAllocationRequest{Allocation: f.alloc.GetId(), Task: req.GetTask()})
	return out, ofRegion(f.conn.name, err)
}

// Signal implements nusav1.AllocationsServer.
func (l *allocationsAPI) Signal(ctx context.Context, req *nusav1.SignalAllocationRequest) (*nusav1.SignalAllocationResponse, error) {
	region, f, err := l.started(ctx, "signal", req.GetAllocation())
	if err != nil {
		return nil, err
	}
	out, err := region.Signal(ctx, &nusav1.SignalAllocationRequest{Allocation: f.alloc.GetId(), Task: req.GetTask(), Signal: req.GetSignal()})
	return out, ofRegion(f.conn.name, err)
}

// ListFiles implements nusav1.AllocationsServer.
func (l *allocationsAPI) ListFiles(ctx context.Context, req *nusav1.ListFilesRequest) (*nusav1.ListFilesResponse, error) {
	region, f, err := l.started(ctx, "files", req.GetAllocation())
	if err != nil {
		return nil, err
	}
	out, err := region.ListFiles(ctx, &nusav1.ListFilesRequest{Allocation: f.alloc.GetId(), Path: req.GetPath(), Limit: req.GetLimit()})
	return out, ofRegion(f.conn.name, err)
}

// ReadFile implements nusav1.AllocationsServer.
func (l *allocationsAPI) ReadFile(req *nusav1.ReadFileRequest, stream grpc.ServerStreamingServer[nusav1.FileChunk]) error {
	region, f, err := l.started(stream.Context(), "files", req.GetAllocation())
	if err != nil {
		return err
	}
	req.Allocation = f.alloc.GetId()
	up, err := region.ReadFile(stream.Context(), req)
	if err != nil {
		return err
	}
	return ofRegion(f.conn.name, relay(up, stream.Send))
}

// OfRegion returns the error of a region's server for the caller: see ofRegion.
func OfRegion(region string, err error) error { return ofRegion(region, err) }

// ofRegion returns the error of a region's server. A server of an earlier version may not have the call.
func ofRegion(region string, err error) error {
	if rpcerr.UnknownCall(err) {
		return status.Errorf(codes.Unimplemented, "the servers of region %s are of an earlier version and cannot do this: upgrade them", region)
	}
	return err
}
