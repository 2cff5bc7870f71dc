package state

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// gatedStore counts transactions, and holds each one until the gate opens.
type gatedStore struct {
	store.Store
	gate chan struct{}
	// held counts the transactions that have come to the gate.
	held atomic.Int32
	mu   sync.Mutex
	txns []int // number of writes in each
}

func (g *gatedStore) Txn(ctx context.Context, c []store.Compare, ops []store.Op) (int64, error) {
	g.held.Add(1)
	<-g.gate
	g.mu.Lock()
	g.txns = append(g.txns, len(ops))
	g.mu.Unlock()
	return g.Store.Txn(ctx, c, ops)
}

// committing runs a committer over a gated memory store.
func committing(t *testing.T) (*Committer, *gatedStore) {
	t.Helper()
	mem := store.NewMemory().Client()
	t.Cleanup(func() { mem.Close() })
	e, err := mem.Campaign(t.Context(), ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	g := &gatedStore{Store: mem, gate: make(chan struct{})}
	start := time.Now()
	c := NewCommitter(New(Beginning{Epoch: "e"}, func() time.Duration { return time.Since(start) }), g, e.Guard())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
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

func putRegion(name string) func(*Tx) error {
	return func(t *Tx) error {
		return t.PutRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}})
	}
}

func TestWaitingWritesShareATransaction(t *testing.T) {
	c, g := committing(t)
	var waits []func(context.Context) (int64, error)
	for i := range 50 {
		waits = append(waits, c.Submit(putRegion(fmt.Sprintf("r%d", i))))
	}
	refused := errors.New("refused")
	bad := c.Submit(func(t *Tx) error {
		if err := putRegion("half")(t); err != nil {
			return err
		}
		return refused // refused after a change: the change must not be written
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
		t.Errorf("%d transactions for requests that waited together: %v", len(g.txns), g.txns)
	}
	if _, ok, _, err := g.Get(t.Context(), regionKey("half")); ok || err != nil {
		t.Errorf("a refused request wrote: %v %v", ok, err)
	}
	c.st.Lock()
	defer c.st.Unlock()
	if len(c.st.Regions) != 50 {
		t.Errorf("the state has %d regions", len(c.st.Regions))
	}
}

func TestTransactionsAreBounded(t *testing.T) {
	c, g := committing(t)
	const n = 3 * store.MaxTxnOps
	var waits []func(context.Context) (int64, error)
	for i := range n {
		waits = append(waits, c.Submit(putRegion(fmt.Sprintf("r%d", i))))
	}
	big := &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "big", Description: strings.Repeat("x", 900*1024)}}
	for i := range 4 {
		waits = append(waits, c.Submit(func(t *Tx) error { return t.PutRegion(fmt.Sprintf("big%d", i), big) }))
	}
	huge := proto.CloneOf(big)
	huge.Definition.Description = strings.Repeat("x", 2<<20)
	tooLarge := c.Submit(func(t *Tx) error { return t.PutRegion("huge", huge) })
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
		waits = append(waits, c.Submit(putRegion(fmt.Sprintf("r%d", i))))
	}
	close(g.gate)
	for _, wait := range waits {
		if _, err := wait(t.Context()); errors.Is(err, ErrQueueFull) {
			full++
		}
	}
	if full == 0 {
		t.Error("the queue is not bounded")
	}
}

// TestStreamsWaitForTheQueue: submits of streams are never refused. They wait, and leave room in the
// queue for other callers. One that waits ends with its caller, and with the committer.
func TestStreamsWaitForTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g := committing(t)
		blocker := c.Submit(putRegion("first"))
		synctest.Wait()
		var stored atomic.Int64
		var streams sync.WaitGroup
		for s := range 8 {
			streams.Go(func() {
				for i := range 2 * commitQueue / 8 {
					wait := c.SubmitStream(t.Context(), audit.Call{}, putRegion(fmt.Sprintf("r%d", (s+i)%50)))
					streams.Go(func() {
						if _, err := wait(t.Context()); err != nil {
							t.Errorf("a submit of a stream: %v", err)
						}
						stored.Add(1)
					})
				}
			})
		}
		synctest.Wait()
		if n := len(c.submits); n != streamQueue {
			t.Errorf("%d submits of streams are queued, want %d", n, streamQueue)
		}
		canceled, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := c.SubmitStream(canceled, audit.Call{}, putRegion("late"))(t.Context())
			ended <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a submit whose caller has gone: %v", err)
		}
		other := c.Submit(putRegion("other"))
		close(g.gate)
		for _, wait := range []func(context.Context) (int64, error){blocker, other} {
			if _, err := wait(t.Context()); err != nil {
				t.Errorf("another caller: %v", err)
			}
		}
		streams.Wait()
		if stored.Load() != 2*commitQueue || len(c.streams) != 0 {
			t.Errorf("%d submits are stored, %d count as queued", stored.Load(), len(c.streams))
		}
	})
}

// TestFullQueueOfSubmitsDelaysNobodyElse: while submits are refused, the answer of a region is
// handled before the submits that wait.
func TestFullQueueOfSubmitsDelaysNobodyElse(t *testing.T) {
	c, g := committing(t)
	blocker := c.Submit(putRegion("first"))
	for g.held.Load() == 0 {
		runtime.Gosched()
	}
	var waits []func(context.Context) (int64, error) // the committer is occupied: these wait
	for i := range commitQueue + 1 {
		waits = append(waits, c.Submit(putRegion(fmt.Sprintf("r%d", i%50))))
	}
	answered := make(chan int64, 1)
	go func() {
		revision, err := c.Do(t.Context(), putRegion("answer"))
		if err != nil {
			t.Errorf("the answer: %v", err)
		}
		answered <- revision
	}()
	for len(c.others) == 0 {
		runtime.Gosched()
	}
	close(g.gate)
	if _, err := blocker(t.Context()); err != nil {
		t.Fatal(err)
	}
	last, refused := int64(0), 0
	for _, wait := range waits {
		revision, err := wait(t.Context())
		if errors.Is(err, ErrQueueFull) {
			refused++
			continue
		}
		last = max(last, revision)
	}
	if revision := <-answered; refused == 0 || revision >= last {
		t.Errorf("%d submits were refused, the answer has revision %d, the last submit %d", refused, revision, last)
	}
}

// TestNewJobsOfATransactionAreBounded: a transaction takes only as many new jobs as it can decide.
// The others wait for the next transaction instead of staying undecided.
func TestNewJobsOfATransactionAreBounded(t *testing.T) {
	c, g := committing(t)
	const most, jobs = 3, 20
	c.st.Lock()
	decided, greatest := 0, 0
	c.Decide = func(t *Tx) func() {
		decided += len(t.Fresh())
		greatest = max(greatest, len(t.Fresh()))
		return nil
	}
	c.DecideMost = func() int { return most }
	c.st.Unlock()
	var waits []func(context.Context) (int64, error)
	for i := range jobs {
		spec := testJob(fmt.Sprintf("job%d", i), 1)
		waits = append(waits, c.Submit(func(t *Tx) error {
			_, err := t.Submit(KeyOf(spec), &nusav1.SubmitRequest{Spec: spec})
			return err
		}))
	}
	close(g.gate)
	for _, wait := range waits {
		if _, err := wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.st.Lock()
	defer c.st.Unlock()
	if decided != jobs || greatest != most {
		t.Errorf("%d jobs are decided, at most %d in a transaction", decided, greatest)
	}
}

// TestBatchIsBounded: requests that write nothing new do not keep a transaction
// open without end.
func TestBatchIsBounded(t *testing.T) {
	c, g := committing(t)
	var waits []func(context.Context) (int64, error)
	for range commitRequests + 2 {
		waits = append(waits, c.Submit(putRegion("same")))
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

// TestForeignWriteEndsTheTerm: a record that another program wrote is never
// overwritten.
func TestForeignWriteEndsTheTerm(t *testing.T) {
	c, g := committing(t)
	close(g.gate)
	if _, err := c.Do(t.Context(), putRegion("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Store.Txn(t.Context(), nil, []store.Op{store.Put(regionKey("a"), []byte("foreign"))}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do(t.Context(), putRegion("a")); !errors.Is(err, store.ErrCompareFailed) {
		t.Errorf("over a foreign write: %v", err)
	}
	<-c.ended
	if _, err := c.Do(t.Context(), putRegion("b")); !errors.Is(err, ErrNotActive) {
		t.Errorf("after the end: %v", err)
	}
}

// TestRequestsSeeEarlierChanges: a request sees the changes of earlier requests in
// the same transaction.
func TestRequestsSeeEarlierChanges(t *testing.T) {
	c, g := committing(t)
	k := JobKey{"default", "api"}
	blocker := c.Submit(putRegion("first")) // occupies the committer while the rest queues
	spec := testJob("api", 1)
	var one, two *nusav1.SubmitResponse
	submit := func(to **nusav1.SubmitResponse) func(*Tx) error {
		return func(t *Tx) (err error) {
			*to, err = t.Submit(k, &nusav1.SubmitRequest{Spec: spec})
			return err
		}
	}
	a := c.Submit(submit(&one))
	stop := c.Submit(func(t *Tx) error {
		rec, _ := t.Job(k)
		if rec == nil {
			return errors.New("the job is not seen")
		}
		return t.DeleteJob(k)
	})
	b := c.Submit(submit(&two))
	close(g.gate)
	for i, wait := range []func(context.Context) (int64, error){blocker, a, stop, b} {
		if _, err := wait(t.Context()); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if one.GetVersion() != 1 || two.GetVersion() != 1 {
		t.Errorf("versions %d and %d; the second comes after a removal", one.GetVersion(), two.GetVersion())
	}
	if _, ok, _, err := g.Get(t.Context(), k.recordKey()); !ok || err != nil {
		t.Errorf("the job is not stored: %v", err)
	}
}

// TestCheckWithinATransaction: of two checked changes of a region that share a
// transaction, the second is refused because the revision has changed.
func TestCheckWithinATransaction(t *testing.T) {
	c, g := committing(t)
	blocker := c.Submit(putRegion("alpha"))
	g.gate <- struct{}{}
	seen, err := blocker(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checked := func(t *Tx) error {
		old, revision := t.Region("alpha")
		if err := CheckRevision("region alpha", seen, old != nil, revision); err != nil {
			return err
		}
		return putRegion("alpha")(t)
	}
	hold := c.Submit(putRegion("beta")) // occupies the committer while the rest queues
	first, second := c.Submit(checked), c.Submit(checked)
	close(g.gate)
	for _, wait := range []func(context.Context) (int64, error){hold, first} {
		if _, err := wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := second(t.Context()); status.Code(err) != codes.Aborted {
		t.Errorf("the second check of the same revision: %v", err)
	}
}

// TestRemovedRegionIsForgotten: a new cluster with the name of a removed region counts from 1. Its
// summaries must not count as old.
func TestRemovedRegionIsForgotten(t *testing.T) {
	c, g := committing(t)
	close(g.gate)
	k := JobKey{"default", "api"}
	both := func(t *Tx) error {
		_, err := t.Submit(k, &nusav1.SubmitRequest{Spec: testJob("api", 1)})
		return errors.Join(err, putRegion("alpha")(t))
	}
	for _, step := range []struct {
		change func(*Tx) error
		index  uint64
	}{{both, 900}, {func(t *Tx) error { return t.DeleteRegion("alpha") }, 0}, {putRegion("alpha"), 3}} {
		if _, err := c.Do(t.Context(), step.change); err != nil {
			t.Fatal(err)
		}
		c.st.Lock()
		if r := c.st.Regions["alpha"]; r != nil {
			sum := &nusav1.JobSummary{Namespace: "default", Job: "api", Incarnation: 1, Index: step.index}
			c.st.ApplySummary(r, sum, compact.Encode(sum))
		}
		if got := c.st.Jobs[k].Summaries.Get("alpha").GetIndex(); got != step.index {
			t.Errorf("summary %d is held, not %d", got, step.index)
		}
		c.st.Unlock()
	}
}

// TestTransactionHasOneAuditRecord: all changes of a transaction share an audit record, which has
// no refused change.
func TestTransactionHasOneAuditRecord(t *testing.T) {
	c, g := committing(t)
	audited := func(name string, refuse error) func(*Tx) error {
		return func(tx *Tx) error {
			if err := tx.Audit(audit.Entry{Verb: "put", Kind: "region", Name: name, Reason: "by \xff"}); err != nil {
				return err
			}
			if refuse != nil {
				return refuse
			}
			return putRegion(name)(tx)
		}
	}
	first := c.Submit(audited("a", nil)) // a transaction of its own
	for g.held.Load() == 0 {
		runtime.Gosched()
	}
	refusal := errors.New("refused")
	waits := []func(context.Context) (int64, error){first, c.Submit(audited("b", nil)), c.Submit(audited("x", refusal)), c.Submit(audited("c", nil))}
	close(g.gate)
	for i, wait := range waits {
		if _, err := wait(t.Context()); i != 2 && err != nil || i == 2 && !errors.Is(err, refusal) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	var got [][]string
	_, err := g.List(t.Context(), AuditPrefix, func(kv store.KV) error {
		rec := new(nusav1.AuditRecord)
		if err := Decode(kv, rec); err != nil {
			return err
		}
		var subjects []string
		for _, e := range rec.GetEntries() {
			subjects = append(subjects, e.GetName())
		}
		got = append(got, subjects)
		return nil
	})
	if err != nil || fmt.Sprint(got) != "[[a] [b c]]" {
		t.Errorf("%v, %v", got, err)
	}
}

// behind is a store whose revisions begin again.
type behind struct{ store.Store }

func (b behind) Txn(ctx context.Context, c []store.Compare, ops []store.Op) (int64, error) {
	revision, err := b.Store.Txn(ctx, c, ops)
	return revision - 100, err
}

// TestAStoreThatGoesBackEndsTheTerm: etcd was replaced by an old copy while the server ran. The
// next term notices that the store has another log.
func TestAStoreThatGoesBackEndsTheTerm(t *testing.T) {
	mem := store.NewMemory().Client()
	defer mem.Close()
	e, err := mem.Campaign(t.Context(), ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	st := New(Beginning{Epoch: "e", Revision: 7}, func() time.Duration { return 0 })
	st.Revision = 7
	c := NewCommitter(st, behind{mem}, e.Guard())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(t.Context()) }()
	if _, err := c.Do(t.Context(), putRegion("a")); !errors.Is(err, ErrWentBack) {
		t.Errorf("a write to a store that went back: %v", err)
	}
	if err := <-ended; !errors.Is(err, ErrWentBack) {
		t.Errorf("the committer ended with %v", err)
	}
	if len(st.Regions) > 0 || st.Revision != 7 {
		t.Errorf("the write counts: %v, revision %d", st.Regions, st.Revision)
	}
}

// TestAnswersShareTheTransactionOfASubmit: a request that is not urgent waits for another request,
// but not longer than its patience. Both then share a transaction.
func TestAnswersShareTheTransactionOfASubmit(t *testing.T) {
	for _, c := range []struct {
		name   string
		next   func(context.Context, *Committer, func(*Tx) error) (int64, error) // nil = there is no other request
		shared bool
		took   time.Duration
	}{
		{"no submit", nil, false, patience},
		{"a submit", func(ctx context.Context, c *Committer, put func(*Tx) error) (int64, error) { return c.Submit(put)(ctx) }, true, 0},
		{"an urgent request", func(ctx context.Context, c *Committer, put func(*Tx) error) (int64, error) { return c.Do(ctx, put) }, true, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, g := committing(t)
			close(g.gate)
			start := time.Now()
			done := make(chan int64, 1)
			err := w.Begin(t.Context(), putRegion("answer"), func(err error) {
				if err != nil {
					t.Error(err)
				}
				w.st.Lock()
				defer w.st.Unlock()
				done <- w.st.Regions["answer"].Revision
			})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			var next int64
			if c.next != nil {
				var err error
				if next, err = c.next(t.Context(), w, putRegion("other")); err != nil {
					t.Fatal(err)
				}
			}
			revision := <-done
			if took := time.Since(start); took != c.took || (revision == next) != c.shared {
				t.Errorf("%s: stored after %s at revision %d, the other at %d", c.name, took, revision, next)
			}
		})
	}
}

// TestManyAnswersLeaveRoomForSubmits: in the second half of a transaction, submits go before the
// answers that wait.
func TestManyAnswersLeaveRoomForSubmits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := committing(t)
		first := make(chan error, 1)
		go func() {
			_, err := w.Do(t.Context(), putRegion("first"))
			first <- err
		}()
		synctest.Wait() // the store holds this transaction until the gate opens
		stored := 0
		for i := range commitOps {
			if !w.TryBegin(putRegion(fmt.Sprint("answer", i)), func(error) { stored++ }) {
				t.Fatalf("only %d requests can wait", i)
			}
		}
		wait := w.Submit(putRegion("submit"))
		close(g.gate)
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		if _, err := wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.st.Lock()
		defer w.st.Unlock()
		last := w.st.Regions[fmt.Sprint("answer", commitOps-1)]
		if stored != commitOps || last == nil || w.st.Regions["submit"].Revision >= last.Revision {
			t.Errorf("%d of %d answers are stored, the submit at revision %d, the last answer at %v", stored, commitOps, w.st.Regions["submit"].Revision, last)
		}
	})
}
