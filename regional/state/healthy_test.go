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
