package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// This file has the services of the fake server except Jobs.

type allocServer struct {
	nusav1.UnimplementedAllocationsServer
	*notes
}

func (f allocServer) List(_ context.Context, r *nusav1.ListAllocationsRequest) (*nusav1.ListAllocationsResponse, error) {
	f.note(r)
	if r.GetNodeId() == "none" || r.GetJob().GetName() == "nope" || r.GetJob().GetName() == "idle" || r.GetRegion() == "nowhere" || r.GetRegion() == "jakarta" || r.GetJob().GetNamespace() == "empty" {
		return &nusav1.ListAllocationsResponse{}, nil
	}
	switch r.GetJob().GetName() {
	case "nothing":
		return nil, rpcerr.NotFound(rpcerr.KindJob, cli.RefName(r.GetJob()), "job "+cli.RefName(r.GetJob())+" does not exist")
	case "cut": // tokyo's allocations cannot be seen
		silent := []*nusav1.PartialError{{Region: "tokyo", Message: "cut off for 20s; as last reported, 20s ago: 2 running"}}
		return &nusav1.ListAllocationsResponse{Errors: silent}, nil
	case "halfcut":
		silent := []*nusav1.PartialError{{Region: "tokyo", Message: "cut off for 20s; as last reported, 20s ago: 2 running"}}
		return &nusav1.ListAllocationsResponse{Allocations: sample.ManyAllocs(), Errors: silent}, nil
	case "broken": // web[1] has failed; web[0] had failed before it was replaced
		all := sample.ManyAllocs()
		for i, state := range []nusav1.AllocState{3, 5, 5, 3} {
			all[i].Job, all[i].State, all[i].JobVersion = "broken", state, int64(1+i%3)
		}
		all[3].Group, all[3].Index, all[3].JobVersion = "web", 0, 3
		if r.GetAll() {
			return &nusav1.ListAllocationsResponse{Allocations: all}, nil
		}
		return &nusav1.ListAllocationsResponse{Allocations: []*nusav1.Allocation{all[0], all[3]}}, nil
	case "many":
		return &nusav1.ListAllocationsResponse{Allocations: sample.ManyAllocs()}, nil
	case "earlier": // a server of an earlier version: it ignores states. Of many allocations the latest two have failed
		most := int(cmp.Or(r.GetLimit(), 1000))
		out := &nusav1.ListAllocationsResponse{Truncated: most < 1200}
		for i := range min(most, 1200) {
			state := nusav1.AllocState_ALLOC_STATE_COMPLETE
			if i >= 1198 {
				state = nusav1.AllocState_ALLOC_STATE_FAILED
			}
			out.Allocations = append(out.Allocations, &nusav1.Allocation{Id: fmt.Sprint("alloc-", i), State: state})
		}
		return out, nil
	case "watch":
		return &nusav1.ListAllocationsResponse{Allocations: sample.EverywhereAllocs()}, nil
	}
	if r.GetJob().GetName() == "ended" {
		return &nusav1.ListAllocationsResponse{Allocations: sample.EndedAllocs(12)}, nil
	}
	a := sample.Alloc()
	a.Created = nil
	return &nusav1.ListAllocationsResponse{Allocations: []*nusav1.Allocation{a}, Truncated: r.GetAll()}, nil
}

func (f allocServer) Get(_ context.Context, r *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	if f.get != nil {
		return &nusav1.Allocation{}, f.get(r.GetId())
	}
	if !strings.HasPrefix(sample.Alloc().GetId(), r.GetId()) {
		return nil, status.Errorf(codes.NotFound, "no allocation %s", r.GetId())
	}
	a := sample.Alloc()
	a.Created, a.Tasks["server"].Events, a.Tasks["server"].Started = nil, nil, nil
	return a, nil
}

func (f allocServer) Stop(ctx context.Context, r *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	return f.Get(ctx, r)
}

func (f allocServer) Logs(r *nusav1.LogsRequest, s grpc.ServerStreamingServer[nusav1.LogChunk]) error {
	f.note(r)
	if f.logs != nil {
		return f.logs(r, s)
	}
	if f.readers != nil {
		f.readers.Done()
		f.readers.Wait()
	}
	if r.GetStdout() {
		if err := s.Send(&nusav1.LogChunk{Data: []byte("one\ntwo\n")}); err != nil {
			return err
		}
	}
	if r.GetStderr() {
		return s.Send(&nusav1.LogChunk{Stderr: true, Data: []byte("oh\n")})
	}
	return nil
}

// Exec runs "cat", which prints its input. Other commands print their arguments
// and exit with 7.
func (f allocServer) Exec(s grpc.BidiStreamingServer[nusav1.ExecRequest, nusav1.ExecResponse]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	f.note(first)
	words := first.GetStart().GetCommand()
	if words[0] == "gone" {
		return status.Error(codes.FailedPrecondition, "exec: task server does not run")
	}
	if f.execEnds != nil {
		if err := s.Send(&nusav1.ExecResponse{Stdout: []byte("began\n")}); err != nil {
			return err
		}
		return f.execEnds()
	}
	for m := first; !m.GetStdinClose(); {
		m, err = s.Recv()
		if err != nil {
			return err
		}
		if r := m.GetResize(); r != nil {
			m.Stdin = fmt.Appendf(nil, "%d x %d\n", r.GetColumns(), r.GetRows())
		}
		if err := s.Send(&nusav1.ExecResponse{Stdout: m.GetStdin()}); err != nil {
			return err
		}
		if first.GetStart().GetTty() && bytes.ContainsRune(m.GetStdin(), 4) {
			break // Ctrl-D
		}
	}
	if words[0] == "cat" {
		return s.Send(&nusav1.ExecResponse{Exited: true})
	}
	return s.Send(&nusav1.ExecResponse{Stderr: []byte(fmt.Sprintln(words)), Exited: true, ExitCode: 7})
}

func (f allocServer) Stats(_ context.Context, r *nusav1.AllocationStatsRequest) (*nusav1.AllocationStats, error) {
	if strings.HasSuffix(r.GetAllocation(), "-many") && r.GetAllocation() != "11110000-many" || strings.HasSuffix(r.GetAllocation(), "-watch") {
		return &nusav1.AllocationStats{Allocation: r.GetAllocation(), Tasks: map[string]*nusav1.TaskStats{
			"main": {Up: durationpb.New(10 * time.Second), Cpu: durationpb.New(time.Second), MemoryBytes: 1 << 20, MemoryPeakBytes: 2 << 20, Processes: 1},
		}}, nil
	}
	if r.GetAllocation() != sample.Alloc().GetId() {
		return nil, status.Errorf(codes.NotFound, "no allocation %s", r.GetAllocation())
	}
	return &nusav1.AllocationStats{Allocation: "11112222", Tasks: map[string]*nusav1.TaskStats{
		"server": {Up: durationpb.New(100 * time.Second), Cpu: durationpb.New(25*time.Second + 456789), MemoryBytes: 64 << 20, MemoryPeakBytes: 96 << 20, Processes: 3},
		"helper": {Up: durationpb.New(100 * time.Second), MemoryBytes: -1, MemoryPeakBytes: -1, Processes: -1},
		"idle":   {Message: "task idle does not run"},
	}}, nil
}

type regionServer struct {
	nusav1.UnimplementedRegionsServer
	*notes
}

func (f regionServer) Define(_ context.Context, r *nusav1.DefineRegionRequest) (*nusav1.Region, error) {
	f.note(r)
	return &nusav1.Region{Definition: r.GetDefinition(), State: nusav1.RegionState_REGION_STATE_DEFINED, Revision: 7}, nil
}

func (f regionServer) List(_ context.Context, r *nusav1.ListRegionsRequest) (*nusav1.ListRegionsResponse, error) {
	if len(r.GetLabels()) > 0 {
		return &nusav1.ListRegionsResponse{}, f.refuse
	}
	return &nusav1.ListRegionsResponse{Regions: sample.Regions()}, nil
}

func (f regionServer) Get(_ context.Context, r *nusav1.GetRegionRequest) (*nusav1.Region, error) {
	f.note(r)
	if r.GetName() == "eastaway" {
		return &nusav1.Region{MasterAddress: "127.0.0.1:1"}, nil
	}
	for _, region := range sample.Regions() {
		if region.GetDefinition().GetName() == r.GetName() {
			region.MasterAddress = f.addr
			return region, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no region %q", r.GetName())
}

func (f regionServer) Cordon(ctx context.Context, r *nusav1.CordonRegionRequest) (*nusav1.Region, error) {
	f.note(r)
	region, err := f.Get(ctx, &nusav1.GetRegionRequest{Name: r.GetName()})
	if err == nil {
		region.Cordoned = r.GetCordon()
	}
	return region, err
}

func (f regionServer) Lose(ctx context.Context, r *nusav1.LoseRegionRequest) (*nusav1.Region, error) {
	f.note(r)
	region, err := f.Get(ctx, &nusav1.GetRegionRequest{Name: r.GetName()})
	if err == nil && r.GetName() == "japaneast" {
		err = status.Error(codes.FailedPrecondition, "region japaneast is connected, so its work may run")
	}
	return region, err
}

func (f regionServer) Drain(ctx context.Context, r *nusav1.DrainRegionRequest) (*nusav1.Region, error) {
	f.note(r)
	region, err := f.Get(ctx, &nusav1.GetRegionRequest{Name: r.GetName()})
	if err == nil {
		region.Draining = r.GetDrain()
	}
	return region, err
}

func (f regionServer) Failback(_ context.Context, r *nusav1.FailbackRequest) (*nusav1.FailbackResponse, error) {
	f.note(r)
	return &nusav1.FailbackResponse{}, nil
}

func (f regionServer) Remove(_ context.Context, r *nusav1.GetRegionRequest) (*nusav1.RemoveRegionResponse, error) {
	if r.GetName() == "japaneast" {
		return nil, status.Error(codes.FailedPrecondition, "region japaneast owns 3 slots: stop or move them first")
	}
	return &nusav1.RemoveRegionResponse{}, nil
}

type nodeServer struct {
	nusav1.UnimplementedNodesServer
	*notes
}

func (f nodeServer) List(_ context.Context, r *nusav1.ListNodesRequest) (*nusav1.ListNodesResponse, error) {
	f.note(r)
	if r.GetPool() == "none" || r.GetRegion() == "jakarta" {
		return &nusav1.ListNodesResponse{}, nil
	}
	return &nusav1.ListNodesResponse{Nodes: sample.Nodes(), Errors: []*nusav1.PartialError{{Region: "eastus", Message: "deadline\nexceeded"}}}, nil
}

func (f nodeServer) Get(_ context.Context, r *nusav1.GetNodeRequest) (*nusav1.Node, error) {
	n := sample.Nodes()[0]
	switch r.GetId() {
	case "none":
		n.Id = "none"
	case "nowhere", "n2-世界": // it is in another region
		return nil, rpcerr.NotFound(rpcerr.KindNode, r.GetId(), "there is no such node")
	}
	n.Registered, n.Inventory.Facts.BootTime = nil, nil
	return n, nil
}

func (f nodeServer) Drain(_ context.Context, r *nusav1.DrainNodeRequest) (*nusav1.Node, error) {
	f.note(r)
	n := sample.Nodes()[0]
	n.Draining = r.GetDrain()
	return f.as(n, r.GetId()), nil
}

// as returns a node in the state that the name asks for.
func (f nodeServer) as(n *nusav1.Node, name string) *nusav1.Node {
	n.Name = name
	switch name {
	case "draining":
		n.Draining, n.Allocations = true, 1
	case "cordoned":
		n.Cordoned = true
	case "lost":
		n.State = nusav1.NodeState_NODE_STATE_LOST
	}
	return n
}

func (f nodeServer) Cordon(_ context.Context, r *nusav1.CordonNodeRequest) (*nusav1.Node, error) {
	f.note(r)
	n := sample.Nodes()[0]
	n.Draining, n.Cordoned = false, r.GetCordon()
	return f.as(n, r.GetId()), nil
}

func (f nodeServer) Remove(_ context.Context, r *nusav1.RemoveNodeRequest) (*nusav1.RemoveNodeResponse, error) {
	f.note(r)
	if r.GetId() != "lost" {
		return nil, status.Errorf(codes.FailedPrecondition, "node %s is ready: only one that is lost or has left can be removed; drain it and stop its agent first", r.GetId())
	}
	return &nusav1.RemoveNodeResponse{Node: f.as(sample.Nodes()[0], r.GetId())}, nil
}

type eventServer struct {
	nusav1.UnimplementedEventsServer
	*notes
}

func (f eventServer) Watch(r *nusav1.WatchEventsRequest, s grpc.ServerStreamingServer[nusav1.Event]) error {
	f.note(r)
	if f.events != nil {
		return f.events(r, s)
	}
	switch r.GetRegion() + r.GetToken() {
	case "quiet": // the master changes before an event happens
		return status.Error(codes.Unavailable, "this server stops")
	case "quietnone-0":
		_ = s.Send(&nusav1.Event{Token: "e-7", Reset_: true})
		return status.Error(codes.Unavailable, "this server is no longer the master")
	}
	return errors.Join(
		s.Send(&nusav1.Event{Token: "1", Reset_: r.GetToken() != "", Type: "job.submitted", Subject: "default/api", Message: "version 2"}),
		s.Send(&nusav1.Event{Token: "2", Type: "node.lost", Subject: "japaneast/n1"}),
		s.Send(&nusav1.Event{Token: "3", Type: "node.cordoned", Subject: "southeastasia/southeastasia-agent-1", Message: "by an operator"}),
		s.Send(&nusav1.Event{Token: "4", Type: "slot.returned", Subject: "default/api", Message: "web[0-1] by japaneast: no capacity"}))
}

// workflowServer has a run with three steps: one waits for an approval.
type workflowServer struct {
	nusav1.UnimplementedWorkflowsServer
}

func (workflowServer) List(context.Context, *nusav1.ListWorkflowRunsRequest) (*nusav1.ListWorkflowRunsResponse, error) {
	return &nusav1.ListWorkflowRunsResponse{}, nil
}

func (workflowServer) Run(_ context.Context, r *nusav1.RunWorkflowRequest) (*nusav1.WorkflowRun, error) {
	return &nusav1.WorkflowRun{Namespace: r.GetJob().GetNamespace(), Name: r.GetJob().GetName() + ".1"}, nil
}

func (workflowServer) Get(_ context.Context, r *nusav1.GetWorkflowRunRequest) (*nusav1.WorkflowRunStatus, error) {
	out := &nusav1.WorkflowRunStatus{Run: &nusav1.WorkflowRun{Namespace: r.GetRun().GetNamespace(), Name: r.GetRun().GetName()}}
	if strings.HasPrefix(r.GetRun().GetName(), "broken.") {
		out.Run.State = nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_FAILED
		out.Steps = []*nusav1.StepStatus{{Step: "fetch", State: nusav1.StepState_STEP_STATE_SUCCEEDED}, {Step: "fit", State: nusav1.StepState_STEP_STATE_LOST}}
		return out, nil
	}
	for name, state := range map[string]nusav1.StepState{
		"build": nusav1.StepState_STEP_STATE_SUCCEEDED, "gate": nusav1.StepState_STEP_STATE_APPROVAL, "ship": nusav1.StepState_STEP_STATE_PENDING,
		"fit": nusav1.StepState_STEP_STATE_RUNNING,
	} {
		if r.GetState() == nusav1.StepState_STEP_STATE_UNSPECIFIED || r.GetState() == state {
			out.Steps = append(out.Steps, &nusav1.StepStatus{Step: name, State: state, Job: r.GetRun().GetName() + "--" + name})
		}
	}
	return out, nil
}

// rolloutServer has three versions of each job.
type rolloutServer struct {
	nusav1.UnimplementedRolloutsServer
}

func (rolloutServer) History(context.Context, *nusav1.JobHistoryRequest) (*nusav1.JobHistory, error) {
	return &nusav1.JobHistory{Versions: []*nusav1.JobVersion{{Version: 3}, {Version: 2, Tag: "stable"}, {Version: 1}}}, nil
}
