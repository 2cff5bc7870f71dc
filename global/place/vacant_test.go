package place_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
)

// vacantWorld is a job of four instances at weu. A verdict took them from jpe, which is still cut
// off and may run them. The regions sea and kor have room.
func vacantWorld(bound bool, room map[string]int) place.Snapshot {
	ask := place.Ask{CPUMilli: 100}
	s := place.Snapshot{
		Jobs: []place.Job{{Namespace: "default", Name: "api", Version: 1, Type: place.Service,
			Groups: []place.Group{{Name: "web", Count: 4, Ask: ask, Bound: bound, MaxParallel: 4}},
			Slots: []region.Slot{{
				Namespace: "default", Job: "api", Group: "web", To: 4, Region: "weu", State: region.Accepted, Desired: region.DesiredRun,
				Generation: 9, Revision: 9, JobVersion: 1, Home: "jpe", Unbound: !bound, Bound: bound,
				Former: []region.FormerOwner{{Region: "jpe", Generation: 5, Fence: 1, MayRun: true}},
			}}}},
	}
	for _, name := range []string{"jpe", "kor", "sea", "weu"} {
		s.Regions = append(s.Regions, &place.Region{Name: name, Connected: name != "jpe", Lost: name == "jpe", HasReport: true, SlotsRevision: 9,
			NodesReady: 1, Fits: map[uint64]int{ask.Hash(): room[name]}, Draining: name == "weu", FeatureLevel: 1})
	}
	return s
}

// apply writes the changes of a plan or of an answer into the snapshot.
func apply(s *place.Snapshot, revision int64, changes []region.Change) {
	j := &s.Jobs[0]
	for _, c := range changes {
		j.Slots = slices.DeleteFunc(j.Slots, func(o region.Slot) bool { return o.Key() == c.Slot.Key() })
		if c.Delete {
			continue
		}
		c.Slot.Revision = revision
		if c.Slot.Generation == 0 {
			c.Slot.Generation = revision
		}
		j.Slots = append(j.Slots, c.Slot)
	}
	slices.SortFunc(j.Slots, func(a, b region.Slot) int { return a.From - b.From })
}

// TestDrainDoesNotGiveWorkToARegionThatIsCutOff: a drain moves a slot that a former owner may still
// run to a region that has room. The former owner stays on record.
func TestDrainDoesNotGiveWorkToARegionThatIsCutOff(t *testing.T) {
	s := vacantWorld(false, map[string]int{"kor": 3, "sea": 3})
	plan := place.MakePlan(s)
	if len(plan.Actions) != 1 || plan.Actions[0].Kind != place.Revoke {
		t.Fatalf("the drain begins:\n%s", plan)
	}
	apply(&s, 10, plan.Actions[0].Changes())
	out := region.ApplyAnswer(s.Jobs[0].Slots, "weu", region.Answer{Namespace: "default", Job: "api", Group: "web", To: 4, Generation: 9, State: region.Revoked})
	apply(&s, 11, out.Changes)
	plan = place.MakePlan(s)
	if len(plan.Actions) != 1 || plan.Actions[0].Kind != place.Takeover {
		t.Fatalf("the indices are placed:\n%s", plan)
	}
	apply(&s, 12, plan.Actions[0].Changes())
	n := map[string]int{}
	for _, slot := range s.Jobs[0].Slots {
		n[slot.Region] += slot.Count()
		if len(slot.Former) != 1 || slot.Former[0].Region != "jpe" || slot.Vacant || slot.Desired != region.DesiredRun || slot.Home != "jpe" {
			t.Errorf("%s", slot)
		}
	}
	if n["kor"]+n["sea"] != 4 || n["kor"] == 0 || n["sea"] == 0 {
		t.Errorf("owners: %v", n)
	}
	if again := place.MakePlan(s); !again.Empty() {
		t.Errorf("and then:\n%s", again)
	}
}

// TestVacantSlots: a slot that a former owner may run waits if its version must not run beside the
// former owner's. A slot that finds no room stays on record. A slot beyond the group's count stays
// until the former owner has confirmed.
func TestVacantSlots(t *testing.T) {
	for _, c := range []struct {
		name   string
		bound  bool
		count  int
		room   int
		taken  int
		offers int
		waits  bool
	}{
		{"room for all", false, 4, 9, 4, 0, false},
		{"room for some", false, 4, 1, 2, 0, false},
		{"more instances", false, 6, 9, 4, 2, false},
		{"fewer instances", false, 3, 9, 3, 0, false},
		{"a lease binds the present version", true, 4, 9, 0, 0, true},
		{"a lease binds the present version, more instances", true, 5, 9, 0, 1, true},
	} {
		s := vacantWorld(c.bound, map[string]int{"kor": c.room, "sea": c.room})
		slot := &s.Jobs[0].Slots[0]
		slot.Vacant, slot.Desired, slot.Bound, slot.Unbound = true, region.DesiredRevoke, false, false
		s.Jobs[0].Groups[0].Count = c.count
		plan := place.MakePlan(s)
		taken, offers := 0, 0
		for _, a := range plan.Actions {
			if a.Kind == place.Offer {
				offers += a.To - a.From
			}
			for _, p := range a.Parts {
				taken += p.To - p.From
			}
			apply(&s, 12, a.Changes())
		}
		waits := slices.ContainsFunc(plan.RolloutStages, func(r place.RolloutStage) bool { return strings.Contains(r.Why, "jpe may still run web") })
		if taken != c.taken || offers != c.offers || waits != c.waits {
			t.Errorf("%s: %d taken, %d offered, waits %v:\n%s", c.name, taken, offers, waits, plan)
		}
		covered := 0
		for _, slot := range s.Jobs[0].Slots {
			covered += slot.Count()
			if slot.From < 4 && len(slot.Former) != 1 {
				t.Errorf("%s: forgets a former owner: %s", c.name, slot)
			}
		}
		if covered != max(4, c.count) {
			t.Errorf("%s: %d indices: %v", c.name, covered, s.Jobs[0].Slots)
		}
	}
}

// TestGivenUpBesideALostNode: a drain asks a region to give up an instance that one of its lost
// nodes may still run. Another region gets the index. A version that must not run twice waits until
// the first region has confirmed.
func TestGivenUpBesideALostNode(t *testing.T) {
	for _, bound := range []bool{false, true} {
		s := vacantWorld(bound, map[string]int{"kor": 9})
		j := &s.Jobs[0]
		j.Slots[0].Former, j.Slots[0].Home, j.Slots[0].Desired = nil, "", region.DesiredRevoke
		answer := func(mayRun bool) {
			out := region.ApplyAnswer(j.Slots, "weu", region.Answer{
				Namespace: "default", Job: "api", Group: "web", To: 4, Generation: 9, State: region.Revoked, MayRun: mayRun,
			})
			apply(&s, 11, out.Changes)
		}
		run := func() (owner string, waits bool) {
			plan := place.MakePlan(s)
			for _, a := range plan.Actions {
				apply(&s, 12, a.Changes())
			}
			if len(j.Slots) == 1 && !j.Slots[0].Vacant {
				owner = j.Slots[0].Region
			}
			return owner, len(plan.RolloutStages) > 0
		}
		answer(true)
		if owner, waits := run(); waits != bound || (owner == "kor") == bound {
			t.Errorf("bound %v: owner %q, waits %v", bound, owner, waits)
		}
		if f := j.Slots[0].Former; len(f) != 1 || f[0].Region != "weu" || !f[0].MayRun || j.Slots[0].Home != "" {
			t.Errorf("bound %v: %s", bound, j.Slots[0])
		}
		answer(false)
		if owner, waits := run(); owner != "kor" || waits || len(j.Slots[0].Former) > 0 {
			t.Errorf("bound %v, confirmed: %v", bound, j.Slots)
		}
	}
}

// TestDoneSlotWithoutOwner: a slot whose region was removed changes without a confirmation.
func TestDoneSlotWithoutOwner(t *testing.T) {
	s := region.Slot{Namespace: "default", Job: "etl", Group: "run", To: 3, State: region.Done, Desired: region.DesiredRun, Generation: 4, Revision: 9}
	for want, a := range map[string]place.Action{
		"[delete default/etl/run[0-2] at  done run g4 v0]": {Kind: place.Update, Slot: s, To: 3},
		"[put default/etl/run[0-1] at  done run g4 v0]":    {Kind: place.Stop, Slot: s, From: 2, To: 3},
	} {
		if got := fmt.Sprint(a.Changes()); got != want {
			t.Errorf("%s: %s", a.Kind, got)
		}
	}
}
