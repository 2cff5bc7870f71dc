package repair

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// lateStore calls later after each Get, before the reader has the answer.
type lateStore struct {
	store.Store
	later func()
}

func (s *lateStore) Get(ctx context.Context, key string) (store.KV, bool, int64, error) {
	kv, found, revision, err := s.Store.Get(ctx, key)
	s.later()
	return kv, found, revision, err
}

// TestRemovedMeanwhile: a record that is removed after the comparison has read it stays removed.
func TestRemovedMeanwhile(t *testing.T) {
	mem := store.NewMemory().Client()
	t.Cleanup(func() { mem.Close() })
	e, err := mem.Campaign(t.Context(), state.ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	commit := state.NewCommitter(st, mem, e.Guard())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = commit.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := e.Resign(context.Background()); err != nil {
			t.Error(err)
		}
	})
	change := func(f func(*state.Tx) error) {
		t.Helper()
		if _, err := commit.Do(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	change(func(tx *state.Tx) error {
		return tx.PutRegion("alpha", &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "alpha"}})
	})
	late := &lateStore{Store: mem}
	late.later = func() {
		late.later = func() {}
		change(func(tx *state.Tx) error { return tx.DeleteRegion("alpha") })
	}
	r := New(Config{State: st, Commit: commit, Store: late, Observe: func(string, string) {}, Log: slog.New(slog.DiscardHandler)})
	out := r.result("")
	if err := r.examine(t.Context(), state.RegionPrefix+"alpha", out); err != nil {
		t.Fatal(err)
	}
	st.Lock()
	defer st.Unlock()
	if st.Regions["alpha"] != nil || len(out.out.GetRepairs()) > 0 {
		t.Errorf("a removed region is there again: %v", out.out.GetRepairs())
	}
}
