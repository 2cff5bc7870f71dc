package client

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// fake is a server with fixed responses. The name of the job selects the response.
type fake struct {
	nusav1.UnimplementedJobsServer
	nusav1.UnimplementedSystemServer
	*notes
	audit   *auditServer
	watches int             // number of watches of the job "broken"
	breaks  int             // submits of the job "flaky" whose connection is lost
	stored  *nusav1.JobSpec // spec of the job "stored"
	drop    func()          // breaks every connection
	die     func()          // breaks every connection and accepts no more
	island  string          // the region of this fake server
	info    *nusav1.InfoResponse
	hooks   *hooksServer
	buses   *busesServer
	letters *letterServer
	many    streams
}

// notes has the state that all services of the fake server share.
type notes struct {
	addr       string
	mu         sync.Mutex             // guards requests and fake.breaks
	federation *nusav1.MatrixResponse // returned in pages of 100 rows, if not nil
	asRegion   bool                   // responds like a region's server if possible
	readers    *sync.WaitGroup        // if not nil, Logs responds once all these readers have come
	logs       func(*nusav1.LogsRequest, grpc.ServerStreamingServer[nusav1.LogChunk]) error
	get        func(id string) error // called by Get of an allocation; its error, if any, is the response
	events     func(*nusav1.WatchEventsRequest, grpc.ServerStreamingServer[nusav1.Event]) error
	watch      func(*nusav1.GetJobRequest, grpc.ServerStreamingServer[nusav1.Job]) error
	execEnds   func() error // returns the error with which exec ends after its first output
	refuse     error        // error that a list of regions returns
	requests   []proto.Message
}

func (n *notes) note(m proto.Message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.requests = append(n.requests, m)
}

// taken returns the requests since the previous call.
func (n *notes) taken() []proto.Message {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.requests
	n.requests = nil
	return out
}

// newFake serves on a loopback port until the test ends.
func newFake(t *testing.T) *fake {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{notes: &notes{addr: l.Addr().String()}, audit: newAuditServer(t), hooks: &hooksServer{}, buses: &busesServer{}, letters: &letterServer{}}
	conns := &connections{Listener: l}
	f.drop = conns.drop
	f.die = func() { conns.Close(); conns.drop() }
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	nusav1.RegisterJobsServer(s, f)
	nusav1.RegisterAllocationsServer(s, allocServer{notes: f.notes})
	nusav1.RegisterRegionsServer(s, regionServer{notes: f.notes})
	nusav1.RegisterNodesServer(s, nodeServer{notes: f.notes})
	nusav1.RegisterTopologyServer(s, topologyServer{notes: f.notes})
	nusav1.RegisterOriginsServer(s, originServer{notes: f.notes})
	nusav1.RegisterEventsServer(s, eventServer{notes: f.notes})
	nusav1.RegisterAuditServer(s, f.audit)
	nusav1.RegisterRepairsServer(s, repairsServer{})
	nusav1.RegisterWebhooksServer(s, f.hooks)
	nusav1.RegisterBusesServer(s, f.buses)
	nusav1.RegisterIntakesServer(s, intakesServer{buses: f.buses})
	nusav1.RegisterReservationsServer(s, &reservationServer{})
	nusav1.RegisterDeadLettersServer(s, f.letters)
	nusav1.RegisterTasksServer(s, taskServer{})
	nusav1.RegisterSparesServer(s, &spareServer{})
	nusav1.RegisterPoolsServer(s, &poolServer{})
	nusav1.RegisterOverridesServer(s, &overrideServer{})
	nusav1.RegisterWorkflowsServer(s, workflowServer{})
	nusav1.RegisterSemaphoresServer(s, &semaphoreServer{})
	nusav1.RegisterServicesServer(s, serviceServer{})
	nusav1.RegisterRolloutsServer(s, rolloutServer{})
	nusav1.RegisterMonitorServer(s, monitorServer{notes: f.notes})
	nusav1.RegisterSchedulesServer(s, scheduleServer{notes: f.notes})
	nusav1.RegisterSystemServer(s, f)
	nusav1.RegisterOverviewServer(s, overviewServer{})
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(conns) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("the fake server: %v", err)
		}
	})
	return f
}

// connections stores the accepted connections.
type connections struct {
	net.Listener
	mu  sync.Mutex
	all []net.Conn
}

func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.mu.Lock()
		c.all = append(c.all, conn)
		c.mu.Unlock()
	}
	return conn, err
}

func (c *connections) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.all {
		conn.Close()
	}
	c.all = nil
}

// run executes a command line and returns its output and exit code.
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

// breaking reports whether the connection of this submit breaks. Only the connection of the
// last attempt stays.
func (f *fake) breaking() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.breaks++
	return f.breaks%submitAttempts != 0
}

func (f *fake) Submit(ctx context.Context, r *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	return f.submitOne(ctx, false, r)
}

// submitOne is one submit of a call or of a stream.
func (f *fake) submitOne(ctx context.Context, stream bool, r *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	f.note(r)
	if f.many.submit != nil {
		return f.many.submit(stream, r)
	}
	// Servers fill in the defaults.
	job.Default(r.GetSpec())
	switch r.GetSpec().GetName() {
	case "refused":
		return nil, rpcerr.Invalid(
			&nusav1.Problem{Field: "groups.g.tasks.t.artifacts", Message: "not supported yet by driver process"},
			&nusav1.Problem{Field: "regions.near[0].region", Message: `there is no region "mars"`})
	case "quorum":
		return nil, status.Error(codes.Unavailable, "etcd has no quorum: 1 of 3 members answer")
	case "stale":
		return nil, status.Error(codes.Aborted, "check_revision is 3 and the job's revision is 9")
	case "full":
		return nil, status.Error(codes.ResourceExhausted, "the queue of submits is full (1024)")
	case "flaky", "gone":
		if r.GetSpec().GetName() == "gone" || f.breaking() {
			f.drop()
			<-ctx.Done()
			return nil, ctx.Err()
		}
	case "ended", "endedbadly":
		if !r.GetAgain() {
			return &nusav1.SubmitResponse{Version: 2, Revision: 12, Warnings: append(job.Warnings(r.GetSpec()), "it has completed already; run it again with nusa job run --again FILE")}, nil
		}
		return &nusav1.SubmitResponse{Version: 2, Revision: 13, Warnings: job.Warnings(r.GetSpec())}, nil
	case "fresh":
		return &nusav1.SubmitResponse{Version: 1, Revision: 12, Changed: true, Warnings: job.Warnings(r.GetSpec())}, nil
	case "slow":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &nusav1.SubmitResponse{Version: 2, Revision: 12, Changed: r.GetSpec().GetName() != "same", Warnings: job.Warnings(r.GetSpec())}, nil
}

// jobIn returns a job with one group of two instances, which count as running at once.
func jobIn(name string, version int64, state nusav1.JobState, c *nusav1.InstanceCounts) *nusav1.Job {
	j := sample.Job()
	j.Spec.Name, j.Version, j.Submitted = name, version, nil
	for _, g := range j.GetSpec().GetGroups() {
		g.Update = &nusav1.Update{MinHealthy: durationpb.New(0)}
	}
	j.Status = &nusav1.JobStatus{State: state, Groups: map[string]*nusav1.GroupStatus{"web": {
		Desired: 2, Counts: c, Regions: map[string]*nusav1.InstanceCounts{"japaneast": c},
	}}}
	return j
}

func (f *fake) Watch(r *nusav1.GetJobRequest, s grpc.ServerStreamingServer[nusav1.Job]) error {
	if f.watch != nil {
		return f.watch(r, s)
	}
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
	case "flapping":
		flapping, err := f.Get(s.Context(), r)
		if err != nil {
			return err
		}
		return send(flapping)
	case "nodriver":
		waiting.Spec.Groups["web"].Tasks = map[string]*nusav1.Task{"t": {Driver: "script"}}
		waiting.Status.Groups["web"].Pending = []*nusav1.CountedReason{{Reason: nusav1.Reason_REASON_DRIVER_MISSING, Count: 2, What: "region", Message: "japaneast: has no driver script (n1)"}}
		return send(waiting, waiting, starting, running)
	case "cutoff":
		cut := sample.CutOff()
		cut.Version = 2
		return send(starting, cut)
	case "fails":
		return send(waiting, failed)
	case "brief":
		// It runs, but not for min_healthy.
		running.Spec.Groups["web"].Update.MinHealthy = durationpb.New(time.Hour)
		return send(running, failed)
	case "canary":
		starting.Status.Rollout = &nusav1.Rollout{Version: 2, State: nusav1.RolloutState_ROLLOUT_STATE_CANARY, Canaries: 1, HealthyCanaries: 1, AwaitsPromotion: true}
		return send(waiting, starting)
	case "stopped":
		return send(stopped)
	case "other":
		return send(jobIn(name, 3, nusav1.JobState_JOB_STATE_PENDING, nil))
	case "batch":
		return send(waiting, running, complete)
	case "ended":
		// The status of the previous run is sent first.
		complete.Revision = 12
		rerun := jobIn(name, 2, nusav1.JobState_JOB_STATE_PENDING, &nusav1.InstanceCounts{Pending: 2})
		rerun.Revision = 13
		finished := jobIn(name, 2, nusav1.JobState_JOB_STATE_COMPLETE, &nusav1.InstanceCounts{Complete: 2})
		finished.Revision = 13
		return send(complete, rerun, finished)
	case "endedbadly":
		return send(failed)
	case "update":
		half := jobIn(name, 2, nusav1.JobState_JOB_STATE_RUNNING, &nusav1.InstanceCounts{Running: 2, Outdated: 1})
		none := jobIn(name, 2, nusav1.JobState_JOB_STATE_RUNNING, &nusav1.InstanceCounts{Running: 2, Outdated: 2})
		return send(none, half, running)
	case "back":
		taken := jobIn(name, 3, nusav1.JobState_JOB_STATE_STARTING, &nusav1.InstanceCounts{Running: 2})
		taken.Reverted = &nusav1.Reverted{Version: 2, To: 1, Why: "version 2 failed: 1 of 2 instances failed"}
		return send(starting, taken)
	case "shrunk":
		// An older regional server counts surplus instances as running. A newer server
		// counts them as stopping.
		surplus := jobIn(name, 2, nusav1.JobState_JOB_STATE_RUNNING, &nusav1.InstanceCounts{Running: 4})
		leaving := jobIn(name, 2, nusav1.JobState_JOB_STATE_STARTING, &nusav1.InstanceCounts{Running: 2, Stopping: 2})
		leaving.Status.Message = "2 instances are being stopped"
		unconfirmed := jobIn(name, 2, nusav1.JobState_JOB_STATE_RUNNING, &nusav1.InstanceCounts{Running: 2})
		unconfirmed.Status.Groups["web"].Slots = []*nusav1.Slot{{Group: "web", From: 2, To: 4, Desired: nusav1.SlotDesired_SLOT_DESIRED_STOP, JobVersion: 1}}
		return send(surplus, leaving, unconfirmed, running)
	case "everynode":
		running.Status.Message = "web on 2 of 3 nodes; 1: not enough cpu"
		return send(running)
	case "halfway":
		return send(jobIn(name, 2, nusav1.JobState_JOB_STATE_RUNNING, &nusav1.InstanceCounts{Running: 2, Outdated: 1}))
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
	case "same", "halted":
		return &nusav1.PlanResponse{Revision: 9}, nil
	case "quorum":
		return nil, status.Error(codes.Unavailable, "etcd has no quorum: 1 of 3 members answer")
	}
	p := sample.Plan()
	stopped := &nusav1.DiffLine{Field: "stopped", Old: "true"}
	switch r.GetSpec().GetName() {
	case "fresh":
		// Fill in every default, as servers do.
		job.Default(r.GetSpec())
		p.Revision, p.Diff = 0, job.Diff(nil, r.GetSpec())
	case "stopped":
		p.Diff = []*nusav1.DiffLine{stopped}
	case "changed":
		p.Diff = append(p.Diff, stopped)
	}
	return p, nil
}

func (f *fake) Get(_ context.Context, r *nusav1.GetJobRequest) (*nusav1.Job, error) {
	f.note(r)
	switch r.GetJob().GetName() {
	case "flapping":
		j := jobIn("flapping", 2, nusav1.JobState_JOB_STATE_PENDING, &nusav1.InstanceCounts{Pending: 2})
		j.Status.Groups["web"].Pending = []*nusav1.CountedReason{
			{Reason: nusav1.Reason_REASON_BACKOFF, Count: 1, Region: "japaneast", Message: "japaneast: it failed"}, {Reason: nusav1.Reason_REASON_BACKOFF, Count: 1, Message: "eastus: it failed"}}
		return j, nil
	case "resize":
		return &nusav1.Job{Spec: &nusav1.JobSpec{Name: "resize", Parameterized: &nusav1.Parameterized{}}}, nil
	case "release.1--fit":
		j := jobIn("release.1--fit", 1, nusav1.JobState_JOB_STATE_PENDING, nil)
		j.Status.Message = "1 of 1 instances wait: last failure: exit code 4"
		return j, nil
	case "halfcut":
		return jobIn("halfcut", 2, nusav1.JobState_JOB_STATE_PENDING, nil), nil
	case "halted":
		return &nusav1.Job{Spec: sample.StoredSpec("halted"), Stopped: true, Revision: 12, Region: r.GetJob().GetRegion(),
			Status: &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_STOPPED}}, nil
	case "halting":
		return &nusav1.Job{Spec: sample.StoredSpec("halting"), Stopped: true, Revision: 12, Status: &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_STOPPING}}, nil
	case "same":
		return &nusav1.Job{Spec: sample.StoredSpec("same"), Region: r.GetJob().GetRegion()}, nil
	case "cutoff":
		j := sample.CutOff()
		j.Spec.Name, j.Submitted = "cutoff", nil
		return j, nil
	case "stored":
		return &nusav1.Job{Spec: f.stored}, nil
	case "back":
		return jobIn("back", 2, nusav1.JobState_JOB_STATE_PENDING, nil), nil
	case "idle":
		return jobIn("idle", 1, nusav1.JobState_JOB_STATE_PENDING, nil), nil
	case "done":
		j := jobIn("done", 2, nusav1.JobState_JOB_STATE_COMPLETE, &nusav1.InstanceCounts{Complete: 2})
		j.Spec.Type, j.Region = nusav1.JobType_JOB_TYPE_BATCH, r.GetJob().GetRegion()
		return j, nil
	case "ended":
		j := jobIn("ended", 2, nusav1.JobState_JOB_STATE_COMPLETE, &nusav1.InstanceCounts{Complete: 2})
		j.Spec = sample.StoredSpec("ended")
		return j, nil
	}
	if r.GetJob().GetName() != "api" {
		return nil, rpcerr.NotFound(rpcerr.KindJob, cli.RefName(r.GetJob()), "job "+cli.RefName(r.GetJob())+" does not exist")
	}
	j := sample.Job()
	j.Submitted = nil
	j.Region = r.GetJob().GetRegion()
	return j, nil
}

func (f *fake) List(_ context.Context, r *nusav1.ListJobsRequest) (*nusav1.ListJobsResponse, error) {
	f.note(r)
	if r.GetNamespace() == "unseen" {
		return &nusav1.ListJobsResponse{Errors: []*nusav1.PartialError{{Region: "westeurope", Message: "no session"}}}, nil
	}
	if len(r.GetLabels()) > 0 || r.GetNamespace() == "empty" {
		return &nusav1.ListJobsResponse{}, nil
	}
	j := sample.Job()
	j.Submitted = nil
	if r.GetBrief() {
		j.Spec = job.Brief(j.GetSpec())
	}
	if r.GetPageToken() == "" {
		return &nusav1.ListJobsResponse{Jobs: []*nusav1.Job{j}, NextPageToken: "2"}, nil
	}
	own := jobIn("own", 1, nusav1.JobState_JOB_STATE_STARTING, &nusav1.InstanceCounts{Starting: 2})
	own.Region = "eastus"
	return &nusav1.ListJobsResponse{Jobs: []*nusav1.Job{own}, Errors: []*nusav1.PartialError{{Region: "westeurope", Message: "no session"}}}, nil
}

func (f *fake) Stop(_ context.Context, r *nusav1.StopJobRequest) (*nusav1.StopJobResponse, error) {
	f.note(r)
	if name := r.GetJob().GetName(); (name == "halted" || name == "halting") && !r.GetPurge() {
		return &nusav1.StopJobResponse{Revision: 12}, nil // the job does not change
	}
	return &nusav1.StopJobResponse{Revision: 13}, nil
}

func (f *fake) Explain(_ context.Context, r *nusav1.ExplainRequest) (*nusav1.Explanation, error) {
	f.note(r)
	e := sample.Explanation()
	switch r.GetJob().GetName() {
	case "new":
		return &nusav1.Explanation{}, nil
	case "island":
		e.Age, e.Groups[0].Regions = nil, nil
		return e, nil
	}
	if r.GetRegion() == "" {
		e.Groups[0].Nodes = nil
	}
	return e, nil
}

func (f *fake) Info(context.Context, *nusav1.InfoRequest) (*nusav1.InfoResponse, error) {
	if f.info != nil {
		return f.info, nil
	}
	if f.island != "" {
		return &nusav1.InfoResponse{Role: "regional", Name: "s1", Region: f.island}, nil
	}
	return &nusav1.InfoResponse{Role: "global", Name: "g1", Version: "1.2.3", FederationId: "fed", HttpAddress: ":7601"}, nil
}

func (f *fake) Recover(_ context.Context, req *nusav1.RecoverRequest) (*nusav1.RecoverResponse, error) {
	f.note(req)
	if req.GetFederationId() != "fed" {
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "federation_id", Message: `"` + req.GetFederationId() + `" is not this federation, fed`})
	}
	return &nusav1.RecoverResponse{Revision: 1_000_001}, nil
}

// Defaults of the client.
const (
	submitAttempts = 3  // attempts for a submit whose connection breaks
	tailOfEach     = 10 // lines of each instance, if there are several instances
)
