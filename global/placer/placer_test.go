package placer

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// newPlacer returns a placer over an empty store.
func newPlacer(t testing.TB) *Placer {
	t.Helper()
	mem := store.NewMemory().Client()
	t.Cleanup(func() { mem.Close() })
	e, err := mem.Campaign(context.Background(), state.ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.GlobalLevel = submitLevel
	commit := state.NewCommitter(st, mem, e.Guard())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = commit.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := e.Resign(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return New(Config{
		State: st, Commit: commit, Log: slog.New(slog.DiscardHandler),
		ObservePlan: func(time.Duration) {}, ObserveActions: func([]place.Action) {},
	})
}

// place plans all pending jobs.
func (p *Placer) place(ctx context.Context) error {
	p.all.Store(true)
	_, err := p.placeNext(ctx, false)
	return err
}

// TestNoOfferToARemovedRegion: a plan that was made before a region was removed
// offers the region nothing.
func TestNoOfferToARemovedRegion(t *testing.T) {
	p := newPlacer(t)
	k := state.JobKey{Namespace: "default", Name: "api"}
	spec := &nusav1.JobSpec{Name: "api", Groups: map[string]*nusav1.Group{"web": {Count: proto.Int32(1)}}}
	revision, err := p.Commit.Do(t.Context(), func(t *state.Tx) error {
		_, err := t.Submit(k, &nusav1.SubmitRequest{Spec: spec})
		return errors.Join(err, t.PutRegion("alpha", &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "alpha"}}))
	})
	if err != nil {
		t.Fatal(err)
	}
	offer := func(to string) place.Action {
		return place.Action{Kind: place.Offer, Namespace: k.Namespace, Job: k.Name, Group: "web", To: 1, Region: to, JobVersion: 1}
	}
	for region, slots := range map[string]int{"gone": 0, "alpha": 1} {
		if err := p.apply(t.Context(), []place.Action{offer(region)}, map[state.JobKey]seen{k: {revision: revision}}, 0); err != nil {
			t.Fatal(err)
		}
		p.st.Lock()
		owned := 0
		for s := range p.st.Jobs[k].Slots.All() {
			if s.Region == region {
				owned++
			}
		}
		if owned != slots {
			t.Errorf("region %s owns %d slots, not %d", region, owned, slots)
		}
		p.st.Unlock()
	}
}

// TestIndexesAreDroppedAtRest: the indexes of plans stay while plans are made, and not longer.
func TestIndexesAreDroppedAtRest(t *testing.T) {
	p := newPlacer(t)
	now := time.Second
	p.st.Clock = func() time.Duration { return now }
	submits, plans := p.submits, p.plans
	if err := p.placeBatch(t.Context(), nil, true); err != nil {
		t.Fatal(err)
	}
	now += indexKept - 1
	if p.Tick(); p.submits != submits || p.plans != plans {
		t.Error("dropped too early")
	}
	now++
	if p.Tick(); p.submits == submits || p.plans == plans {
		t.Error("kept at rest")
	}
	submits = p.submits
	if p.Tick(); p.submits != submits {
		t.Error("dropped again without a plan")
	}
}
