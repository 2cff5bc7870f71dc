package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// byRegion is a service with two instances in each of three regions.
func byRegion(v, regions string, more ...string) string {
	return fmt.Sprintf(`
name: web
regions: {spread: {min: 3}, divide: even}
groups:
  all:
    count: 6
    update: {%s}
    %s
    tasks:
      main: {driver: process, config: {command: serve}, env: {V: "%s"}, resources: {cpu: 500m, memory: 64MiB}, restart: {attempts: 0}}
`, regions, strings.Join(more, "\n    "), v)
}

// follow looks at a rollout each second until it is over. It checks that no more than one region has
// instances that are not healthy in the new version, and that the regions begin in the order. during is
// called with each rollout. It returns when each region began, in seconds.
func (r *rolled) follow(most time.Duration, version int64, order []string, during func(*nusav1.Rollout)) map[string]int {
	r.t.Helper()
	began, start := map[string]int{}, time.Now()
	for time.Since(start) < most {
		time.Sleep(time.Second)
		j, err := r.f.Job(r.t.Context(), r.ref.GetName())
		if err != nil { // no server is active
			continue
		}
		got := j.GetStatus().GetRollout()
		if j.GetVersion() > version || got == nil && j.GetStatus().GetState() == jobRuns {
			return began
		}
		if got.GetVersion() != version {
			continue
		}
		var updating []string
		for name, at := range got.GetRegions() {
			slots := j.GetStatus().GetGroups()["all"].GetSlots()
			has := !slices.ContainsFunc(slots, func(s *nusav1.Slot) bool { return s.GetRegion() == name && s.GetJobVersion() < version })
			if !has {
				continue
			}
			if began[name] == 0 {
				began[name] = int(time.Since(start).Seconds())
			}
			if at.GetHealthy() < at.GetDesired() && at.GetFailed() == "" {
				updating = append(updating, name)
			}
		}
		if len(updating) > 1 {
			r.t.Fatalf("after %s %v have instances that are not healthy: %v", time.Since(start), updating, got)
		}
		for i, name := range order {
			for _, later := range order[i+1:] {
				if began[later] > 0 && (began[name] == 0 || began[name] > began[later]) {
					r.t.Fatalf("%s began before %s: %v", later, name, began)
				}
			}
		}
		during(got)
	}
	r.t.Fatalf("version %d is not over after %s: %v", version, most, r.job().GetStatus())
	return nil
}

const gammaFirst = "regions: {order: [gamma, alpha], pause_between: 5m}"

// TestRolloutFollowsTheOrder: a version goes to the regions in the order of the job, with a pause after
// each, also over the death of the active server. The same file again changes nothing.
// No deadline counts in a pause, and an operator can end one.
func TestRolloutFollowsTheOrder(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha", "beta", "gamma"}, Globals: 2}, func(t *testing.T, f *sim.Federation) {
		r := &rolled{t, f, f.Global(1), &nusav1.JobRef{Name: "web"}}
		control := &nusav1.ControlRolloutRequest{Job: r.ref}
		mustSubmit(t, r.conn, byRegion("1", gammaFirst), false)
		r.completed(time.Minute, 1, 6)
		mustSubmit(t, r.conn, byRegion("2", gammaFirst+", progress_deadline: 2m, healthy_deadline: 1m"), false)
		pauses, killed := 0, false
		began := r.follow(20*time.Minute, 2, []string{"gamma", "alpha", "beta"}, func(got *nusav1.Rollout) {
			left := got.GetPauseLeft().AsDuration()
			if left <= 0 {
				return
			}
			pauses++
			if left > 5*time.Minute || got.GetDeadline() != nil || got.GetRegions()["gamma"].GetEnded() == nil || got.GetRegions()["gamma"].GetTurn() != 1 || got.GetRegions()["beta"].GetTurn() != 0 {
				t.Fatalf("in a pause: %v", got)
			}
			if left < 2*time.Minute && !killed {
				f.Kill(fmt.Sprintf("global-%d", f.Active()))
				time.Sleep(time.Minute)
				r.conn, killed = f.Global(f.Active()), true
				if out := mustSubmit(t, r.conn, byRegion("2", gammaFirst+", progress_deadline: 2m, healthy_deadline: 1m"), false); out.GetChanged() {
					t.Fatalf("the same file again: %v", out)
				}
			}
		})
		if began["alpha"]-began["gamma"] < 300 || began["beta"]-began["alpha"] < 300 || began["beta"] > 800 || !killed || pauses < 300 {
			t.Errorf("the regions began after %v s, and %d s were in a pause", began, pauses)
		}
		r.completed(time.Minute, 2, 6)

		// A pause and a resume of the rollout do not end the pause after a region. A resume in that pause
		// does.
		mustSubmit(t, r.conn, byRegion("3", gammaFirst), false)
		paused, resumed := false, false
		began = r.follow(20*time.Minute, 3, []string{"gamma", "alpha", "beta"}, func(got *nusav1.Rollout) {
			switch left := got.GetPauseLeft().AsDuration(); {
			case left <= 0:
			case !paused:
				paused = true
				time.Sleep(30 * time.Second)
				_, err := r.rollouts().Pause(t.Context(), control)
				if err == nil {
					_, err = r.rollouts().Resume(t.Context(), control)
				}
				if still := r.job().GetStatus().GetRollout(); err != nil || still.GetPauseLeft().AsDuration() < time.Minute {
					t.Fatalf("%v, %v", still, err)
				}
			case got.GetRegions()["alpha"].GetEnded() != nil && !resumed:
				resumed = true
				if now, err := r.rollouts().Resume(t.Context(), control); err != nil || now.GetPauseLeft() != nil {
					t.Fatalf("%v, %v", now, err)
				}
			}
		})
		if began["alpha"]-began["gamma"] < 300 || began["beta"]-began["alpha"] > 60 || !resumed {
			t.Errorf("the regions began after %v s", began)
		}
	})
}

// TestRolloutFailsInARegion: what follows a failure in the first region is what on_failure says.
func TestRolloutFailsInARegion(t *testing.T) {
	for _, then := range []string{"stop", "revert", "continue"} {
		t.Run(then, func(t *testing.T) {
			inBubble(t, sim.Options{Regions: []string{"alpha", "beta", "gamma"}}, func(t *testing.T, f *sim.Federation) {
				r := &rolled{t, f, f.Global(1), &nusav1.JobRef{Name: "web"}}
				// The version fails in gamma only: the group bad runs nowhere else.
				file := func(v, bad string) string {
					update := "update: {progress_deadline: 2m, healthy_deadline: 1m, regions: {order: [gamma, alpha], on_failure: " + then + "}}"
					return fmt.Sprintf(`
name: web
groups:
  all:
    count: 4
    regions: {allow: [{name: alpha}, {name: beta}], divide: even}
    %s
    tasks:
      main: {driver: process, config: {command: serve}, env: {V: "%s"}, resources: {cpu: 500m, memory: 64MiB}}
  bad:
    count: 1
    regions: {allow: [{name: gamma}]}
    %s
    reschedule: {attempts: 0}
    tasks:
      main: {driver: process, config: {command: serve}, env: {V: "%s"%s}, resources: {cpu: 500m, memory: 64MiB}, restart: {attempts: 0}}
`, update, v, update, v, bad)
				}
				mustSubmit(t, r.conn, file("1", ""), false)
				r.completed(time.Minute, 1, 4)
				mustSubmit(t, r.conn, file("2", `, SIM_RUN_TIME: 2s, SIM_EXIT_CODE: "3"`), false)
				switch then {
				case "stop":
					time.Sleep(5 * time.Minute)
					r.counts("after the failure", 4, 4)
					j, _ := r.until(time.Minute, 2, jobFails)
					if got := j.GetStatus().GetRollout(); got.GetState() != nusav1.RolloutState_ROLLOUT_STATE_FAILED || !strings.Contains(got.GetMessage(), "version 2 failed") {
						t.Errorf("%v", got)
					}
				case "revert":
					j, _ := r.until(5*time.Minute, 3, jobRuns)
					if why := j.GetReverted(); why.GetVersion() != 2 || why.GetTo() != 1 {
						t.Errorf("%v", why)
					}
				case "continue":
					began := r.failedInGamma(time.Minute)
					j, _ := r.until(2*time.Minute, 2, jobFails)
					got := j.GetStatus().GetRollout()
					if c := j.GetStatus().GetGroups()["all"].GetCounts(); c.GetRunning() != 4 || c.GetOutdated() != 0 || began != jobStarting {
						t.Errorf("%v, and before it was %v", c, began)
					}
					if got.GetState() != nusav1.RolloutState_ROLLOUT_STATE_FAILED || got.GetRegions()["gamma"].GetFailed() != "bad: 1 of 1 instances failed" ||
						!strings.Contains(got.GetMessage(), "version 2 failed: in 1 of 3 regions: gamma: bad: 1 of 1 instances failed") {
						t.Errorf("%v", got)
					}
				}
			})
		})
	}
}

// failedInGamma waits until a version has failed in gamma and is on its way in alpha, and returns the state of
// the job then.
func (r *rolled) failedInGamma(most time.Duration) (state nusav1.JobState) {
	r.t.Helper()
	r.f.Eventually(most, "it failed in gamma, and alpha has it", func(context.Context) error {
		s := r.job().GetStatus()
		got := s.GetRollout().GetRegions()
		state = s.GetState()
		if got["gamma"].GetFailed() == "" || got["alpha"].GetWaits() != "" || got["beta"].GetWaits() == "" {
			return fmt.Errorf("%v", s)
		}
		return nil
	})
	return state
}

// TestOrderWithCanaries: canaries come first, and once they are promoted the regions follow in their
// order. A scale meanwhile neither begins the rollout again nor waits for it. The steps in a region keep
// update.stagger.
func TestOrderWithCanaries(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha", "beta", "gamma"}, Globals: 2}, func(t *testing.T, f *sim.Federation) {
		r := &rolled{t, f, f.Global(1), &nusav1.JobRef{Name: "web"}}
		const update = "canary: 1, auto_promote: true, stagger: 1m, regions: {order: [gamma, beta]}"
		mustSubmit(t, r.conn, byRegion("1", update), false)
		r.completed(time.Minute, 1, 6)
		_, err := submit(t, r.conn, byRegion("2", "regions: {order: [gama]}"), false)
		r.refused("an unknown region", err, codes.InvalidArgument, "gama")

		mustSubmit(t, r.conn, byRegion("2", update), false)
		canaries, scaled, seen := false, false, []int32{}
		r.follow(20*time.Minute, 2, []string{"gamma", "beta", "alpha"}, func(got *nusav1.Rollout) {
			switch {
			case got.GetState() == nusav1.RolloutState_ROLLOUT_STATE_CANARY:
				canaries = true
				for name, at := range got.GetRegions() {
					if at.GetOutdated() != 2 {
						t.Fatalf("%s while the canary is not promoted: %v", name, got)
					}
				}
			case got.GetRegions()["gamma"].GetOutdated() > 0:
				seen = append(seen, got.GetRegions()["gamma"].GetOutdated())
			case !scaled:
				scaled = true
				mustSubmit(t, r.conn, strings.Replace(byRegion("2", update), "count: 6", "count: 9", 1), false)
			}
		})
		if one := len(slices.DeleteFunc(seen, func(n int32) bool { return n != 1 })); !canaries || !scaled || one < 40 {
			t.Errorf("canaries %t, scaled %t, gamma had one earlier instance for %d s", canaries, scaled, one)
		}
		r.completed(10*time.Minute, 3, 9)
	})
}

// TestRolloutLosesARegion: the region that is being updated is lost. The next one follows, the lost
// instances start elsewhere, and the rollout is done. One that is only cut off for a moment is waited for.
func TestRolloutLosesARegion(t *testing.T) {
	for _, lost := range []bool{true, false} {
		t.Run(fmt.Sprintf("lost %t", lost), func(t *testing.T) {
			inBubble(t, sim.Options{Regions: []string{"alpha", "beta", "gamma"}}, func(t *testing.T, f *sim.Federation) {
				r := &rolled{t, f, f.Global(1), &nusav1.JobRef{Name: "web"}}
				file := func(v string) string {
					return strings.Replace(byRegion(v, "regions: {order: [gamma, beta]}"), "spread: {min: 3}", "spread: {min: 2}", 1)
				}
				mustSubmit(t, r.conn, file("1"), false)
				r.completed(time.Minute, 1, 6)
				mustSubmit(t, r.conn, file("2"), false)
				f.Eventually(time.Minute, "gamma is being updated", func(context.Context) error {
					if got := r.job().GetStatus().GetRollout(); got.GetRegions()["gamma"].GetHealthy() != 1 {
						return fmt.Errorf("%v", got)
					}
					return nil
				})
				heal := f.Cut(f.GlobalIPs(), f.RegionIPs("gamma"))
				time.Sleep(30 * time.Second)
				if got := r.job().GetStatus(); got.GetRollout().GetRegions()["beta"].GetOutdated() != 3 || got.GetRollout().GetDeadline() != nil {
					t.Errorf("after 30 s without gamma: %v", got)
				}
				if lost {
					time.Sleep(3 * time.Minute)
					if got := r.job().GetStatus(); got.GetGroups()["all"].GetCounts().GetOutdated() != 0 {
						t.Errorf("after 3.5 m without gamma: %v", got)
					}
				}
				heal()
				r.completed(10*time.Minute, 2, 6)
			})
		})
	}
}
