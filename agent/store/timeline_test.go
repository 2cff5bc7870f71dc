package store

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/reconcile"
)

// TestTimelineIgnoresTheWallClock: within one boot the timeline continues even if the wall
// clock is set. The next boot continues with a timeline that begins after every recorded
// time.
func TestTimelineIgnoresTheWallClock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	up := time.Hour
	clock := func() time.Duration { return up }
	open := func(boot string, c Contents) Timeline {
		t.Helper()
		s, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l, err := s.Timeline(boot, clock, c)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := open("one", Contents{})
	if d := time.Since(first.Now()); d < 0 || d > time.Minute {
		t.Errorf("it begins %s ago", d)
	}
	up += 24 * time.Hour // 24 hours pass, but the wall clock was set back by a day
	if again := open("one", Contents{}); !again.zero.Equal(first.zero) {
		t.Errorf("the same boot began at %s, then at %s", first.zero, again.zero)
	}
	late := first.Now()
	up = time.Minute
	held := Contents{Records: map[string]Record{"a": {Actual: reconcile.Actual{
		Started: late.Add(-time.Hour), Tasks: map[string]reconcile.TaskActual{"main": {Restarts: []time.Time{late}}}}}}}
	second := open("two", held)
	if !second.Now().Equal(late) {
		t.Errorf("after a boot it is %s, on record is %s", second.Now(), late)
	}
	for _, c := range []struct {
		name string
		wall time.Time
		ago  time.Duration
	}{
		{"in the future", time.Now().Add(24 * time.Hour), 0},
		{"before the boot", time.Now().Add(-24 * time.Hour), time.Minute},
	} {
		if ago := second.Now().Sub(second.Of(c.wall)); ago != c.ago {
			t.Errorf("%s: placed %s ago, want %s", c.name, ago, c.ago)
		}
	}
}
