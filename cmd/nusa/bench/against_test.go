package bench

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestAgainstARunningRegion(t *testing.T) {
	addr := inProcess(t)
	for name, change := range map[string]func(*RegionOptions){
		"unary":  func(*RegionOptions) {},
		"stream": func(o *RegionOptions) { o.Stream = true },
		"rate":   func(o *RegionOptions) { o.Rate = 200 },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			o.Against = addr
			change(&o)
			r, err := Region(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			want := o.instances()
			if r.Placed != want || r.Acknowledged != want {
				t.Errorf("placed %d, acknowledged %d of %d", r.Placed, r.Acknowledged, want)
			}
			if r.Seconds <= 0 || r.PlacementsPerS <= 0 || r.AcknowledgedPerS <= 0 || r.EmptyCallsPerS <= 0 || r.SubmitToPlacedMS.P50 <= 0 || r.SubmitMS.Max <= 0 {
				t.Errorf("figures are missing: %+v", r)
			}
			if o.Rate > 0 && r.Seconds < float64(o.Jobs-1)/o.Rate {
				t.Errorf("%d jobs at %g a second were placed within %g s", o.Jobs, o.Rate, r.Seconds)
			}
			if r.ServerCPUUSPerPlacement != nil || r.ServerPeakRSSMB != nil {
				t.Error("there are figures of processes that it cannot know")
			}
			leftBehind(t, addr)
		})
	}
}

// leftBehind fails if jobs or nodes are still there.
func leftBehind(t *testing.T, addr string) {
	t.Helper()
	if jobs := jobsLeft(t, addr); len(jobs) > 0 {
		t.Errorf("%d jobs are left, such as %s", len(jobs), jobs[0].GetSpec().GetName())
	}
	conn, err := serve.Dial(network.Host(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	nodes, err := nusav1.NewNodesClient(conn).List(t.Context(), &nusav1.ListNodesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(nodes.GetNodes()); n > 0 {
		t.Errorf("%d nodes are left, such as %s", n, nodes.GetNodes()[0].GetName())
	}
}

func jobsLeft(t *testing.T, addr string) []*nusav1.Job {
	t.Helper()
	conn, err := serve.Dial(network.Host(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	jobs, err := nusav1.NewJobsClient(conn).List(t.Context(), &nusav1.ListJobsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return jobs.GetJobs()
}

// TestNoRoom: where the nodes that are there have no more room it ends long
// before its timeout, with the region's reason, and removes its jobs.
func TestNoRoom(t *testing.T) {
	addr := inProcess(t)
	f := newFleet(1, 1, "alpha", "default", addr, 1, false) // which is its pool, too
	f.capacity.CpuMilli = 7 * askCPU
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.run(ctx) }()
	if err := f.await(ctx, func(int) {}); err != nil {
		t.Fatal(err)
	}
	o := options(t)
	o.Against, o.Nodes, o.Count, o.Warmup = addr, 0, 1, 0
	start := time.Now()
	r, err := Region(ctx, o)
	if err == nil || !strings.Contains(err.Error(), "7 of 30 instances placed, 7 acknowledged: no more for 5s: in region alpha bench-") ||
		!strings.Contains(err.Error(), "not enough cpu: needs 100m cpu") {
		t.Errorf("error %v", err)
	}
	if took := time.Since(start); took > o.Timeout/2 || r == nil || r.Placed != 7 {
		t.Errorf("after %s: %+v", took, r)
	}
	if jobs := jobsLeft(t, addr); len(jobs) > 0 {
		t.Errorf("%d jobs are left, such as %s", len(jobs), jobs[0].GetSpec().GetName())
	}
	leave()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestOthersStayOffSimulatedNodes: work of a region that goes on waits for real
// nodes.
func TestOthersStayOffSimulatedNodes(t *testing.T) {
	addr := inProcess(t)
	conn, err := serve.Dial(network.Host(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	jobs := nusav1.NewJobsClient(conn)
	if _, err := jobs.Submit(t.Context(), &nusav1.SubmitRequest{Spec: &nusav1.JobSpec{
		Name: "real", Namespace: namespace, Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: groups(1, ""),
	}}); err != nil {
		t.Fatal(err)
	}
	o := options(t)
	o.Against = addr
	if _, err := Region(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	allocs, err := nusav1.NewAllocationsClient(conn).List(t.Context(), &nusav1.ListAllocationsRequest{
		All: true, Job: &nusav1.JobRef{Namespace: namespace, Name: "real", Region: "alpha"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range allocs.GetAllocations() {
		t.Errorf("it was placed: %v", a)
	}
}

// TestALostMaster: agents ask the servers that were named, one after the other,
// whatever order they have died in.
func TestALostMaster(t *testing.T) {
	f := newFleet(0, 1, "alpha", "bench-x", "a", 1, false)
	f.learn(&nusav1.ServerList{Servers: []*nusav1.RegionalServer{{Address: "a"}, {Address: "b"}, {Address: "c"}, {}}})
	for i, step := range []struct {
		lost, named, want string
	}{
		{lost: "a", want: "b"},
		{lost: "a", want: "b"}, // another agent noticed later
		{named: "c", want: "c"},
		{lost: "c", want: "a"},
		{named: "", want: "a"}, // no master is known
		{named: "d", want: "d"},
		{lost: "d", want: "a"},
	} {
		if step.lost != "" {
			f.lost(step.lost)
		} else {
			f.setMaster(step.named)
		}
		if f.master != step.want {
			t.Errorf("step %d: master %q, not %q", i, f.master, step.want)
		}
	}
}
