package workflows

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// tidyEvery is how often old runs are forgotten.
	tidyEvery = 10 * time.Second
	// together is how many records or jobs one transaction removes, and togetherBytes about how many bytes it
	// writes for that.
	together, togetherBytes = 20, 256 << 10
)

// forgetLoop forgets old runs, until ctx ends.
func (b *Book) forgetLoop(ctx context.Context) error {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if err := b.tidy(ctx, time.Now()); err != nil && ctx.Err() == nil {
			b.term.Log.Warn("old runs of workflows are not forgotten yet", "error", err)
		}
	}
}

// tidy forgets the runs beyond the limits of their workflows, and versions without runs.
func (b *Book) tidy(ctx context.Context, now time.Time) error {
	b.st.Lock()
	var old []*run
	if b.may() == nil && !b.st.History.Unread() {
		for _, runs := range b.byWorkflow {
			old = append(old, beyond(b, runs, now)...)
		}
		old = slices.DeleteFunc(old, func(r *run) bool { // its schedule has yet to count its end
			return r.rec.GetRun().GetTime() != nil && b.schedules.Awaits(r.workflow(), r.key.Name)
		})
	}
	b.st.Unlock()
	for _, r := range old {
		if err := b.forget(ctx, r); err != nil {
			return err
		}
	}
	b.st.Lock()
	var unused []string
	for id := range b.defs {
		if b.users[id] <= 0 {
			unused = append(unused, id)
		}
	}
	b.st.Unlock()
	if err := b.dropOutputs(ctx); err != nil {
		return err
	}
	for _, id := range unused {
		if err := b.forgetSpec(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// beyond returns the ended runs of a workflow beyond its limits. Those inside others are forgotten with them.
func beyond(b *Book, runs map[string]*run, now time.Time) (out []*run) {
	var ended []*run
	for _, r := range runs {
		if !r.live() && outerOf(b, r) == nil {
			ended = append(ended, r)
		}
	}
	slices.SortFunc(ended, func(x, y *run) int {
		if c := y.rec.GetRun().GetEnded().AsTime().Compare(x.rec.GetRun().GetEnded().AsTime()); c != 0 {
			return c
		}
		return strings.Compare(x.key.Name, y.key.Name)
	})
	for i, r := range ended {
		h := r.def.spec.GetWorkflow().GetHistory()
		if i >= int(h.GetCount()) || !now.Before(r.rec.GetRun().GetEnded().AsTime().Add(h.GetAge().AsDuration())) {
			out = append(out, r)
		}
	}
	return out
}

// forget removes a run that has ended, with the jobs of its steps.
func (b *Book) forget(ctx context.Context, r *run) error {
	r.one.Lock()
	defer r.one.Unlock()
	b.st.Lock()
	r.forgetting = !r.live()
	inside := b.allInside(r)
	b.st.Unlock()
	for _, in := range inside {
		if err := b.forget(ctx, in); err != nil {
			return err
		}
	}
	gone := false
	for r.forgetting && !gone {
		err := schedules.Recalling(ctx, b.term, func() error {
			_, err := b.term.Commit.Do(ctx, func(t *state.Tx) (err error) {
				gone, err = b.forgetSome(t, r)
				return err
			})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// allInside returns the runs that the steps of a run that is being forgotten have begun. The lock is held.
func (b *Book) allInside(r *run) (out []*run) {
	for i := range r.recs {
		if !r.forgetting || !r.inner(i) {
			continue
		}
		for item, rec := range r.recs[i] {
			for attempt := range int(rec.GetAttempts()) {
				if in := b.runs[r.childKey(i, item, attempt+1)]; in != nil {
					out = append(out, in)
				}
			}
		}
	}
	return out
}

// forgetSome removes some records of a run. gone: that of the run, too.
func (b *Book) forgetSome(t *state.Tx, r *run) (gone bool, err error) {
	left, bytes := together, 0
	remove := func(i, item int, rec *nusav1.WorkflowStepRecord) error {
		for attempt := 1; attempt <= int(rec.GetAttempts()); attempt++ {
			if left <= 0 || bytes > togetherBytes {
				return nil
			}
			if r.inner(i) {
				continue // its run was forgotten before
			}
			n, existed, err := schedules.Forget(t, r.childKey(i, item, attempt))
			if err != nil {
				return err
			}
			left -= one(existed)
			bytes += n
		}
		if left--; left < 0 {
			return nil
		}
		return state.DeleteOther(t, r.stepKey(i, item, false))
	}
	for i := range r.recs {
		if r.whole[i] != nil {
			if left--; left < 0 {
				return false, nil
			}
			if err := state.DeleteOther(t, r.stepKey(i, 0, true)); err != nil {
				return false, err
			}
		}
		for item, rec := range r.recs[i] {
			if rec == nil {
				continue
			}
			if err := remove(i, item, rec); err != nil || left < 0 || bytes > togetherBytes {
				return false, err
			}
		}
	}
	if len(b.payloads[r.key]) > 0 {
		if err := state.DeleteOther(t, payloadKey(r.key)); err != nil {
			return false, err
		}
	}
	return true, state.DeleteOther(t, runKey(r.key))
}

// dropOutputs removes outputs that no step waits for any more.
func (b *Book) dropOutputs(ctx context.Context) error {
	b.st.Lock()
	left := len(unclaimed(b))
	b.st.Unlock()
	if left == 0 {
		return nil
	}
	_, err := b.term.Commit.Do(ctx, func(t *state.Tx) error {
		for _, name := range unclaimed(b) {
			if err := state.DeleteOther(t, state.OtherKey(state.OutputKind, name)); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// forgetSpec removes a version that no run has.
func (b *Book) forgetSpec(ctx context.Context, id string) error {
	namespace, spec, _ := strings.Cut(id, "/")
	_, err := b.term.Commit.Do(ctx, func(t *state.Tx) error {
		if b.users[id] > 0 {
			return nil
		}
		for _, m := range state.OthersOf(t, runKind) {
			rec, _ := m.(*nusav1.WorkflowRunRecord)
			if rec.GetSpec() == spec || slices.Contains(slices.Collect(maps.Values(rec.GetWorkflows())), spec) {
				return nil // it has just begun
			}
		}
		return state.DeleteOther(t, specKey(namespace, spec))
	})
	return err
}
