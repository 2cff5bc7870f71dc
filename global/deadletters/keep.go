package deadletters

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/deadletters/plan"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// together is how many dead letters of a job one transaction stores.
const together = 32

// add adds dead letters of a job that are not stored yet to a transaction. The lock is held.
func (b *Book) add(t *state.Tx, k state.JobKey) error {
	bySource, spans := map[sourceKey][]*nusav1.DeadLetter{}, map[sourceKey][]plan.Span{}
	var order []sourceKey
	n := 0
	for _, l := range b.pending[k] {
		s := sourceOf(l)
		if _, read := spans[s]; !read {
			spans[s] = b.spans(t, s)
		}
		if plan.Has(spans[s], l.GetGroup(), l.GetIndex()) {
			continue // an earlier request of the transaction stores it
		}
		if bySource[s] == nil {
			order = append(order, s)
		}
		bySource[s] = append(bySource[s], l)
		n++
		if n == together {
			break
		}
	}
	for _, s := range order {
		if err := b.addOf(t, s, bySource[s], spans[s]); err != nil {
			return err
		}
	}
	return nil
}

// addOf is add for instances of one version. spans are those that have left a dead letter.
func (b *Book) addOf(t *state.Tx, s sourceKey, all []*nusav1.DeadLetter, spans []plan.Span) error {
	_, specStored := state.OtherOf(t, specKey(s))
	src := b.sources[s]
	specStored = specStored || src != nil && src.hasSpec
	spec := b.pendingSpecs[s]
	for _, l := range all {
		spans = plan.Add(spans, l.GetGroup(), l.GetIndex())
		rec := &nusav1.DeadLetterRecord{DeadLetter: l}
		l.Created, l.HasSpec = timestamppb.Now(), specStored || spec != nil
		if err := state.PutOther(t, letterKey(l.GetId()), rec); err != nil {
			return err
		}
		t.EventAt(l.GetRegion(), "deadletter.created", s.job.String(), "%s[%d] at %s after %d attempts: %s; nusa deadletter show %s",
			l.GetGroup(), l.GetIndex(), l.GetRegion(), l.GetAttemptCount(), failureText(l.GetFailure()), l.GetId())
	}
	if !specStored && spec != nil {
		if err := state.PutOther(t, specKey(s), &nusav1.DeadLetterSource{Spec: spec, Labels: labelsIn(spec)}); err != nil {
			return err
		}
	}
	return state.PutOther(t, spansKey(s), &nusav1.DeadLetterSource{Collected: spansOf(s, spans)})
}

// spans returns the instances of a version that have left a dead letter, as a transaction leaves them.
func (b *Book) spans(t *state.Tx, s sourceKey) (out []plan.Span) {
	if m, changed := state.OtherOf(t, spansKey(s)); changed {
		rec, _ := m.(*nusav1.DeadLetterSource)
		for _, p := range rec.GetCollected() {
			out = append(out, plan.Span{Group: p.GetGroup(), From: p.GetFrom(), To: p.GetTo()})
		}
		return out
	}
	if src := b.sources[s]; src != nil {
		return src.collected
	}
	return nil
}

// stored notes that a new dead letter is stored. The lock is held.
func (b *Book) stored(l *nusav1.DeadLetter) {
	if b.drop(jobOf(l), l.GetId()) {
		queueLog(b, l.GetId())
	}
}

// keepDue stores what has waited long enough, or is too much for the transaction of a result.
func (b *Book) keepDue(ctx context.Context, now time.Time) {
	for range 1 + pendingMost/together {
		b.st.Lock()
		due := !b.pendingSince.IsZero() && now.Sub(b.pendingSince) >= pendingPause
		var keys []state.JobKey
		for k, all := range b.pending {
			if due || len(all) > together {
				keys = append(keys, k)
			}
		}
		b.st.Unlock()
		if len(keys) == 0 {
			return
		}
		for _, k := range keys {
			_, err := b.cfg.Term.Commit.Do(ctx, func(t *state.Tx) error { return b.add(t, k) })
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, state.ErrConflict) && !errors.Is(err, state.ErrNotActive) {
					b.cfg.Term.Log.Warn("dead letters are not stored yet", "job", k.String(), "error", err)
				}
				b.st.Lock()
				b.pendingSince = now.Add(time.Second) // they are stored later
				b.st.Unlock()
				return
			}
		}
		b.prune(keys)
		b.cfg.WakePlacer()
	}
}

// prune drops instances that have left a dead letter by another way.
func (b *Book) prune(keys []state.JobKey) {
	b.st.Lock()
	defer b.st.Unlock()
	for _, k := range keys {
		for _, l := range b.pending[k] {
			if src := b.sources[sourceOf(l)]; src != nil && plan.Has(src.collected, l.GetGroup(), l.GetIndex()) {
				b.drop(k, l.GetId())
			}
		}
	}
}

// drop removes an instance from those that are not stored yet. It returns false if it was none. The lock is held.
func (b *Book) drop(k state.JobKey, id string) bool {
	left := slices.DeleteFunc(slices.Clone(b.pending[k]), func(p *nusav1.DeadLetter) bool { return p.GetId() == id })
	if len(left) == len(b.pending[k]) {
		return false
	}
	b.pendingCount -= len(b.pending[k]) - len(left)
	b.pending[k] = left
	if len(left) == 0 {
		delete(b.pending, k)
	}
	if b.pendingCount == 0 {
		b.pendingSince = time.Time{}
	}
	return true
}
