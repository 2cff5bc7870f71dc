package sim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
	"github.com/nusa-scheduler/nusa/sim/simnet"
)

// inBubble runs a federation in virtual time.
func inBubble(t *testing.T, opts sim.Options, test func(t *testing.T, f *sim.Federation)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if testing.Verbose() {
			opts.Logger = newTestLogger(t)
		}
		f := sim.Start(t, opts)
		f.AwaitRegions()
		test(t, f)
	})
}

// service returns a job file of count instances, with further lines for the job.
func service(name string, count int, more ...string) string {
	return fmt.Sprintf(`
name: %s
%s
groups:
  web:
    count: %d
    tasks:
      main: {driver: process, config: {command: serve}, resources: {cpu: 500m, memory: 256MiB}}
`, name, strings.Join(more, "\n"), count)
}

func awaitRunsOnce(f *sim.Federation, within time.Duration, name string, count int32) {
	f.Eventually(within, name+" runs once", func(ctx context.Context) error { return f.RunsOnce(ctx, name, "web", count) })
}

func TestJobRunsInTheChosenRegion(t *testing.T) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		start := time.Now()
		f.Submit(service("only-beta", 4, "regions: {allow: [{name: beta}]}"))
		awaitRunsOnce(f, 10*time.Second, "only-beta", 4)
		if d := time.Since(start); d > time.Second {
			t.Errorf("it took %v of virtual time", d)
		}
		owners, err := f.Owners(t.Context(), "only-beta", "web")
		if err != nil {
			t.Fatal(err)
		}
		for i, region := range owners {
			if region != "beta" {
				t.Errorf("instance %d is in %s", i, region)
			}
		}
		f.Eventually(10*time.Second, "status", func(ctx context.Context) error {
			j, err := f.Job(ctx, "only-beta")
			if err != nil {
				return err
			}
			if j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING {
				return fmt.Errorf("job is %v: %s", j.GetStatus().GetState(), j.GetStatus().GetMessage())
			}
			return nil
		})
		// An hour later no instance has moved.
		time.Sleep(time.Hour)
		if err := f.RunsOnce(t.Context(), "only-beta", "web", 4); err != nil {
			t.Error(err)
		}
		list, err := f.Allocations(t.Context(), "beta")
		if err != nil || len(list) != 4 {
			t.Errorf("%d allocations were made for 4 instances, %v", len(list), err)
		}
	})
}

func TestNodeKilledWorkIsRescheduled(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 3}, func(t *testing.T, f *sim.Federation) {
		f.Submit(service("web", 6))
		awaitRunsOnce(f, 10*time.Second, "web", 6)
		runs, err := f.Runs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		victim := runs[sim.Instance{Job: "web", Group: "web", Index: 0}][0].Agent
		f.Kill(victim)
		awaitRunsOnce(f, 2*time.Minute, "web", 6)
	})
}

func TestMasterKilledAnotherGoesOn(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Servers: 3}, func(t *testing.T, f *sim.Federation) {
		f.Submit(service("before", 4))
		awaitRunsOnce(f, 10*time.Second, "before", 4)
		before, err := f.Runs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		old := f.Master("alpha")
		f.Kill(fmt.Sprintf("alpha-%d", old))
		if now := f.Master("alpha"); now == old {
			t.Fatalf("server %d still leads", now)
		}
		f.Submit(service("after", 4))
		awaitRunsOnce(f, time.Minute, "after", 4)
		awaitRunsOnce(f, time.Minute, "before", 4)
		// Longer than a node lease: the new master must not declare nodes lost.
		time.Sleep(5 * time.Minute)
		after, err := f.Runs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range before {
			if len(after[i]) != 1 || after[i][0] != r[0] {
				t.Errorf("%v ran as %v, now as %v", i, r, after[i])
			}
		}
	})
}

func TestRegionCutOffOthersGoOn(t *testing.T) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		f.Submit(service("both", 6, "regions: {spread: {min: 2}}"))
		awaitRunsOnce(f, 10*time.Second, "both", 6)
		before, err := f.Runs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		heal := f.Cut(f.GlobalIPs(), f.RegionIPs("alpha"))
		f.Submit(service("meanwhile", 2, "regions: {allow: [{name: beta}]}"))
		awaitRunsOnce(f, time.Minute, "meanwhile", 2)
		f.Eventually(2*time.Minute, "alpha is seen as disconnected", func(ctx context.Context) error {
			r, err := nusav1.NewRegionsClient(f.Global(1)).Get(ctx, &nusav1.GetRegionRequest{Name: "alpha"})
			if err == nil && r.GetState() == nusav1.RegionState_REGION_STATE_CONNECTED {
				err = fmt.Errorf("alpha is %v", r.GetState())
			}
			return err
		})
		time.Sleep(30 * time.Second)
		heal()
		f.AwaitRegions()
		awaitRunsOnce(f, time.Minute, "both", 6)
		awaitRunsOnce(f, time.Minute, "meanwhile", 2)
		after, err := f.Runs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range before {
			if len(after[i]) != 1 || after[i][0] != r[0] {
				t.Errorf("%v ran as %v, now as %v", i, r, after[i])
			}
		}
	})
}

func TestActiveGlobalServerKilledAnotherGoesOn(t *testing.T) {
	inBubble(t, sim.Options{Globals: 2}, func(t *testing.T, f *sim.Federation) {
		f.Submit(service("before", 4))
		awaitRunsOnce(f, 10*time.Second, "before", 4)
		before, err := f.Runs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.Kill(fmt.Sprintf("global-%d", f.Active()))
		f.Submit(service("after", 4))
		awaitRunsOnce(f, time.Minute, "after", 4)
		awaitRunsOnce(f, time.Minute, "before", 4)
		time.Sleep(5 * time.Minute)
		after, err := f.Runs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range before {
			if len(after[i]) != 1 || after[i][0] != r[0] {
				t.Errorf("%v ran as %v, now as %v", i, r, after[i])
			}
		}
	})
}

func TestAnyServerAnswers(t *testing.T) {
	inBubble(t, sim.Options{Globals: 2, Servers: 3}, func(t *testing.T, f *sim.Federation) {
		f.Submit(service("web", 4, "regions: {spread: {min: 2}}"))
		awaitRunsOnce(f, 10*time.Second, "web", 4)
		for i := 1; i <= 2; i++ {
			j, err := nusav1.NewJobsClient(f.Global(i)).Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "web"}})
			if err != nil || j.GetVersion() != 1 {
				t.Errorf("global %d: version %d, %v", i, j.GetVersion(), err)
			}
		}
		for i := 1; i <= 3; i++ {
			list, err := nusav1.NewAllocationsClient(f.Server("alpha", i)).List(t.Context(), &nusav1.ListAllocationsRequest{})
			if err != nil || len(list.GetAllocations()) == 0 {
				t.Errorf("alpha %d: %d allocations, %v", i, len(list.GetAllocations()), err)
			}
		}
	})
}

func TestBatchCompletes(t *testing.T) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		f.Submit(`
name: sums
type: batch
groups:
  all:
    count: 10
    tasks:
      main: {driver: process, config: {command: sum}, env: {SIM_RUN_TIME: 30s}, resources: {cpu: 500m, memory: 64MiB}}
`)
		f.Eventually(2*time.Minute, "sums complete", func(ctx context.Context) error {
			j, err := f.Job(ctx, "sums")
			if err != nil {
				return err
			}
			if s := j.GetStatus(); s.GetState() != nusav1.JobState_JOB_STATE_COMPLETE || s.GetGroups()["all"].GetCounts().GetComplete() != 10 {
				return fmt.Errorf("job is %v: %v", s.GetState(), s.GetGroups()["all"].GetCounts())
			}
			return nil
		})
		time.Sleep(10 * time.Minute)
		if runs, err := f.Runs(t.Context()); err != nil || len(runs) != 0 {
			t.Errorf("after its end %v run, %v", runs, err)
		}
	})
}

// TestLogsThroughTwoTunnels: the global server asks the region, the region asks the agent, each
// over a connection that was dialled upward.
func TestLogsThroughTwoTunnels(t *testing.T) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		f.Submit(`
name: talks
type: batch
regions: {allow: [{name: beta}]}
groups:
  web:
    tasks:
      main: {driver: process, config: {command: talk}, env: {SIM_STDOUT: "out loud", SIM_STDERR: "in error", SIM_RUN_TIME: 1m}}
`)
		awaitRunsOnce(f, 10*time.Second, "talks", 1)
		runs, err := f.Runs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		read := func(follow bool) {
			t.Helper()
			stream, err := nusav1.NewAllocationsClient(f.Global(1)).Logs(t.Context(), &nusav1.LogsRequest{
				Allocation: runs[sim.Instance{Job: "talks", Group: "web"}][0].Alloc, Follow: follow, Stdout: true, Stderr: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for {
				chunk, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprintf("%v %s", chunk.GetStderr(), chunk.GetData()))
			}
			if fmt.Sprint(got) != "[false out loud true in error]" {
				t.Errorf("logs %q", got)
			}
		}
		read(true)
		if d := time.Since(start); d < 50*time.Second || d > 70*time.Second {
			t.Errorf("following ended after %v, the task after a minute", d)
		}
		time.Sleep(10 * time.Minute) // the output of a task that ended long ago is retained
		read(false)
	})
}

// TestWorkThatFitsNowhereWaits: the job waits with reasons and runs as soon as a region has room.
func TestWorkThatFitsNowhereWaits(t *testing.T) {
	inBubble(t, sim.Options{Agents: 1}, func(t *testing.T, f *sim.Federation) {
		big := `
name: %s
groups:
  web:
    count: %d
    tasks:
      main: {driver: process, config: {command: serve}, resources: {cpu: "5", memory: 1GiB}}
`
		// Each of the two machines has room for one of these.
		f.Submit(fmt.Sprintf(big, "first", 2))
		awaitRunsOnce(f, 10*time.Second, "first", 2)
		f.Submit(fmt.Sprintf(big, "second", 1))
		time.Sleep(50 * time.Second) // after a minute a region is asked to hold the instance
		j, err := f.Job(t.Context(), "second")
		if err != nil {
			t.Fatal(err)
		}
		g := j.GetStatus().GetGroups()["web"]
		if j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_PENDING || len(g.GetPending()) == 0 {
			t.Errorf("job is %v with reasons %v", j.GetStatus().GetState(), g.GetPending())
		}
		f.StopJob("first")
		awaitRunsOnce(f, time.Minute, "second", 1)
	})
}

// lose breaks the streams between two hosts at the n-th write from now on; that write is lost. For
// an odd n the hosts are also cut off from each other for 15 s. The function that it returns counts
// the writes.
func lose(t *testing.T, f *sim.Federation, n int, a, b string) (seen func() int) {
	count, cut := 0, make(chan struct{})
	f.Net.Tap(func(w simnet.Write) bool {
		if from, to := host(w.From), host(w.To); !(from == a && to == b || from == b && to == a) {
			return true
		}
		count++
		if count != n {
			return true
		}
		t.Logf("lost: write %d, %s to %s, %d bytes", n, w.From, w.To, w.Bytes)
		close(cut)
		return false
	})
	if n%2 == 1 {
		go func() {
			select {
			case <-cut:
			case <-t.Context().Done():
				return
			}
			f.Net.Cut(a, b)
			f.Net.Break(a, b)
			time.Sleep(20 * time.Second) // longer than a lease
			f.Net.Heal(a, b)
		}()
	}
	return func() int {
		f.Net.Tap(nil)
		return count
	}
}

// lost checks that the n-th write was lost. The number of writes varies, because messages may share
// a write. At least `fewest` writes always happen.
func lost(t *testing.T, n, seen int) {
	t.Helper()
	const fewest = 15
	if seen < min(n, fewest) {
		t.Errorf("only %d writes: nothing was lost", seen)
	}
}

// TestLostAtEveryMessage loses the n-th write after a submit, for every n: an offer, a response,
// an order, a report or an acknowledgement. Each slot must still have one owner, and every
// instance must start exactly once. After a stop under the same fault nothing may be left.
func TestLostAtEveryMessage(t *testing.T) {
	links := []struct {
		name string
		most int
		ends func(f *sim.Federation) (a, b string)
	}{
		{"offers", 30, func(f *sim.Federation) (a, b string) { return f.GlobalIPs()[0], f.ServerIP("alpha", 1) }},
		{"orders", 26, func(f *sim.Federation) (a, b string) { return f.ServerIP("alpha", 1), f.AgentIP("alpha", 1) }},
	}
	for _, link := range links {
		for n := 1; n <= link.most; n++ {
			t.Run(fmt.Sprintf("%s/%d", link.name, n), func(t *testing.T) {
				inBubble(t, sim.Options{Agents: 1}, func(t *testing.T, f *sim.Federation) {
					a, b := link.ends(f)
					seen := lose(t, f, n, a, b)
					f.Submit(service("once", 6, "regions: {spread: {min: 2}}"))
					awaitRunsOnce(f, time.Minute, "once", 6)
					// Lost responses and acknowledgements are repeated.
					time.Sleep(time.Minute)
					if err := f.RunsOnce(t.Context(), "once", "web", 6); err != nil {
						t.Error(err)
					}
					if made := allocations(t, f); made != 6 {
						t.Errorf("%d allocations were made for 6 instances", made)
					}
					lost(t, n, seen())

					seen = lose(t, f, n, a, b)
					f.StopJob("once")
					f.Eventually(2*time.Minute, "everything stopped", func(ctx context.Context) error { return f.Gone(ctx, "once") })
					seen()
				})
			})
		}
	}
}

// TestReturnsLostAtEveryMessage: a region that loses its only node returns the work, and the
// n-th write is lost meanwhile. The work must run elsewhere, once.
func TestReturnsLostAtEveryMessage(t *testing.T) {
	for n := 1; n <= 20; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inBubble(t, sim.Options{Agents: 1}, func(t *testing.T, f *sim.Federation) {
				// Whether a lost node may keep its instances running does not change who owns them later.
				running := []string{"keep", "stop"}[n%2]
				f.Submit(service("moves", 6, "regions: {prefer: [{name: alpha, weight: 100}]}") + "    disconnect: {node: {running: " + running + "}}\n")
				awaitRunsOnce(f, time.Minute, "moves", 6)
				f.Submit(service("stays", 2, "regions: {allow: [{name: alpha}]}"))
				awaitRunsOnce(f, time.Minute, "stays", 2)
				seen := lose(t, f, n, f.GlobalIPs()[0], f.ServerIP("alpha", 1))
				f.Kill("alpha-agent-1")
				f.Eventually(5*time.Minute, "the work of alpha in beta", func(ctx context.Context) error {
					owners, err := f.Owners(ctx, "moves", "web")
					for i := range int32(6) {
						if err == nil && owners[i] != "beta" {
							err = fmt.Errorf("instance %d belongs to %q", i, owners[i])
						}
					}
					return err
				})
				awaitRunsOnce(f, time.Minute, "moves", 6)
				lost(t, n, seen())
				// The other job is restricted to alpha and waits for a node there.
				f.StartAgent("alpha", 1)
				awaitRunsOnce(f, 2*time.Minute, "stays", 2)
				awaitRunsOnce(f, time.Minute, "moves", 6)
			})
		})
	}
}

// allocations counts all allocations that were ever made.
func allocations(t *testing.T, f *sim.Federation) (count int) {
	t.Helper()
	for _, region := range []string{"alpha", "beta"} {
		list, err := f.Allocations(t.Context(), region)
		if err != nil {
			t.Fatal(err)
		}
		count += len(list)
	}
	return count
}

func host(addr string) string {
	ip, _, _ := strings.Cut(addr, ":")
	return ip
}
