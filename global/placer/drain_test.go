package placer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// drainRegion drains a region.
func (p *lostJobs) drainRegion(t testing.TB, name string) {
	t.Helper()
	p.do(t, func(tx *state.Tx) error {
		old, _ := tx.Region(name)
		rec := proto.CloneOf(old)
		rec.Draining = true
		return tx.PutRegion(name, rec)
	})
}

// quiet forgets all pending work, as if the placer had handled it.
func (p *lostJobs) quiet(t testing.TB) {
	t.Helper()
	p.Tick()
	if err := p.forget(context.Background()); err != nil {
		t.Fatal(err)
	}
	clear(p.st.Pending)
}

// TestDrainBeginsAtOnce: the next plan sees the jobs of a region that begins to drain, and
// does not wait for a tick.
func TestDrainBeginsAtOnce(t *testing.T) {
	p := newLostJobs(t, 3, "seoul")
	p.quiet(t)
	p.drainRegion(t, "jakarta")
	clear(p.st.Pending)
	if err := p.forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, text := len(p.st.Pending), p.st.Regions["jakarta"].Drain; got != 3 || text != "draining: 3 instances are left" {
		t.Errorf("%d jobs are pending, %q", got, text)
	}
}

// TestDrainIsFollowed: the number of slots left is counted again after each change of a slot, and
// after each change of what a plan says about a job.
func TestDrainIsFollowed(t *testing.T) {
	p := newLostJobs(t, 2, "seoul")
	p.drainRegion(t, "jakarta")
	shown := func(step, want string, pending int) {
		t.Helper()
		p.quiet(t)
		p.Tick()
		if got := p.st.Regions["jakarta"].Drain; got != want || len(p.st.Pending) != pending {
			t.Errorf("%s: %q with %d pending jobs, want %q with %d", step, got, len(p.st.Pending), want, pending)
		}
	}
	shown("begun", "draining: 2 instances are left", 2)
	for i, want := range []struct {
		text    string
		pending int
	}{{"draining: 1 instance is left", 1}, {"drained: nothing is left", 0}} {
		p.do(t, func(tx *state.Tx) error {
			s := tx.State.Jobs[state.JobKey{Namespace: "default", Name: fmt.Sprintf("job-%05d", i)}].SortedSlots()[0]
			return tx.ChangeSlots([]region.Change{{Delete: true, Slot: s}})
		})
		shown("one left", want.text, want.pending)
	}
	note := func() string {
		p.st.Lock()
		defer p.st.Unlock()
		return p.st.Regions["jakarta"].ToProto(p.st.Sight()).GetFailoverMessage()
	}
	if got := note(); got != "drained: nothing is left" {
		t.Errorf("the note is %q", got)
	}
	counted := p.st.Regions["jakarta"].DrainAt
	for _, c := range []struct {
		at   time.Duration
		want string
	}{{counted - 1, "drained: nothing is left; its report is older, and still counts 2"}, {counted + 1, "drained: nothing is left"}} {
		p.st.Regions["jakarta"].SetReport(&nusav1.RegionReport{Allocations: map[string]int32{"running": 2, "complete": 4}}, c.at, false)
		if got := note(); got != c.want {
			t.Errorf("the note is %q, want %q", got, c.want)
		}
	}
	p.do(t, func(tx *state.Tx) error {
		old, _ := tx.Region("jakarta")
		rec := proto.CloneOf(old)
		rec.Draining = false
		return tx.PutRegion("jakarta", rec)
	})
	if got := note(); got != "" {
		t.Errorf("the drain is over, and the note is %q", got)
	}
}

// TestEventsSayWhichWaySlotsGo: a slot that a region gives up moves away from that region.
func TestEventsSayWhichWaySlotsGo(t *testing.T) {
	p := newLostJobs(t, 1, "seoul")
	for _, c := range []struct {
		kind place.Kind
		want string
	}{
		{place.Offer, "slot.offered web[0] to eastus: because"}, {place.Update, "slot.updated web[0] at eastus: because"},
		{place.Revoke, "slot.revoking web[0] from eastus: because"}, {place.Stop, "slot.stopping web[0] from eastus: because"},
	} {
		p.do(t, func(tx *state.Tx) error {
			addEvents(tx, place.Action{Kind: c.kind, Namespace: "default", Job: "api", Group: "web", To: 1, Region: "eastus", Why: "because"})
			return nil
		})
		events, _, err := p.st.Events.After(t.Context(), p.st.Events.Last()-1, 1)
		if err != nil || len(events) != 1 {
			t.Fatal(events, err)
		}
		last := events[0]
		if got := last.GetType() + " " + last.GetMessage(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestRegionWithoutChangesCostsNothing: while nothing changes, a tick does not look at the jobs of
// draining and lost regions.
func TestRegionWithoutChangesCostsNothing(t *testing.T) {
	p := newLostJobs(t, 500, "seoul", "tokyo")
	p.drainRegion(t, "tokyo")
	p.due()
	if err := p.place(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.quiet(t)
	if n := testing.AllocsPerRun(10, p.Tick); n > 5 {
		t.Errorf("a tick makes %v allocations", n)
	}
	if p.forgetDue || len(p.st.Pending) > 0 {
		t.Errorf("to forget: %t, pending: %d", p.forgetDue, len(p.st.Pending))
	}
}

// BenchmarkQuietTick measures a tick over 100,000 jobs. One region is drained, and another one has
// been lost for long: its jobs run elsewhere.
func BenchmarkQuietTick(b *testing.B) {
	p := newLostJobs(b, 20_000, "seoul")
	p.due()
	if err := p.place(context.Background()); err != nil {
		b.Fatal(err)
	}
	for first := 20_000; first < 100_000; first += 25 {
		p.do(b, func(tx *state.Tx) error {
			for i := first; i < first+25; i++ {
				spec := &nusav1.JobSpec{Namespace: "default", Name: fmt.Sprintf("job-%05d", i), Groups: map[string]*nusav1.Group{"web": {Count: proto.Int32(1)}}}
				if err := tx.PutJob(state.KeyOf(spec), &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Run: 1}}); err != nil {
					return err
				}
				if err := tx.ChangeSlots([]region.Change{{Slot: region.Slot{
					Namespace: "default", Job: spec.GetName(), Group: "web", To: 1, Region: "seoul", State: region.Accepted, Desired: region.DesiredRun, JobVersion: 1, Run: 1,
				}}}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	p.do(b, func(tx *state.Tx) error {
		return tx.PutRegion("empty", &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "empty"}, ClusterId: "empty", Draining: true})
	})
	p.quiet(b)
	b.ResetTimer()
	for b.Loop() {
		p.clock += time.Second
		p.Tick()
		select {
		case <-p.woken:
			if err := p.forget(context.Background()); err != nil {
				b.Fatal(err)
			}
		default:
		}
	}
}

// TestRoomOfReleasedInstancesIsKept: while a region is about to release an instance, neither a plan
// nor the submit of another job uses the only room for it.
func TestRoomOfReleasedInstancesIsKept(t *testing.T) {
	p := submitting(t)
	change := func(c region.Change) {
		t.Helper()
		if _, err := p.Commit.Do(t.Context(), func(t *state.Tx) error { return t.ChangeSlots([]region.Change{c}) }); err != nil {
			t.Fatal(err)
		}
	}
	place := func() region.Slot {
		t.Helper()
		if err := p.place(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.st.Lock()
		defer p.st.Unlock()
		slots := p.st.Jobs[keyOfName("leaves")].SortedSlots()
		if len(slots) != 1 {
			t.Fatalf("slots %v", slots)
		}
		return slots[0]
	}
	offered, _ := p.submit(t, "leaves", 1, 1000)
	if _, err := p.Commit.Do(t.Context(), func(t *state.Tx) error {
		return t.PutRegion("room", &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "room"}, ClusterId: "room", FeatureLevel: 1})
	}); err != nil {
		t.Fatal(err)
	}
	p.st.Lock()
	for name, milli := range map[string]int64{"sea": 0, "room": 1000} {
		p.st.Regions[name].Session = &state.Session{Wake: func() {}}
		p.st.Regions[name].SetReport(&nusav1.RegionReport{NodesReady: 1, SlotsRevision: p.st.Revision, Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{
			{Nodes: 1, Free: &nusav1.Resources{CpuMilli: milli}, Pool: "default"}}}}, 0, false)
	}
	p.st.Unlock()
	leaves := offered[0]
	leaves.State, leaves.Desired = region.Accepted, region.DesiredRevoke
	change(region.Change{Slot: leaves})
	p.st.Lock()
	p.st.Pending[keyOfName("leaves")] = struct{}{} // as after each plan with an action
	p.st.Unlock()
	for _, name := range []string{"first", "second"} {
		if slots, _ := p.submit(t, name, 1, 1000); len(slots) != 0 {
			t.Errorf("the submit of job %s took the room: %v", name, slots)
		}
		leaves = place()
		if n := p.owned(name); n != 0 || !p.pending("leaves") {
			t.Errorf("a plan gave the room to job %s: %d; pending: %t", name, n, p.pending("leaves"))
		}
	}
	change(region.Change{Delete: true, Slot: leaves})
	if got := place(); got.Region != "room" {
		t.Errorf("the instance is placed at %v", got)
	}
}
