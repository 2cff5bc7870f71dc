package region

import (
	"testing"
	"time"
)

// TestReturningRegionIsNotSilent: the loss ends when the hello is stored. The welcome follows once
// it is stored which of its many slots the region may keep.
func TestReturningRegionIsNotSilent(t *testing.T) {
	c := Config{Lease: 15 * time.Second, ActiveUntil: time.Hour}
	lost := Record{Name: "sea", ClusterID: "c", Incarnation: 1, Term: 1, Fence: 1, Lost: true}
	s := Open(c, lost, 0)
	s, _ = Step(c, s, time.Minute, Stored{Record: lost})
	if got := s.SilentFor(2 * time.Minute); got != 2*time.Minute {
		t.Errorf("still lost, and silent for %s", got)
	}
	back := lost
	back.Lost = false
	s, effects := Step(c, s, 2*time.Minute, Stored{Record: back})
	if got := s.SilentFor(2*time.Minute + time.Second); got != time.Second || s.Connected() || len(effects) > 0 {
		t.Errorf("its hello is stored, and it is silent for %s: %v", got, effects)
	}
	// No message followed the latest welcome, so a hello proves only that messages from the region
	// arrive.
	s, _ = Step(c, s, 2*time.Minute, Hello{Stream: 1, ClusterID: "c", Incarnation: 1, Term: 1, Required: 1})
	s, _ = Step(c, s, 3*time.Minute, Stored{Record: lost})
	s, _ = Step(c, s, 4*time.Minute, Stored{Record: back})
	if got := s.SilentFor(5 * time.Minute); got != 3*time.Minute {
		t.Errorf("nothing reaches it, and it is silent for %s", got)
	}
}
