package spares

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/objects"
	"github.com/nusa-scheduler/nusa/global/reservations"
	"github.com/nusa-scheduler/nusa/global/spares/step"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The kinds of the keys: see state.OtherKey.
const (
	recordKind      = "spares"
	provisionerKind = "spare-provisioners"
)

// openMost bounds the spares that have not ended, endedMost the others, and provisionersMost the
// provisioners.
const openMost, endedMost, provisionersMost = 256, 10_000, 64

// Config configures a Book.
type Config struct {
	Term         *api.Term
	Reservations *reservations.Book
	// Policy says which URLs may be called.
	Policy *webhook.Policy
	// Programs are the programs that may be provisioners: paths by name.
	Programs map[string]string
	// Retention is how long the record of a spare that has ended is stored.
	Retention time.Duration
	Log       *slog.Logger
}

// Book has the spares of one leadership term. The state's lock guards its fields.
type Book struct {
	cfg          Config
	st           *state.State
	byID         map[string]*entry
	open         map[string]*entry
	provisioners *objects.Table[*nusav1.ProvisionerRecord]
	wake         notify.Signal
	// ready is closed when the stored records are read.
	ready chan struct{}
	// nudge has an element when a call has ended.
	nudge chan struct{}
}

// entry is one spare. Its record is never changed in place.
type entry struct {
	rec *nusav1.SpareRecord
	// calling: a request is in progress. result is that of the latest request, until a step takes it.
	calling bool
	result  *step.Result
	// refused has the reasons why reservations cannot be made, by id.
	refused map[string]string
}

// New returns the book of a term. It must be made before the term serves, and Run must be called.
func New(cfg Config) *Book {
	b := &Book{cfg: cfg, st: cfg.Term.State, byID: map[string]*entry{}, open: map[string]*entry{}, ready: make(chan struct{}), nudge: make(chan struct{}, 1)}
	b.provisioners = objects.NewTable(b.st, provisionerKind, func() *nusav1.ProvisionerRecord { return new(nusav1.ProvisionerRecord) })
	b.st.Lock()
	defer b.st.Unlock()
	b.st.Others[recordKind] = b.apply
	return b
}

func recordKey(id string) string { return state.OtherKey(recordKind, id) }

// apply notes a stored record. The lock is held.
func (b *Book) apply(id string, m proto.Message) {
	rec, _ := m.(*nusav1.SpareRecord)
	delete(b.open, id)
	if rec == nil {
		delete(b.byID, id)
		return
	}
	e := b.byID[id]
	if e == nil {
		e = &entry{refused: map[string]string{}}
		b.byID[id] = e
	}
	e.rec = rec
	if rec.GetSpare().GetEnded() == nil {
		b.open[id] = e
		b.wake.Notify()
	}
}

// load reads the stored records. Records that were stored in this term are newer than what it reads.
func (b *Book) load(ctx context.Context) error {
	if err := b.provisioners.Load(ctx, b.cfg.Term.Store); err != nil {
		return err
	}
	var all []*nusav1.SpareRecord
	_, err := b.cfg.Term.Store.List(ctx, recordKey(""), func(kv store.KV) error {
		rec := &nusav1.SpareRecord{}
		all = append(all, rec)
		return state.Decode(kv, rec)
	})
	if err != nil {
		return fmt.Errorf("read the spares: %w", err)
	}
	b.st.Lock()
	defer b.st.Unlock()
	for _, rec := range all {
		if id := rec.GetSpare().GetId(); b.byID[id] == nil {
			b.apply(id, rec)
		}
	}
	return nil
}

// present returns the record of a spare as a transaction leaves it, or nil.
func (b *Book) present(t *state.Tx, id string) *nusav1.SpareRecord {
	if m, changed := state.OtherOf(t, recordKey(id)); changed {
		rec, _ := m.(*nusav1.SpareRecord)
		return rec
	}
	if e := b.byID[id]; e != nil {
		return e.rec
	}
	return nil
}

// opened returns the spares that have not ended, as a transaction leaves them.
func (b *Book) opened(t *state.Tx) map[string]*nusav1.SpareRecord {
	out := map[string]*nusav1.SpareRecord{}
	for id, e := range b.open {
		out[id] = e.rec
	}
	for id, m := range state.OthersOf(t, recordKind) {
		delete(out, id)
		if rec, ok := m.(*nusav1.SpareRecord); ok && rec.GetSpare().GetEnded() == nil {
			out[id] = rec
		}
	}
	return out
}

// find returns a spare with the ids of its reservations, or nil.
func (b *Book) find(id string) *nusav1.Spare {
	b.st.Lock()
	defer b.st.Unlock()
	if e := b.byID[strings.ToLower(id)]; e != nil {
		return shown(e.rec)
	}
	return nil
}

// filter returns the first spares after an id for which wanted returns true.
func (b *Book) filter(after string, most int, wanted func(*nusav1.Spare) bool) (out []*nusav1.Spare, more bool) {
	b.st.Lock()
	defer b.st.Unlock()
	ids := make([]string, 0, len(b.byID))
	for id := range b.byID {
		if id > after {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		rec := b.byID[id].rec
		if !wanted(rec.GetSpare()) {
			continue
		}
		if len(out) == most {
			return out, true
		}
		out = append(out, shown(rec))
	}
	return out, false
}

// forget removes the records of spares that ended long ago, and the oldest of too many.
func (b *Book) forget(ctx context.Context, now time.Time) error {
	b.st.Lock()
	var ended []*nusav1.Spare
	for _, e := range b.byID {
		if e.rec.GetSpare().GetEnded() != nil {
			ended = append(ended, e.rec.GetSpare())
		}
	}
	b.st.Unlock()
	slices.SortFunc(ended, func(x, y *nusav1.Spare) int { return x.GetEnded().AsTime().Compare(y.GetEnded().AsTime()) })
	var ids []string
	for i, s := range ended {
		if len(ended)-i > endedMost || now.Sub(s.GetEnded().AsTime()) >= b.cfg.Retention {
			ids = append(ids, s.GetId())
		}
	}
	for some := range slices.Chunk(ids, 30) {
		_, err := b.cfg.Term.Commit.Do(ctx, func(t *state.Tx) error {
			for _, id := range some {
				if err := state.DeleteOther(t, recordKey(id)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
