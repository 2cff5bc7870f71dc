package master

import (
	"testing"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestNothingIsPlacedByAnOldLog: an agent has an order that the log lacks. Instances that
// the log has forgotten may run. So the planner makes no plan until that agent is accepted.
func TestNothingIsPlacedByAnOldLog(t *testing.T) {
	p := newPlanner(plannerConfig{logIsOld: func() bool { return true }})
	if d := p.decide(state.New().Snapshot()); len(d.Commands) > 0 || d.OnCommitted != nil || d.RecheckAfter <= 0 {
		t.Errorf("decision %+v", d)
	}
}
