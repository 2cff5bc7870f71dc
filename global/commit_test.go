package global

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// gatedStore counts transactions and lets them through one at a time.
type gatedStore struct {
	store.Store
	gate chan struct{}
	mu   sync.Mutex
	txns []int // writes of each
}

func (g *gatedStore) Txn(ctx context.Context, c []store.Compare, ops []store.Op) (int64, error) {
	<-g.gate
	g.mu.Lock()
	g.txns = append(g.txns, len(ops))
	g.mu.Unlock()
	return g.Store.Txn(ctx, c, ops)
}

// committing runs a committer over a gated memory store.
func committing(t *testing.T) (*committer, *gatedStore) {
	t.Helper()
	mem := store.NewMemory().Client()
	t.Cleanup(func() { mem.Close() })
	e, err := mem.Campaign(t.Context(), electionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	g := &gatedStore{Store: mem, gate: make(chan struct{})}
	start := time.Now()
	c := newCommitter(newState("e", func() time.Duration { return time.Since(start) }, time.Second), g, e.Guard())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := e.Resign(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c, g
}

func putRegion(name string) func(*tx) error {
	return func(t *tx) error {
		return t.putRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}})
	}
}

func TestWaitingWritesShareATransaction(t *testing.T) {
	c, g := committing(t)
	var waits []func(context.Context) (int64, error)
	for i := range 50 {
		waits = append(waits, c.begin(putRegion(fmt.Sprintf("r%d", i))))
	}
	refused := errors.New("refused")
	bad := c.begin(func(t *tx) error {
		if err := putRegion("half")(t); err != nil {
			return err
		}
		return refused // after a change: it must not be written
	})
	close(g.gate)
	for i, wait := range waits {
		if _, err := wait(t.Context()); err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if _, err := bad(t.Context()); !errors.Is(err, refused) {
		t.Errorf("the refused one: %v", err)
	}
	if len(g.txns) > 3 {
		t.Errorf("%d transactions for what waited together: %v", len(g.txns), g.txns)
	}
	if _, ok, _, err := g.Get(t.Context(), regionKey("half")); ok || err != nil {
		t.Errorf("a refused request wrote: %v %v", ok, err)
	}
	c.st.mu.Lock()
	defer c.st.mu.Unlock()
	if len(c.st.regions) != 50 {
		t.Errorf("the state has %d regions", len(c.st.regions))
	}
}

func TestTransactionsAreBounded(t *testing.T) {
	c, g := committing(t)
	const n = 3 * store.MaxTxnOps
	var waits []func(context.Context) (int64, error)
	for i := range n {
		waits = append(waits, c.begin(putRegion(fmt.Sprintf("r%d", i))))
	}
	big := &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "big", Description: strings.Repeat("x", 900*1024)}}
	for i := range 4 {
		waits = append(waits, c.begin(func(t *tx) error { return t.putRegion(fmt.Sprintf("big%d", i), big) }))
	}
	huge := proto.CloneOf(big)
	huge.Definition.Description = strings.Repeat("x", 2<<20)
	tooLarge := c.begin(func(t *tx) error { return t.putRegion("huge", huge) })
	close(g.gate)
	for i, wait := range waits {
		if _, err := wait(t.Context()); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	if _, err := tooLarge(t.Context()); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("2 MiB: %v", err)
	}
	for _, ops := range g.txns {
		if ops > commitOps {
			t.Errorf("a transaction of %d writes", ops)
		}
	}
}

func TestQueueIsBounded(t *testing.T) {
	c, g := committing(t)
	full := 0
	var waits []func(context.Context) (int64, error)
	for i := range commitQueue + store.MaxTxnOps + 10 {
		waits = append(waits, c.begin(putRegion(fmt.Sprintf("r%d", i))))
	}
	close(g.gate)
	for _, wait := range waits {
		if _, err := wait(t.Context()); errors.Is(err, errQueueFull) {
			full++
		}
	}
	if full == 0 {
		t.Error("the queue took everything")
	}
}

// TestBatchIsBounded: requests that write nothing new do not keep a
// transaction open for ever.
func TestBatchIsBounded(t *testing.T) {
	c, g := committing(t)
	var waits []func(context.Context) (int64, error)
	for range commitRequests + 2 {
		waits = append(waits, c.begin(putRegion("same")))
	}
	close(g.gate)
	for i, wait := range waits {
		if _, err := wait(t.Context()); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	if len(g.txns) < 2 {
		t.Errorf("%d requests shared one transaction", len(waits))
	}
}

// TestForeignWriteEndsTheReign: what somebody else wrote is never overwritten.
func TestForeignWriteEndsTheReign(t *testing.T) {
	c, g := committing(t)
	close(g.gate)
	if _, err := c.do(t.Context(), putRegion("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Store.Txn(t.Context(), nil, []store.Op{store.Put(regionKey("a"), []byte("foreign"))}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.do(t.Context(), putRegion("a")); !errors.Is(err, store.ErrCompareFailed) {
		t.Errorf("over a foreign write: %v", err)
	}
	<-c.ended
	if _, err := c.do(t.Context(), putRegion("b")); !errors.Is(err, errNotActive) {
		t.Errorf("after the end: %v", err)
	}
}

// TestOverlay: requests of one transaction see one another's changes.
func TestOverlay(t *testing.T) {
	c, g := committing(t)
	k := jobKey{"default", "api"}
	blocker := c.begin(putRegion("first")) // holds the committer while the rest gathers
	spec := testJob("api", 1)
	var one, two *nusav1.SubmitResponse
	submit := func(to **nusav1.SubmitResponse) func(*tx) error {
		return func(t *tx) (err error) {
			*to, err = t.submit(k, &nusav1.SubmitRequest{Spec: spec}, nil)
			return err
		}
	}
	a := c.begin(submit(&one))
	stop := c.begin(func(t *tx) error {
		rec, _ := t.job(k)
		if rec == nil {
			return errors.New("the job is not seen")
		}
		return t.deleteJob(k)
	})
	b := c.begin(submit(&two))
	close(g.gate)
	for i, wait := range []func(context.Context) (int64, error){blocker, a, stop, b} {
		if _, err := wait(t.Context()); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if one.GetVersion() != 1 || two.GetVersion() != 1 {
		t.Errorf("versions %d and %d; the second comes after a removal", one.GetVersion(), two.GetVersion())
	}
	if _, ok, _, err := g.Get(t.Context(), k.record()); !ok || err != nil {
		t.Errorf("the job is not stored: %v", err)
	}
}
