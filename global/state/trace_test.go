package state

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// tracedTerm is one term over a store.
type tracedTerm struct {
	c      store.Store
	st     *State
	commit func(func(*Tx) error) int64
	end    func()
}

func beginTraced(t *testing.T, mem *store.Memory) *tracedTerm {
	t.Helper()
	c := mem.Client()
	e, err := c.Campaign(t.Context(), ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	begin, err := BeginTerm(t.Context(), c, Elected{Guard: e.Guard(), Federation: "fed", Lease: time.Second, Candidacy: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	st := New(begin, func() time.Duration { return 0 })
	if err := st.Load(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	committer := NewCommitter(st, c, e.Guard())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = committer.Run(ctx)
	}()
	return &tracedTerm{c: c, st: st, commit: func(f func(*Tx) error) int64 {
		t.Helper()
		revision, err := committer.Do(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}, end: func() {
		cancel()
		<-done
		if err := e.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		c.Close()
	}}
}

// earlier returns the greatest revision that an earlier term wrote, as far as the term knows.
func (t *tracedTerm) earlier() int64 {
	terms := t.st.Sessions.Terms
	return terms[len(terms)-1].Earlier
}

// TestATermKnowsTheRevisionsOfEarlierOnes: a term knows exactly the greatest revision that an
// earlier term wrote, also if the transaction only deleted records. Writes of candidates between
// two terms do not count. So a copy of the store that lacks only the latest transactions is
// noticed.
func TestATermKnowsTheRevisionsOfEarlierOnes(t *testing.T) {
	mem := store.NewMemory()
	c := mem.Client()
	defer c.Close()
	if _, err := c.Txn(t.Context(), nil, []store.Op{store.Put(ClusterKey, []byte("fed"))}); err != nil {
		t.Fatal(err)
	}
	first := beginTraced(t, mem)
	put := first.commit(putRegion("sea"))
	first.end()

	second := beginTraced(t, mem)
	if got := second.earlier(); got != put {
		t.Errorf("the first term wrote %d last, the second one knows %d", put, got)
	}
	if second.st.Revision != second.st.leadershipRevision {
		t.Errorf("the term begins at revision %d, it has written %d", second.st.Revision, second.st.leadershipRevision)
	}
	deleted := second.commit(func(tx *Tx) error { return tx.DeleteRegion("sea") })
	if second.st.leadershipRevision != deleted {
		t.Errorf("the record of the term has revision %d, the transaction that only deleted %d", second.st.leadershipRevision, deleted)
	}
	second.end()

	third := beginTraced(t, mem)
	if got := third.earlier(); got != deleted {
		t.Errorf("the second term wrote %d last, the third one knows %d", deleted, got)
	}
	third.commit(func(tx *Tx) error { // like a server that does not know traces
		return tx.PutLeadership(func(rec *nusav1.LeadershipRecord) { rec.TracedTerm-- })
	})
	third.end()
	fourth := beginTraced(t, mem)
	if got := fourth.earlier(); got != fourth.st.Revision-1 {
		t.Errorf("a term without traces wrote at most %d, known is %d", fourth.st.Revision-1, got)
	}
	fourth.end()
}

// TestATermKnowsWhatEachEarlierOneWrote: the record of a term says what each earlier term wrote,
// also of terms that wrote only their beginning. A region that knows a later revision of such a
// term shows that the store was restored from an old copy, although later terms have reached that
// revision again. After a recovery the store is beyond all these revisions.
func TestATermKnowsWhatEachEarlierOneWrote(t *testing.T) {
	mem := store.NewMemory()
	c := mem.Client()
	defer c.Close()
	if _, err := c.Txn(t.Context(), nil, []store.Op{store.Put(ClusterKey, []byte("fed"))}); err != nil {
		t.Fatal(err)
	}
	want := []int64{0}
	for _, name := range []string{"sea", "", "", "tokyo", "seoul", ""} {
		term := beginTraced(t, mem)
		if name == "" {
			want = append(want, term.st.Revision)
		} else {
			term.commit(putRegion(name))
			want = append(want, term.commit(putRegion(name+"2")))
		}
		term.end()
	}
	last := beginTraced(t, mem)
	var got []int64
	for _, b := range last.st.Sessions.Terms {
		got = append(got, b.Earlier)
	}
	if !slices.Equal(got, want) {
		t.Errorf("before the terms began the greatest revisions were %d, known are %d", want, got)
	}
	last.commit(func(tx *Tx) error { return tx.PutConflict(&nusav1.RevisionConflict{Known: 500}) })
	last.commit((*Tx).Recover)
	last.end()
	recovered := beginTraced(t, mem)
	if terms := recovered.st.Sessions.Terms; len(terms) != 1 || terms[0].Earlier < 500 {
		t.Errorf("after the recovery %v is known of earlier terms", terms)
	}
	recovered.end()
}

// TestATermBeginsBeforeItsHistoryIsRead only if each transaction of the term before has left its
// revision outside the history.
func TestATermBeginsBeforeItsHistoryIsRead(t *testing.T) {
	mem := store.NewMemory()
	c := mem.Client()
	defer c.Close()
	if _, err := c.Txn(t.Context(), nil, []store.Op{store.Put(ClusterKey, []byte("fed"))}); err != nil {
		t.Fatal(err)
	}
	k := JobKey{"default", "old"}
	depart := func(tx *Tx) error { // a transaction that only puts a record of the history
		e, _ := tx.State.History.Get(k.String())
		return tx.set(txChange{key: k.historyKey(), msg: &nusav1.HistoryRecord{}, known: e.Revision})
	}
	first := beginTraced(t, mem)
	first.commit(depart)
	last := first.commit(depart)
	first.end()

	second := beginTraced(t, mem)
	if !second.st.History.Unread() || second.earlier() != last {
		t.Errorf("unread %t; the first term wrote %d last, known is %d", second.st.History.Unread(), last, second.earlier())
	}
	if err := ReadHistory(t.Context(), second.st, second.c); err != nil {
		t.Fatal(err)
	}
	if second.st.History.Unread() || !InHistory(second.st, k) {
		t.Errorf("the history was read: unread %t, it has the job: %t", second.st.History.Unread(), InHistory(second.st, k))
	}
	second.end()

	third := beginTraced(t, mem) // the second term wrote nothing but its beginning
	if third.st.History.Unread() || !InHistory(third.st, k) || third.earlier() != second.st.Revision {
		t.Errorf("unread %t; known is %d, written was %d", third.st.History.Unread(), third.earlier(), second.st.Revision)
	}
	third.commit(depart)
	third.commit(func(tx *Tx) error { // like a server that does not know this field
		return tx.PutLeadership(func(rec *nusav1.LeadershipRecord) { rec.HistoryTracedTerm-- })
	})
	third.end()
	fourth := beginTraced(t, mem)
	if fourth.st.History.Unread() {
		t.Error("a term after one without such traces does not read the history first")
	}
	fourth.end()
}
