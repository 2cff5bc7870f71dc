package region

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestAgainstARunningRegion(t *testing.T) {
	addr := inProcess(t)
	for name, change := range map[string]func(*Options){
		"unary":  func(*Options) {},
		"stream": func(o *Options) { o.Stream = true },
		"rate":   func(o *Options) { o.Rate = 200 },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			o.Against = addr
			change(&o)
			r, err := Measure(t.Context(), o)
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
			nothingIsLeft(t, addr)
		})
	}
}

// nothingIsLeft fails the test if jobs or nodes are left in the region.
func nothingIsLeft(t *testing.T, addr string) {
	t.Helper()
	noJobsLeft(t, addr)
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

// noJobsLeft waits until no jobs are left: the region forgets a purged job soon after its last instance.
func noJobsLeft(t *testing.T, addr string) {
	t.Helper()
	late := time.After(20 * time.Second)
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		jobs := jobsLeft(t, addr)
		if len(jobs) == 0 {
			return
		}
		select {
		case <-poll.C:
		case <-late:
			t.Fatalf("%d jobs are left, such as %s", len(jobs), jobs[0])
		}
	}
}

// TestNoRoom: if the nodes have no room, the measurement ends long before its timeout. Its
// error has the region's reason, and its jobs are removed.
func TestNoRoom(t *testing.T) {
	addr := inProcess(t)
	f := newFleet(1, 1, "alpha", "default", addr, 1, false) // a node in the default pool
	f.capacity.CpuMilli = 7 * askCPU
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.run(ctx, context.Background()) }()
	if err := f.await(ctx, func(int) {}); err != nil {
		t.Fatal(err)
	}
	o := options(t)
	o.Against, o.Nodes, o.Count, o.Warmup = addr, 0, 1, 0
	start := time.Now()
	r, err := Measure(ctx, o)
	if err == nil || !strings.Contains(err.Error(), "7 of 30 instances placed, 7 acknowledged: nothing was placed for 5s: in region alpha job bench-") ||
		!strings.Contains(err.Error(), "not enough cpu: needs 100m cpu") {
		t.Errorf("error %v", err)
	}
	if took := time.Since(start); took > o.Timeout/2 || r == nil || r.Placed != 7 || !r.Incomplete {
		t.Errorf("after %s: %+v", took, r)
	}
	noJobsLeft(t, addr)
	leave()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestInterruptWhileRemoving: the first signal starts the removal of the submitted jobs.
// The second signal ends the removal, and the error says how to finish it.
func TestInterruptWhileRemoving(t *testing.T) {
	guard := make(chan os.Signal, 2) // keeps the signals from ending this process
	signal.Notify(guard, os.Interrupt)
	defer signal.Stop(guard)
	for _, twice := range []bool{false, true} {
		addr := inProcess(t)
		o := options(t)
		o.Against, o.Jobs, o.Count, o.Rate, o.Warmup = addr, 50_000, 1, 2000, 0
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		o.Progress = func(s string) {
			var placed int
			if _, err := fmt.Sscanf(s, "%d placed,", &placed); err == nil && placed > 1000 {
				cancel() // the same as the first signal
			}
		}
		said := make(chan string, 1)
		o.Say = func(s string) {
			said <- s
			if twice {
				syscall.Kill(os.Getpid(), syscall.SIGINT)
			}
		}
		_, err := Measure(ctx, o)
		var jobs int
		if _, scan := fmt.Sscanf(<-said, "interrupted: removing %d jobs and 20 simulated nodes from region alpha", &jobs); scan != nil || jobs <= 1000 || jobs > o.Jobs/2 {
			t.Errorf("it removes %d jobs: %v", jobs, scan)
		}
		if !twice {
			if err == nil || err.Error() != "interrupted" {
				t.Errorf("error %v", err)
			}
			nothingIsLeft(t, addr)
			continue
		}
		how := "jobs and 20 simulated nodes are left in region alpha: remove them with `nusa job list --addr " + addr + " | grep -o 'bench-"
		if err == nil || !strings.HasPrefix(err.Error(), "interrupted twice: ") || !strings.Contains(err.Error(), how) {
			t.Errorf("error %v, want %s", err, how)
		}
		if len(jobsLeft(t, addr)) == 0 {
			t.Error("it went on and removed all jobs")
		}
	}
}

// TestOthersStayOffSimulatedNodes: other work of the region waits for real nodes.
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
	if _, err := Measure(t.Context(), o); err != nil {
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

// TestAgentsTryAllServersAfterAMasterIsLost: agents try the known servers one after the other, in whatever order the
// servers died.
func TestAgentsTryAllServersAfterAMasterIsLost(t *testing.T) {
	f := newFleet(0, 1, "alpha", "bench-x", "a", 1, false)
	f.learn(&nusav1.ServerList{Servers: []*nusav1.RegionalServer{{Address: "a"}, {Address: "b"}, {Address: "c"}, {}}})
	for i, step := range []struct {
		lost, named, want string
	}{
		{lost: "a", want: "b"},
		{lost: "a", want: "b"}, // another agent noticed the loss later
		{named: "c", want: "c"},
		{lost: "c", want: "a"},
		{named: "", want: "a"}, // the server knows no master
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
