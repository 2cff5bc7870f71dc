package placer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// submitting returns a placer that decides with the submits, and a region with room for two
// instances of 1000 milli-cores.
func submitting(t *testing.T) *Placer {
	t.Helper()
	p := newPlacer(t)
	p.Commit.Decide = func(t *state.Tx) func() { return Decide(p, t) }
	if _, err := p.Commit.Do(t.Context(), func(t *state.Tx) error {
		return t.PutRegion("sea", &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "sea"}, ClusterId: "c", FeatureLevel: 1})
	}); err != nil {
		t.Fatal(err)
	}
	p.st.Lock()
	defer p.st.Unlock()
	sea := p.st.Regions["sea"]
	sea.Session = &state.Session{Wake: func() {}}
	sea.SetReport(&nusav1.RegionReport{NodesReady: 1, SlotsRevision: p.st.Revision, Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{
		{Nodes: 1, Free: &nusav1.Resources{CpuMilli: 2500}, Pool: "default"}}}}, 0, false)
	return p
}

func keyOfName(name string) state.JobKey { return state.JobKey{Namespace: "default", Name: name} }

// owned returns how many instances of a job have an owner.
func (p *Placer) owned(name string) (n int) {
	p.st.Lock()
	defer p.st.Unlock()
	for s := range p.st.Jobs[keyOfName(name)].Slots.All() {
		n += s.Count()
	}
	return n
}

// plan makes a plan of a job as the placer does, and returns how the placer would apply it.
func (p *Placer) plan(name string) (apply func(context.Context) error) {
	p.st.Lock()
	defer p.st.Unlock()
	snapshot, jobs := snapshotOf(p.st, []state.JobKey{keyOfName(name)})
	since := p.given.stored
	actions := place.MakePlan(snapshot).Actions
	return func(ctx context.Context) error { return p.apply(ctx, actions, jobs, since) }
}

// specOf returns a job of one group.
func specOf(name string, count int32, milli int64) *nusav1.JobSpec {
	return &nusav1.JobSpec{Namespace: "default", Name: name, Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: map[string]*nusav1.Group{"web": {
		Count: proto.Int32(count), Tasks: map[string]*nusav1.Task{"t": {Driver: "process", Resources: &nusav1.Resources{CpuMilli: milli}}}}}}
}

// submit stores a job of one group and returns its slots right after the transaction, and
// the transaction's revision.
func (p *Placer) submit(t *testing.T, name string, count int32, milli int64) ([]region.Slot, int64) {
	t.Helper()
	return p.submitSpec(t, specOf(name, count, milli))
}

// submitSpec is submit of any job.
func (p *Placer) submitSpec(t *testing.T, spec *nusav1.JobSpec) ([]region.Slot, int64) {
	t.Helper()
	revision, err := p.Commit.Submit(func(t *state.Tx) error {
		_, err := t.Submit(state.KeyOf(spec), &nusav1.SubmitRequest{Spec: spec})
		return err
	})(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.st.Lock()
	defer p.st.Unlock()
	return p.st.Jobs[state.KeyOf(spec)].SortedSlots(), revision
}

func (p *Placer) pending(name string) bool {
	p.st.Lock()
	defer p.st.Unlock()
	_, pending := p.st.Pending[state.JobKey{Namespace: "default", Name: name}]
	return pending
}

// TestNewJobIsDecidedAfterAFailedWrite: a transaction that was not stored leaves no jobs to the next one.
func TestNewJobIsDecidedAfterAFailedWrite(t *testing.T) {
	p := submitting(t)
	p.Commit.Decide = func(tx *state.Tx) func() {
		failed := regionsSnapshot(p.st)
		p.memory.freshJobs(tx, &failed)
		return Decide(p, tx)
	}
	if slots, _ := p.submit(t, "api", 1, 1000); len(slots) != 1 {
		t.Errorf("slots %v", slots)
	}
}

// TestNewJobIsOfferedWithItsSubmit: one transaction stores the job and its slots, and
// nothing is left to plan.
func TestNewJobIsOfferedWithItsSubmit(t *testing.T) {
	p := submitting(t)
	slots, revision := p.submit(t, "api", 1, 1000)
	if len(slots) != 1 || slots[0].Region != "sea" || slots[0].Generation != revision || slots[0].Run != revision {
		t.Fatalf("slots %v, revision %d", slots, revision)
	}
	if p.pending("api") {
		t.Error("the job waits for a plan")
	}
	if err := p.place(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.st.Lock()
	defer p.st.Unlock()
	j := p.st.Jobs[state.JobKey{Namespace: "default", Name: "api"}]
	if got := j.SortedSlots(); len(got) != 1 || got[0].Revision != revision {
		t.Errorf("a later plan changed the slot: %v", got)
	}
	events, _, err := p.st.Events.After(t.Context(), 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) < 2 || events[0].GetType() != "job.submitted" || events[1].GetType() != "slot.offered" {
		t.Errorf("events: %v", events)
	}
	if d := j.Decisions.Of("web"); !d.Full || len(d.Regions) != 1 || d.Regions[0].New != 1 {
		t.Errorf("the decision is not explained: %+v", d)
	}
}

// TestNewJobsShareTheRoom: the room that a submit was given is charged before any report includes
// it.
func TestNewJobsShareTheRoom(t *testing.T) {
	p := submitting(t)
	if slots, _ := p.submit(t, "a", 2, 1000); len(slots) != 1 {
		t.Fatal(slots)
	}
	if slots, _ := p.submit(t, "b", 1, 1000); len(slots) != 0 || !p.pending("b") {
		t.Errorf("the region is full, but b has %v", slots)
	}
}

// TestNoOfferToARegionThatTheTransactionChanges: a submit may share its transaction with the
// end of a region.
func TestNoOfferToARegionThatTheTransactionChanges(t *testing.T) {
	for name, change := range map[string]func(*state.Tx) error{
		"removed": func(t *state.Tx) error { return t.DeleteRegion("sea") },
		"lost": func(t *state.Tx) error {
			return t.DeclareLost("sea", state.Loss{Why: "test"}, time.Unix(0, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := submitting(t)
			spec := &nusav1.JobSpec{Namespace: "default", Name: "api", Groups: map[string]*nusav1.Group{"web": {Count: proto.Int32(1)}}}
			if _, err := p.Commit.Do(t.Context(), func(tx *state.Tx) error {
				_, err := tx.Submit(state.KeyOf(spec), &nusav1.SubmitRequest{Spec: spec})
				return errors.Join(err, change(tx))
			}); err != nil {
				t.Fatal(err)
			}
			p.st.Lock()
			defer p.st.Unlock()
			if slots := p.st.Jobs[state.KeyOf(spec)].SortedSlots(); len(slots) != 0 {
				t.Errorf("offered %v", slots)
			}
		})
	}
}

// TestNewJobDoesNotOvertakeOneThatWaits: a job that waits for room gets the next room.
func TestNewJobDoesNotOvertakeOneThatWaits(t *testing.T) {
	p := submitting(t)
	p.submit(t, "full", 2, 1000)
	if slots, _ := p.submit(t, "waits", 1, 1000); len(slots) != 0 {
		t.Fatal(slots)
	}
	if slots, _ := p.submit(t, "small", 1, 100); len(slots) != 1 {
		t.Errorf("a job that takes no room from the one that waits: %v", slots)
	}
	p.st.Lock() // room for one more
	p.st.Regions["sea"].SetReport(&nusav1.RegionReport{NodesReady: 1, SlotsRevision: p.st.Revision, Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{
		{Nodes: 1, Free: &nusav1.Resources{CpuMilli: 1000}, Pool: "default"}}}}, time.Second, false)
	p.st.Unlock()
	if slots, _ := p.submit(t, "later", 1, 1000); len(slots) != 0 {
		t.Errorf("a new job got the room of the one that waits: %v", slots)
	}
	if err := p.place(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.st.Lock()
	defer p.st.Unlock()
	for name, want := range map[string]int{"waits": 1, "later": 0} {
		if got := p.st.Jobs[state.JobKey{Namespace: "default", Name: name}].SortedSlots(); len(got) != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestJobThatNothingCanTakeHoldsUpNoSubmit: a job that is refused for another reason than
// room does not keep new jobs from being offered with their submit. A job that waits for
// room still does, also after a plan.
func TestJobThatNothingCanTakeHoldsUpNoSubmit(t *testing.T) {
	for _, many := range []int{1, maxRivals + 1} {
		p := submitting(t)
		for i := range many {
			far := specOf(fmt.Sprint("far-", i), 1, 1000)
			far.Regions = &nusav1.RegionsSpec{Near: []*nusav1.Near{{Selector: &nusav1.RegionSelector{Name: "nowhere"}, MaxRtt: durationpb.New(time.Millisecond), Required: true}}}
			if slots, _ := p.submitSpec(t, far); len(slots) != 0 {
				t.Fatal(slots)
			}
		}
		if slots, _ := p.submit(t, "before", 1, 1000); len(slots) != 0 {
			t.Errorf("%d wait: a job is offered before the plan has decided about them: %v", many, slots)
		}
		if err := p.place(t.Context()); err != nil {
			t.Fatal(err)
		}
		if slots, _ := p.submit(t, "after", 1, 1000); len(slots) != 1 {
			t.Errorf("%d wait: a job is not offered with its submit: %v", many, slots)
		}
		p.submit(t, "waits", 1, 1000) // "before" and "after" have the room
		if err := p.place(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.st.Lock()
		p.st.Regions["sea"].SetReport(&nusav1.RegionReport{NodesReady: 1, SlotsRevision: p.st.Revision, Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{
			{Nodes: 1, Free: &nusav1.Resources{CpuMilli: 1000}, Pool: "default"}}}}, time.Second, false)
		p.st.Unlock()
		if slots, _ := p.submit(t, "later", 1, 1000); len(slots) != 0 {
			t.Errorf("%d wait: a new job got the room of the one that waits: %v", many, slots)
		}
	}
}

// TestNewJobDoesNotOvertakeOneThatLostItsOwner: a job whose region gave its instances back
// waits although its latest plan left nothing unplaced.
func TestNewJobDoesNotOvertakeOneThatLostItsOwner(t *testing.T) {
	p := submitting(t)
	slots, _ := p.submit(t, "old", 2, 1000)
	if _, err := p.Commit.Do(t.Context(), func(t *state.Tx) error {
		return t.ChangeSlots([]region.Change{{Delete: true, Slot: slots[0]}})
	}); err != nil {
		t.Fatal(err)
	}
	if slots, _ := p.submit(t, "later", 2, 1000); len(slots) != 0 {
		t.Errorf("the new job got the room: %v", slots)
	}
	if err := p.place(t.Context()); err != nil {
		t.Fatal(err)
	}
	if old, later := p.owned("old"), p.owned("later"); old != 2 || later != 0 {
		t.Errorf("old has %d instances placed, later %d", old, later)
	}
}

// TestRoomIsGivenOnce: a plan and a submit that were made without knowledge of each other do not
// both use the last room, whichever is stored first.
func TestRoomIsGivenOnce(t *testing.T) {
	waiting := func(t *testing.T) *Placer {
		p := submitting(t)
		decide := p.Commit.Decide
		p.Commit.Decide = nil
		p.submit(t, "a", 2, 1000)
		p.Commit.Decide = decide
		return p
	}
	t.Run("submit before the plan is applied", func(t *testing.T) {
		p := waiting(t)
		// The plan did not see the offers of a transaction that was decided before.
		apply := p.plan("a")
		p.st.Lock()
		p.given.decided++
		p.given.at["sea"] = p.given.decided
		p.st.Unlock()
		if err := apply(t.Context()); err != nil || p.owned("a") != 0 {
			t.Fatalf("%v, a has %d instances placed", err, p.owned("a"))
		}
		select {
		case <-p.woken:
		default:
			t.Error("no other plan follows")
		}
		p.st.Lock()
		p.given.stored = p.given.decided
		p.st.Unlock()
		if err := p.plan("a")(t.Context()); err != nil || p.owned("a") != 2 {
			t.Errorf("%v, a has %d instances placed by the next plan", err, p.owned("a"))
		}
	})
	t.Run("submit while the plan is made", func(t *testing.T) {
		p := waiting(t)
		apply := p.plan("a")
		if slots, _ := p.submit(t, "b", 2, 1000); len(slots) != 0 {
			t.Errorf("b overtakes a: %v", slots)
		}
		if err := apply(t.Context()); err != nil || p.owned("a") != 2 {
			t.Errorf("%v, a has %d instances placed", err, p.owned("a"))
		}
	})
	t.Run("in one transaction", func(t *testing.T) {
		p := submitting(t)
		old := region.Slot{Namespace: "default", Job: "old", Group: "web", To: 2, Region: "weu", State: region.Offered, Desired: region.DesiredRun, JobVersion: 1}
		if _, err := p.Commit.Do(t.Context(), func(tx *state.Tx) error {
			return errors.Join(tx.PutJob(keyOfName("old"), &nusav1.JobRecord{Job: &nusav1.Job{Spec: specOf("old", 2, 1000), Version: 1}}),
				tx.ChangeSlots([]region.Change{{Slot: old}}))
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Commit.Do(t.Context(), func(tx *state.Tx) error {
			spec := specOf("b", 2, 1000)
			_, err := tx.Submit(state.KeyOf(spec), &nusav1.SubmitRequest{Spec: spec})
			moved := tx.Slots(keyOfName("old"), "")[0]
			moved.Region, moved.Generation = "sea", 0
			return errors.Join(err, tx.ChangeSlots([]region.Change{{Slot: moved}}))
		}); err != nil {
			t.Fatal(err)
		}
		if old, b := p.owned("old"), p.owned("b"); old != 2 || b != 0 {
			t.Errorf("old has %d instances placed, b %d", old, b)
		}
	})
}

// TestSubmitsDoNotHoldUpPlans: a plan offers work to a region that got a new job meanwhile. Those
// offers are left out once. New jobs then wait until a whole plan is written.
func TestSubmitsDoNotHoldUpPlans(t *testing.T) {
	p := submitting(t)
	spec := specOf("everywhere", 1, 1)
	spec.Type, spec.Groups["web"].Count = nusav1.JobType_JOB_TYPE_SYSTEM, nil
	if _, err := p.Commit.Do(t.Context(), func(tx *state.Tx) error {
		_, err := tx.Submit(state.KeyOf(spec), &nusav1.SubmitRequest{Spec: spec})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	late := p.plan("everywhere")
	if slots, _ := p.submit(t, "a", 1, 1); len(slots) != 1 {
		t.Fatalf("a has %v", slots)
	}
	if err := late(t.Context()); err != nil || p.owned("everywhere") != 0 {
		t.Fatalf("%v, the plan did not see the new job, and %d instances are placed", err, p.owned("everywhere"))
	}
	next := p.plan("everywhere")
	if slots, _ := p.submit(t, "b", 1, 1); len(slots) != 0 {
		t.Errorf("b has %v before the next plan is written", slots)
	}
	if err := next(t.Context()); err != nil || p.owned("everywhere") == 0 {
		t.Errorf("%v, the next plan placed %d instances", err, p.owned("everywhere"))
	}
	if err := p.place(t.Context()); err != nil || p.owned("b") != 1 {
		t.Errorf("%v, b has %d instances placed by the plan", err, p.owned("b"))
	}
	if slots, _ := p.submit(t, "c", 1, 1); len(slots) != 1 {
		t.Errorf("c has %v after a whole plan", slots)
	}
}

// TestSlotsOfNewJobsFit: a transaction takes only as many new jobs as it has room for their slots.
// So no job is left undecided for lack of room in the transaction.
func TestSlotsOfNewJobsFit(t *testing.T) {
	p := submitting(t)
	p.st.Lock()
	record := p.st.Regions["sea"].Record
	p.st.Unlock()
	for _, name := range []string{"jpe", "weu"} {
		if _, err := p.Commit.Do(t.Context(), func(t *state.Tx) error {
			r := proto.CloneOf(record)
			r.Definition.Name = name
			return t.PutRegion(name, r)
		}); err != nil {
			t.Fatal(err)
		}
	}
	p.st.Lock()
	for _, r := range p.st.Regions {
		r.Session = &state.Session{Wake: func() {}}
		r.SetReport(&nusav1.RegionReport{NodesReady: 1, SlotsRevision: p.st.Revision, Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{
			{Nodes: 1000, Free: &nusav1.Resources{CpuMilli: 1000}, Pool: "default"}}}}, 0, false)
	}
	p.st.Unlock()
	var waits []func(context.Context) (int64, error)
	for i := range 300 {
		spec := specOf(fmt.Sprintf("job%d", i), 3, 100)
		spec.Groups["web"].Regions = &nusav1.RegionsSpec{Spread: &nusav1.RegionSpread{Min: 3}}
		waits = append(waits, p.Commit.Submit(func(tx *state.Tx) error {
			_, err := tx.Submit(state.KeyOf(spec), &nusav1.SubmitRequest{Spec: spec})
			return err
		}))
	}
	for _, wait := range waits {
		if _, err := wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	p.st.Lock()
	defer p.st.Unlock()
	if len(p.st.Pending) > 0 {
		t.Errorf("%d of %d jobs are left for a plan", len(p.st.Pending), len(waits))
	}
}

// TestSubmitsOfOneJobShareATransaction: the job is offered once, in its latest version. It is not
// offered if the same transaction stops or purges it.
func TestSubmitsOfOneJobShareATransaction(t *testing.T) {
	k := keyOfName("api")
	submit := func(tx *state.Tx, count int32) error {
		_, err := tx.Submit(k, &nusav1.SubmitRequest{Spec: specOf("api", count, 1000)})
		return err
	}
	for name, c := range map[string]struct {
		second func(*state.Tx) error
		owned  int
	}{
		"twice": {func(tx *state.Tx) error { return submit(tx, 2) }, 2},
		"stopped": {func(tx *state.Tx) error {
			rec, _ := tx.Job(k)
			stopped := rec.Full()
			stopped.Job.Stopped = true
			return tx.PutJob(k, stopped)
		}, 0},
		"forgotten": {func(tx *state.Tx) error { return tx.DeleteJob(k) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := submitting(t)
			if _, err := p.Commit.Do(t.Context(), func(tx *state.Tx) error {
				return errors.Join(submit(tx, 1), c.second(tx))
			}); err != nil {
				t.Fatal(err)
			}
			p.st.Lock()
			owned, version := 0, int64(0)
			if j := p.st.Jobs[k]; j != nil {
				for s := range j.Slots.All() {
					owned, version = owned+s.Count(), s.JobVersion
				}
			}
			p.st.Unlock()
			if owned != c.owned || owned > 0 && version != 2 {
				t.Errorf("%d instances of version %d are offered", owned, version)
			}
		})
	}
}

// TestOlderServersGetNoNewRecords: a server that cannot read slots that were stored with a submit
// may be elected next.
func TestOlderServersGetNoNewRecords(t *testing.T) {
	p := submitting(t)
	p.st.Lock()
	p.st.GlobalLevel = submitLevel - 1
	p.st.Unlock()
	if slots, _ := p.submit(t, "api", 1, 1000); len(slots) != 0 {
		t.Errorf("offered %v", slots)
	}
}

// TestFreshJobsAreBounded: the groups of new jobs count, too.
func TestFreshJobsAreBounded(t *testing.T) {
	p := submitting(t)
	var snapshot place.Snapshot
	snapshot.Regions = make([]*place.Region, 3)
	if _, err := p.Commit.Do(t.Context(), func(tx *state.Tx) error {
		for i := range decidedGroups {
			spec := specOf(fmt.Sprintf("job%d", i), 1, 1)
			spec.Groups["api"] = spec.GetGroups()["web"]
			if _, err := tx.Submit(state.KeyOf(spec), &nusav1.SubmitRequest{Spec: spec}); err != nil {
				return err
			}
		}
		jobs, verdicts := new(memory).freshJobs(tx, &snapshot)
		if len(jobs) != decidedGroups/2 || verdicts != 3*decidedGroups {
			t.Errorf("%d jobs, %d verdicts", len(jobs), verdicts)
		}
		return errors.New("a dry run")
	}); err == nil {
		t.Fatal("stored")
	}
}
