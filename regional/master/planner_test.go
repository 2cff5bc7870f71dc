package master

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestPlannerRestsWhileInstancesAreUnplaced: after a plan that leaves instances unplaced,
// the planner pauses as long as the plan took. After a plan that placed all instances it
// does not pause.
func TestPlannerRestsWhileInstancesAreUnplaced(t *testing.T) {
	unplaced := []sched.Unplaced{{Reason: state.ReasonInsufficientCPU}}
	for _, c := range []struct {
		plan       sched.Plan
		took, want time.Duration
	}{
		{sched.Plan{}, time.Minute, 0},
		{sched.Plan{Places: make([]sched.Place, 9)}, time.Minute, 0},
		{sched.Plan{Unplaced: unplaced}, 70 * time.Millisecond, 70 * time.Millisecond},
		{sched.Plan{Unplaced: unplaced}, time.Minute, maxRest},
		{sched.Plan{Unplaced: unplaced, More: true}, time.Minute, 0},
	} {
		if got := restAfter(&c.plan, c.took); got != c.want {
			t.Errorf("%+v took %v: rest %v, want %v", c.plan, c.took, got, c.want)
		}
	}
}
