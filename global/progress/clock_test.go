package progress

import (
	"testing"
	"time"
)

// TestClock: for how long instances are being started, as it is noted at some times.
func TestClock(t *testing.T) {
	type note struct {
		at       int
		starting bool
		busy     int
	}
	for _, c := range []struct {
		name string
		from int
		in   []note
	}{
		{"no instance has a node", 0, []note{{0, false, 0}, {60, false, 0}}},
		{"an instance starts slowly", 0, []note{{3, true, 0}, {60, true, 57}}},
		{"an instance waits for a node before its first start", 0, []note{{0, false, 0}, {30, true, 0}, {40, true, 10}}},
		{"an instance fails again and again, and its back-off is reported a little later", 0,
			[]note{{0, true, 0}, {1, false, 1}, {2, true, 2}, {20, false, 20}, {23, true, 23}, {24, false, 24}, {25, true, 25}}},
		{"a region does not report back-offs", 0, []note{{0, true, 0}, {1, false, 1}, {16, true, 0}, {17, false, 1}, {40, false, 0}}},
		{"an instance is drained, and none finds a node", 0, []note{{0, true, 0}, {20, false, 20}, {25, false, 25}, {26, false, 0}, {50, true, 0}, {60, true, 10}}},
		{"one more instance became healthy meanwhile", 30, []note{{0, true, -30}, {40, true, 10}, {41, false, 11}, {42, true, 12}}},
	} {
		clock := Clock{}
		for _, n := range c.in {
			now := time.Duration(n.at) * time.Second
			clock.Note(n.starting, now)
			if got := clock.Busy(time.Duration(c.from)*time.Second, now); got != time.Duration(n.busy)*time.Second {
				t.Errorf("%s: at %ds it has been busy for %s, want %ds", c.name, n.at, got, n.busy)
			}
		}
	}
}
