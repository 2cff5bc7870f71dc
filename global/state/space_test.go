package state

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/room"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// fullStore is a store that takes nothing but deletions, as a full etcd does.
type fullStore struct{ store.Store }

func (s fullStore) Txn(ctx context.Context, c []store.Compare, ops []store.Op) (int64, error) {
	for _, op := range ops {
		if !op.Delete {
			return 0, store.ErrFull
		}
	}
	return s.Store.Txn(ctx, c, ops)
}

// TestAFullStoreDeletes: a transaction that only deletes needs no space. Its revision is not shown
// to a later term, since no record contains it.
func TestAFullStoreDeletes(t *testing.T) {
	mem := store.NewMemory()
	puts := []store.Op{store.Put(ClusterKey, []byte("fed")), store.Put(AuditKey(time.Unix(1, 0)), nil), store.Put(idemPrefix+"one", nil)}
	if _, err := mem.Client().Txn(t.Context(), nil, puts); err != nil {
		t.Fatal(err)
	}
	term := beginTraced(t, mem)
	put := term.commit(putRegion("sea"))
	term.st.SetUsage(room.Usage{NoSpace: true})
	full := NewCommitter(term.st, fullStore{term.c}, store.Mod("/none", 0))
	for name, forget := range map[string]func(*Tx) error{
		"audit":   func(tx *Tx) error { return tx.ForgetAudit(AuditKey(time.Now())) },
		"answers": func(tx *Tx) error { return tx.ForgetAnswers([]string{"one"}) },
	} {
		b, _ := full.collect([]commitRequest{commitRequest{prepare: forget, done: make(chan commitResult, 1)}})
		if deleted, err := full.write(t.Context(), b); err != nil || deleted <= put || term.st.Revision != put {
			t.Errorf("%s: revision %d, %v; the state is at %d, want %d", name, deleted, err, term.st.Revision, put)
		}
	}
	term.end()
	next := beginTraced(t, mem)
	defer next.end()
	if got := next.earlier(); got != put {
		t.Errorf("the next term knows revision %d of the earlier one, want %d", got, put)
	}
}

// TestEachStageOfAFillingStoreIsAnEvent: also the stages in which the store refuses something, and their end.
func TestEachStageOfAFillingStoreIsAnEvent(t *testing.T) {
	mem := store.NewMemory()
	if _, err := mem.Client().Txn(t.Context(), nil, []store.Op{store.Put(ClusterKey, []byte("fed"))}); err != nil {
		t.Fatal(err)
	}
	term := beginTraced(t, mem)
	defer term.end()
	var want []string
	for _, inUse := range []int64{60, 72, 73, 91, 96, 60} {
		if text, worse := term.st.SetUsage(room.Usage{InUse: inUse, Quota: 100}); text != "" {
			want = append(want, text)
			if worse != (inUse > 60) {
				t.Errorf("%d %%: worse %t", inUse, worse)
			}
		}
	}
	term.commit(putRegion("sea"))
	events, _, err := term.st.Events.After(t.Context(), 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		if e.GetType() == "store.filling" {
			got = append(got, e.GetMessage())
		}
	}
	if len(got) != 4 || !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	for i, says := range []string{"it takes new jobs up to 90 %", "it refuses new jobs, and", "it refuses new jobs and", "it is no longer filling"} {
		if i < len(got) && !strings.Contains(got[i], says) {
			t.Errorf("event %d: %s", i, got[i])
		}
	}
}

// TestAConflictKeepsTheAudit: before the recovery of the store, only records of the recovery are
// written. No audit record is removed.
func TestAConflictKeepsTheAudit(t *testing.T) {
	committer, gate := committing(t)
	close(gate.gate)
	st := committer.st
	st.Lock()
	st.Leadership = &nusav1.LeadershipRecord{Conflict: &nusav1.RevisionConflict{Known: 9}}
	st.Unlock()
	for name, c := range map[string]struct {
		prepare func(*Tx) error
		want    error
	}{
		"forget":       {func(tx *Tx) error { return tx.ForgetAudit(AuditKey(time.Now())) }, ErrConflict},
		"remove keys":  {func(tx *Tx) error { return tx.set(txChange{key: AuditPrefix, end: AuditPrefix + "1", unchecked: true}) }, ErrConflict},
		"write record": {func(tx *Tx) error { return tx.putUnchecked(AuditPrefix+"1", &nusav1.AuditRecord{}) }, nil},
	} {
		if _, err := committer.Do(t.Context(), c.prepare); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
