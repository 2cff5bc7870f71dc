package state

import (
	"context"
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

// TestATermKnowsTheRevisionsOfEarlierOnes: the greatest revision that an earlier term wrote is
// known exactly, also if the transaction only deleted records. What candidates write between two
// terms does not count. So a copy of the store that lacks only the latest transactions shows.
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
	if got := second.st.Sessions.Earlier; got != put {
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
	if got := third.st.Sessions.Earlier; got != deleted {
		t.Errorf("the second term wrote %d last, the third one knows %d", deleted, got)
	}
	third.commit(func(tx *Tx) error { // as a server does that knows no traces
		return tx.PutLeadership(func(rec *nusav1.LeadershipRecord) { rec.TracedTerm-- })
	})
	third.end()
	fourth := beginTraced(t, mem)
	if got := fourth.st.Sessions.Earlier; got != fourth.st.Revision-1 {
		t.Errorf("a term without traces wrote at most %d, known is %d", fourth.st.Revision-1, got)
	}
	fourth.end()
}
