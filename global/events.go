package global

import (
	"context"
	"errors"
	"time"

	"github.com/nusa-scheduler/nusa/global/events"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/wait"
)

// eventsLoop stores the events that no other transaction has stored.
func (t *leadershipTerm) eventsLoop(ctx context.Context) error {
	return t.state.Events.Run(ctx, func(ctx context.Context) error { return state.FlushEvents(ctx, t.commit) })
}

// eventRetentionLoop removes old events from the store.
func (t *leadershipTerm) eventRetentionLoop(ctx context.Context) error {
	for range wait.Ticks(ctx, t.cfg.ReportInterval) {
		if err := t.trimEvents(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, events.ErrHeld) {
			t.cfg.Logger.Warn("the store keeps more events than it should", "error", err)
		}
	}
	return ctx.Err()
}

// trimEvents removes events that are too old, and the oldest events beyond the bound of their bytes.
func (t *leadershipTerm) trimEvents(ctx context.Context) error {
	for t.state.Events.Expire(t.boundOf(t.cfg.EventBytes), time.Now().Add(-t.cfg.EventRetention)) {
		if err := state.RemoveEvents(ctx, t.commit); err != nil {
			return err
		}
	}
	return nil
}
