package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// scaledAt sets the bound of the only group of a job in a region, at a server of some tier.
func scaledAt(t *testing.T, server grpc.ClientConnInterface, name, region string, count int32) (*nusav1.Override, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return nusav1.NewOverridesClient(server).Set(ctx, &nusav1.SetOverrideRequest{Job: &nusav1.JobRef{Name: name}, Region: region, Count: count, Reason: "hot"})
}

// clearedAt clears the override of a job in a region through the global tier.
func clearedAt(t *testing.T, f *sim.Federation, name, region string) {
	t.Helper()
	err := f.OnGlobal(func(c *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		resp, err := nusav1.NewOverridesClient(c).Clear(ctx, &nusav1.ClearOverrideRequest{Job: &nusav1.JobRef{Name: name}, Region: region})
		if err == nil && !resp.GetCleared() {
			return fmt.Errorf("%s has no override at %s", name, region)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// held checks what the global tier shows of a job with an override at alpha.
func held(ctx context.Context, f *sim.Federation, name string, running, held int32) error {
	j, err := f.Job(ctx, name)
	if err != nil {
		return err
	}
	s := j.GetStatus()
	c := s.GetGroups()["web"].GetCounts()
	if c.GetRunning() != running || c.GetHeld() != held || c.GetPending()+c.GetLost()+c.GetUnknown()+c.GetStopping()+s.GetGroups()["web"].GetUnowned() > 0 {
		return fmt.Errorf("%s: %v, want %d running and %d held", name, s, running, held)
	}
	if want := fmt.Sprintf("%d held by an override at alpha", held); held > 0 && !strings.Contains(s.GetMessage(), want) || running > 0 && s.GetState() != nusav1.JobState_JOB_STATE_RUNNING {
		return fmt.Errorf("%s is %v: %s", name, s.GetState(), s.GetMessage())
	}
	return nil
}

// TestOverrideOfAnIsland: the operator of a region that is cut off scales a job of the federation there.
// The heal, elections of both tiers and a new version keep that, and all tiers show it, until it is
// cleared over the global tier.
func TestOverrideOfAnIsland(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha", "beta"}, Globals: 2, Servers: 1, Disk: true}, func(t *testing.T, f *sim.Federation) {
		f.Submit(service("web", 4, onlyAlpha))
		awaitRunsOnce(f, 10*time.Second, "web", 4)
		heal := f.Cut(f.GlobalIPs(), f.RegionIPs("alpha"))
		time.Sleep(10 * time.Second)
		_, err := nusav1.NewJobsClient(f.Server("alpha", 1)).Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "web"}})
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "nusa job stop web --override") {
			t.Errorf("a stop at the region: %v", err)
		}
		if _, err := scaledAt(t, f.Server("alpha", 1), "web", "", 5); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "has 4 of the instances") {
			t.Errorf("more than the region owns: %v", err)
		}
		if o, err := scaledAt(t, f.Server("alpha", 1), "web", "", 1); err != nil || o.GetHeld() != 3 || o.GetRegion() != "alpha" {
			t.Fatalf("scaled: %v, %v", o, err)
		}
		f.Eventually(time.Minute, "one runs", func(context.Context) error { return runsAt(t, f, "alpha", 1) })
		f.Kill("alpha-1")
		time.Sleep(5 * time.Second)
		f.StartServer("alpha", 1)
		time.Sleep(30 * time.Second)
		heal()
		f.AwaitRegions()
		shown := func(running, count int32) {
			t.Helper()
			f.Eventually(time.Minute, "the override is shown", func(ctx context.Context) error { return held(ctx, f, "web", running, count) })
		}
		shown(1, 3)
		f.Kill(fmt.Sprint("global-", f.Active()))
		time.Sleep(2 * time.Minute)
		shown(1, 3)
		awaitRunsOnce(f, 10*time.Second, "web", 1)

		f.Submit(strings.Replace(service("web", 4, onlyAlpha), "command: serve", "command: serve, args: [v2]", 1))
		f.Eventually(time.Minute, "the new version runs", func(ctx context.Context) error {
			j, err := f.Job(ctx, "web")
			if err == nil && (j.GetVersion() != 2 || j.GetStatus().GetRollout() != nil || j.GetStatus().GetGroups()["web"].GetCounts().GetOutdated() > 0) {
				err = fmt.Errorf("%v", j)
			}
			return err
		})
		shown(1, 3)
		clearedAt(t, f, "web", "alpha")
		awaitRunsOnce(f, time.Minute, "web", 4)
		shown(4, 0)
	})
}

// runsAt checks how many instances run in a region.
func runsAt(t *testing.T, f *sim.Federation, region string, want int) error {
	t.Helper()
	if n := len(allocsAt(t, f, region)); n != want {
		return fmt.Errorf("%d run at %s, want %d", n, region, want)
	}
	return nil
}

// TestOverrideAndFailover: a region that is cut off runs nothing of a job by an override, and another
// region takes the job over. Nothing runs twice after the heal, and the region still has its override.
func TestOverrideAndFailover(t *testing.T) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		f.Submit(movable("api", "service", 4, "region: {after: 20s}"))
		awaitRunsOnce(f, 10*time.Second, "api", 4)
		heal := f.Cut(f.GlobalIPs(), f.RegionIPs("alpha"))
		time.Sleep(5 * time.Second)
		if _, err := scaledAt(t, f.Server("alpha", f.Master("alpha")), "api", "", 0); err != nil {
			t.Fatal(err)
		}
		awaitOwner(f, 2*time.Minute, "api", 4, "beta")
		f.Eventually(time.Minute, "only beta runs it", func(context.Context) error {
			if err := runsAt(t, f, "alpha", 0); err != nil {
				return err
			}
			return runsAt(t, f, "beta", 4)
		})
		heal()
		f.AwaitRegions()
		time.Sleep(2 * time.Minute)
		awaitRunsOnce(f, time.Minute, "api", 4)
		awaitOwner(f, time.Minute, "api", 4, "beta")
		list, err := nusav1.NewOverridesClient(f.Server("alpha", f.Master("alpha"))).List(t.Context(), &nusav1.ListOverridesRequest{})
		if err != nil || len(list.GetOverrides()) != 1 || list.GetOverrides()[0].GetHeld() != 0 {
			t.Errorf("the override of a job that has moved: %v, %v", list, err)
		}
	})
}
