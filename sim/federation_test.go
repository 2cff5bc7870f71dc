package sim_test

import (
	"context"
	"fmt"
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

// service is a job file of count instances, with further lines for the job.
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
		// An hour later nothing has moved.
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
		// Longer than a node lease: the new master must not take nodes for lost.
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

// TestSessionCutAtEveryMessage breaks the streams between a region and the
// global tier at the n-th write after a submit, for every n: that write, an
// offer or an answer or an acknowledgement, is lost. Each slot must still have
// one owner and every instance must be started exactly once.
func TestSessionCutAtEveryMessage(t *testing.T) {
	const most = 60
	for n := 1; n <= most; n++ {
		seen := 0
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inBubble(t, sim.Options{Agents: 1}, func(t *testing.T, f *sim.Federation) {
				global, alpha := f.GlobalIPs()[0], f.ServerIP("alpha", 1)
				cut := false
				f.Net.Tap(func(w simnet.Write) bool {
					from, to := host(w.From), host(w.To)
					if cut || !(from == global && to == alpha || from == alpha && to == global) {
						return true
					}
					seen++
					cut = seen == n
					return !cut
				})
				f.Submit(service("once", 6, "regions: {spread: {min: 2}}"))
				awaitRunsOnce(f, time.Minute, "once", 6)
				// Answers and acknowledgements that were lost come again.
				time.Sleep(time.Minute)
				if err := f.RunsOnce(t.Context(), "once", "web", 6); err != nil {
					t.Error(err)
				}
				made := 0
				for _, region := range []string{"alpha", "beta"} {
					list, err := f.Allocations(t.Context(), region)
					if err != nil {
						t.Fatal(err)
					}
					made += len(list)
				}
				if made != 6 {
					t.Errorf("%d allocations were made for 6 instances", made)
				}
			})
		})
		if seen < n {
			t.Fatalf("only %d writes in all: the test ends too late", seen)
		}
	}
}

func host(addr string) string {
	ip, _, _ := strings.Cut(addr, ":")
	return ip
}
