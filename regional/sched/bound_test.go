package sched_test

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/sched"
)

// TestPlansAreBounded: a plan begins no further group after MaxPlaces placements. A single
// group may have eight times as many.
func TestPlansAreBounded(t *testing.T) {
	for _, c := range []struct{ jobs, count, places int }{{100, 10, 30}, {100, 1, 25}, {1, 1000, 200}, {2, 100, 100}, {2, 12, 24}} {
		in := sched.Input{
			View: benchRegion(50, c.jobs, c.count, benchAsk).Snapshot(), NowUnixNano: int64(time.Hour), Funcs: testFuncs, MaxPlaces: 25,
		}
		plan := sched.Make(in)
		if more := c.places >= 25; len(plan.Places) != c.places || plan.More != more {
			t.Errorf("%d jobs of %d: %d placed, want %d; more %v", c.jobs, c.count, len(plan.Places), c.places, plan.More)
		}
	}
}
