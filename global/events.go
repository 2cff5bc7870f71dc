package global

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/nusa-scheduler/nusa/global/events"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/security/audit"
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

// memberEvent returns the type of the event about a change of a member, and whether there is one.
func memberEvent(e audit.Entry) (kind string, some bool) {
	kind, some = map[string]string{
		"join member": "member.joined", "remove member": "member.removed", "rotate key": "key.rotated",
		"ban node": "member.banned", "ban region": "member.banned", "create join token": "join_token.created", "revoke join token": "join_token.revoked",
	}[e.Verb+" "+e.Kind]
	if e.Verb == "ban" && e.Reason == "off" {
		kind = "member.unbanned"
	}
	return kind, some
}

// addMemberEvent adds the event about a change of a member that is stored.
func (t *leadershipTerm) addMemberEvent(e audit.Entry) {
	if kind, some := memberEvent(e); some {
		t.state.Events.AddAt(e.Region, kind, cmp.Or(e.Name, e.Region), "%s", e.Reason)
	}
}
