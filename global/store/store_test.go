package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/global/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend is one implementation under test.
type backend struct {
	// client opens another connection to the same store.
	client func(t *testing.T) store.Store
	// compact drops the history up to a revision.
	compact func(t *testing.T, revision int64)
}

func TestMemory(t *testing.T) {
	t.Parallel()
	contract(t, func(t *testing.T) backend {
		m := store.NewMemory()
		return backend{
			client: func(t *testing.T) store.Store {
				c := m.Client()
				t.Cleanup(func() { c.Close() })
				return c
			},
			compact: func(_ *testing.T, rev int64) { m.Compact(rev) },
		}
	})
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	contract(t, func(t *testing.T) backend {
		member, err := store.OpenEtcd(t.Context(), store.EtcdConfig{
			Name: "one", DataDir: t.TempDir(), ClientAddr: "127.0.0.1:0", PeerAddr: "127.0.0.1:0",
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { member.Close() })
		first := true
		open := func(t *testing.T) *store.Etcd {
			e, err := store.OpenEtcd(t.Context(), store.EtcdConfig{
				Endpoints: []string{member.ClientAddr()}, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { e.Close() })
			return e
		}
		return backend{
			// The first client is the member's own, the others connect over a
			// socket.
			client: func(t *testing.T) store.Store {
				if first {
					first = false
					return member
				}
				return open(t)
			},
			compact: func(t *testing.T, rev int64) {
				if err := member.CompactTo(t.Context(), rev); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// contract tests what both implementations must do. One store serves all cases;
// each case has a prefix of its own.
func contract(t *testing.T, open func(t *testing.T) backend) {
	b := open(t)
	s := b.client(t)
	for _, c := range []struct {
		name string
		run  func(t *testing.T, b backend, s store.Store)
	}{
		{"revisions", testRevisions},
		{"compare", testCompare},
		{"list", testList},
		{"ranges", testDeleteRange},
		{"limits", testLimits},
		{"expiry", testExpiry},
		{"watch", testWatch},
		{"compacted", testCompacted},
		{"surplus", testSurplus},
		{"raise", testRaise},
		{"election", testElection},
		{"election lost", testElectionLost},
		{"election key removed", testElectionKeyRemoved},
		{"deadline", testDeadline},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, b, s) })
	}
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func get(t *testing.T, s store.Store, key string) (store.KV, bool) {
	t.Helper()
	kv, ok, _, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return kv, ok
}

func testRevisions(t *testing.T, _ backend, s store.Store) {
	ctx := t.Context()
	r1 := must(s.Txn(ctx, nil, []store.Op{store.Put("/rev/a", []byte("1")), store.Put("/rev/b", []byte("2"))}))(t)
	r2 := must(s.Txn(ctx, nil, []store.Op{store.Put("/rev/a", []byte("3"))}))(t)
	if r2 <= r1 {
		t.Fatalf("revision went from %d to %d", r1, r2)
	}
	a, _ := get(t, s, "/rev/a")
	if string(a.Value) != "3" || a.CreateRevision != r1 || a.ModRevision != r2 {
		t.Errorf("a = %+v, want value 3, created %d, modified %d", a, r1, r2)
	}
	must(s.Txn(ctx, nil, []store.Op{store.Delete("/rev/a"), store.Delete("/rev/none")}))(t)
	if _, ok := get(t, s, "/rev/a"); ok {
		t.Error("a is still there after its removal")
	}
	r4 := must(s.Txn(ctx, nil, []store.Op{store.Put("/rev/a", nil)}))(t)
	if a, _ := get(t, s, "/rev/a"); a.CreateRevision != r4 || len(a.Value) != 0 {
		t.Errorf("created again: %+v, want created %d and empty", a, r4)
	}
}

func testCompare(t *testing.T, _ backend, s store.Store) {
	ctx := t.Context()
	rev := must(s.Txn(ctx, []store.Compare{store.Mod("/cmp/a", 0)}, []store.Op{store.Put("/cmp/a", []byte("1"))}))(t)
	for name, cmp := range map[string]store.Compare{
		"must not exist":  store.Mod("/cmp/a", 0),
		"not created yet": store.Create("/cmp/a", 0),
		"older write":     store.Mod("/cmp/a", rev-1),
		"missing key":     store.Mod("/cmp/none", rev),
	} {
		_, err := s.Txn(ctx, []store.Compare{store.Mod("/cmp/a", rev), cmp}, []store.Op{store.Put("/cmp/b", nil)})
		if !errors.Is(err, store.ErrCompareFailed) {
			t.Errorf("%s: %v, want ErrCompareFailed", name, err)
		}
	}
	if _, ok := get(t, s, "/cmp/b"); ok {
		t.Error("a refused transaction wrote")
	}
	must(s.Txn(ctx, []store.Compare{store.Mod("/cmp/a", rev), store.Create("/cmp/a", rev)}, []store.Op{store.Put("/cmp/b", nil)}))(t)
}

func testList(t *testing.T, _ backend, s store.Store) {
	const n = 6*store.PageSize + 7 // three pages, each longer than the one before
	for from := 0; from < n; from += store.MaxTxnOps {
		var ops []store.Op
		for i := from; i < min(n, from+store.MaxTxnOps); i++ {
			ops = append(ops, store.Put(fmt.Sprintf("/list/k%05d", i), []byte{byte(i)}))
		}
		must(s.Txn(t.Context(), nil, ops))(t)
	}
	must(s.Txn(t.Context(), nil, []store.Op{store.Put("/list", nil), store.Put("/list0", nil)}))(t)
	i := 0
	rev, err := s.List(t.Context(), "/list/", func(kv store.KV) error {
		if want := fmt.Sprintf("/list/k%05d", i); kv.Key != want {
			return fmt.Errorf("key %d is %s, want %s", i, kv.Key, want)
		}
		if i == 3 { // a write while listing must not be seen
			must(s.Txn(t.Context(), nil, []store.Op{store.Delete(fmt.Sprintf("/list/k%05d", n-1))}))(t)
		}
		i++
		return nil
	})
	if err != nil || i != n {
		t.Fatalf("%d keys, want %d; %v", i, n, err)
	}
	if _, _, now, _ := s.Get(t.Context(), "/list"); now <= rev {
		t.Errorf("list is as of %d, but the store is at %d after another write", rev, now)
	}
	boom := errors.New("boom")
	if _, err := s.List(t.Context(), "/list/", func(store.KV) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("visit's error was returned as %v", err)
	}
	var some []string
	must(s.Range(t.Context(), "/list/k00003", "/list/k00006", func(kv store.KV) error {
		some = append(some, kv.Key)
		return nil
	}))(t)
	if got := strings.Join(some, " "); got != "/list/k00003 /list/k00004 /list/k00005" {
		t.Errorf("the range has %s", got)
	}
}

// testDeleteRange: a transaction deletes the keys from r/b up to but not including r/c, and makes
// another change.
func testDeleteRange(t *testing.T, _ backend, s store.Store) {
	for _, key := range []string{"r/a", "r/b", "r/bb", "r/c"} {
		must(s.Txn(t.Context(), nil, []store.Op{store.Put(key, nil)}))(t)
	}
	must(s.Txn(t.Context(), nil, []store.Op{store.DeleteRange("r/b", "r/c"), store.Put("r/d", nil)}))(t)
	var left []string
	must(s.List(t.Context(), "r/", func(kv store.KV) error {
		left = append(left, kv.Key)
		return nil
	}))(t)
	if got := strings.Join(left, " "); got != "r/a r/c r/d" {
		t.Errorf("left: %s", got)
	}
}

func testLimits(t *testing.T, _ backend, s store.Store) {
	if s.MaxOps() < store.MaxTxnOps {
		t.Errorf("a transaction takes %d operations, not %d", s.MaxOps(), store.MaxTxnOps)
	}
	many := make([]store.Op, s.MaxOps()+1)
	for i := range many {
		many[i] = store.Put(fmt.Sprintf("/limit/%d", i), nil)
	}
	if _, err := s.Txn(t.Context(), nil, many); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("%d ops: %v", len(many), err)
	}
	must(s.Txn(t.Context(), nil, many[1:]))(t)
	big := bytes.Repeat([]byte("x"), store.MaxTxnBytes)
	if _, err := s.Txn(t.Context(), nil, []store.Op{store.Put("/limit/big", big)}); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("too many bytes: %v", err)
	}
	must(s.Txn(t.Context(), nil, []store.Op{store.Put("/limit/big", big[:store.MaxTxnBytes-100])}))(t)
	if kv, _ := get(t, s, "/limit/big"); len(kv.Value) != store.MaxTxnBytes-100 {
		t.Errorf("%d bytes came back", len(kv.Value))
	}
	if _, err := s.Txn(t.Context(), nil, []store.Op{store.Put("/limit/a", nil), store.Delete("/limit/a")}); err == nil {
		t.Error("one key written twice was accepted")
	}
}

func testExpiry(t *testing.T, _ backend, s store.Store) {
	rev := must(s.Txn(t.Context(), nil, []store.Op{
		store.PutTTL("/ttl/gone", []byte("1"), time.Second), store.PutTTL("/ttl/kept", nil, time.Second), store.PutTTL("/ttl/long", nil, time.Hour),
	}))(t)
	must(s.Txn(t.Context(), nil, []store.Op{store.Put("/ttl/kept", []byte("for ever"))}))(t)
	// A watch receives the deletion, and no other key of the prefix expires.
	events := make(chan store.Event, 16)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Watch(ctx, "/ttl/", rev+1, sendTo(events)) }()
	select {
	case e := <-events:
		if e.Key != "/ttl/gone" || !e.Deleted {
			t.Errorf("first event %+v, want the removal of /ttl/gone", e)
		}
	case <-ctx.Done():
		t.Error("the key did not expire")
	}
	cancel()
	<-done
	if _, ok := get(t, s, "/ttl/kept"); !ok {
		t.Error("a later write without ttl did not keep the key")
	}
	if _, ok := get(t, s, "/ttl/long"); !ok {
		t.Error("a key with a long ttl is gone")
	}
}

func sendTo(ch chan store.Event) func([]store.Event) error {
	return func(events []store.Event) error {
		for _, e := range events {
			ch <- e
		}
		return nil
	}
}

func testWatch(t *testing.T, b backend, s store.Store) {
	other := b.client(t)
	rev := must(s.Txn(t.Context(), nil, []store.Op{store.Put("/watch/a", []byte("before"))}))(t)
	must(s.Txn(t.Context(), nil, []store.Op{store.Put("/watch/a", []byte("1"))}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	events := make(chan store.Event, 16)
	done := make(chan error, 1)
	go func() { done <- other.Watch(ctx, "/watch/", rev, sendTo(events)) }()
	must(s.Txn(t.Context(), nil, []store.Op{store.Put("/watched/no", nil)}))(t)
	last := must(s.Txn(t.Context(), nil, []store.Op{store.Put("/watch/b", []byte("2")), store.Delete("/watch/a")}))(t)
	var got []string
	for len(got) < 3 {
		e := <-events
		got = append(got, fmt.Sprintf("%s=%s %v", e.Key, e.Value, e.Deleted))
		if e.Deleted && e.ModRevision != last {
			t.Errorf("removal at %d, want %d", e.ModRevision, last)
		}
	}
	// Within one revision the store decides the order.
	if got[1] > got[2] {
		got[1], got[2] = got[2], got[1]
	}
	if want := "/watch/a=1 false, /watch/a= true, /watch/b=2 false"; strings.Join(got, ", ") != want {
		t.Errorf("events %q, want %q", got, want)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("watch ended with %v", err)
	}
}

func testCompacted(t *testing.T, b backend, s store.Store) {
	first := must(s.Txn(t.Context(), nil, []store.Op{store.Put("/compact/a", nil)}))(t)
	must(s.Txn(t.Context(), nil, []store.Op{store.Put("/compact/a", nil)}))(t)
	last := must(s.Txn(t.Context(), nil, []store.Op{store.Put("/compact/a", nil)}))(t)
	b.compact(t, last)
	err := s.Watch(t.Context(), "/compact/", first-1, func([]store.Event) error { return nil })
	if !errors.Is(err, store.ErrCompacted) {
		t.Fatalf("watch from a compacted revision: %v, want ErrCompacted", err)
	}
}

func testElection(t *testing.T, b backend, s store.Store) {
	ctx := t.Context()
	if _, ok, err := s.Leader(ctx, "/elect/"); ok || err != nil {
		t.Fatalf("a leader before the first campaign: %v %v", ok, err)
	}
	one := must(s.Campaign(ctx, "/elect/", "one", 10*time.Second))(t)
	leader, ok, err := s.Leader(ctx, "/elect/")
	if !ok || err != nil || string(leader.Value) != "one" {
		t.Fatalf("leader %q %v %v, want one", leader.Value, ok, err)
	}
	must(s.Txn(ctx, []store.Compare{one.Guard()}, []store.Op{store.Put("/elected/by", []byte("one"))}))(t)

	type result struct {
		e   store.Election
		err error
	}
	second := make(chan result, 1)
	other := b.client(t)
	go func() {
		e, err := other.Campaign(ctx, "/elect/", "two", 10*time.Second)
		second <- result{e, err}
	}()
	// A third candidate that gives up leaves no key behind.
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	if _, err := b.client(t).Campaign(short, "/elect/", "three", 10*time.Second); err == nil {
		t.Error("two are elected")
	}
	cancel()
	select {
	case r := <-second:
		t.Fatalf("two are elected: %v", r)
	default:
	}
	if err := one.Renew(ctx); err != nil {
		t.Errorf("the elected candidate cannot renew: %v", err)
	}
	if err := one.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	if err := one.Renew(ctx); err == nil {
		t.Error("a candidate that resigned can renew")
	}
	two := <-second
	if two.err != nil {
		t.Fatal(two.err)
	}
	<-one.Lost()
	if _, err := s.Txn(ctx, []store.Compare{one.Guard()}, []store.Op{store.Put("/elected/by", []byte("one"))}); !errors.Is(err, store.ErrCompareFailed) {
		t.Errorf("the predecessor still writes: %v", err)
	}
	if leader, _, _ := s.Leader(ctx, "/elect/"); string(leader.Value) != "two" {
		t.Errorf("leader is %q, want two", leader.Value)
	}
	if err := two.e.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	if kv, ok, _ := s.Leader(ctx, "/elect/"); ok {
		t.Errorf("%q leads after all resigned", kv.Value)
	}
}

func testElectionLost(t *testing.T, b backend, s store.Store) {
	other := b.client(t)
	one := must(other.Campaign(t.Context(), "/elect2/", "one", 2*time.Second))(t)
	other.Close() // the process died without resigning
	<-one.Lost()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	two := must(s.Campaign(ctx, "/elect2/", "two", 10*time.Second))(t)
	if _, err := s.Txn(ctx, []store.Compare{one.Guard()}, nil); !errors.Is(err, store.ErrCompareFailed) {
		t.Errorf("the dead holder's guard still holds: %v", err)
	}
	if err := two.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := other.Get(t.Context(), "/x"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("a closed store returned %v", err)
	}
}

// testElectionKeyRemoved: a restarted server removes the election key of its former process. A
// candidate whose key was removed cannot renew, although its etcd lease continues.
func testElectionKeyRemoved(t *testing.T, b backend, s store.Store) {
	ctx, other := t.Context(), b.client(t)
	one := must(s.Campaign(ctx, "/elect3/", "one", 10*time.Second))(t)
	if err := one.Renew(ctx); err != nil {
		t.Fatal(err)
	}
	must(other.Txn(ctx, nil, []store.Op{store.Delete(one.Guard().Key)}))(t)
	if err := one.Renew(ctx); !errors.Is(err, store.ErrCompareFailed) {
		t.Errorf("a candidate without a key renews: %v, want ErrCompareFailed", err)
	}
	two := must(other.Campaign(ctx, "/elect3/", "two", 10*time.Second))(t)
	// The same key again does not make the first candidate the elected one.
	must(other.Txn(ctx, nil, []store.Op{store.Put(one.Guard().Key, []byte("forged"))}))(t)
	if err := one.Renew(ctx); !errors.Is(err, store.ErrCompareFailed) {
		t.Errorf("a candidate renews a key that another one wrote: %v, want ErrCompareFailed", err)
	}
	must(other.Txn(ctx, nil, []store.Op{store.Delete(one.Guard().Key)}))(t)
	if err := two.Renew(ctx); err != nil {
		t.Errorf("the elected candidate cannot renew: %v", err)
	}
	for _, e := range []store.Election{one, two} {
		if err := e.Resign(ctx); err != nil {
			t.Error(err)
		}
	}
}

func testDeadline(t *testing.T, _ backend, s store.Store) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if _, err := s.Txn(ctx, nil, []store.Op{store.Put("/deadline", nil)}); !errors.Is(err, store.ErrNoQuorum) {
		t.Errorf("a passed deadline returned %v, want ErrNoQuorum", err)
	}
}

// TestMemberStartAndStopLogNothing: an orderly start and stop of a member logs
// no warning.
func TestMemberStartAndStopLogNothing(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer // slog's handlers lock their writer
	e, err := store.OpenEtcd(t.Context(), store.EtcdConfig{
		Name: "one", DataDir: t.TempDir(), ClientAddr: "127.0.0.1:0", PeerAddr: "127.0.0.1:0",
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if log.Len() > 0 {
		t.Errorf("logged:\n%s", log.String())
	}
}

func TestCutClientLosesLeadership(t *testing.T) {
	m := store.NewMemory()
	c, other := m.Client(), m.Client()
	defer c.Close()
	defer other.Close()
	e := must(c.Campaign(t.Context(), "/e/", "c", 300*time.Millisecond))(t)
	c.Cut(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, _, err := c.Get(ctx, "/x"); !errors.Is(err, store.ErrNoQuorum) {
		t.Errorf("cut off: %v, want ErrNoQuorum", err)
	}
	<-e.Lost()
	two := must(other.Campaign(t.Context(), "/e/", "other", time.Second))(t)
	c.Cut(false)
	if _, err := c.Txn(t.Context(), []store.Compare{e.Guard()}, nil); !errors.Is(err, store.ErrCompareFailed) {
		t.Errorf("reconnected, the old guard: %v", err)
	}
	if err := two.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
}
