package regional_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	"github.com/nusa-scheduler/nusa/probe"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// oneNode runs a test in a region of one server and one node.
func oneNode(t *testing.T, test func(*testing.T, *world, nusav1.JobsClient, context.Context)) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		w.eventually("the node is ready", func() bool { return w.node(1, "n1").GetState() == nusav1.NodeState_NODE_STATE_READY })
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		test(t, w, nusav1.NewJobsClient(w.conn(1)), ctx)
	})
}

func ref(name string) *nusav1.JobRef { return &nusav1.JobRef{Name: name, Region: regionName} }

func TestLocalJobFromSubmitToPurge(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, jobs nusav1.JobsClient, ctx context.Context) {
		watch, err := jobs.Watch(ctx, &nusav1.GetJobRequest{Job: ref("none")})
		if err == nil {
			_, err = watch.Recv()
		}
		if status.Code(err) != codes.NotFound {
			t.Errorf("watch of an unknown job: %v", err)
		}

		plan, err := jobs.Plan(ctx, &nusav1.PlanRequest{Spec: spec("web", 10)})
		if err != nil {
			t.Fatal(err)
		}
		if len(plan.GetDiff()) == 0 || plan.GetRevision() != 0 || plan.GetUnplaced()["web"] != 2 || plan.GetExplanation().GetGroups()[0].GetNodes()[0].GetTaken() != 8 {
			t.Errorf("plan of a new job: %v", plan)
		}
		if n := len(w.allocs(1, true)); n != 0 {
			t.Errorf("a dry run left %d allocations", n)
		}

		first := w.submit(1, spec("web", 10))
		if !first.GetChanged() || first.GetVersion() != 1 {
			t.Errorf("first submit: %v", first)
		}
		if again := w.submit(1, spec("web", 10)); again.GetChanged() || again.GetRevision() != first.GetRevision() {
			t.Errorf("the same job again: %v", again)
		}
		w.eventually("8 instances run", func() bool { return w.running(1)["n1"] == 8 })
		j, err := jobs.Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "web@" + regionName}})
		if err != nil {
			t.Fatal(err)
		}
		g := j.GetStatus().GetGroups()["web"]
		if j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_PENDING || g.GetCounts().GetRunning() != 8 || g.GetCounts().GetPending() != 2 ||
			len(g.GetPending()) == 0 || g.GetPending()[0].GetReason() != nusav1.Reason_REASON_INSUFFICIENT_CPU {
			t.Errorf("status: %v", j.GetStatus())
		}
		why, err := jobs.Explain(ctx, &nusav1.ExplainRequest{Job: ref("web")})
		if err != nil || why.GetGroups()[0].GetUnplaced() != 2 || why.GetGroups()[0].GetNodes()[0].GetReason() != nusav1.Reason_REASON_INSUFFICIENT_CPU {
			t.Errorf("explain: %v, %v", why, err)
		}
		plan, err = jobs.Plan(ctx, &nusav1.PlanRequest{Spec: spec("web", 10)})
		if err != nil || len(plan.GetDiff()) != 0 || plan.GetRevision() != first.GetRevision() {
			t.Errorf("plan without a change: %v, %v", plan, err)
		}

		// Another node joins, and the waiting instances run at once.
		w.agent("n2", runs)
		w.eventually("all 10 instances run", func() bool { return w.running(1)["n1"]+w.running(1)["n2"] == 10 })

		stale := &nusav1.SubmitRequest{Spec: spec("web", 3), CheckRevision: first.GetRevision() + 1}
		if _, err := jobs.Submit(ctx, stale); status.Code(err) != codes.Aborted {
			t.Errorf("a stale edit: %v", err)
		}
		w.submit(1, spec("web", 3))
		w.eventually("scaled down", func() bool { return w.running(1)["n1"]+w.running(1)["n2"] == 3 && len(w.allocs(1, false)) == 3 })

		// An allocation that an operator stops is replaced.
		victim := w.allocs(1, false)[0]
		if _, err := nusav1.NewAllocationsClient(w.conn(1)).Stop(ctx, &nusav1.GetAllocationRequest{Id: victim.GetId()[:8]}); err != nil {
			t.Fatal(err)
		}
		w.eventually("it is replaced", func() bool {
			for _, a := range w.allocs(1, false) {
				if a.GetId() == victim.GetId() {
					return false
				}
			}
			return w.running(1)["n1"]+w.running(1)["n2"] == 3
		})

		ownVersions(t, w, ctx)
		stream, err := jobs.Watch(ctx, &nusav1.GetJobRequest{Job: ref("web")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		opened := time.Now()
		w.submit(1, spec("web", 4))
		if j, err := stream.Recv(); err != nil || j.GetVersion() != 3 || time.Since(opened) > 50*time.Millisecond {
			t.Errorf("a change after the first message is shown after %s: version %d, %v", time.Since(opened), j.GetVersion(), err)
		}
		if _, err := jobs.Stop(ctx, &nusav1.StopJobRequest{Job: ref("web"), Purge: true}); err != nil {
			t.Fatal(err)
		}
		stopped := time.Now()
		for {
			_, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			list, err := jobs.List(ctx, &nusav1.ListJobsRequest{})
			if err != nil || len(list.GetErrors()) > 0 {
				t.Errorf("list while the job is being purged: %v, %v", list.GetErrors(), err)
			}
		}
		if took := time.Since(stopped); took > time.Second {
			t.Errorf("the watch of a purged job ended after %v", took)
		}
		if _, err := jobs.Get(ctx, &nusav1.GetJobRequest{Job: ref("web")}); status.Code(err) != codes.NotFound || strings.Contains(err.Error(), "@local") || !strings.Contains(err.Error(), "default/web@"+regionName) {
			t.Errorf("a purged job: %v", err)
		}
		if n := len(w.allocs(1, false)); n != 0 {
			t.Errorf("%d allocations live after the stop", n)
		}
		list, err := jobs.List(ctx, &nusav1.ListJobsRequest{})
		if err != nil || len(list.GetJobs()) != 0 {
			t.Errorf("list after the purge: %v, %v", list.GetJobs(), err)
		}
	})
}

func TestInvalidSubmitsNameTheField(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, jobs nusav1.JobsClient, ctx context.Context) {
		many := spec("x", 1)
		many.Groups["web"].Constraints = []string{"node.cpu_cores +"}
		wide := spec("x", 1_000_000)
		big := spec("x", 1)
		big.Groups["web"].Tasks["main"].Env = map[string]string{"A": strings.Repeat("x", 1<<20)}
		allow := spec("x", 1)
		allow.Regions = &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Name: regionName}}}
		near := spec("x", 1)
		near.Groups["web"].Regions = &nusav1.RegionsSpec{Near: []*nusav1.Near{{Selector: &nusav1.RegionSelector{Name: "beta"}, MaxRtt: durationpb.New(time.Second)}}}
		spread := spec("x", 1)
		spread.Regions = &nusav1.RegionsSpec{Spread: &nusav1.RegionSpread{Min: 2}}
		divide := spec("x", 1)
		divide.Regions = &nusav1.RegionsSpec{Divide: nusav1.Divide_DIVIDE_EVEN}
		for name, test := range map[string]struct {
			spec  *nusav1.JobSpec
			key   string
			field string
		}{
			"none":       {nil, "", "spec"},
			"nameless":   {spec("", 1), "", "name"},
			"constraint": {many, "", "groups.web.constraints"},
			"count":      {wide, "", "groups.web.count"},
			"size":       {big, "", ""},
			"allow":      {allow, "", "regions.allow"},
			"near":       {near, "", "groups.web.regions.near"},
			"spread":     {spread, "", "regions.spread"},
			"divide":     {divide, "", "regions.divide"},
			"key":        {spec("x", 1), strings.Repeat("k", 200), "idempotency_key"},
		} {
			_, err := jobs.Submit(ctx, &nusav1.SubmitRequest{Spec: test.spec, IdempotencyKey: test.key})
			problems := rpcerr.Problems(err)
			if status.Code(err) != codes.InvalidArgument || len(problems) == 0 || !strings.HasPrefix(problems[0].GetField(), test.field) {
				t.Errorf("%s: %v, problems %v", name, err, problems)
			}
		}
		plain := spec("a", 1)
		plain.Regions = &nusav1.RegionsSpec{} // allowed: the default values choose no region
		for range 2 {                         // a retry has the same response
			if r, err := jobs.Submit(ctx, &nusav1.SubmitRequest{Spec: plain, IdempotencyKey: "k"}); err != nil || !r.GetChanged() {
				t.Errorf("%v, %v", r, err)
			}
		}
		if _, err := jobs.Submit(ctx, &nusav1.SubmitRequest{Spec: plain, CheckRevision: 1, IdempotencyKey: "k"}); status.Code(err) != codes.AlreadyExists {
			t.Errorf("a key used for another check: %v", err)
		}
		if _, err := jobs.Submit(ctx, &nusav1.SubmitRequest{Spec: spec("b", 1), IdempotencyKey: "k"}); status.Code(err) != codes.AlreadyExists {
			t.Errorf("a key used for another request: %v", err)
		}
		if _, err := jobs.Stop(ctx, &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "a", Region: "elsewhere"}}); status.Code(err) != codes.NotFound {
			t.Errorf("a job of another region: %v", err)
		}
		stream, err := jobs.SubmitMany(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []*nusav1.JobSpec{spec("m1", 0), spec("", 0), spec("m2", 0)} {
			if err := stream.Send(&nusav1.SubmitRequest{Spec: s}); err != nil {
				t.Fatal(err)
			}
		}
		_ = stream.CloseSend()
		var got []codes.Code
		for {
			r, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, codes.Code(r.GetCode()))
		}
		if len(got) != 3 || got[0] != codes.OK || got[1] != codes.InvalidArgument || got[2] != codes.OK {
			t.Errorf("submit many: %v", got)
		}
		page, err := jobs.List(ctx, &nusav1.ListJobsRequest{Limit: 2})
		if err != nil || len(page.GetJobs()) != 2 || page.GetNextPageToken() == "" {
			t.Fatalf("first page: %v, %v", page, err)
		}
		rest, err := jobs.List(ctx, &nusav1.ListJobsRequest{Limit: 2, PageToken: page.GetNextPageToken()})
		if err != nil || len(rest.GetJobs()) != 1 || rest.GetJobs()[0].GetSpec().GetName() != "m2" {
			t.Errorf("second page: %v, %v", rest, err)
		}
		// The size of a page in bytes is bounded too.
		const large = 30
		for i := range large {
			s := spec(fmt.Sprintf("large%02d", i), 0)
			s.Groups["web"].Tasks["main"].Env = map[string]string{}
			for _, name := range []string{"A", "B", "C", "D"} {
				s.Groups["web"].Tasks["main"].Env[name] = strings.Repeat("x", 100<<10)
			}
			if _, err := jobs.Submit(ctx, &nusav1.SubmitRequest{Spec: s}); err != nil {
				t.Fatal(err)
			}
		}
		listed, pages := 0, 0
		for token, more := "", true; more; pages++ {
			page, err := jobs.List(ctx, &nusav1.ListJobsRequest{PageToken: token})
			if err != nil || proto.Size(page) > 5<<20 {
				t.Fatalf("page %d of %d bytes: %v", pages, proto.Size(page), err)
			}
			listed += len(page.GetJobs())
			token = page.GetNextPageToken()
			more = token != ""
		}
		if listed != large+3 || pages < 3 {
			t.Errorf("%d jobs on %d pages", listed, pages)
		}
	})
}

// TestSubmitsThroughAFollower: a follower forwards single submits and streams of submits to
// the master.
func TestSubmitsThroughAFollower(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		for i := 1; i <= 3; i++ {
			w.server(i, 1, 2, 3)
		}
		follower := w.master(1, 2, 3)%3 + 1
		w.submit(follower, spec("one", 0))
		ctx, cancel := callCtx()
		defer cancel()
		stream, err := nusav1.NewJobsClient(w.conn(follower)).SubmitMany(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []*nusav1.JobSpec{spec("one", 0), spec("", 0), spec("two", 0)} {
			if err := stream.Send(&nusav1.SubmitRequest{Spec: s}); err != nil {
				t.Fatal(err)
			}
		}
		_ = stream.CloseSend()
		h, err := nusav1.NewRolloutsClient(w.conn(follower)).History(ctx, &nusav1.JobHistoryRequest{Job: ref("one")})
		if err != nil || len(h.GetVersions()) != 1 || h.GetVersions()[0].GetVersion() != 1 {
			t.Errorf("history through a follower: %v, %v", h, err)
		}
		for i, want := range []*nusav1.SubmitManyResponse{
			{Response: &nusav1.SubmitResponse{Version: 1}}, {Code: int32(codes.InvalidArgument)}, {Response: &nusav1.SubmitResponse{Version: 1, Changed: true}},
		} {
			r, err := stream.Recv()
			if err != nil || r.GetCode() != want.GetCode() || r.GetResponse().GetVersion() != want.GetResponse().GetVersion() ||
				r.GetResponse().GetChanged() != want.GetResponse().GetChanged() {
				t.Errorf("response %d: %v, %v", i, r, err)
			}
		}
	})
}

// fakeLogs is an agent's Allocations service.
type fakeLogs struct {
	nusav1.UnimplementedAllocationsServer
}

func (fakeLogs) Logs(req *nusav1.LogsRequest, stream grpc.ServerStreamingServer[nusav1.LogChunk]) error {
	for _, text := range []string{"hello from ", req.GetAllocation()} {
		if err := stream.Send(&nusav1.LogChunk{Data: []byte(text)}); err != nil {
			return err
		}
	}
	return nil
}

// TestLogsTravelThroughTheAgentsTunnel: a client reads the logs of an allocation by a
// unique prefix of its id.
func TestLogsTravelThroughTheAgentsTunnel(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, _ nusav1.JobsClient, ctx context.Context) {
		w.submit(1, spec("web", 1))
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 1 })
		id := w.allocs(1, false)[0].GetId()
		lis := tunnel.NewListener(4)
		srv := grpc.NewServer()
		nusav1.RegisterAllocationsServer(srv, fakeLogs{})
		served := make(chan error, 2)
		go func() { served <- srv.Serve(lis) }()
		conn, err := serve.Dial(w.net.Net("10.1.1.1"), serverAddr(1))
		if err != nil {
			t.Fatal(err)
		}
		stopTunnel, end := context.WithCancel(ctx)
		go func() {
			a := w.agents[0]
			w.eventually("a tunnel is requested", func() bool {
				n := 0
				a.locked(func(a *fakeAgent) { n = len(a.tunnelIDs) })
				return n > 0
			})
			open := func(ctx context.Context) (tunnel.ClientStream, error) {
				return nusav1.NewDispatchClient(conn).Tunnel(ctx)
			}
			served <- tunnel.Answer(stopTunnel, open, a.tunnelIDs[0], lis)
		}()
		logs, err := nusav1.NewAllocationsClient(w.conn(1)).Logs(ctx, &nusav1.LogsRequest{Allocation: id[:8], Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for {
			chunk, err := logs.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			text.Write(chunk.GetData())
		}
		if text.String() != "hello from "+id {
			t.Errorf("logs are %q", text.String())
		}
		end()
		srv.Stop()
		<-served
		<-served
		_ = conn.Close()
		allocs := nusav1.NewAllocationsClient(w.conn(1))
		if _, err := allocs.Get(ctx, &nusav1.GetAllocationRequest{Id: "ffffffff-none"}); status.Code(err) != codes.NotFound {
			t.Errorf("an unknown allocation: %v", err)
		}
		if _, err := allocs.Get(ctx, &nusav1.GetAllocationRequest{Id: id[:2]}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a prefix of two characters: %v", err)
		}
	})
}

func TestCordonedNodeGetsNoNewWork(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, _ nusav1.JobsClient, ctx context.Context) {
		nodes := nusav1.NewNodesClient(w.conn(1))
		n, err := nodes.Cordon(ctx, &nusav1.CordonNodeRequest{Id: "n1", Cordon: true})
		if err != nil || !n.GetCordoned() {
			t.Fatalf("cordon: %v, %v", n, err)
		}
		web := spec("web", 1)
		web.Labels = map[string]string{"team": "sea"}
		w.submit(1, web)
		time.Sleep(time.Minute)
		if got := w.running(1)["n1"]; got != 0 {
			t.Errorf("%d run on a cordoned node", got)
		}
		filteredLists(ctx, t, w, "cordoned", "pending", "", 0)
		if _, err := nodes.Cordon(ctx, &nusav1.CordonNodeRequest{Id: "n1"}); err != nil {
			t.Fatal(err)
		}
		w.eventually("it runs now", func() bool { return w.running(1)["n1"] == 1 })
		filteredLists(ctx, t, w, "", "running", "running", 1)
		if _, err := nodes.Drain(ctx, &nusav1.DrainNodeRequest{Id: "none", Drain: true}); status.Code(err) != codes.NotFound {
			t.Errorf("an unknown node: %v", err)
		}
		allocs := nusav1.NewAllocationsClient(w.conn(1))
		for what, req := range map[string]*nusav1.ListAllocationsRequest{
			"node": {NodeId: "none"}, "job": {Job: &nusav1.JobRef{Name: "none"}},
		} {
			if _, err := allocs.List(ctx, req); status.Code(err) != codes.NotFound {
				t.Errorf("allocations of an unknown %s: %v", what, err)
			}
		}
		if list, err := allocs.List(ctx, &nusav1.ListAllocationsRequest{NodeId: "n1"}); err != nil || len(list.GetAllocations()) != 1 {
			t.Errorf("allocations by the node's name: %v, %v", list, err)
		}
	})
}

// TestUselessNodeChangesAreRefused: an operator cannot uncordon a node that is only being
// drained, and cannot end the drain of a node that is only cordoned. The node would still
// get no work.
func TestUselessNodeChangesAreRefused(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, _ nusav1.JobsClient, ctx context.Context) {
		nodes := nusav1.NewNodesClient(w.conn(1))
		cordon := func(on bool) (*nusav1.Node, error) {
			return nodes.Cordon(ctx, &nusav1.CordonNodeRequest{Id: "n1", Cordon: on})
		}
		drain := func(on bool) (*nusav1.Node, error) {
			return nodes.Drain(ctx, &nusav1.DrainNodeRequest{Id: "n1", Drain: on})
		}
		for i, step := range []struct {
			change            func(bool) (*nusav1.Node, error)
			on, refused       bool
			cordoned, drained bool
		}{
			{change: cordon},
			{change: drain},
			{change: cordon, on: true, cordoned: true},
			{change: drain, refused: true, cordoned: true},
			{change: drain, on: true, cordoned: true, drained: true},
			{change: cordon, drained: true},
			{change: cordon, refused: true, drained: true},
			{change: drain},
		} {
			n, err := step.change(step.on)
			if step.refused {
				if status.Code(err) != codes.FailedPrecondition {
					t.Errorf("step %d: %v", i, err)
				}
				n = w.node(1, "n1")
			} else if err != nil {
				t.Errorf("step %d: %v", i, err)
			}
			if n.GetCordoned() != step.cordoned || n.GetDraining() != step.drained {
				t.Errorf("step %d: %v", i, n)
			}
		}
	})
}

// TestEventsResumeByToken: a region has events about its own jobs, its instances
// and its nodes. A watch resumes after the event of a token.
func TestEventsResumeByToken(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, jobs nusav1.JobsClient, ctx context.Context) {
		client := nusav1.NewEventsClient(w.conn(1))
		old, err := client.Watch(ctx, &nusav1.WatchEventsRequest{Token: "another-1"})
		if err != nil {
			t.Fatal(err)
		}
		reset, err := old.Recv()
		if err != nil || !reset.GetReset_() {
			t.Fatalf("%v, %v", reset, err)
		}
		nodes := nusav1.NewNodesClient(w.conn(1))
		w.submit(1, spec("web", 1))
		w.submit(1, spec("web", 1)) // the same spec again changes nothing
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 1 })
		for _, on := range []bool{true, false} {
			if _, err := nodes.Cordon(ctx, &nusav1.CordonNodeRequest{Id: "n1", Cordon: on}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := jobs.Stop(ctx, &nusav1.StopJobRequest{Job: ref("web"), Purge: true}); err != nil {
			t.Fatal(err)
		}
		w.eventually("it is purged", func() bool {
			_, err := jobs.Get(ctx, &nusav1.GetJobRequest{Job: ref("web")})
			return status.Code(err) == codes.NotFound
		})
		w.submit(1, spec("idle", 0)) // a stop of this job also purges it
		if _, err := jobs.Stop(ctx, &nusav1.StopJobRequest{Job: ref("idle"), Purge: true}); err != nil {
			t.Fatal(err)
		}
		w.agents[0].stop()
		want := []string{"job.submitted default/web@alpha", "instance.placed default/web@alpha", "instance.running default/web@alpha", "node.cordoned n1", "node.uncordoned n1",
			"job.stopped default/web@alpha", "instance.stopped default/web@alpha", "job.purged default/web@alpha",
			"job.submitted default/idle@alpha", "job.stopped default/idle@alpha", "job.purged default/idle@alpha", "node.lost n1"}
		for _, instances := range []bool{true, false} {
			stream, err := client.Watch(ctx, &nusav1.WatchEventsRequest{Token: reset.GetToken(), Instances: instances, Region: "alpha"})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for !slices.Contains(got, "node.lost n1") {
				e, err := stream.Recv()
				if err != nil {
					t.Fatalf("%v after %q", err, got)
				}
				got = append(got, e.GetType()+" "+e.GetSubject())
				if e.GetType() == "instance.running" && !strings.HasPrefix(e.GetMessage(), "web[0] on n1, allocation ") {
					t.Errorf("message %q", e.GetMessage())
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("instances %v: got %q, want %q", instances, got, want)
			}
			want = slices.DeleteFunc(want, func(s string) bool { return strings.HasPrefix(s, "instance.") })
		}
		other, err := client.Watch(ctx, &nusav1.WatchEventsRequest{Region: "beta"})
		if err == nil {
			_, err = other.Recv()
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("events of another region: %v", err)
		}
	})
}

// TestFirstLatencyIsReportedAtOnce: the region probes the peers that the global tier lists.
// It reports the first measurement at once.
func TestFirstLatencyIsReportedAtOnce(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		ctx, cancel := context.WithCancel(context.Background())
		r, err := probe.Listen(ctx, probe.ResponderConfig{Net: w.net.Net("10.2.0.1"), Region: "beta", Addr: "10.2.0.1:7613"})
		if err != nil {
			t.Fatal(err)
		}
		responder := make(chan error, 1)
		go func() { responder <- r.Run(ctx) }()
		defer func() { cancel(); <-responder }()
		w.server(1)
		w.master(1)
		began := time.Now()
		g.update(func() {
			g.peers = []*nusav1.PeerRegion{{Name: "beta", ProbeAddresses: []string{"10.2.0.1:7613"}, Location: &nusav1.Location{Latitude: 1, Longitude: 2}}}
		})
		w.eventually("the edge is reported", func() bool {
			ok := false
			g.locked(func() {
				for _, e := range g.edges {
					ok = ok || e.GetFrom() == regionName && e.GetTo() == "beta" && e.GetState() == nusav1.EdgeState_EDGE_STATE_OK && e.GetP50().AsDuration() == 2*time.Millisecond
				}
			})
			return ok
		})
		if took := time.Since(began); took > time.Second {
			t.Errorf("the first measurement was reported after %v", took)
		}
		near, err := nusav1.NewTopologyClient(w.conn(1)).Nearest(ctx, &nusav1.NearestRequest{})
		if err != nil || len(near.GetRegions()) != 1 || near.GetRegions()[0].GetRegion() != "beta" {
			t.Errorf("nearest: %v, %v", near, err)
		}
		list, err := nusav1.NewRegionsClient(w.conn(1)).List(ctx, &nusav1.ListRegionsRequest{})
		if err != nil || len(list.GetRegions()) != 2 || list.GetRegions()[0].GetState() != nusav1.RegionState_REGION_STATE_CONNECTED {
			t.Errorf("regions: %v, %v", list, err)
		}
	})
}

// TestSessionWithoutHelloEnds: the server ends a session in which the agent sends no hello.
func TestSessionWithoutHelloEnds(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, _ nusav1.JobsClient, ctx context.Context) {
		began := time.Now()
		stream, err := nusav1.NewDispatchClient(w.conn(1)).Session(ctx)
		if err == nil {
			_, err = stream.Recv()
		}
		if took := time.Since(began); status.Code(err) != codes.DeadlineExceeded || took > 11*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
