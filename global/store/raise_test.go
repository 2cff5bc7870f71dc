package store_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/store"
)

// testRaise: after a raise all revisions are greater than the given one. The revisions of earlier
// writes stay as they were. The cases after this one run with raised revisions.
func testRaise(t *testing.T, b backend, s store.Store) {
	ctx := t.Context()
	first := must(s.Txn(ctx, nil, []store.Op{store.Put("/raise/a", []byte("1"))}))(t)
	one := must(s.Campaign(ctx, "/raisers/", "one", 10*time.Second))(t)
	standby := b.client(t)
	above := first + 1_000_000
	put := []store.Op{store.Put("/raise/b", nil)}
	if _, err := s.Raise(ctx, above, []store.Compare{store.Mod("/raise/a", first-1)}, put); !errors.Is(err, store.ErrCompareFailed) {
		t.Errorf("raised although a compare fails: %v", err)
	}
	if _, ok := get(t, s, "/raise/b"); ok {
		t.Error("a refused raise wrote")
	}
	last := must(s.Txn(ctx, []store.Compare{one.Guard()}, []store.Op{store.Put("/raise/c", nil)}))(t)
	if last >= above {
		t.Errorf("a refused raise has raised: %d", last)
	}
	rev := must(s.Raise(ctx, above, []store.Compare{one.Guard()}, put))(t)
	if rev <= above {
		t.Fatalf("raised to %d, want more than %d", rev, above)
	}
	if a, _ := get(t, s, "/raise/a"); a.ModRevision != first || a.CreateRevision != first {
		t.Errorf("a changed from revision %d to %+v", first, a)
	}
	if b, _ := get(t, s, "/raise/b"); b.ModRevision != rev || b.CreateRevision != rev {
		t.Errorf("b has %+v, was written at %d", b, rev)
	}
	for name, cmp := range map[string]store.Compare{
		"passed over": store.Mod("/raise/b", above), "before the raise": store.Mod("/raise/b", last+1), "none": store.Mod("/raise/b", 0),
	} {
		if _, err := s.Txn(ctx, []store.Compare{cmp}, put); !errors.Is(err, store.ErrCompareFailed) {
			t.Errorf("compare with a revision %s: %v, want ErrCompareFailed", name, err)
		}
	}
	next := must(s.Txn(ctx, []store.Compare{store.Mod("/raise/a", first), store.Create("/raise/b", rev), one.Guard()}, []store.Op{store.Delete("/raise/c")}))(t)
	if listed := must(s.List(ctx, "/raise/", func(store.KV) error { return nil }))(t); next <= rev || listed < next {
		t.Errorf("a write after %d is at %d, a list at %d", rev, next, listed)
	}
	if err := one.Renew(ctx); err != nil {
		t.Errorf("renew after the raise: %v", err)
	}
	testWatchOverRaise(t, s, last, above, rev, next)
	if err := one.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	two := must(standby.Campaign(ctx, "/raisers/", "two", 10*time.Second))(t)
	later := must(standby.Txn(ctx, []store.Compare{two.Guard()}, put))(t)
	if two.Guard().Revision <= next || later <= two.Guard().Revision {
		t.Errorf("the next leader has the key %d and writes at %d, after %d", two.Guard().Revision, later, next)
	}
	if again := must(standby.Raise(ctx, later-5, []store.Compare{two.Guard()}, nil))(t); again <= later {
		t.Errorf("raised from %d to %d", later, again)
	}
	if _, _, now, err := b.client(t).Get(ctx, "/raise/b"); now <= later || err != nil {
		t.Errorf("another client sees revision %d, %v", now, err)
	}
	if err := two.Resign(ctx); err != nil {
		t.Fatal(err)
	}
}

// testWatchOverRaise: a watch sees each change once, also if it began before the raise or at a
// revision that the raise passed over.
func testWatchOverRaise(t *testing.T, s store.Store, last, above, rev, next int64) {
	for name, tc := range map[string]struct {
		after int64
		want  []int64
	}{"before the raise": {last - 1, []int64{last, rev, next}}, "passed over": {above - 1, []int64{rev, next}}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var got []int64
		_ = s.Watch(ctx, "/raise/", tc.after, func(events []store.Event) error {
			for _, e := range events {
				got = append(got, e.ModRevision)
			}
			if len(got) == len(tc.want) {
				cancel()
			}
			return nil
		})
		cancel()
		if !slices.Equal(got, tc.want) {
			t.Errorf("watch from %s: %v, want %v", name, got, tc.want)
		}
	}
}
