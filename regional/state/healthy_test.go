package state

import (
	"testing"
	"time"
)

// TestMinHealthyNeedsItsLevel: while a server of the region does not know Group.MinHealthy, no server
// stores it, so that all have the same state and hash.
func TestMinHealthyNeedsItsLevel(t *testing.T) {
	store := func(level uint32, min time.Duration) (least time.Duration, hash string) {
		l := newLog(t)
		l.ok(Command{SetLimits: &SetLimits{FeatureLevel: level}})
		job := testJob(1, func(g *Group) { g.MinHealthy = min })
		l.ok(testOrder(0, 1, 10, job, nil))
		if job.Groups[0].MinHealthy != min {
			t.Errorf("level %d: the command was changed", level)
		}
		stored, _ := l.Job(webKey.JobKey(), 1)
		return stored.Groups[0].HealthyAfter(Service), l.Snapshot().Hash()
	}
	for _, c := range []struct {
		level       uint32
		given, want time.Duration
	}{
		{HealthyLevel - 1, time.Minute, 10 * time.Second},
		{HealthyLevel - 1, NoMinHealthy, 10 * time.Second},
		{HealthyLevel, time.Minute, time.Minute},
		{HealthyLevel, NoMinHealthy, 0},
		{HealthyLevel, 0, 10 * time.Second},
	} {
		got, hash := store(c.level, c.given)
		if got != c.want {
			t.Errorf("level %d, %s: %s, want %s", c.level, c.given, got, c.want)
		}
		_, plain := store(c.level, 0)
		if equal := hash == plain; equal != (c.level < HealthyLevel || c.given == 0) {
			t.Errorf("level %d, %s: the hash is equal to that without it: %t", c.level, c.given, equal)
		}
	}
}

// TestStaggerNeedsItsLevel: the same for Group.Stagger. A level that knows MinHealthy keeps that.
func TestStaggerNeedsItsLevel(t *testing.T) {
	store := func(level uint32, min, stagger time.Duration) (stored Group, hash string) {
		l := newLog(t)
		l.ok(Command{SetLimits: &SetLimits{FeatureLevel: level}})
		job := testJob(1, func(g *Group) { g.MinHealthy, g.Stagger = min, stagger })
		l.ok(testOrder(0, 1, 10, job, nil))
		if job.Groups[0].Stagger != stagger {
			t.Errorf("level %d: the command was changed", level)
		}
		j, _ := l.Job(webKey.JobKey(), 1)
		return j.Groups[0], l.Snapshot().Hash()
	}
	for _, c := range []struct {
		level         uint32
		min           time.Duration
		stays, proves time.Duration
	}{
		{HealthyLevel - 1, time.Minute, 0, 0},
		{StaggerLevel - 1, time.Minute, 0, time.Minute},
		{StaggerLevel, time.Minute, time.Hour, time.Minute},
		{StaggerLevel, 0, time.Hour, 0},
	} {
		got, hash := store(c.level, c.min, time.Hour)
		if got.Stagger != c.stays || got.MinHealthy != c.proves {
			t.Errorf("level %d: stored are %s and %s, want %s and %s", c.level, got.Stagger, got.MinHealthy, c.stays, c.proves)
		}
		_, plain := store(c.level, c.min, 0)
		if equal := hash == plain; equal != (c.level < StaggerLevel) {
			t.Errorf("level %d: the hash is equal to that without it: %t", c.level, equal)
		}
	}
}
