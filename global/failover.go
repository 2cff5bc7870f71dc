package global

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/failover"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// failoverLoop declares silent regions lost, and says which of their slots may move. The
// placer moves them.
type failoverLoop struct {
	state  *state.State
	commit *state.Committer
	wake   func() // the placer
	resign func(ctx context.Context, why string) error
	log    *slog.Logger
	// observe gets the number of verdicts.
	observe func(verdicts int)

	// plan was made for mark, and stays the same until the given time. Only the goroutine
	// of run uses them.
	plan  failover.Plan
	mark  *state.FailoverMark
	until time.Duration
}

// unchangedFor bounds how long a plan is used again.
const unchangedFor = time.Minute

// dropsPerCommit keeps the writes of a request within one transaction.
const dropsPerCommit = 100

// run decides each second, and when the next slot is due.
func (f *failoverLoop) run(ctx context.Context) error {
	timer := time.NewTimer(silenceCheck)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		next, err := f.step(ctx)
		if err != nil {
			return fmt.Errorf("failover: %w", err)
		}
		timer.Reset(next)
	}
}

// step decides once, and returns when to decide again.
func (f *failoverLoop) step(ctx context.Context) (time.Duration, error) {
	plan, streams, serving := f.decide()
	if !serving {
		return silenceCheck, nil
	}
	if err := f.noteMassLoss(ctx); err != nil {
		return silenceCheck, err
	}
	if plan.Resign != "" {
		f.log.Warn("resigns once", "why", plan.Resign)
		return silenceCheck, f.resign(ctx, plan.Resign)
	}
	if plan.Forget {
		if err := f.forgetResignation(ctx); err != nil {
			return silenceCheck, err
		}
	}
	lost := 0
	for _, v := range plan.Verdicts {
		done, err := f.declare(ctx, v, streams[v.Region])
		if err != nil {
			return silenceCheck, err
		}
		if done {
			lost++
		}
	}
	f.observe(lost)
	if lost > 0 {
		plan, _, _ = f.decide() // what is due moves at once
	}
	for _, d := range plan.Regions {
		if err := f.drop(ctx, d.Region); err != nil {
			return silenceCheck, err
		}
	}
	if plan.Next > 0 {
		return min(silenceCheck, plan.Next), nil
	}
	return silenceCheck, nil
}

// decide makes the plan and stores what it says. A plan for which nothing has changed is not
// made again: then there is nothing to do. streams are the live streams of the
// regions that the plan declares lost. It decides nothing while this server may not be
// the active one, or the store is an old copy.
func (f *failoverLoop) decide() (plan failover.Plan, streams map[string]liveStream, serving bool) {
	st := f.state
	st.Lock()
	defer st.Unlock()
	if !st.Serving() {
		return failover.Plan{}, nil, false
	}
	now, mark := st.Clock(), st.FailoverMark()
	if f.mark != nil && f.mark.Equal(mark) && now < f.until && !mark.Resigned() {
		if f.plan.Paused {
			st.MassLossGoesOn()
		}
		return failover.Plan{Next: f.until - now}, nil, true
	}
	plan = failover.Decide(st.FailoverSnapshot())
	f.plan, f.mark, f.until = plan, mark, now+unchangedFor
	if plan.Next > 0 {
		f.until = min(f.until, now+plan.Next)
	}
	if len(plan.Verdicts) > 0 {
		f.until = now // they have to be committed
	}
	if plan.Alarm != "" && st.FailoverPaused == "" {
		f.log.Error("failover is paused", "why", plan.Alarm)
	}
	st.SetFailover(plan)
	if len(st.Movable) > 0 {
		f.wake()
	}
	streams = make(map[string]liveStream, len(plan.Verdicts))
	for _, v := range plan.Verdicts {
		life := st.Regions[v.Region].Life
		streams[v.Region] = liveStream{life.Stream, life.LastSeen}
	}
	return plan, streams, true
}

// liveStream is the stream of a region and when its last message arrived.
type liveStream struct {
	number   uint64
	lastSeen time.Duration
}

// noteMassLoss stores the alarm of a mass loss, or that it is over, for the next active server.
func (f *failoverLoop) noteMassLoss(ctx context.Context) error {
	f.state.Lock()
	shown, stored := f.state.FailoverPaused, f.state.Leadership.GetMassLoss()
	f.state.Unlock()
	if (shown == "") == (stored == "") {
		return nil
	}
	_, err := f.commit.Do(ctx, func(t *state.Tx) error {
		return t.PutLeadership(func(rec *nusav1.LeadershipRecord) { rec.MassLoss = shown })
	})
	return err
}

// forgetResignation lets a later mass loss make the active server resign again.
func (f *failoverLoop) forgetResignation(ctx context.Context) error {
	_, err := f.commit.Do(ctx, func(t *state.Tx) error {
		return t.PutLeadership(func(rec *nusav1.LeadershipRecord) { rec.Resigned = "" })
	})
	return err
}

// declare commits a verdict, unless the region has spoken since.
func (f *failoverLoop) declare(ctx context.Context, v failover.Verdict, was liveStream) (done bool, err error) {
	_, err = f.commit.Do(ctx, func(t *state.Tx) error {
		r := t.State.Regions[v.Region]
		rec, _ := t.Region(v.Region)
		done = r != nil && rec != nil && rec.GetLost() == nil && r.Life.LastSeen == was.lastSeen && r.Life.Stream == was.number
		if !done {
			return nil
		}
		return t.DeclareLost(v.Region, state.Loss{Why: v.Why}, time.Now())
	})
	if err != nil || !done {
		return false, err
	}
	f.state.NoticeSilence() // the events tell it before the verdict
	f.state.Lock()
	defer f.state.Unlock()
	f.state.EndLost(v.Region, was.number, v.Why)
	f.state.Events.Add("region.lost", v.Region, "%s", v.Why)
	f.log.Warn("region declared lost", "region", v.Region, "why", v.Why)
	return true, nil
}

// drop removes what an operator's statement makes void.
func (f *failoverLoop) drop(ctx context.Context, name string) error {
	f.state.Lock()
	all := f.state.Dropped(name)
	f.state.Unlock()
	for changes := range slices.Chunk(all, dropsPerCommit) {
		_, err := f.commit.Do(ctx, func(t *state.Tx) error {
			rec, _ := t.Region(name)
			if !rec.GetLost().GetNothingRuns() {
				return nil // another cluster has the name meanwhile
			}
			return t.ChangeSlots(slices.DeleteFunc(slices.Clone(changes), func(c region.Change) bool { return t.Stale([]region.Change{c}) }))
		})
		if err != nil {
			return err
		}
	}
	return nil
}
