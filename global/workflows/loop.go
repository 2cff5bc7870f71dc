package workflows

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job/steps"
)

const (
	// The pause after an error is retryFirst, and then twice as long after each further one, at most
	// retryMost.
	retryFirst, retryMost = time.Second, 15 * time.Second
	// notYet is the pause while this server must not steer runs, for example beside earlier servers.
	notYet = 5 * time.Second
	// recheck is how often the loop looks at all active jobs of a run, although nothing was noticed.
	recheck = time.Minute
	// runsAtOnce bounds the runs that are decided at the same time: enough that their plans fill the transactions of a
	// store that is slow for a moment. turns bounds the plans of one run before
	// others get their turn.
	runsAtOnce, turns = 128, 20
)

// Run carries out the runs, until ctx ends.
func (b *Book) Run(ctx context.Context) error {
	if err := b.load(ctx); err != nil {
		return err
	}
	close(b.ready)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.decideLoop(ctx) })
	g.Go(func() error { return b.forgetLoop(ctx) })
	return g.Wait()
}

// decideLoop looks at runs whose jobs have changed, and at those whose times have come. It decides about several runs
// at the same time, and a run does not wait for the plans of the others.
func (b *Book) decideLoop(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	var g errgroup.Group
	g.SetLimit(runsAtOnce)
	defer func() { _ = g.Wait() }() // no function fails
	for {
		changed := b.st.Templates.StepWake.C()
		for _, r := range b.notBusy(b.look(time.Now())) {
			g.Go(func() error {
				b.decide(ctx, r)
				return nil
			})
		}
		pause.Reset(b.untilNext(time.Now()))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-pause.C:
		}
	}
}

// untilNext returns how long nothing is due.
func (b *Book) untilNext(now time.Time) time.Duration {
	b.st.Lock()
	defer b.st.Unlock()
	at := b.clock.Next()
	if at.IsZero() {
		return recheck
	}
	return max(0, at.Sub(now))
}

// look returns the runs to decide about now.
func (b *Book) look(now time.Time) []*run {
	b.st.Lock()
	defer b.st.Unlock()
	for k := range state.TakeSteps(b.st) {
		r := b.runs[runOf(k)]
		if r == nil {
			continue
		}
		at, active := r.jobs[k.Name]
		if !active {
			continue
		}
		if end, _ := childResult(b, r, k); end == steps.None && !r.snap.OneFirst {
			continue
		}
		r.touched.add(at[0])
		b.clock.Sooner(r, now)
	}
	return b.clock.Due(now)
}

// notBusy returns those of some runs for which no plans are made now, and notes that some are made from now on.
func (b *Book) notBusy(runs []*run) []*run {
	b.st.Lock()
	defer b.st.Unlock()
	return slices.DeleteFunc(runs, func(r *run) bool {
		busy := r.busy
		r.busy, r.missed = true, busy
		return busy
	})
}

// decide decides about a run. What fails is tried again.
func (b *Book) decide(ctx context.Context, r *run) {
	err := b.advance(ctx, r)
	b.st.Lock()
	defer b.st.Unlock()
	r.busy = false
	if r.missed {
		b.clock.Sooner(r, time.Now())
	}
	defer b.st.Templates.StepWake.Notify() // the loop has not seen when the run is due next
	if err == nil {
		r.pause = 0
		return
	}
	if r.pause == 0 && ctx.Err() == nil && !errors.Is(err, state.ErrConflict) && !errors.Is(err, state.ErrNotActive) {
		b.term.Log.Warn("a run of a workflow does not go on yet", "run", r.key.String(), "error", err)
	}
	r.pause = min(max(2*r.pause, retryFirst), retryMost)
	b.clock.Sooner(r, time.Now().Add(r.pause))
}

// advance makes plans until nothing is left to decide now.
func (b *Book) advance(ctx context.Context, r *run) error {
	r.one.Lock()
	defer r.one.Unlock()
	for range turns {
		if idle, err := b.turn(ctx, r); idle || err != nil {
			return err
		}
	}
	b.st.Lock()
	defer b.st.Unlock()
	b.clock.Sooner(r, time.Now())
	return nil
}
