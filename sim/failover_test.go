package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// movable returns a job that is placed at alpha, and at beta after a loss of alpha.
func movable(name, kind string, count int, disconnect string) string {
	return fmt.Sprintf(`
name: %s
type: %s
regions: {prefer: [{name: alpha, weight: 100}]}
groups:
  web:
    count: %d
    disconnect: {%s}
    tasks:
      main: {driver: process, config: {command: serve}, resources: {cpu: 200m, memory: 64MiB}}
`, name, kind, count, disconnect)
}

// awaitOwner waits until all instances of a group belong to a region.
func awaitOwner(f *sim.Federation, within time.Duration, name string, count int32, region string) {
	f.Eventually(within, fmt.Sprintf("%s belongs to %s", name, region), func(ctx context.Context) error {
		owners, err := f.Owners(ctx, name, "web")
		if err != nil {
			return err
		}
		for i := range count {
			if owners[i] != region {
				return fmt.Errorf("%d belongs to %q", i, owners[i])
			}
		}
		return nil
	})
}

// allocsAt returns the allocations that run in a region, by instance.
func allocsAt(t *testing.T, f *sim.Federation, region string) map[sim.Instance]string {
	t.Helper()
	runs, err := f.Runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[sim.Instance]string{}
	for i, all := range runs {
		for _, r := range all {
			if r.Region == region {
				out[i] = r.Alloc
			}
		}
	}
	return out
}

// neverTwice checks for some time that no instance of a job runs twice.
func neverTwice(t *testing.T, f *sim.Federation, name string, during time.Duration) {
	t.Helper()
	for range during / (100 * time.Millisecond) {
		runs, err := f.Runs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, all := range runs {
			if i.Job == name && len(all) > 1 {
				t.Fatalf("%v runs as %v", i, all)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestCutOffRegionReturns: a verdict moves the work of a region that is cut off. With
// keep_original, the instances of the returning region never stopped and own their slots again.
// With keep_replacement, and for work that the region's lease binds, the new owner's instances
// continue. In the end everything runs once, as the allocation that reconcile names.
func TestCutOffRegionReturns(t *testing.T) {
	for _, c := range []struct {
		name, disconnect string
		stays            string // region of the instances in the end
	}{
		{"keep_original", "region: {after: 20s}", "alpha"},
		{"keep_replacement", "region: {after: 20s}, reconcile: keep_replacement", "beta"},
		{"stop", "region: {after: 20s, running: stop}", "beta"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
				f.Submit(movable("api", "service", 4, c.disconnect))
				awaitRunsOnce(f, 10*time.Second, "api", 4)
				original := allocsAt(t, f, "alpha")
				if len(original) != 4 {
					t.Fatalf("%d instances run at alpha", len(original))
				}
				heal := f.Cut(f.GlobalIPs(), f.RegionIPs("alpha"))
				if strings.Contains(c.disconnect, "stop") {
					neverTwice(t, f, "api", 2*time.Minute)
				}
				awaitOwner(f, 2*time.Minute, "api", 4, "beta")
				f.Eventually(time.Minute, "the replacements run", func(context.Context) error {
					if n := len(allocsAt(t, f, "beta")); n != 4 {
						return fmt.Errorf("%d run", n)
					}
					return nil
				})
				replacements := allocsAt(t, f, "beta")
				time.Sleep(time.Minute)
				heal()
				if strings.Contains(c.disconnect, "stop") {
					neverTwice(t, f, "api", time.Minute)
				}
				f.AwaitRegions()
				awaitOwner(f, time.Minute, "api", 4, c.stays)
				awaitRunsOnce(f, time.Minute, "api", 4)
				want := original
				if c.stays == "beta" {
					want = replacements
				}
				for i, alloc := range allocsAt(t, f, c.stays) {
					if alloc != want[i] {
						t.Errorf("%v runs as %s, and ran as %s before", i, alloc, want[i])
					}
				}
				time.Sleep(2 * time.Minute)
				if err := f.RunsOnce(t.Context(), "api", "web", 4); err != nil {
					t.Error(err)
				}
				f.Eventually(time.Minute, "no former owner is left", func(ctx context.Context) error {
					j, err := f.Job(ctx, "api")
					for _, s := range j.GetStatus().GetGroups()["web"].GetSlots() {
						if len(s.GetFormer()) > 0 {
							return fmt.Errorf("slot %v", s)
						}
					}
					return err
				})
			})
		})
	}
}

// TestBatchInstanceCompletesInTheLostRegion: the instance is done once the region is back. Its
// replacement is stopped, and no third instance begins.
func TestBatchInstanceCompletesInTheLostRegion(t *testing.T) {
	for _, reconcile := range []string{"keep_original", "keep_replacement"} {
		t.Run(reconcile, func(t *testing.T) { completesInTheLostRegion(t, "region: {after: 20s}, reconcile: "+reconcile) })
	}
}

func completesInTheLostRegion(t *testing.T, disconnect string) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		job := movable("sums", "batch", 2, disconnect)
		f.Submit(strings.Replace(job, "config: {command: serve}", "config: {command: sum}, env: {SIM_RUN_TIME: 2m}", 1))
		awaitRunsOnce(f, 10*time.Second, "sums", 2)
		heal := f.Cut(f.GlobalIPs(), f.RegionIPs("alpha"))
		awaitOwner(f, time.Minute, "sums", 2, "beta")
		time.Sleep(100 * time.Second) // the instances of alpha complete, those of beta do not yet
		if n := len(allocsAt(t, f, "alpha")); n != 0 {
			t.Fatalf("%d instances run at alpha", n)
		}
		heal()
		f.AwaitRegions()
		f.Eventually(time.Minute, "sums is complete", func(ctx context.Context) error {
			j, err := f.Job(ctx, "sums")
			if s := j.GetStatus(); err == nil && (s.GetState() != nusav1.JobState_JOB_STATE_COMPLETE || s.GetGroups()["web"].GetCounts().GetComplete() != 2) {
				err = fmt.Errorf("job is %v: %v", s.GetState(), s.GetGroups()["web"])
			}
			return err
		})
		awaitOwner(f, time.Minute, "sums", 2, "alpha")
		time.Sleep(5 * time.Minute)
		if runs, err := f.Runs(t.Context()); err != nil || len(runs) != 0 {
			t.Errorf("after its end %v run, %v", runs, err)
		}
		for i, n := range f.Begun() {
			if n != 2 {
				t.Errorf("%v began %d times", i, n)
			}
		}
	})
}

// TestCutOffRegionIsLostOften: a region that was lost three times within an hour gets nothing back
// automatically.
func TestCutOffRegionIsLostOften(t *testing.T) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		f.Submit(movable("api", "service", 2, "region: {after: 20s}"))
		awaitRunsOnce(f, 10*time.Second, "api", 2)
		for _, owner := range []string{"alpha", "alpha", "beta"} {
			heal := f.Cut(f.GlobalIPs(), f.RegionIPs("alpha"))
			awaitOwner(f, 2*time.Minute, "api", 2, "beta")
			time.Sleep(30 * time.Second)
			heal()
			f.AwaitRegions()
			time.Sleep(time.Minute)
			awaitOwner(f, time.Minute, "api", 2, owner)
			awaitRunsOnce(f, time.Minute, "api", 2)
		}
		out, err := nusav1.NewRegionsClient(f.Global(1)).Failback(t.Context(), &nusav1.FailbackRequest{Name: "alpha", Apply: true})
		if err != nil || len(out.GetMoves()) != 1 || !out.GetMoves()[0].GetReturns() {
			t.Errorf("an operator's failback: %v, %v", out, err)
		}
		awaitOwner(f, time.Minute, "api", 2, "alpha")
		awaitRunsOnce(f, time.Minute, "api", 2)
	})
}

// TestWorkReturnsByItself: with failback auto the work returns, one instance after the other, once
// its region has been healthy for failback.after. Another cut restarts that time.
func TestWorkReturnsByItself(t *testing.T) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		f.Submit(movable("api", "service", 2, "region: {after: 20s, failback: {mode: auto, after: 2m}}, reconcile: keep_replacement"))
		awaitRunsOnce(f, 10*time.Second, "api", 2)
		cut := func(d time.Duration) {
			heal := f.Cut(f.GlobalIPs(), f.RegionIPs("alpha"))
			time.Sleep(d)
			heal()
			f.AwaitRegions()
		}
		cut(time.Minute)
		awaitOwner(f, time.Second, "api", 2, "beta")
		time.Sleep(90 * time.Second)
		cut(30 * time.Second) // no instance of api is there, but the time of health starts again
		time.Sleep(100 * time.Second)
		awaitOwner(f, time.Second, "api", 2, "beta")
		awaitOwner(f, time.Minute, "api", 2, "alpha")
		awaitRunsOnce(f, time.Minute, "api", 2)
		if n := f.Begun(); n[sim.Instance{Job: "api", Group: "web"}] != 3 {
			t.Errorf("begun: %v", n)
		}
	})
}

// TestRegionIsDrained: everything moves, one instance after the other, also singletons. Nothing
// runs twice meanwhile. Of an array, the instances that wait for their turn move at once.
func TestRegionIsDrained(t *testing.T) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		f.Submit(`
name: sum
type: batch
regions: {prefer: [{name: alpha, weight: 50}]}
groups:
  web:
    count: 12
    parallel: 2
    tasks:
      main: {driver: process, config: {command: x}, env: {SIM_RUN_TIME: 10m}, resources: {cpu: 100m, memory: 64MiB}}
`)
		f.Submit(movable("api", "service", 3, "region: {after: 20s}"))
		f.Submit(strings.Replace(movable("one", "service", 1, "region: {after: 20s}"), "    count: 1", "    count: 1\n    singleton: true", 1))
		awaitRunsOnce(f, 10*time.Second, "api", 3)
		awaitRunsOnce(f, time.Minute, "one", 1)
		regions := nusav1.NewRegionsClient(f.Global(1))
		if _, err := regions.Drain(t.Context(), &nusav1.DrainRegionRequest{Name: "alpha", Drain: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if owners, err := f.Owners(t.Context(), "sum", "web"); err != nil || owners[2] != "beta" || owners[11] != "beta" {
			t.Errorf("after 5s the instances of the array are at %v, %v", owners, err)
		}
		for range 600 {
			runs, err := f.Runs(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			down := 0
			for i := range int32(3) {
				all := runs[sim.Instance{Job: "api", Group: "web", Index: i}]
				if len(all) > 1 {
					t.Fatalf("instance %d runs as %v", i, all)
				}
				down += 1 - len(all)
			}
			if all := runs[sim.Instance{Job: "one", Group: "web"}]; len(all) > 1 {
				t.Fatalf("the singleton runs as %v", all)
			}
			if down > 1 {
				t.Fatalf("%d instances are down", down)
			}
			time.Sleep(100 * time.Millisecond)
		}
		awaitOwner(f, time.Minute, "api", 3, "beta")
		awaitOwner(f, time.Minute, "one", 1, "beta")
		awaitOwner(f, time.Minute, "sum", 12, "beta")
		awaitRunsOnce(f, time.Minute, "one", 1)
		awaitRunsOnce(f, time.Minute, "api", 3)
		r, err := regions.Get(t.Context(), &nusav1.GetRegionRequest{Name: "alpha"})
		if err != nil || r.GetFailoverMessage() != "drained: nothing is left" {
			t.Errorf("alpha: %q, %v", r.GetFailoverMessage(), err)
		}
	})
}

// TestBoundWorkMovesWithoutOverlap: work that the region's lease binds stops in the region that is
// cut off, and starts elsewhere when that stop is certain. No instance runs twice, also when the
// region returns. Work that keeps running there is not moved.
func TestBoundWorkMovesWithoutOverlap(t *testing.T) {
	for _, c := range []struct {
		name, disconnect string
		singleton, moves bool
	}{
		{"singleton", "region: {after: 20s}", true, true},
		{"stop", "region: {after: 20s, running: stop}", false, true},
		{"a singleton that keeps running", "region: {after: 20s, running: keep, replace: false}", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
				f.Submit(strings.Replace(movable("api", "service", 2, c.disconnect), "    count:", fmt.Sprintf("    singleton: %v\n    count:", c.singleton), 1))
				awaitRunsOnce(f, 10*time.Second, "api", 2)
				owner := "alpha"
				heal := f.Cut(f.GlobalIPs(), f.RegionIPs("alpha"))
				if twice := watchTwice(t, f, 2*time.Minute); twice > 0 {
					t.Errorf("cut off: an instance ran twice for %v", twice)
				}
				if c.moves {
					owner = "beta"
				}
				if n := len(allocsAt(t, f, owner)); n != 2 {
					t.Errorf("cut off: %d instances run at %s", n, owner)
				}
				heal()
				f.AwaitRegions()
				if twice := watchTwice(t, f, 2*time.Minute); twice > 0 {
					t.Errorf("back: an instance ran twice for %v", twice)
				}
				awaitOwner(f, time.Minute, "api", 2, owner)
				awaitRunsOnce(f, time.Minute, "api", 2)
			})
		})
	}
}
