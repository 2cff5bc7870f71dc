package place_test

import (
	"fmt"
	"testing"

	"github.com/nusa-scheduler/nusa/global/place"
)

// TestFullRegionHoldsFewInstances: a full region holds only a few of the instances that have waited long, counted
// over all jobs and plans.
func TestFullRegionHoldsFewInstances(t *testing.T) {
	ask := place.Ask{CPUMilli: 1000}
	s := place.Snapshot{Held: map[string]int{"c": 2}}
	for name, nodes := range map[string]int{"a": 1, "b": 40, "c": 40} {
		s.Regions = append(s.Regions, &place.Region{
			Name: name, Connected: true, HasReport: true, NodesReady: nodes, Fits: map[uint64]int{ask.Hash(): 0},
			Capacity: place.Resources{CPUMilli: int64(nodes) * 1000},
		})
	}
	for i := range 10 {
		s.Jobs = append(s.Jobs, place.Job{
			Namespace: "default", Name: fmt.Sprintf("job-%d", i), Type: place.Service, Version: 1, Revision: int64(i + 1),
			Groups: []place.Group{{Name: "web", Count: 1, Ask: ask, AskHash: ask.Hash(), WaitedFor: place.HoldAfter}},
		})
	}
	held := map[string]int{}
	for _, a := range place.MakePlan(s).Actions {
		if a.Hold != place.HoldFor {
			t.Errorf("offer without a hold: %+v", a)
		}
		held[a.Region]++
	}
	if held["a"] != 1 || held["b"] != 2 || held["c"] != 0 {
		t.Errorf("held: %v", held)
	}
	if s.Held["a"] != 0 || s.Held["c"] != 2 {
		t.Errorf("the plan changed its snapshot: %v", s.Held)
	}
}
