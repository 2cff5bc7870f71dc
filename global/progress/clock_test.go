package progress

import (
	"testing"
	"time"
)

// TestClock: for how long instances are started and none becomes healthy, as it is noted at some times.
func TestClock(t *testing.T) {
	type note struct {
		at       int
		healthy  int
		starting bool
		busy     int
	}
	for _, c := range []struct {
		name string
		from int
		in   []note
	}{
		{"no instance has a node", 0, []note{{0, 1, false, 0}, {60, 1, false, 0}}},
		{"an instance starts slowly", 0, []note{{3, 1, true, 0}, {60, 1, true, 57}}},
		{"an instance waits for a node before its first start", 0, []note{{0, 1, false, 0}, {30, 1, true, 0}, {40, 1, true, 10}}},
		{"an instance fails again and again, and its back-off is reported a little later", 0,
			[]note{{0, 1, true, 0}, {1, 1, false, 1}, {2, 1, true, 2}, {20, 1, false, 20}, {23, 1, true, 23}, {24, 1, false, 24}, {25, 1, true, 25}}},
		{"a region does not report back-offs", 0, []note{{0, 1, true, 0}, {1, 1, false, 1}, {16, 1, true, 0}, {17, 1, false, 1}, {40, 1, false, 0}}},
		{"an instance is drained, and none finds a node", 0, []note{{0, 1, true, 0}, {20, 1, false, 20}, {25, 1, false, 25}, {26, 1, false, 0}, {50, 1, true, 0}, {60, 1, true, 10}}},
		{"nodes are drained one after the other, and each replacement is healthy after 30s", 0, []note{{0, 3, false, 0}, {10, 2, false, 0}, {11, 2, true, 0}, {40, 2, true, 29},
			{41, 3, false, 0}, {42, 2, false, 0}, {43, 2, true, 0}, {72, 2, true, 29}, {73, 3, false, 0}, {74, 2, true, 0}, {100, 2, true, 26}}},
		{"a replacement is healthy before the next node has stopped its instance", 0, []note{{0, 2, true, 0}, {29, 2, true, 29}, {30, 3, true, 0}, {31, 2, true, 1}, {60, 2, true, 30}}},
		{"a node is drained beside an instance that fails again and again", 0, []note{{0, 2, true, 0}, {60, 1, true, 60}, {90, 2, true, 0}, {300, 2, true, 210}}},
		{"an instance becomes healthy and fails again", 0, []note{{0, 2, true, 0}, {30, 3, false, 0}, {50, 2, true, 0}, {60, 2, true, 10}}},
		{"one more instance became healthy meanwhile", 30, []note{{0, 1, true, -30}, {40, 1, true, 10}, {41, 1, false, 11}, {42, 1, true, 12}}},
	} {
		clock := Clock{}
		for _, n := range c.in {
			now := time.Duration(n.at) * time.Second
			clock.Note(n.healthy, n.starting, now)
			if got := clock.Busy(time.Duration(c.from)*time.Second, now); got != time.Duration(n.busy)*time.Second {
				t.Errorf("%s: at %ds it has been busy for %s, want %ds", c.name, n.at, got, n.busy)
			}
		}
	}
}
