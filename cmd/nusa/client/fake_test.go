package client

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// fake is a server with fixed answers. What a job is named decides what
// happens to it; see the methods.
type fake struct {
	nusav1.UnimplementedJobsServer
	nusav1.UnimplementedSystemServer
	*notes
	watches int // of the job "broken"
}

// notes are what all of the fake's services share.
type notes struct {
	addr     string
	requests []proto.Message
}

func (n *notes) note(m proto.Message) { n.requests = append(n.requests, m) }

// newFake serves until the test ends, on a loopback port.
func newFake(t *testing.T) *fake {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{notes: &notes{addr: l.Addr().String()}}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	nusav1.RegisterJobsServer(s, f)
	nusav1.RegisterAllocationsServer(s, allocServer{notes: f.notes})
	nusav1.RegisterRegionsServer(s, regionServer{notes: f.notes})
	nusav1.RegisterNodesServer(s, nodeServer{notes: f.notes})
	nusav1.RegisterTopologyServer(s, topologyServer{notes: f.notes})
	nusav1.RegisterEventsServer(s, eventServer{notes: f.notes})
	nusav1.RegisterSystemServer(s, f)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Errorf("the fake server: %v", err)
		}
	})
	return f
}

// run executes a command line and answers what it printed and its exit code.
func (f *fake) run(ctx context.Context, stdin string, args ...string) (out, errOut string, code int) {
	root := Root()
	root.AddCommand(Commands()...)
	var o, e bytes.Buffer
	root.SetOut(&o)
	root.SetErr(&e)
	root.SetIn(bytes.NewBufferString(stdin))
	code = ExecuteArgs(ctx, root, args)
	return o.String(), e.String(), code
}

func (f *fake) Submit(ctx context.Context, r *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	f.note(r)
	switch r.GetSpec().GetName() {
	case "refused":
		return nil, serve.Invalid(
			&nusav1.Problem{Field: "groups.g.tasks.t.artifacts", Message: "not supported yet by driver process"},
			&nusav1.Problem{Field: "regions.near[0].region", Message: `there is no region "mars"`})
	case "quorum":
		return nil, status.Error(codes.Unavailable, "etcd has no quorum: 1 of 3 members answer")
	case "stale":
		return nil, status.Error(codes.Aborted, "check_revision is 3 and the job's revision is 9")
	case "full":
		return nil, status.Error(codes.ResourceExhausted, "the queue of submits is full (1024)")
	case "slow":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &nusav1.SubmitResponse{Version: 2, Revision: 12, Changed: r.GetSpec().GetName() != "same", Warnings: job.Warnings(r.GetSpec())}, nil
}

// jobIn is a job of one group of two in a state.
func jobIn(name string, version int64, state nusav1.JobState, c *nusav1.InstanceCounts) *nusav1.Job {
	j := sampleJob()
	j.Spec.Name, j.Version, j.Submitted = name, version, nil
	j.Status = &nusav1.JobStatus{State: state, Groups: map[string]*nusav1.GroupStatus{"web": {
		Desired: 2, Counts: c, Regions: map[string]*nusav1.InstanceCounts{"japaneast": c},
	}}}
	return j
}

func (f *fake) Watch(r *nusav1.GetJobRequest, s grpc.ServerStreamingServer[nusav1.Job]) error {
	name := r.GetJob().GetName()
	old := jobIn(name, 1, nusav1.JobState_JOB_STATE_RUNNING, &nusav1.InstanceCounts{Running: 2})
	waiting := jobIn(name, 2, nusav1.JobState_JOB_STATE_PENDING, &nusav1.InstanceCounts{Pending: 2})
	waiting.Status.Groups["web"].Pending = []*nusav1.CountedReason{{Reason: nusav1.Reason_REASON_RTT_TOO_HIGH, Count: 3, What: "region"}}
	waiting.Status.Groups["web"].Unowned = 2
	starting := jobIn(name, 2, nusav1.JobState_JOB_STATE_STARTING, &nusav1.InstanceCounts{Starting: 1, Running: 1})
	running := jobIn(name, 2, nusav1.JobState_JOB_STATE_RUNNING, &nusav1.InstanceCounts{Running: 2})
	complete := jobIn(name, 2, nusav1.JobState_JOB_STATE_COMPLETE, &nusav1.InstanceCounts{Complete: 2})
	failed := jobIn(name, 2, nusav1.JobState_JOB_STATE_FAILED, &nusav1.InstanceCounts{Running: 1, Failed: 1})
	failed.Status.Message = "web[1]: exit code 3"
	stopped := jobIn(name, 2, nusav1.JobState_JOB_STATE_STOPPED, &nusav1.InstanceCounts{Stopped: 2})
	stopped.Stopped = true
	outdated := jobIn(name, 2, nusav1.JobState_JOB_STATE_RUNNING, &nusav1.InstanceCounts{Running: 2})
	outdated.Status.Groups["web"].Slots = []*nusav1.Slot{{Group: "web", To: 2, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: 1}}
	send := func(all ...*nusav1.Job) error {
		for _, j := range all {
			if err := s.Send(j); err != nil {
				return err
			}
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
	switch name {
	case "stuck":
		return send(waiting)
	case "fails":
		return send(waiting, failed)
	case "stopped":
		return send(stopped)
	case "other":
		return send(jobIn(name, 3, nusav1.JobState_JOB_STATE_PENDING, nil))
	case "batch":
		return send(waiting, running, complete)
	case "purged":
		return status.Error(codes.NotFound, "job default/purged does not exist")
	case "broken":
		if f.watches++; f.watches == 1 {
			if err := s.Send(waiting); err != nil {
				return err
			}
			return status.Error(codes.Unavailable, "this server is no longer active")
		}
	}
	return send(old, waiting, starting, outdated, running)
}

func (f *fake) Plan(_ context.Context, r *nusav1.PlanRequest) (*nusav1.PlanResponse, error) {
	switch r.GetSpec().GetName() {
	case "same":
		return &nusav1.PlanResponse{Revision: 9}, nil
	case "quorum":
		return nil, status.Error(codes.Unavailable, "etcd has no quorum: 1 of 3 members answer")
	}
	p := samplePlan()
	if r.GetSpec().GetName() == "fresh" {
		p.Revision, p.Diff = 0, job.Diff(nil, r.GetSpec())
	}
	return p, nil
}

func (f *fake) Get(_ context.Context, r *nusav1.GetJobRequest) (*nusav1.Job, error) {
	f.note(r)
	if r.GetJob().GetName() != "api" {
		return nil, status.Errorf(codes.NotFound, "job %s does not exist", refName(r.GetJob()))
	}
	j := sampleJob()
	j.Submitted = nil
	j.Region = r.GetJob().GetRegion()
	return j, nil
}

func (f *fake) List(_ context.Context, r *nusav1.ListJobsRequest) (*nusav1.ListJobsResponse, error) {
	f.note(r)
	j := sampleJob()
	j.Submitted = nil
	if r.GetPageToken() == "" {
		return &nusav1.ListJobsResponse{Jobs: []*nusav1.Job{j}, NextPageToken: "2"}, nil
	}
	own := jobIn("own", 1, nusav1.JobState_JOB_STATE_STARTING, &nusav1.InstanceCounts{Starting: 2})
	own.Region = "eastus"
	return &nusav1.ListJobsResponse{Jobs: []*nusav1.Job{own}, Errors: []*nusav1.PartialError{{Region: "westeurope", Message: "no session"}}}, nil
}

func (f *fake) Stop(_ context.Context, r *nusav1.StopJobRequest) (*nusav1.StopJobResponse, error) {
	f.note(r)
	return &nusav1.StopJobResponse{Revision: 13}, nil
}

func (f *fake) Explain(_ context.Context, r *nusav1.ExplainRequest) (*nusav1.Explanation, error) {
	f.note(r)
	e := sampleExplanation()
	if r.GetRegion() == "" {
		e.Groups[0].Nodes = nil
	}
	return e, nil
}

func (f *fake) Adopt(_ context.Context, r *nusav1.AdoptRequest) (*nusav1.SubmitResponse, error) {
	f.note(r)
	if r.GetName() == "later" {
		return nil, status.Error(codes.Unimplemented, "adopting is not supported yet")
	}
	return &nusav1.SubmitResponse{Version: 1, Changed: true}, nil
}

func (f *fake) Info(context.Context, *nusav1.InfoRequest) (*nusav1.InfoResponse, error) {
	return &nusav1.InfoResponse{Role: "global", Name: "g1", Version: "1.2.3"}, nil
}

type allocServer struct {
	nusav1.UnimplementedAllocationsServer
	*notes
}

func (f allocServer) List(_ context.Context, r *nusav1.ListAllocationsRequest) (*nusav1.ListAllocationsResponse, error) {
	f.note(r)
	a := sampleAlloc()
	a.Created = nil
	return &nusav1.ListAllocationsResponse{Allocations: []*nusav1.Allocation{a}, Truncated: r.GetAll()}, nil
}

func (f allocServer) Get(_ context.Context, r *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	if r.GetId() != "11112222" {
		return nil, status.Errorf(codes.NotFound, "no allocation %s", r.GetId())
	}
	a := sampleAlloc()
	a.Created, a.Tasks["server"].Events = nil, nil
	return a, nil
}

func (f allocServer) Stop(ctx context.Context, r *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	return f.Get(ctx, r)
}

func (f allocServer) Logs(r *nusav1.LogsRequest, s grpc.ServerStreamingServer[nusav1.LogChunk]) error {
	f.note(r)
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

type regionServer struct {
	nusav1.UnimplementedRegionsServer
	*notes
}

func (f regionServer) Define(_ context.Context, r *nusav1.DefineRegionRequest) (*nusav1.Region, error) {
	f.note(r)
	return &nusav1.Region{Definition: r.GetDefinition(), State: nusav1.RegionState_REGION_STATE_DEFINED, Revision: 7}, nil
}

func (f regionServer) List(context.Context, *nusav1.ListRegionsRequest) (*nusav1.ListRegionsResponse, error) {
	return &nusav1.ListRegionsResponse{Regions: sampleRegions()}, nil
}

func (f regionServer) Get(_ context.Context, r *nusav1.GetRegionRequest) (*nusav1.Region, error) {
	f.note(r)
	for _, region := range sampleRegions() {
		if region.GetDefinition().GetName() == r.GetName() {
			region.MasterAddress = f.addr
			return region, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no region %q", r.GetName())
}

func (f regionServer) Cordon(ctx context.Context, r *nusav1.CordonRegionRequest) (*nusav1.Region, error) {
	f.note(r)
	return f.Get(ctx, &nusav1.GetRegionRequest{Name: r.GetName()})
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
	return &nusav1.ListNodesResponse{Nodes: sampleNodes(), Errors: []*nusav1.PartialError{{Region: "eastus", Message: "deadline\nexceeded"}}}, nil
}

func (f nodeServer) Get(_ context.Context, r *nusav1.GetNodeRequest) (*nusav1.Node, error) {
	n := sampleNodes()[0]
	n.Registered, n.Inventory.Facts.BootTime = nil, nil
	return n, nil
}

func (f nodeServer) Drain(_ context.Context, r *nusav1.DrainNodeRequest) (*nusav1.Node, error) {
	f.note(r)
	return sampleNodes()[0], nil
}

func (f nodeServer) Cordon(_ context.Context, r *nusav1.CordonNodeRequest) (*nusav1.Node, error) {
	f.note(r)
	return sampleNodes()[0], nil
}

type topologyServer struct {
	nusav1.UnimplementedTopologyServer
	*notes
}

func (f topologyServer) Get(context.Context, *nusav1.GetTopologyRequest) (*nusav1.TopologyTree, error) {
	return sampleTree(), nil
}

func (f topologyServer) Matrix(context.Context, *nusav1.MatrixRequest) (*nusav1.MatrixResponse, error) {
	return sampleMatrix(), nil
}

func (f topologyServer) Path(context.Context, *nusav1.PathRequest) (*nusav1.PathResponse, error) {
	return samplePaths(), nil
}

func (f topologyServer) Nearest(_ context.Context, r *nusav1.NearestRequest) (*nusav1.NearestResponse, error) {
	f.note(r)
	return sampleNearest(), nil
}

func (f topologyServer) Watch(_ *nusav1.MatrixRequest, s grpc.ServerStreamingServer[nusav1.MatrixResponse]) error {
	return errors.Join(s.Send(sampleMatrix()), s.Send(&nusav1.MatrixResponse{Edges: []*nusav1.Edge{
		edge("japaneast", "eastus", 170*time.Millisecond, nusav1.EdgeState_EDGE_STATE_OK, nusav1.RTTSource_RTT_SOURCE_MEASURED),
	}}))
}

type eventServer struct {
	nusav1.UnimplementedEventsServer
	*notes
}

func (f eventServer) Watch(r *nusav1.WatchEventsRequest, s grpc.ServerStreamingServer[nusav1.Event]) error {
	return errors.Join(
		s.Send(&nusav1.Event{Token: "1", Reset_: r.GetToken() != "", Type: "job.submitted", Subject: "default/api", Message: "version 2"}),
		s.Send(&nusav1.Event{Token: "2", Type: "node.lost", Subject: "japaneast/n1"}))
}

func edge(from, to string, p50 time.Duration, state nusav1.EdgeState, source nusav1.RTTSource) *nusav1.Edge {
	return &nusav1.Edge{From: from, To: to, State: state, Source: source, P50: durationpb.New(p50), P90: durationpb.New(p50 + p50/10), P99: durationpb.New(p50 + p50/5),
		Min: durationpb.New(p50 - p50/20), Jitter: durationpb.New(p50 / 100), Loss: 0.015, Samples: 20, Age: durationpb.New(12 * time.Second), Method: "udp"}
}
