package global

import (
	"context"
	"errors"
	"time"

	"github.com/nusa-scheduler/nusa/global/idempotency"
	"github.com/nusa-scheduler/nusa/global/room"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// historyPart says which part of the quota the audit records may take: one in historyPart. The same
// bound holds for the idempotency records.
const historyPart = 16

// auditAgeEvery is how often old audit records are removed.
const auditAgeEvery = time.Hour

// boundOf returns how many bytes the audit records, or the idempotency records, may take: most, or
// less if the quota is small.
func (t *leadershipTerm) boundOf(most int64) int64 {
	t.state.Lock()
	defer t.state.Unlock()
	if quota := t.state.Room.Usage().Quota; quota > 0 {
		return min(most, quota/historyPart)
	}
	return most
}

// reloadLeast and reloadMost bound the pause after a failed load.
const reloadLeast, reloadMost = time.Second, time.Minute

// reload loads records of earlier terms until it succeeds or ctx ends. Until all are loaded, none
// of them is removed, and lookups ask the store.
func (t *leadershipTerm) reload(ctx context.Context, what string, load func(context.Context) error) error {
	for pause := reloadLeast; ; pause = min(2*pause, reloadMost) {
		err := load(ctx)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		t.cfg.Logger.Warn("cannot load records of earlier terms yet", "what", what, "again_in", pause, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// auditLoop counts the audit records of earlier terms, and then bounds all audit records by age and
// size. The term serves meanwhile.
func (t *leadershipTerm) auditLoop(ctx context.Context) error {
	if err := t.reload(ctx, "audit records", t.loadTrail); err != nil {
		return err
	}
	tick := time.NewTicker(t.cfg.ReportInterval)
	defer tick.Stop()
	var aged time.Duration
	for {
		err := t.trimAudit(ctx, t.boundOf(state.AuditBytes))
		if now := t.cfg.Clock(); err == nil && (aged == 0 || now-aged >= auditAgeEvery) {
			aged = now
			err = t.removeAudit(ctx, state.AuditKey(time.Now().Add(-t.cfg.AuditRetention)))
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, state.ErrConflict) {
			t.cfg.Logger.Warn("the store keeps more audit records than it should", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// gatherLoop stores the audit trails of the regions. The term serves meanwhile.
func (t *leadershipTerm) gatherLoop(ctx context.Context) error {
	if err := t.reload(ctx, "audit trails of the regions", t.gather.Load); err != nil {
		return err
	}
	return t.gather.Run(ctx)
}

// errLater ends a list at the first record that this term wrote.
var errLater = errors.New("later")

func (t *leadershipTerm) loadTrail(ctx context.Context) error {
	var earlier room.Trail
	until := state.AuditKey(t.began)
	_, err := t.api.Store.List(ctx, state.AuditPrefix, func(kv store.KV) error {
		if kv.Key >= until {
			return errLater
		}
		earlier.Add(kv.Key, int64(len(kv.Key)+len(kv.Value)))
		return nil
	})
	if err != nil && !errors.Is(err, errLater) {
		return err
	}
	t.state.Lock()
	defer t.state.Unlock()
	t.state.Trail.Before(earlier)
	return nil
}

// trimAudit removes the oldest audit records until the rest takes at most this many bytes.
func (t *leadershipTerm) trimAudit(ctx context.Context, most int64) error {
	for last := ""; ; {
		t.state.Lock()
		before, _ := t.state.Trail.Excess(most)
		t.state.Unlock()
		if before == "" || before == last { // the clock was set back, so a later call removes the records
			return nil
		}
		last = before
		if err := t.removeAudit(ctx, before); err != nil {
			return err
		}
	}
}

// removeAudit removes the audit records with lower keys.
func (t *leadershipTerm) removeAudit(ctx context.Context, before string) error {
	_, err := t.commit.Do(ctx, func(tx *state.Tx) error { return tx.ForgetAudit(before) })
	return err
}

// trimAnswers removes the oldest idempotency records until the rest takes at most this many bytes.
func (t *leadershipTerm) trimAnswers(ctx context.Context, most int) error {
	const atOnce = 100 // this many fit into a transaction
	for {
		keys := t.state.Answers.Oldest(most, atOnce)
		if len(keys) == 0 {
			return nil
		}
		if _, err := t.commit.Do(ctx, func(tx *state.Tx) error { return tx.ForgetAnswers(keys) }); err != nil {
			return err
		}
	}
}

// answersLoop loads the idempotency records, and then bounds them. The term serves meanwhile.
func (t *leadershipTerm) answersLoop(ctx context.Context) error {
	load := func(ctx context.Context) error { return t.state.Answers.Load(ctx, t.api.Store) }
	if err := t.reload(ctx, "idempotency records", load); err != nil {
		return err
	}
	for range wait.Ticks(ctx, t.cfg.ReportInterval) {
		if err := t.trimAnswers(ctx, int(t.boundOf(idempotency.MaxBytes))); err != nil && ctx.Err() == nil {
			t.cfg.Logger.Warn("the store keeps more idempotency records than it should", "error", err)
		}
	}
	return ctx.Err()
}

// historyLoop reads the history if the term began without it. Then it moves jobs that have ended to
// the history, and bounds the history by age and number.
func (t *leadershipTerm) historyLoop(ctx context.Context) error {
	if err := t.readHistory(ctx); err != nil {
		return err
	}
	for range wait.Ticks(ctx, t.cfg.ReportInterval) {
		err := t.moveEnded(ctx)
		for _, next := range []func(context.Context) error{t.forgetLeftovers, t.trimHistory} {
			if err == nil {
				err = next(ctx)
			}
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, state.ErrConflict) {
			t.cfg.Logger.Warn("jobs that have ended stay in memory", "error", err)
		}
	}
	return ctx.Err()
}

// readHistory reads the history. Records that cannot be decoded end the term, as they do at its
// beginning.
func (t *leadershipTerm) readHistory(ctx context.Context) error {
	var unreadable error
	err := t.reload(ctx, "the history", func(ctx context.Context) error {
		err := state.ReadHistory(ctx, t.state, t.store)
		if errors.Is(err, state.ErrFormat) {
			unreadable = err
			return nil
		}
		return err
	})
	t.placer.Wake() // purges have waited
	return errors.Join(unreadable, err)
}

func (t *leadershipTerm) moveEnded(ctx context.Context) error {
	for {
		t.state.Lock()
		keys := state.Leaving(t.state, t.cfg.EndedKept, t.cfg.EndedMost)
		t.state.Unlock()
		if len(keys) == 0 {
			return nil
		}
		err := t.depart(ctx, keys...)
		if errors.Is(err, store.ErrTooLarge) { // each record fits alone
			for _, k := range keys {
				err = t.depart(ctx, k)
				if err != nil {
					break
				}
			}
		}
		if err != nil {
			t.state.Lock()
			state.LeaveLater(t.state, keys)
			t.state.Unlock()
			return err
		}
	}
}

// forgetLeftovers removes slots of jobs in the history. These slots did not fit into the
// transaction that moved their job.
func (t *leadershipTerm) forgetLeftovers(ctx context.Context) error {
	for {
		t.state.Lock()
		k, some := state.Leftover(t.state)
		t.state.Unlock()
		if !some {
			return nil
		}
		if _, err := t.commit.Do(ctx, func(tx *state.Tx) error { return state.ForgetLeftover(tx, k) }); err != nil {
			return err
		}
	}
}

// depart moves jobs to the history with one transaction.
func (t *leadershipTerm) depart(ctx context.Context, keys ...state.JobKey) error {
	_, err := t.commit.Do(ctx, func(tx *state.Tx) error {
		for _, k := range keys {
			if err := state.Depart(tx, k, time.Now()); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

func (t *leadershipTerm) trimHistory(ctx context.Context) error {
	const atOnce = 100 // this many fit into a transaction
	for {
		t.state.Lock()
		names := t.state.History.Excess(time.Now().Add(-t.cfg.HistoryAge).Unix(), t.cfg.HistoryMost, atOnce)
		t.state.Unlock()
		if len(names) == 0 {
			return nil
		}
		if _, err := t.commit.Do(ctx, func(tx *state.Tx) error { return state.Forget(tx, names) }); err != nil {
			return err
		}
	}
}

// writeDenials stores entries about denied calls, until ctx ends.
func writeDenials(ctx context.Context, s *server) error {
	write := func(ctx context.Context, some []audit.Entry) error { return recordDenials(ctx, s, some) }
	return s.denials.Run(ctx, write, func(err error) {
		s.log.Warn("denied calls are missing in the audit trail", "error", err)
	})
}

// recordDenials stores entries about denied calls. Only the active server can. Others log them.
func recordDenials(ctx context.Context, s *server, some []audit.Entry) error {
	t := s.active.Load()
	if t == nil {
		for _, e := range some {
			s.log.Warn("denied call", "who", e.Who, "from", e.From, "method", e.Method, "why", e.Reason)
		}
		return nil
	}
	_, err := t.commit.Do(ctx, func(tx *state.Tx) error {
		for _, e := range some {
			if err := tx.AuditOther(e); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}
