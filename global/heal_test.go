package global

import (
	"cmp"
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	toHold   = nusav1.SlotDesired_SLOT_DESIRED_HOLD
	toRun    = nusav1.SlotDesired_SLOT_DESIRED_RUN
	toRevoke = nusav1.SlotDesired_SLOT_DESIRED_REVOKE
)

func desired(want nusav1.SlotDesired) func(*nusav1.Slot) bool {
	return func(s *nusav1.Slot) bool { return s.GetDesired() == want }
}

// moveSlots changes the records of the slots of job api as a verdict about jakarta does, while
// no server runs.
func (f *federation) moveSlots(t *testing.T, change func(*nusav1.Slot)) {
	t.Helper()
	c := f.mem.Client()
	defer c.Close()
	var ops []store.Op
	if _, err := c.List(t.Context(), "", func(kv store.KV) error {
		var s nusav1.Slot
		if state.Decode(kv, &s) != nil || s.GetJob() != "api" || s.GetRegion() != "jakarta" {
			return nil
		}
		s.Former = []*nusav1.FormerOwner{{
			Region: "jakarta", Generation: cmp.Or(s.GetGeneration(), kv.ModRevision), Moved: timestamppb.Now(), Fence: 1, MayRun: true,
		}}
		s.Region, s.Home, s.State, s.Generation = "seoul", "jakarta", nusav1.SlotState_SLOT_STATE_OFFERED, 0
		if change != nil {
			change(&s)
		}
		value, err := state.Encode(&s)
		if err != nil {
			return err
		}
		ops = append(ops, store.Put(kv.Key, value))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Txn(t.Context(), nil, ops); err != nil || len(ops) == 0 {
		t.Fatalf("%d slots: %v", len(ops), err)
	}
}

// lostJakarta returns a server that has moved job api, with 4 instances, from jakarta to
// seoul; jakarta is not connected.
func lostJakarta(t *testing.T, spec func(*nusav1.JobSpec), change func(*nusav1.Slot)) (s *testServer, seoul *fakeRegion, generation int64) {
	f := newFederation()
	first := f.start(t, "g1")
	first.joined("seoul").leave()
	first.waitRegion("seoul", nusav1.RegionState_REGION_STATE_DISCONNECTED)
	jakarta := first.joined("jakarta")
	job := testJob("api", 4)
	if spec != nil {
		spec(job)
	}
	first.submit(job)
	generation = jakarta.waitSlot("default/api/web/0", accepted).GetGeneration()
	jakarta.leave()
	first.stop()
	f.moveSlots(t, change)
	s = f.start(t, "g2")
	seoul = s.joined("seoul")
	seoul.waitSlot("default/api/web/0", accepted)
	return s, seoul, generation
}

// returnOfJakarta connects jakarta again. Its log supports holding.
func (s *testServer) returnOfJakarta() *fakeRegion {
	hello := helloOf("jakarta", 2)
	hello.FeatureLevel, hello.AppliedIndex = 1, 10
	r := s.join(hello)
	r.wait("full set", func() bool { return r.fullSets == 1 })
	return r
}

// TestRegionThatReturnsGetsItsInstancesBack: the first set for a region that returns tells it which
// instances to hold. An instance that runs there returns to the region in a new offer, after its
// replacement was revoked. An instance that does not run there stays at the new owner.
func TestRegionThatReturnsGetsItsInstancesBack(t *testing.T) {
	s, seoul, generation := lostJakarta(t, nil, nil)
	jakarta := s.returnOfJakarta()
	jakarta.mu.Lock()
	first := proto.CloneOf(jakarta.slots["default/api/web/0"].GetSlot())
	jakarta.mu.Unlock()
	if first.GetDesired() != toHold || first.GetTo() != 4 || first.GetGeneration() != generation {
		t.Fatalf("the first set has %v", first)
	}
	part := func(from, to int32, state nusav1.SlotState) *nusav1.SlotAnswer {
		a := answerTo(first, state)
		a.From, a.To = from, to
		return a
	}
	jakarta.answer(part(0, 3, nusav1.SlotState_SLOT_STATE_KEPT), part(3, 4, nusav1.SlotState_SLOT_STATE_REVOKED))
	back := seoul.waitSlot("default/api/web/0", desired(toRevoke))
	if back.GetTo() != 3 || back.GetReturnTo() != "jakarta" {
		t.Errorf("seoul is ordered %v", back)
	}
	jakarta.wait("nothing of instance 3", func() bool { return jakarta.slots["default/api/web/3"] == nil })
	jakarta.waitSlot("default/api/web/0", func(s *nusav1.Slot) bool { return s.GetDesired() == toHold && s.GetTo() == 3 })
	seoul.answer(answerTo(back, nusav1.SlotState_SLOT_STATE_REVOKED))
	got := jakarta.waitSlot("default/api/web/0", desired(toRun))
	if got.GetTo() != 3 || got.GetGeneration() <= back.GetGeneration() {
		t.Errorf("jakarta owns %v", got)
	}
	jakarta.waitSlot("default/api/web/0", accepted)
	seoul.wait("only instance 3", func() bool {
		return len(seoul.slots) == 1 && seoul.slots["default/api/web/3"].GetSlot().GetDesired() == toRun
	})
}

// TestRegionThatReturnsHoldsNothingThatItsLeaseBound: the end of the lease has ended the instances
// that the lease bound. If the region held them, they would start again beside the replacement as
// soon as the region has a lease.
func TestRegionThatReturnsHoldsNothingThatItsLeaseBound(t *testing.T) {
	s, _, _ := lostJakarta(t, nil, func(slot *nusav1.Slot) { slot.Former[0].StopTime = durationpb.New(5 * time.Second) })
	s.returnOfJakarta().waitSlot("default/api/web/0", desired(toRevoke))
}

// TestRegionThatReturnsEndsWhatStaysElsewhere: the region is ordered to give the slot up. It is a
// former owner until it has confirmed that.
func TestRegionThatReturnsEndsWhatStaysElsewhere(t *testing.T) {
	s, seoul, generation := lostJakarta(t, func(j *nusav1.JobSpec) {
		j.Groups["web"].Disconnect = &nusav1.Disconnect{Reconcile: nusav1.Reconcile_RECONCILE_KEEP_REPLACEMENT}
	}, nil)
	jakarta := s.returnOfJakarta()
	order := jakarta.waitSlot("default/api/web/0", desired(toRevoke))
	if order.GetGeneration() != generation {
		t.Errorf("ordered %v", order)
	}
	former := func() []*nusav1.FormerOwner {
		j, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "api"}})
		if err != nil {
			t.Fatal(err)
		}
		return j.GetStatus().GetGroups()["web"].GetSlots()[0].GetFormer()
	}
	if f := former(); len(f) != 1 || f[0].GetRegion() != "jakarta" || f[0].GetHold() {
		t.Errorf("former owners %v", f)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	events, err := nusav1.NewEventsClient(s.conn).Watch(ctx, &nusav1.WatchEventsRequest{Since: durationpb.New(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	jakarta.answer(answerTo(order, nusav1.SlotState_SLOT_STATE_REVOKED))
	jakarta.wait("no slot", func() bool { return len(jakarta.slots) == 0 })
	if f := former(); len(f) != 0 {
		t.Errorf("former owners %v after the confirmation", f)
	}
	for {
		e, err := events.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.GetType() != "slot.revoked" {
			continue
		}
		if want := "web[0-3] by jakarta: it moved to seoul; disconnect.reconcile is keep_replacement"; e.GetMessage() != want {
			t.Errorf("event %q, want %q", e.GetMessage(), want)
		}
		break
	}
	seoul.waitSlot("default/api/web/0", func(s *nusav1.Slot) bool { return s.GetDesired() == toRun && s.GetTo() == 4 })
}

// TestHoldIsDecidedAgainAtEachReturn: the decision of an earlier return does not count.
func TestHoldIsDecidedAgainAtEachReturn(t *testing.T) {
	s, _, _ := lostJakarta(t, nil, nil)
	jakarta := s.returnOfJakarta()
	jakarta.waitSlot("default/api/web/0", desired(toHold))
	jakarta.leave()
	hello := helloOf("jakarta", 3) // a server of the region is replaced by one of an earlier version
	hello.AppliedIndex = 20
	jakarta = s.join(hello)
	jakarta.waitSlot("default/api/web/0", desired(toRevoke))
}
