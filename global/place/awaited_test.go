package place_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
)

// TestBoundVersionWaitsForFormerOwner: a verdict moved a slot from a region that may still run it.
// A version that the region's lease binds must not run at the same time, so it waits until the
// former owner has confirmed. An index beyond the group's count stops at once.
func TestBoundVersionWaitsForFormerOwner(t *testing.T) {
	for _, c := range []struct {
		name          string
		bound, mayRun bool
		count         int
		want          place.Kind
	}{
		{"bound, and the former owner may run it", true, true, 2, ""},
		{"bound, scaled down", true, true, 1, place.Stop},
		{"not bound", false, true, 2, place.Update},
		{"bound, and the lease of the former owner is over", true, false, 2, place.Update},
	} {
		s := region.Slot{
			Namespace: "default", Job: "api", Group: "web", To: 2, Region: "sea", State: region.Accepted, Desired: region.DesiredRun,
			Generation: 9, Revision: 9, JobVersion: 1, Home: "weu",
			Former: []region.FormerOwner{{Region: "weu", Generation: 5, Fence: 1, MayRun: c.mayRun}},
		}
		ask := place.Ask{CPUMilli: 100}
		plan := place.MakePlan(place.Snapshot{
			Regions: []*place.Region{{Name: "sea", Connected: true, HasReport: true, SlotsRevision: 9, NodesReady: 1, FeatureLevel: 1, Fits: map[uint64]int{ask.Hash(): 9}}},
			Jobs: []place.Job{{Namespace: "default", Name: "api", Version: 2, Type: place.Service, Slots: []region.Slot{s},
				Groups: []place.Group{{Name: "web", Count: c.count, Ask: ask, Bound: c.bound, StopTime: time.Second}}}},
		})
		got := place.Kind("")
		for _, a := range plan.Actions {
			got = a.Kind
		}
		waits := len(plan.RolloutStages) == 1 && strings.Contains(plan.RolloutStages[0].Why, "weu may still run web[0-1]")
		if got != c.want || waits != (c.bound && c.mayRun) {
			t.Errorf("%s:\n%s", c.name, plan)
		}
	}
}

// TestSlotStaysWhenTheJobHasChanged: a slot was allowed to move. Then a new version set replace:
// false, or must not run beside a version that no lease stops. Now only an operator's statement
// moves the slot.
func TestSlotStaysWhenTheJobHasChanged(t *testing.T) {
	ask := place.Ask{CPUMilli: 100}
	for _, c := range []struct {
		name                        string
		replace, bound, nothingRuns bool
		moves                       bool
	}{
		{"replace", true, false, false, true},
		{"replace: false", false, false, false, false},
		{"replace: false, and nothing runs there", false, false, true, true},
		{"bound", true, true, false, false},
		{"bound, and nothing runs there", true, true, true, true},
	} {
		s := region.Slot{
			Namespace: "default", Job: "api", Group: "web", To: 1, Region: "weu", State: region.Accepted, Desired: region.DesiredRun,
			Generation: 9, Revision: 9, JobVersion: 1, Unbound: true,
		}
		plan := place.MakePlan(place.Snapshot{
			Regions: []*place.Region{
				{Name: "sea", Connected: true, HasReport: true, SlotsRevision: 9, NodesReady: 1, FeatureLevel: 1, Fits: map[uint64]int{ask.Hash(): 9}},
				{Name: "weu", Lost: true},
			},
			Jobs: []place.Job{{Namespace: "default", Name: "api", Version: 1, Type: place.Service, Slots: []region.Slot{s},
				Movable: []place.Movable{{Group: "web", Region: "weu", To: 1, Generation: 9, Fence: 1, NothingRuns: c.nothingRuns}},
				Groups:  []place.Group{{Name: "web", Count: 1, Ask: ask, Bound: c.bound, OnDisconnect: place.OnDisconnect{Replace: c.replace}}}}},
		})
		moves := len(plan.Actions) == 1 && plan.Actions[0].Kind == place.Takeover
		if moves != c.moves {
			t.Errorf("%s:\n%s", c.name, plan)
		}
	}
}
