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

// failoverLoop declares silent regions lost, and says which of their slots may move. The placer
// moves the slots.
type failoverLoop struct {
	state  *state.State
	commit *state.Committer
	wake   func() // wakes the placer
	resign func(ctx context.Context, why string) error
	log    *slog.Logger
	// observe gets the number of verdicts.
	observe func(verdicts int)

	// plan is the latest plan, which was made for mark. While nothing changes, it is used again
	// until the clock reads until. Only the goroutine of run uses these fields.
	plan  failover.Plan
	mark  *state.FailoverMark
	until time.Duration
}

// unchangedFor is the longest time for which a plan is used again.
const unchangedFor = time.Minute

// dropsPerCommit bounds the changes of one request, so that they fit into one transaction.
const dropsPerCommit = 100

// run decides each second, and earlier when a slot is due earlier.
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
		f.log.Warn("this server resigns once, because another server may reach the regions", "why", plan.Resign)
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
		plan, _, _ = f.decide() // slots that are due now move at once
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

// decide makes the plan and stores its result in the state. If nothing has changed since the last
// plan, decide makes no plan, because nothing is to be done. streams are the live streams of the
// regions that the plan declares lost. serving is false, and nothing is decided, while this server
// may not be the active one or the store is an old copy.
func (f *failoverLoop) decide() (plan failover.Plan, streams map[string]liveStream, serving bool) {
	st := f.state
	st.Lock()
	defer st.Unlock()
	if !st.Serving() || st.LogUnknown {
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
		f.until = now // decide again until the verdicts are committed
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

// liveStream names a region's stream and when the last message arrived on it.
type liveStream struct {
	number   uint64
	lastSeen time.Duration
}

// noteMassLoss stores the alarm of a mass loss, or its end, for the next active server.
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

// forgetResignation removes the note that the active server resigned because of a mass loss, so
// that a later mass loss can make it resign again.
func (f *failoverLoop) forgetResignation(ctx context.Context) error {
	_, err := f.commit.Do(ctx, func(t *state.Tx) error {
		return t.PutLeadership(func(rec *nusav1.LeadershipRecord) { rec.Resigned = "" })
	})
	return err
}

// declare commits a verdict, unless a message of the region has arrived since the decision.
func (f *failoverLoop) declare(ctx context.Context, v failover.Verdict, was liveStream) (done bool, err error) {
	f.state.NoticeSilence() // add the event of the silence before the event of the verdict
	_, err = f.commit.Do(ctx, func(t *state.Tx) error {
		r := t.State.Regions[v.Region]
		rec, _ := t.Region(v.Region)
		done = r != nil && rec != nil && rec.GetLost() == nil && r.Life.LastSeen == was.lastSeen && r.Life.Stream == was.number
		if !done {
			return nil
		}
		t.Event("region.lost", v.Region, "%s", v.Why)
		return t.DeclareLost(v.Region, state.Loss{Why: v.Why}, time.Now())
	})
	if err != nil || !done {
		return false, err
	}
	f.state.Lock()
	defer f.state.Unlock()
	f.state.EndLost(v.Region, was.number, v.Why)
	f.log.Warn("region declared lost", "region", v.Region, "why", v.Why)
	return true, nil
}

// drop changes the slots of a region whose work an operator has declared ended.
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
