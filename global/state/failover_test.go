package state

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/failover"
	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestPlanThatSaysTheSameWakesNobody: a plan is made again when anything changes. A plan with the
// same result as the last one does not wake the watches of a lost region and of its jobs.
func TestPlanThatSaysTheSameWakesNobody(t *testing.T) {
	now := time.Minute
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return now })
	st.apply(RegionPrefix+"jakarta", &nusav1.Region{ClusterId: "j", Lost: &nusav1.LostRegion{}}, 1)
	st.apply(jobPrefix+"default/api", &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 6), Version: 1}}, 2)
	slot := failover.Slot{Namespace: "default", Job: "api", Group: "web", To: 6}
	for _, c := range []struct {
		pass, in time.Duration
		wakes    bool
	}{
		{0, 30 * time.Second, true}, {5 * time.Second, 25*time.Second + time.Millisecond, false}, {5 * time.Second, 40 * time.Second, true},
		{time.Minute, 0, false}, {5 * time.Second, 0, false}, {5 * time.Second, 10 * time.Second, true}, {time.Second, 0, true}, {9 * time.Second, 0, false},
	} {
		now += c.pass
		before := st.Regions["jakarta"].Stamp
		due := failover.SlotDue{Slot: slot, Moves: true, In: c.in, Message: "it is due"}
		st.SetFailover(failover.Plan{Regions: []failover.RegionDue{{Region: "jakarta", Lost: true, Moves: true, In: c.in, Slots: []failover.SlotDue{due}}}})
		st.NoticeSilence()
		if wakes := st.Regions["jakarta"].Stamp != before; wakes != c.wakes {
			t.Errorf("at %s, due in %s: woken: %t", now, c.in, wakes)
		}
		shown := st.Regions["jakarta"].Failover
		if of := shown.Slots["default/api/web/0"]; of.Due != shown.Due || (max(0, of.Due-now)-c.in).Abs() >= time.Second {
			t.Errorf("at %s, due in %s: shown %s and %s", now, c.in, of.Due, shown.Due)
		}
	}
}

// TestDroppedSlotThatAFormerOwnerMayRun: an operator states that nothing runs in seoul. Seoul took
// a stopped job over from jakarta, which is cut off and may still run the job. That stays on
// record, and is written once.
func TestDroppedSlotThatAFormerOwnerMayRun(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.apply(RegionPrefix+"jakarta", &nusav1.Region{ClusterId: "j", Lost: &nusav1.LostRegion{}}, 1)
	st.apply(RegionPrefix+"seoul", &nusav1.Region{ClusterId: "s", Lost: &nusav1.LostRegion{NothingRuns: true}}, 2)
	st.apply(jobPrefix+"default/api", &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 6), Version: 1, Stopped: true}}, 3)
	for i, mayRun := range []bool{true, false} {
		s := region.Slot{
			Namespace: "default", Job: "api", Group: "web", From: 3 * i, To: 3*i + 3, Region: "seoul", State: region.Accepted, Desired: region.DesiredStop,
			Generation: 4, Home: "jakarta", Former: []region.FormerOwner{{Region: "jakarta", Generation: 2, MayRun: mayRun}},
		}
		st.apply(slotPrefix+s.Key(), SlotToProto(s), int64(4+i))
	}
	got := fmt.Sprint(st.Dropped("seoul"))
	want := "[put default/api/web[0-2] at seoul accepted stop g4 v0 vacant, jakarta g2 revoke, home jakarta delete default/api/web[3-5] at seoul accepted stop g4 v0, jakarta g2 revoke, home jakarta]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for i, c := range st.Dropped("seoul") {
		if msg := SlotToProto(c.Slot); c.Delete {
			st.apply(slotPrefix+c.Slot.Key(), nil, int64(10+i))
		} else {
			st.apply(slotPrefix+c.Slot.Key(), msg, int64(10+i))
		}
	}
	if again := st.Dropped("seoul"); len(again) > 0 || len(st.slotsOf(st.Regions["seoul"])) != 0 {
		t.Errorf("again %v, slots at seoul: %v", again, st.slotsOf(st.Regions["seoul"]))
	}
}

// TestFormerOwnersCountInThePlan: the plan for a lost region counts the instances of moved work
// that the region may still run. The plan is made again when their number changes.
func TestFormerOwnersCountInThePlan(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return time.Minute })
	st.apply(RegionPrefix+"jakarta", &nusav1.Region{ClusterId: "j", Lost: &nusav1.LostRegion{}}, 1)
	st.apply(RegionPrefix+"seoul", &nusav1.Region{ClusterId: "s"}, 2)
	st.apply(jobPrefix+"default/api", &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 6), Version: 1}}, 3)
	slot := func(mayRun bool) region.Slot {
		return region.Slot{Namespace: "default", Job: "api", Group: "web", To: 3, Region: "seoul", State: region.Accepted, Desired: region.DesiredRun,
			Generation: 4, Former: []region.FormerOwner{{Region: "jakarta", Generation: 2, MayRun: mayRun}}}
	}
	says := func(want string) {
		t.Helper()
		st.SetFailover(failover.Decide(st.FailoverSnapshot()))
		if got := st.Regions["jakarta"].Failover.Message; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	st.apply(slotPrefix+slot(true).Key(), SlotToProto(slot(true)), 4)
	says("its work has moved; 3 instances may still run there")
	for i, change := range []*nusav1.Slot{SlotToProto(slot(false)), SlotToProto(slot(true)), nil} {
		before := st.FailoverMark()
		st.apply(slotPrefix+slot(true).Key(), change, int64(5+i))
		if before.Equal(st.FailoverMark()) {
			t.Errorf("change %d: the plan is not made again", i)
		}
	}
	says("no work is assigned to it any more")
}

// TestOrderOfAnEarlierVersion: after an election a slot keeps an earlier version, for example while
// a region may still run it. Its owner must not get the present spec.
func TestOrderOfAnEarlierVersion(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.apply(RegionPrefix+"seoul", &nusav1.Region{ClusterId: "s"}, 1)
	st.apply(jobPrefix+"default/api", &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 6), Version: 2}}, 2)
	for version := range int64(3) {
		s := region.Slot{
			Namespace: "default", Job: "api", Group: "web", From: int(version), To: int(version) + 1, Region: "seoul",
			State: region.Accepted, Desired: region.DesiredRun, Generation: 3, JobVersion: version,
		}
		st.apply(slotPrefix+s.Key(), SlotToProto(s), 3)
		held, ordered := st.Regions["seoul"].Orders.Get(s.WireKey())
		order := SlotOrder(st, "seoul", s.WireKey(), held, 0)
		if has := len(order.GetSpec()) > 0; !ordered || has != (version == 2) {
			t.Errorf("slot of version %d, the job has 2: ordered %t with a spec: %t", version, ordered, has)
		}
	}
}

// TestEchoHasNoSpec: the order that shows a region its own acceptance has no spec if the region got the
// offer in the same session. Every other order has one.
func TestEchoHasNoSpec(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.apply(RegionPrefix+"seoul", &nusav1.Region{ClusterId: "s"}, 1)
	st.apply(jobPrefix+"default/api", &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 6), Version: 1}}, 2)
	s := region.Slot{Namespace: "default", Job: "api", Group: "web", To: 1, Region: "seoul", State: region.Offered, Desired: region.DesiredRun, JobVersion: 1}
	store := func(revision int64, change func(*region.Slot)) {
		change(&s)
		st.apply(slotPrefix+s.Key(), SlotToProto(s), revision)
		if s.Generation == 0 {
			s.Generation = revision
		}
	}
	want := func(when string, since uint64, want bool) {
		t.Helper()
		held, _ := st.Regions["seoul"].Orders.Get(s.WireKey())
		if has := len(SlotOrder(st, "seoul", s.WireKey(), held, since).GetSpec()) > 0; has != want {
			t.Errorf("%s, in a session from %d: with a spec: %t", when, since, has)
		}
	}
	store(5, func(*region.Slot) {})
	want("offered", 4, true)
	store(6, func(s *region.Slot) { s.State = region.Accepted })
	want("accepted", 4, false)
	want("accepted", 5, true)
	want("accepted", math.MaxUint64, true)
	store(7, func(s *region.Slot) { s.JobVersion = 2 })
	store(8, func(s *region.Slot) { s.JobVersion = 1 })
	want("rewritten", 4, true)
	store(9, func(s *region.Slot) { s.State, s.Generation = region.Offered, 0 })
	store(10, func(s *region.Slot) { s.JobVersion = 1 })
	store(11, func(s *region.Slot) { s.State = region.Accepted })
	want("rewritten before the region accepted it", 4, true)
	RepeatOrders(st.Regions["seoul"], []string{s.WireKey()}, nil)
	want("repeated", 4, true)
	store(12, func(s *region.Slot) { s.State, s.Generation = region.Offered, 0 })
	store(13, func(s *region.Slot) { s.State = region.Accepted })
	want("accepted again", 4, false)
	RepeatOrders(st.Regions["seoul"], []string{s.WireKey()}, nil)
	want("repeated", 4, true)
}

// TestOrderToAFormerOwnerSaysWhatIsAwaited: a former owner may run a slot that no lease binds. Then
// its answer that nothing runs waits for its lost nodes.
func TestOrderToAFormerOwnerSaysWhatIsAwaited(t *testing.T) {
	for _, mayRun := range []bool{true, false} {
		s := region.Slot{Namespace: "default", Job: "api", Group: "web", To: 2, Region: "seoul", State: region.Accepted, Desired: region.DesiredRun,
			Bound: !mayRun, Unbound: mayRun, Former: []region.FormerOwner{{Region: "jakarta", Generation: 2, MayRun: mayRun}}}
		if becomeFormer(&s, 0); s.Unbound != mayRun || s.Desired != region.DesiredRevoke {
			t.Errorf("may run %v: %v", mayRun, s)
		}
	}
}

// TestFormerOwnerThatReturnsGetsItsOrders: a region whose record was removed, and is stored again, gets the orders
// to end what other regions run now.
func TestFormerOwnerThatReturnsGetsItsOrders(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.apply(RegionPrefix+"seoul", &nusav1.Region{ClusterId: "s"}, 1)
	st.apply(RegionPrefix+"jakarta", &nusav1.Region{ClusterId: "j"}, 2)
	st.apply(jobPrefix+"default/api", &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 6), Version: 1}}, 3)
	s := region.Slot{Namespace: "default", Job: "api", Group: "web", To: 1, Region: "seoul", State: region.Accepted, Desired: region.DesiredRun,
		Generation: 4, JobVersion: 1, Former: []region.FormerOwner{{Region: "jakarta", Generation: 2, MayRun: true}}}
	st.apply(slotPrefix+s.Key(), SlotToProto(s), 5)
	ordered := func(when string) {
		t.Helper()
		held, _ := st.Regions["jakarta"].Orders.Get(s.WireKey())
		o := SlotOrder(st, "jakarta", s.WireKey(), held, 0)
		if o.GetSlot().GetDesired() != nusav1.SlotDesired_SLOT_DESIRED_REVOKE || o.GetSlot().GetGeneration() != 2 {
			t.Errorf("%s: %v, want the order to give up generation 2", when, o)
		}
	}
	ordered("moved")
	st.apply(RegionPrefix+"jakarta", nil, 6)
	st.apply(RegionPrefix+"jakarta", &nusav1.Region{ClusterId: "j"}, 7)
	ordered("the region's record is stored again")
}

// TestJobElsewhereLeavesThePlan: the plan for a lost region stays valid until one of the region's
// slots changes, or the job of one, or what a plan says about that job. Other jobs do not matter.
func TestJobElsewhereLeavesThePlan(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return time.Minute })
	st.apply(RegionPrefix+"jakarta", &nusav1.Region{ClusterId: "j", Lost: &nusav1.LostRegion{}}, 1)
	st.apply(RegionPrefix+"seoul", &nusav1.Region{ClusterId: "s"}, 2)
	revision := int64(2)
	put := func(name, at string, state region.SlotState) {
		revision++
		st.apply(jobPrefix+"default/"+name, &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob(name, 1), Version: revision}}, revision)
		s := region.Slot{Namespace: "default", Job: name, Group: "web", To: 1, Region: at, State: state}
		st.apply(slotPrefix+s.Key(), SlotToProto(s), revision)
	}
	put("api", "jakarta", region.Accepted)
	for _, c := range []struct {
		what    string
		do      func()
		matters bool
	}{
		{"nothing", func() {}, false},
		{"a job at seoul", func() { put("web", "seoul", region.Accepted) }, false},
		{"a job without slots", func() {
			st.apply(jobPrefix+"default/new", &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("new", 1), Version: 1}}, 90)
		}, false},
		{"the job at jakarta", func() {
			st.apply(jobPrefix+"default/api", &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 1), Version: 99}}, 99)
		}, true},
		{"the slot at jakarta", func() { put("api", "jakarta", region.Done) }, true},
		{"why it stays", func() { st.SlotsChanged(st.Jobs[JobKey{"default", "api"}]) }, true},
		{"no slot at jakarta", func() { put("api", "seoul", region.Accepted) }, true},
		{"the job at seoul", func() { put("api", "seoul", region.Accepted) }, false},
	} {
		before := st.FailoverMark()
		c.do()
		if changed := !before.Equal(st.FailoverMark()); changed != c.matters {
			t.Errorf("%s: the plan is made again: %t", c.what, changed)
		}
	}
}

// TestNoteNamesFirstAndLastMove: the note of a silent region does not speak of its first work as
// if all of its work moved then.
func TestNoteNamesFirstAndLastMove(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return time.Minute })
	st.apply(RegionPrefix+"jakarta", &nusav1.Region{ClusterId: "j"}, 1)
	st.apply(jobPrefix+"default/api", &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 6), Version: 1}}, 2)
	slot := func(from int, in time.Duration) failover.SlotDue {
		return failover.SlotDue{Slot: failover.Slot{Namespace: "default", Job: "api", Group: "web", From: from, To: from + 1}, Moves: true, In: in}
	}
	for _, c := range []struct {
		slots []failover.SlotDue
		want  string
	}{
		{[]failover.SlotDue{slot(0, 4*time.Second), slot(1, time.Minute)}, "its first work would move in 4s, the last in 1m, unless jakarta returns"},
		{[]failover.SlotDue{slot(0, 4*time.Second), slot(1, 4*time.Second)}, "would move in 4s unless jakarta returns"},
		{[]failover.SlotDue{slot(0, 4*time.Second)}, "would move in 4s unless jakarta returns"},
	} {
		st.SetFailover(failover.Plan{Regions: []failover.RegionDue{{Region: "jakarta", Moves: true, In: 4 * time.Second, Slots: c.slots}}})
		if got := st.Regions["jakarta"].ToProto(st.Sight()).GetFailoverMessage(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
