package schedules

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// The pause after an error is retryFirst, and then twice as long after each further one, at most
	// retryMost. It is shorter than the least catch_up.
	retryFirst, retryMost = time.Second, 15 * time.Second
	// notYet is the pause while this server must not begin runs, for example beside earlier servers.
	notYet = 5 * time.Second
	// recheck is how often the loop looks at a job with active runs, although nothing was noticed, and
	// recheckIdle at a job that has stopped.
	recheck, recheckIdle = time.Minute, 10 * time.Minute
	// mostSleep is how long the loop waits for a time at most, because the clock of the machine may be changed.
	mostSleep = time.Hour
	// stepsAtOnce bounds the schedules that are decided at the same time, and stepsInTurn the steps of one
	// schedule before others get their turn.
	stepsAtOnce, stepsInTurn = 32, 20
)

// Run begins the runs that are due, until ctx ends. It looks only at jobs that have changed, and at
// schedules whose times have come.
func (b *Book) Run(ctx context.Context) error {
	if err := b.load(ctx); err != nil {
		return err
	}
	b.begin(time.Now())
	close(b.ready)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		changed := b.st.Templates.Wake.C()
		b.decide(ctx, b.look(time.Now()))
		pause.Reset(b.untilNext(time.Now()))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-pause.C:
		}
	}
}

// begin makes the loop decide about everything once.
func (b *Book) begin(now time.Time) {
	b.st.Lock()
	defer b.st.Unlock()
	for k := range b.st.Templates.Lines {
		b.entryOf(k)
	}
	for _, e := range b.byJob {
		b.clock.Set(e, now)
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

// look returns the entries to decide about now.
func (b *Book) look(now time.Time) []*entry {
	b.st.Lock()
	defer b.st.Unlock()
	for k := range state.TakeTemplates(b.st) {
		b.notice(k, now)
	}
	return b.clock.Due(now)
}

// notice looks at a job that has changed: one that begins runs, or a run. The lock is held.
func (b *Book) notice(k state.JobKey, now time.Time) {
	of, _, run := strings.Cut(k.Name, string(job.RunMark))
	if !run {
		e := b.byJob[k]
		if _, is := b.st.Templates.Lines[k]; is && e == nil {
			e = b.entryOf(k)
		}
		if e != nil {
			b.refresh(e)
		}
		return
	}
	e := b.byJob[state.JobKey{Namespace: k.Namespace, Name: of}]
	if e == nil {
		return
	}
	if _, active := e.active[k.Name]; active && b.hasEnded(e, k.Name) {
		e.over[k.Name] = struct{}{}
		b.clock.Sooner(e, now)
	}
}

// hasEnded reports whether a run has ended by its job. The lock is held.
func (b *Book) hasEnded(e *entry, name string) bool {
	to, _, _ := b.jobState(state.JobKey{Namespace: e.key.Namespace, Name: name})
	return to != nusav1.JobRunState_JOB_RUN_STATE_ACTIVE
}

// decide decides about entries, several at the same time. What fails is tried again.
func (b *Book) decide(ctx context.Context, entries []*entry) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(stepsAtOnce)
	for _, e := range entries {
		g.Go(func() error {
			err := b.advance(ctx, e)
			b.st.Lock()
			defer b.st.Unlock()
			if err == nil {
				e.pause = 0
				return nil
			}
			if e.pause == 0 && ctx.Err() == nil && !errors.Is(err, state.ErrConflict) && !errors.Is(err, state.ErrNotActive) {
				b.term.Log.Warn("the runs of a job are not begun yet", "job", e.key.String(), "error", err)
			}
			e.pause = min(max(2*e.pause, retryFirst), retryMost)
			b.clock.Sooner(e, time.Now().Add(e.pause))
			return nil
		})
	}
	_ = g.Wait() // no function fails
}
