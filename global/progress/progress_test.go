package progress

import (
	"maps"
	"slices"
	"testing"
	"time"
)

// TestProgress: when a rollout begins, fails and is done.
func TestProgress(t *testing.T) {
	group := func(change func(*Group)) Group {
		g := Group{Name: "web", Desired: 3, Healthy: 1, Best: 1, Outdated: 2, HealthyDeadline: 5 * time.Minute, ProgressDeadline: 10 * time.Minute}
		if change != nil {
			change(&g)
		}
		return g
	}
	one := func(change func(*Group)) []Group { return []Group{group(change)} }
	done := group(func(g *Group) { g.Healthy, g.Best, g.Outdated, g.Idle, g.Starting = 3, 3, 0, time.Hour, 0 })
	canary := func(healthy int, busy time.Duration) Group {
		return group(func(g *Group) {
			g.Desired, g.Healthy, g.Best, g.Outdated, g.Starting, g.Idle, g.Busy = 1, healthy, healthy, 0, 1-healthy, busy, busy
		})
	}
	idle := func(d time.Duration) func(*Group) { return func(g *Group) { g.Idle = d } }
	for _, c := range []struct {
		name string
		in   Rollout
		want Kind
		why  string
		due  time.Duration
	}{
		{"a job that was never updated", Rollout{}, Keep, "", 0},
		{"an instance has to be replaced", Rollout{Version: 2, Groups: one(nil)}, Begin, "version 2 replaces instances", 0},
		{"the rollout was over before rollouts were stored", Rollout{Version: 2, Groups: one(func(g *Group) { g.Outdated = 0 })}, Keep, "", 0},
		{"an instance dies long after the rollout", Rollout{Version: 2, Begun: true, Done: true, Groups: one(func(g *Group) { g.Outdated, g.Idle = 0, time.Hour })}, Keep, "", 0},
		{"it goes on", Rollout{Version: 2, Begun: true, Groups: one(idle(4 * time.Minute))}, Keep, "", 6 * time.Minute},
		{"one more is healthy", Rollout{Version: 2, Begun: true, Groups: one(func(g *Group) { g.Healthy, g.Idle = 2, 9*time.Minute })}, Grew, "", time.Minute},
		{"one more is healthy at the last moment", Rollout{Version: 2, Begun: true, Groups: one(func(g *Group) { g.Healthy, g.Idle = 2, time.Hour })}, Grew, "", 1},
		{"one is starting", Rollout{Version: 2, Begun: true, Groups: one(func(g *Group) { g.Starting, g.Idle, g.Busy = 1, time.Minute, time.Minute })}, Keep, "", 4 * time.Minute},
		{"one is starting for too long", Rollout{Version: 2, Begun: true, Groups: one(func(g *Group) { g.Starting, g.Idle, g.Busy = 1, 6*time.Minute, 5*time.Minute })},
			Fail, "web: an instance was not healthy within healthy_deadline, 5m0s: 1 of 3 run it", 0},
		{"one is between two attempts for too long", Rollout{Version: 2, Begun: true, Groups: one(func(g *Group) { g.Idle, g.Busy = 6*time.Minute, 5*time.Minute })},
			Fail, "web: an instance was not healthy within healthy_deadline, 5m0s: 1 of 3 run it", 0},
		{"none finds room", Rollout{Version: 2, Begun: true, Groups: one(idle(10 * time.Minute))},
			Fail, "web: no further instance became healthy within progress_deadline, 10m0s: 1 of 3 run it", 0},
		{"a region is disconnected", Rollout{Version: 2, Begun: true, Held: "alpha is disconnected", Groups: one(idle(time.Hour))}, Keep, "", 0},
		{"it is paused", Rollout{Version: 2, Begun: true, Paused: true, Groups: one(idle(time.Hour))}, Keep, "", 0},
		{"it has failed already", Rollout{Version: 2, Begun: true, Failed: true, Groups: one(idle(time.Hour))}, Keep, "", 0},
		{"a failed version becomes healthy after all", Rollout{Version: 2, Begun: true, Failed: true, Groups: []Group{done}}, Done, "every instance runs version 2", 0},
		{"every instance runs", Rollout{Version: 2, Begun: true, Groups: []Group{done}}, Done, "every instance runs version 2", 0},
		{"the earliest deadline of two groups counts", Rollout{Version: 2, Begun: true, Groups: []Group{group(idle(time.Minute)), group(idle(7 * time.Minute))}}, Keep, "", 3 * time.Minute},
		{"a group that is done has no deadline", Rollout{Version: 2, Begun: true, Groups: []Group{done, group(idle(time.Minute))}}, Keep, "", 9 * time.Minute},
		{"one of two groups fails", Rollout{Version: 2, Begun: true, Groups: []Group{group(idle(time.Minute)), group(func(g *Group) { g.Name, g.Idle = "zeta", 11*time.Minute })}},
			Fail, "zeta: no further instance became healthy within progress_deadline, 10m0s: 1 of 3 run it", 0},
		{"a scale up during the rollout", Rollout{Version: 2, Begun: true, Groups: one(func(g *Group) { g.Desired, g.Outdated, g.Healthy, g.Best = 9, 0, 3, 3 })}, Keep, "", 10 * time.Minute},
		{"a canary is starting", Rollout{Version: 2, Begun: true, Canaries: true, AutoPromote: true, MinHealthy: 10 * time.Second, Groups: []Group{canary(0, time.Minute)}}, Keep, "", 4 * time.Minute},
		{"a canary does not become healthy", Rollout{Version: 2, Begun: true, Canaries: true, Groups: []Group{canary(1, 0), canary(0, 5*time.Minute)}},
			Fail, "web: an instance was not healthy within healthy_deadline, 5m0s: 0 of 1 run it", 0},
		{"a canary finds no room", Rollout{Version: 2, Begun: true, Canaries: true, Groups: one(func(g *Group) { g.Desired, g.Healthy, g.Best, g.Outdated, g.Idle = 1, 0, 0, 0, 10*time.Minute })},
			Fail, "web: no further instance became healthy within progress_deadline, 10m0s: 0 of 1 run it", 0},
		{"canaries wait for an operator", Rollout{Version: 2, Begun: true, Canaries: true, Steady: time.Hour, Groups: []Group{canary(1, time.Hour)}}, Keep, "", 0},
		{"an operator sees canaries that are healthy for long enough", Rollout{Version: 2, Begun: true, Canaries: true, Steady: 3 * time.Second, MinHealthy: 10 * time.Second, Groups: []Group{canary(1, 0)}}, Keep, "", 7 * time.Second},
		{"canaries are not healthy for long enough", Rollout{Version: 2, Begun: true, Canaries: true, AutoPromote: true, Steady: 3 * time.Second, MinHealthy: 10 * time.Second, Groups: []Group{canary(1, 0)}}, Keep, "", 7 * time.Second},
		{"canaries are promoted", Rollout{Version: 2, Begun: true, Canaries: true, AutoPromote: true, Steady: 10 * time.Second, MinHealthy: 10 * time.Second, Groups: []Group{canary(1, 0)}},
			Promote, "every canary has been healthy for 10s", 0},
		{"one of two canaries is healthy", Rollout{Version: 2, Begun: true, Canaries: true, AutoPromote: true, Steady: time.Hour, Groups: []Group{canary(1, 0), canary(0, 0)}}, Keep, "", 5 * time.Minute},
		{"no promotion while paused", Rollout{Version: 2, Begun: true, Canaries: true, AutoPromote: true, Paused: true, Steady: time.Hour, Groups: []Group{canary(1, 0)}}, Keep, "", 0},
		{"no promotion while a region is disconnected", Rollout{Version: 2, Begun: true, Canaries: true, AutoPromote: true, Held: "alpha is disconnected", Steady: time.Hour, Groups: []Group{canary(1, 0)}}, Keep, "", 0},
		{"a pause between two regions", Rollout{Version: 2, Begun: true, Waiting: true, PauseLeft: 3 * time.Minute, Groups: one(idle(time.Hour))}, Keep, "", 3 * time.Minute},
		{"a pause while another region is being updated", Rollout{Version: 2, Begun: true, Waiting: true, Updating: []string{"a"}, PauseLeft: 3 * time.Minute, Groups: one(idle(time.Minute))}, Keep, "", 3 * time.Minute},
		{"a deadline before the end of the pause", Rollout{Version: 2, Begun: true, Waiting: true, Updating: []string{"a"}, PauseLeft: time.Hour, Groups: one(idle(9 * time.Minute))}, Keep, "", time.Minute},
		{"a deadline in a pause while another region is being updated", Rollout{Version: 2, Begun: true, Waiting: true, Updating: []string{"a"}, PauseLeft: time.Hour, Groups: one(idle(time.Hour))},
			Fail, "web: no further instance became healthy within progress_deadline, 10m0s: 1 of 3 run it", 0},
		{"one more is healthy in a pause", Rollout{Version: 2, Begun: true, Waiting: true, Updating: []string{"a"}, PauseLeft: time.Minute, Groups: one(func(g *Group) { g.Healthy = 2 })}, Grew, "", time.Minute},
		{"a deadline with on_failure: continue", Rollout{Version: 2, Begun: true, Continue: true, Waiting: true, Updating: []string{"a", "b"}, Groups: one(idle(time.Hour))}, FailRegions, "", 0},
		{"a deadline while no region is being updated", Rollout{Version: 2, Begun: true, Continue: true, Waiting: true, FailedIn: "it failed in a", Groups: one(idle(time.Hour))},
			Fail, "web: no further instance became healthy within progress_deadline, 10m0s: 1 of 3 run it", 0},
		{"it fails in a region, and the next one waits", Rollout{Version: 2, Begun: true, Continue: true, Waiting: true, Updating: []string{"a"}, Failing: map[string]string{"a": "1 failed"}, Groups: one(nil)}, Keep, "", 10 * time.Minute},
		{"it fails in the last region", Rollout{Version: 2, Begun: true, Continue: true, Updating: []string{"a"}, Failing: map[string]string{"a": "1 failed"}, Groups: one(nil)}, FailRegions, "", 0},
		{"it has failed in a region, and the last one is being updated", Rollout{Version: 2, Begun: true, Continue: true, Updating: []string{"b"}, FailedIn: "it failed in a", Groups: one(nil)}, Keep, "", 10 * time.Minute},
		{"it has failed in a region, and is done in all others", Rollout{Version: 2, Begun: true, Continue: true, FailedIn: "it failed in a", Groups: one(nil)}, Fail, "it failed in a", 0},
		{"the failed region is healthy after all", Rollout{Version: 2, Begun: true, Continue: true, FailedIn: "it failed in a", Groups: []Group{done}}, Done, "every instance runs version 2", 0},
		{"no promotion after a failure", Rollout{Version: 2, Begun: true, Canaries: true, AutoPromote: true, Failed: true, Steady: time.Hour, Groups: []Group{canary(1, 0)}}, Keep, "", 0},
	} {
		got := c.in.Decide()
		if got.Kind == Begin || got.Kind == Done || got.Kind == Fail {
			got.Due = 0
		}
		if got.Kind == FailRegions && (len(got.Regions) == 0 || slices.Sorted(maps.Keys(got.Regions))[0] != "a" || len(got.Regions) != len(c.in.Updating)) {
			t.Errorf("%s: fails %v", c.name, got.Regions)
		}
		if got.Kind != c.want || got.Why != c.why || got.Due != c.due {
			t.Errorf("%s: %+v, want %s (%s), due in %s", c.name, got, c.want, c.why, c.due)
		}
	}
}

// TestCanaries: which instances a group has, and which get the new version, at each stage.
func TestCanaries(t *testing.T) {
	for _, c := range []struct {
		name             string
		in               Canaries
		count            int
		instances, first int
	}{
		{"beside the earlier version", Canaries{From: 3, N: 1}, 3, 4, 3},
		{"a scale up waits", Canaries{From: 3, N: 1}, 9, 4, 3},
		{"a scale down waits", Canaries{From: 3, N: 1}, 0, 4, 3},
		{"failed", Canaries{From: 3, N: 2, Failed: true}, 3, 3, 0},
		{"failed, with a scale up", Canaries{From: 3, N: 2, Failed: true}, 9, 3, 0},
		{"promoted", Canaries{From: 3, N: 2, Promoted: true}, 3, 5, 0},
		{"promoted, with a scale up beyond the canaries", Canaries{From: 3, N: 2, Promoted: true}, 9, 9, 0},
		{"promoted, with a small scale up", Canaries{From: 3, N: 2, Promoted: true}, 4, 5, 0},
		{"promoted, with a scale down", Canaries{From: 3, N: 2, Promoted: true}, 2, 2, 0},
		{"failed after the promotion", Canaries{From: 3, N: 2, Promoted: true, Failed: true}, 4, 4, 0},
	} {
		if instances, first := c.in.Indices(c.count); instances != c.instances || first != c.first {
			t.Errorf("%s: %d instances, first %d, want %d and %d", c.name, instances, first, c.instances, c.first)
		}
	}
}
