package objects

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/notify"
)

// Table has the records of one kind during a leadership term. The state's lock guards records. A record is
// never changed in place.
type Table[R proto.Message] struct {
	// Changed is notified when a record has changed.
	Changed notify.Signal

	st      *state.State
	kind    string
	empty   func() R
	records map[string]R
	// touched are the names that were stored or removed in this term.
	touched map[string]bool
	ready   chan struct{}
}

// NewTable returns an empty table. It must be made before the term serves, and Load must follow. kind is
// the first part of the keys: see state.OtherKey. empty returns an empty record.
func NewTable[R proto.Message](st *state.State, kind string, empty func() R) *Table[R] {
	t := &Table[R]{st: st, kind: kind, empty: empty, records: map[string]R{}, touched: map[string]bool{}, ready: make(chan struct{})}
	st.Lock()
	defer st.Unlock()
	if st.Others == nil {
		st.Others = map[string]func(string, proto.Message){}
	}
	st.Others[kind] = t.apply
	return t
}

// apply notes a stored record. The lock is held.
func (t *Table[R]) apply(name string, m proto.Message) {
	if t.touched != nil {
		t.touched[name] = true
	}
	rec, ok := m.(R)
	delete(t.records, name)
	if ok && m != nil {
		t.records[name] = rec
	}
	t.Changed.Notify()
}

// Load reads the stored records. Those that were stored or removed in this term are newer than what it
// reads.
func (t *Table[R]) Load(ctx context.Context, s store.Store) error {
	read, prefix := map[string]R{}, state.OtherKey(t.kind, "")
	_, err := s.List(ctx, prefix, func(kv store.KV) error {
		rec := t.empty()
		read[strings.TrimPrefix(kv.Key, prefix)] = rec
		return state.Decode(kv, rec)
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", t.kind, err)
	}
	t.st.Lock()
	defer t.st.Unlock()
	for name, rec := range read {
		if !t.touched[name] {
			t.records[name] = rec
		}
	}
	t.touched = nil
	close(t.ready)
	t.Changed.Notify()
	return nil
}

// Ready is closed when the stored records are read.
func (t *Table[R]) Ready() <-chan struct{} { return t.ready }

// All returns all records by name.
func (t *Table[R]) All() map[string]R {
	t.st.Lock()
	defer t.st.Unlock()
	return maps.Clone(t.records)
}

// Get returns a record.
func (t *Table[R]) Get(name string) (rec R, ok bool) {
	t.st.Lock()
	defer t.st.Unlock()
	rec, ok = t.records[name]
	return rec, ok
}

// Of returns a record as a transaction leaves it.
func (t *Table[R]) Of(tx *state.Tx, name string) (rec R, ok bool) {
	m, changed := state.OtherOf(tx, state.OtherKey(t.kind, name))
	if changed {
		rec, ok = m.(R)
		return rec, ok && m != nil
	}
	rec, ok = t.records[name]
	return rec, ok
}

// Put stores a record in a transaction.
func (t *Table[R]) Put(tx *state.Tx, name string, rec R) error {
	return state.PutOther(tx, state.OtherKey(t.kind, name), rec)
}

// Delete removes a record in a transaction.
func (t *Table[R]) Delete(tx *state.Tx, name string) error {
	return state.DeleteOther(tx, state.OtherKey(t.kind, name))
}

// Room returns an error if the table, with the changes of a transaction, has most records. what is the plural
// of the objects.
func (t *Table[R]) Room(tx *state.Tx, most int, what string) error {
	n := len(t.records)
	for name, m := range state.OthersOf(tx, t.kind) {
		if _, stored := t.records[name]; stored && m == nil {
			n--
		} else if !stored && m != nil {
			n++
		}
	}
	if n >= most {
		return fmt.Errorf("there are %d %s, the most that are allowed: remove one", most, what)
	}
	return nil
}

// NextRevision returns the revision of a record that a transaction stores. It is greater than that of any
// earlier record.
func NextRevision(tx *state.Tx, old int64) int64 { return max(old, tx.State.Revision) + 1 }
