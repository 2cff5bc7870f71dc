package deadletters

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/global/deadletters/plan"
	"github.com/nusa-scheduler/nusa/global/state"
)

// tidy forgets old dead letters, and sources that no dead letter and no job has. It notes which instances run again,
// and sets the alarm.
func tidy(ctx context.Context, b *Book, now time.Time) {
	if noteAgain(ctx, b) != nil {
		return
	}
	for {
		ids := old(b, now)
		if len(ids) == 0 {
			break
		}
		if err := change(ctx, b, func(t *state.Tx) error { return removeLetters(t, ids) }); err != nil {
			return
		}
	}
	if over := unused(b); len(over) > 0 {
		if err := change(ctx, b, func(t *state.Tx) error {
			for _, s := range over {
				if src := b.sources[s]; src != nil && src.letters > 0 {
					continue // one came meanwhile
				}
				if err := errors.Join(state.DeleteOther(t, specKey(s)), state.DeleteOther(t, spansKey(s))); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return
		}
	}
	b.st.Lock()
	text := ""
	if b.cfg.Alarm > 0 && b.open > b.cfg.Alarm {
		text = fmt.Sprintf("%d dead letters are open, more than %d: see `nusa deadletter list`", b.open, b.cfg.Alarm)
	}
	for p := range b.seen {
		if b.st.Jobs[p.job] == nil {
			delete(b.seen, p)
		}
	}
	b.st.Unlock()
	if state.SetObjectAlarm(b.st, letterKind, text) {
		b.cfg.Term.Log.Warn(text)
	}
}

func removeLetters(t *state.Tx, ids []string) error {
	for _, id := range ids {
		if err := errors.Join(state.DeleteOther(t, letterKey(id)), state.DeleteOther(t, logKey(id))); err != nil {
			return err
		}
	}
	return nil
}

// change changes records. It logs an error.
func change(ctx context.Context, b *Book, prepare func(*state.Tx) error) error {
	_, err := b.cfg.Term.Commit.Do(ctx, prepare)
	if err != nil && ctx.Err() == nil && !errors.Is(err, state.ErrConflict) {
		b.cfg.Term.Log.Warn("dead letters are not tidied yet", "error", err)
	}
	return err
}

// old returns the next dead letters to forget.
func old(b *Book, now time.Time) (ids []string) {
	b.st.Lock()
	defer b.st.Unlock()
	var first []plan.Stored
	for _, e := range b.order[:min(len(b.order), together)] {
		first = append(first, plan.Stored{At: e.rec.GetCreated().AsTime(), Bytes: e.bytes})
	}
	n := plan.Forget(first, len(b.order), b.bytes, plan.Limits{Age: b.cfg.Retention, Most: mostLetters, Bytes: mostBytes}, now)
	for _, e := range b.order[:n] {
		ids = append(ids, e.rec.GetId())
	}
	return ids
}

// unused returns sources without dead letters whose run is over, so that no region reports their instances any
// more.
func unused(b *Book) (out []sourceKey) {
	b.st.Lock()
	defer b.st.Unlock()
	for k, s := range b.sources {
		j := b.st.Jobs[k.job]
		if s.letters == 0 && len(b.pending[k.job]) == 0 && (j == nil || j.Record == nil || j.Record.Run(j.Revision) != k.run) {
			out = append(out, k)
			if len(out) == together {
				break
			}
		}
	}
	return out
}
