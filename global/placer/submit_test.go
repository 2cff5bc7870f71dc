package placer

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

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

// submit stores a job of one group and returns its slots right after the transaction, and
// the transaction's revision.
func (p *Placer) submit(t *testing.T, name string, count int32, milli int64) ([]region.Slot, int64) {
	t.Helper()
	spec := &nusav1.JobSpec{Namespace: "default", Name: name, Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: map[string]*nusav1.Group{"web": {
		Count: proto.Int32(count), Tasks: map[string]*nusav1.Task{"t": {Driver: "process", Resources: &nusav1.Resources{CpuMilli: milli}}}}}}
	revision, err := p.Commit.Submit(func(t *state.Tx) error {
		_, err := t.Submit(state.KeyOf(spec), &nusav1.SubmitRequest{Spec: spec}, nil)
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
	if d := j.Decisions["web"]; !d.Full || len(d.Regions) != 1 || d.Regions[0].New != 1 {
		t.Errorf("the decision is not explained: %+v", d)
	}
}

// TestNewJobsShareTheRoom: what a submit was given is charged before any report has it.
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
				_, err := tx.Submit(state.KeyOf(spec), &nusav1.SubmitRequest{Spec: spec}, nil)
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

// TestNewJobDoesNotOvertakeOneThatWaits: a job that waits for room gets it first.
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
