package global

import (
	"context"
	"errors"
	"time"

	"github.com/nusa-scheduler/nusa/global/recovery"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/global/uplink"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// errOldStore ends a term in which the store turned out to be an old copy. The next term begins
// with the conflict.
var errOldStore = errors.New("the store was restored from an old copy")

// logLoop asks for the length of the store's log, if the store did not tell it at the beginning of
// the term. Until the length is known, the store may be a restored snapshot. So this server grants
// no lease and declares no region lost. If an earlier term has stored the length, this server also
// places and orders nothing. After one lease there is an alarm.
func (t *leadershipTerm) logLoop(ctx context.Context) error {
	t.state.Lock()
	unknown := t.state.LogUnknown
	t.state.Unlock()
	if !unknown {
		return nil
	}
	began := t.cfg.Clock()
	tick := time.NewTicker(silenceCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		surplus, err := t.store.Surplus(ctx)
		if err == nil {
			return t.noteLog(ctx, surplus)
		}
		if t.cfg.Clock()-began < t.cfg.Lease {
			continue
		}
		if alarm, fresh := t.state.NoteLogUnknown(err); fresh {
			t.cfg.Logger.Error("the length of the store's log is still unknown", "why", alarm)
		}
	}
}

// serveRegion serves a region's stream. While the store may be a restored snapshot, the stream waits,
// for at most one lease. A region that was refused instead would come back only after a pause.
func (t *leadershipTerm) serveRegion(stream uplink.Stream) error {
	if t.logKnown != nil {
		late := time.NewTimer(min(t.cfg.Lease, awaitMost))
		defer late.Stop()
		select {
		case <-t.logKnown:
		case <-late.C:
		case <-stream.Context().Done():
		case <-t.ctx.Done():
		}
	}
	return t.uplink.Serve(stream)
}

// noteLog stores the length of the store's log. It returns an error if the log is another one than
// the records know.
func (t *leadershipTerm) noteLog(ctx context.Context, s store.Surplus) error {
	another := false
	_, err := t.commit.Do(ctx, func(tx *state.Tx) error {
		return tx.PutLeadership(func(rec *nusav1.LeadershipRecord) {
			known := rec.GetConflict().GetOtherLog()
			recovery.NoteLog(rec, s, tx.State.Revision)
			another = rec.GetConflict().GetOtherLog() && !known
		})
	})
	switch {
	case err != nil:
		return err
	case another:
		return errOldStore
	}
	t.state.Lock()
	t.state.LogReported()
	t.uplink.Resume() // no region could be welcomed before, so the silence of the regions counts from now on
	t.state.Unlock()
	if t.logKnown != nil {
		close(t.logKnown)
	}
	t.placer.Wake()
	t.cfg.Logger.Info("the length of the store's log is known: leases are granted")
	return nil
}
