package state

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/origins"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/recorder"
)

// Bounds of the committer.
const (
	// commitQueue bounds the submits that wait for a transaction. The same bound holds for the
	// other requests that wait.
	commitQueue = 1024
	// streamQueue bounds the submits of streams among them. A stream waits for room, so that its
	// caller is slowed, and leaves room for the others, which are refused when there is none.
	streamQueue = commitQueue * 3 / 4
	// commitRequests bounds the requests that share a transaction.
	commitRequests = 512
	// patience is how long a patient request waits for another request to share its transaction: see
	// Begin. maxPatient is the greatest number of patient requests that wait together.
	patience, maxPatient = 2 * time.Millisecond, 64
	// commitOps is the greatest number of writes in a transaction. One operation is left for the
	// compare of the election key.
	commitOps = store.MaxTxnOps - 1
	// commitBytes is the greatest number of bytes that a shared transaction writes.
	commitBytes = store.MaxTxnBytes - 64*1024
)

var (
	// ErrQueueFull says that commitQueue submits are waiting already.
	ErrQueueFull = errors.New("too many submits are waiting")
	// ErrNotActive says that this server is not, or no longer, the active one.
	ErrNotActive = errors.New("this server is no longer the active one")
	// ErrConflict says that the store was restored from an old copy and must be recovered. A write
	// would use a revision for the second time.
	ErrConflict = errors.New("the store was restored from an old copy: nothing is stored before an operator runs `nusa server recover`")
	// ErrWentBack says that an old copy replaced the store while this server used it.
	ErrWentBack = errors.New("the store went back")
	// errTxFull says that a request does not fit into the rest of a shared transaction. The request
	// then goes first into the next transaction.
	errTxFull = errors.New("transaction is full")
)

// RetryAfter is the retry hint in UNAVAILABLE and RESOURCE_EXHAUSTED errors.
const RetryAfter = time.Second

// RPCErrors maps the errors of this package and of the store to the statuses
// that api.proto documents.
var RPCErrors = rpcerr.Table{
	{Target: ErrQueueFull, Code: codes.ResourceExhausted, RetryAfter: RetryAfter},
	{Target: ErrRecall, Code: codes.Unavailable, RetryAfter: RetryAfter},
	{Target: ErrTooManyRegions, Code: codes.ResourceExhausted},
	{Target: ErrTooManyWebhooks, Code: codes.ResourceExhausted},
	{Target: origins.ErrTooMany, Code: codes.ResourceExhausted},
	{Target: store.ErrTooLarge, Code: codes.InvalidArgument},
	{Target: store.ErrFull, Code: codes.ResourceExhausted, Reason: rpcerr.ReasonStoreFull, RetryAfter: RetryAfter},
	{Target: store.ErrNoQuorum, Code: codes.Unavailable, RetryAfter: RetryAfter},
	{Target: store.ErrCompareFailed, Code: codes.Unavailable, RetryAfter: RetryAfter},
	{Target: store.ErrClosed, Code: codes.Unavailable, RetryAfter: RetryAfter},
	{Target: ErrNoConflict, Code: codes.FailedPrecondition},
	{Target: ErrConflict, Code: codes.FailedPrecondition},
	{Target: ErrNotActive, Code: codes.Unavailable, RetryAfter: RetryAfter},
	{Target: context.DeadlineExceeded, Code: codes.DeadlineExceeded},
	{Target: context.Canceled, Code: codes.Canceled},
}

// AwaitRecords waits for a part of a leadership term whose records are read beside others: it returns nil once
// ready is closed. It returns the RPC error of ErrNotActive if the term ends first.
func AwaitRecords(ctx context.Context, ended, ready <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case <-ended:
		return RPCErrors.Err(ErrNotActive)
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// commitRequest asks for a write. prepare reads the state through the Tx and puts its changes. When
// prepare fails, the caller gets its error, and none of its changes is written. prepare runs under
// the state's lock, and may run twice.
type commitRequest struct {
	prepare func(*Tx) error
	// by is the caller of the request, for the audit trail.
	by audit.Call
	// patient: the request may wait for another one, to share its transaction.
	patient bool
	// streamed: the request counts in Committer.streams while it is queued.
	streamed bool
	// done has capacity 1. It is nil for a request of Begin. Such a request has the
	// function ended instead.
	done  chan commitResult
	ended func(error)
}

// end tells the caller the result.
func (r *commitRequest) end(result commitResult) {
	if r.done == nil {
		r.ended(result.err)
		return
	}
	r.done <- result
}

type commitResult struct {
	revision int64
	err      error
}

// Committer is the one writer of the active server. It puts waiting requests into one transaction,
// which compares the election key and every key that it writes. Then it applies the written records
// to the state.
type Committer struct {
	// Committed is called after each transaction, without the lock.
	Committed func()
	// Audited is called with the entries of the audit trail that a transaction stored, without the lock.
	// It must not wait. It may be nil.
	Audited func([]audit.Entry)
	// Observe gets the number of writes and the duration of each transaction.
	Observe func(writes int, took time.Duration)

	// Decide adds slots for the jobs that a transaction submits (Tx.Fresh). The function stored that
	// Decide returns runs once the transaction is stored and applied. Both run under the state's
	// lock. Nil: no slots are added.
	Decide func(*Tx) (stored func())
	// DecideMost returns for how many groups of new jobs Decide may add slots in one transaction.
	// Later submits wait for the next transaction. DecideMost runs under the state's lock. Nil: no
	// bound.
	DecideMost func() int

	st    *State
	store store.Store
	guard store.Compare
	// submits holds the requests of callers, and others holds all other requests. The others go
	// first: see next.
	submits, others chan commitRequest
	streams         chan struct{}   // has an element for each queued request of a stream
	empty           *batch          // has the memory of the latest batch. Nil: there is none. Only Run uses it
	compares        []store.Compare // empty, with the memory of the latest transaction's compares. Only Run uses it
	ops             []store.Op      // the same for its writes
	ended           chan struct{}   // closed when Run has returned
}

// NewCommitter returns the writer of a state. Every transaction compares guard, the election key.
func NewCommitter(st *State, s store.Store, guard store.Compare) *Committer {
	return &Committer{
		st: st, store: s, guard: guard, ended: make(chan struct{}),
		submits: make(chan commitRequest, commitQueue), others: make(chan commitRequest, commitQueue), streams: make(chan struct{}, streamQueue),
		Committed: func() {}, Observe: func(int, time.Duration) {},
	}
}

// Waiting returns how many requests wait for a transaction.
func (c *Committer) Waiting() int { return len(c.submits) + len(c.others) }

// Do waits until prepare's changes are durable, and returns their revision. While the queue is
// full, Do waits too, which slows only its own caller. When ctx ends first, it is unknown whether
// the changes will be durable.
func (c *Committer) Do(ctx context.Context, prepare func(*Tx) error) (int64, error) {
	req := commitRequest{prepare: prepare, by: recorder.Of(ctx), done: make(chan commitResult, 1)}
	select {
	case c.others <- req:
		return c.wait(ctx, req)
	case <-c.ended:
		return 0, ErrNotActive
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Begin queues a request for which its caller does not wait, and which is not urgent: the request
// waits a moment for another request, usually a submit, so that both share a transaction. Requests
// are prepared in the order of the calls. While the queue is full, Begin waits. Run calls ended once
// with the result, so ended must not wait for anything. If Run ends first, ended may never be called.
func (c *Committer) Begin(ctx context.Context, prepare func(*Tx) error, ended func(error)) error {
	select {
	case c.others <- commitRequest{prepare: prepare, patient: true, ended: ended}:
		return nil
	case <-c.ended:
		return ErrNotActive
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TryBegin is like Begin, but returns false while the queue is full.
func (c *Committer) TryBegin(prepare func(*Tx) error, ended func(error)) bool {
	select {
	case c.others <- commitRequest{prepare: prepare, patient: true, ended: ended}:
		return true
	default:
		return false
	}
}

// Submit is SubmitBy without a caller.
func (c *Committer) Submit(prepare func(*Tx) error) (wait func(context.Context) (int64, error)) {
	return c.SubmitBy(audit.Call{}, prepare)
}

// SubmitBy queues the request of a caller, and returns a function that waits for the result. Requests
// are prepared in the order of the calls. When the queue is full, the result is
// ErrQueueFull.
func (c *Committer) SubmitBy(by audit.Call, prepare func(*Tx) error) (wait func(context.Context) (int64, error)) {
	req := commitRequest{prepare: prepare, by: by, done: make(chan commitResult, 1)}
	select {
	case c.submits <- req:
		return func(ctx context.Context) (int64, error) { return c.wait(ctx, req) }
	default:
		return func(context.Context) (int64, error) { return 0, ErrQueueFull }
	}
}

// SubmitStream is SubmitBy for the requests of a stream: while too many requests of streams are
// queued, SubmitStream waits.
func (c *Committer) SubmitStream(ctx context.Context, by audit.Call, prepare func(*Tx) error) (wait func(context.Context) (int64, error)) {
	failed := func(err error) func(context.Context) (int64, error) {
		return func(context.Context) (int64, error) { return 0, err }
	}
	select {
	case c.streams <- struct{}{}:
	case <-c.ended:
		return failed(ErrNotActive)
	case <-ctx.Done():
		return failed(ctx.Err())
	}
	req := commitRequest{prepare: prepare, by: by, streamed: true, done: make(chan commitResult, 1)}
	select {
	case c.submits <- req:
		return func(ctx context.Context) (int64, error) { return c.wait(ctx, req) }
	case <-c.ended:
		<-c.streams
		return failed(ErrNotActive)
	case <-ctx.Done():
		<-c.streams
		return failed(ctx.Err())
	}
}

// leaveQueue notes that a request has left its queue.
func (c *Committer) leaveQueue(req commitRequest) commitRequest {
	if req.streamed {
		<-c.streams
	}
	return req
}

func (c *Committer) wait(ctx context.Context, req commitRequest) (int64, error) {
	select {
	case r := <-req.done:
		return r.revision, r.err
	case <-c.ended:
		select {
		case r := <-req.done:
			return r.revision, r.err
		default:
			return 0, ErrNotActive
		}
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Run commits until ctx ends or a write fails. After a failed write this server cannot know what is
// stored: it must give up leadership and load again. Requests that still wait get ErrNotActive.
func (c *Committer) Run(ctx context.Context) error {
	defer c.refuseWaiting()
	defer close(c.ended)
	var carry []commitRequest
	for {
		first := carry
		if len(first) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case r := <-c.others:
				first = c.company(ctx, r)
			case r := <-c.submits:
				first = []commitRequest{c.leaveQueue(r)}
			}
		}
		var err error
		carry, err = c.commitBatch(ctx, first)
		if err != nil {
			for _, r := range carry {
				r.end(commitResult{err: ErrNotActive})
			}
			return err
		}
	}
}

// company returns a request, and for a patient request also the requests that arrive while the
// patient request waits.
func (c *Committer) company(ctx context.Context, first commitRequest) []commitRequest {
	out := []commitRequest{first}
	if !first.patient {
		return out
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for len(out) < maxPatient && out[len(out)-1].patient {
		select {
		case r := <-c.others:
			out = append(out, r)
		case r := <-c.submits:
			out = append(out, c.leaveQueue(r))
		case <-late.C:
			return out
		case <-ctx.Done():
			return out
		}
	}
	return out
}

func (c *Committer) refuseWaiting() {
	for {
		select {
		case r := <-c.others:
			r.end(commitResult{err: ErrNotActive})
		case r := <-c.submits:
			c.leaveQueue(r)
			r.end(commitResult{err: ErrNotActive})
		default:
			return
		}
	}
}

// collect returns a batch with the first requests and the waiting ones that fit. rest has the first
// requests that did not fit.
func (c *Committer) collect(first []commitRequest) (b *batch, rest []commitRequest) {
	b = c.emptyBatch()
	b.tx.ops = c.store.MaxOps() - 1
	c.st.Lock()
	defer c.st.Unlock()
	if c.DecideMost != nil {
		b.decideMost = max(1, c.DecideMost())
	}
	for len(first) > 0 && !b.full() {
		b.add(first[0])
		first = first[1:]
	}
	for !b.full() {
		next, ok := c.next(len(b.tx.changes) < b.tx.ops/2)
		if !ok {
			break
		}
		b.add(next)
	}
	if c.Decide != nil && len(b.tx.Fresh()) > 0 {
		b.stored = c.Decide(b.tx)
	}
	b.unsealed = b.tx.sealAudit()
	return b, first
}

// emptyBatch returns a batch without requests.
func (c *Committer) emptyBatch() *batch {
	b := c.empty
	c.empty = nil
	if b == nil {
		return &batch{tx: NewTx(c.st), decideMost: math.MaxInt}
	}
	return b
}

// next returns a waiting request, if any. othersFirst: a submit is returned only if no other request
// waits. In the second half of a transaction submits go first, so that many answers of regions do
// not delay all submits.
func (c *Committer) next(othersFirst bool) (commitRequest, bool) {
	first, second := c.submits, c.others
	if othersFirst {
		first, second = c.others, c.submits
	}
	select {
	case r := <-first:
		return c.leaveQueue(r), true
	default:
	}
	select {
	case r := <-second:
		return c.leaveQueue(r), true
	default:
		return commitRequest{}, false
	}
}

// commitBatch commits one transaction with the first requests and the waiting ones that fit. It
// returns the first requests that did not fit. Refused requests get their errors after the write,
// because an error may be about a change in this transaction.
func (c *Committer) commitBatch(ctx context.Context, first []commitRequest) (carry []commitRequest, err error) {
	b, rest := c.collect(first)
	var revision int64
	if len(b.members) > 0 {
		revision, err = c.write(ctx, b)
	}
	for _, m := range b.members {
		m.end(commitResult{revision: revision, err: err})
	}
	for i, m := range b.refused {
		m.end(commitResult{err: b.refusals[i]})
	}
	if b.carry != nil {
		rest = append([]commitRequest{*b.carry}, rest...)
	}
	if err == nil {
		clear(b.members)
		c.empty = &batch{tx: b.tx.again(), members: b.members[:0], decideMost: math.MaxInt}
	}
	return rest, err
}

func (c *Committer) write(ctx context.Context, b *batch) (int64, error) {
	t := b.tx
	if b.unsealed != nil {
		return 0, fmt.Errorf("the audit trail: %w", b.unsealed)
	}
	sealed, err := t.sealEvents()
	if err != nil {
		return 0, fmt.Errorf("the events: %w", err)
	}
	if len(t.changes) == 0 {
		c.st.Lock()
		defer c.st.Unlock()
		c.st.Events.Stored(sealed)
		return c.st.Revision, nil
	}
	c.st.Lock()
	shown, err := t.trace()
	c.st.Unlock()
	if err != nil {
		return 0, err
	}
	compares, ops := append(c.compares[:0], c.guard), c.ops[:0]
	for _, ch := range t.changes {
		if !ch.unchecked {
			compares = append(compares, store.Mod(ch.key, ch.known))
		}
		ops = append(ops, store.Op{Key: ch.key, Value: ch.value, Delete: !ch.puts(), End: ch.end, TTL: ch.ttl})
	}
	for _, e := range t.expected {
		compares = append(compares, store.Mod(e.key, e.known))
	}
	start := time.Now()
	// The transaction is sent even if leadership ends meanwhile, and its result is awaited, so that
	// the callers learn whether it is stored.
	revision, err := c.send(context.WithoutCancel(ctx), t, compares, ops)
	if err != nil {
		return 0, err
	}
	c.Observe(len(t.changes), time.Since(start))
	clear(compares)
	clear(ops)
	c.compares, c.ops = compares, ops
	c.st.Lock()
	if revision < c.st.Revision {
		defer c.st.Unlock()
		return 0, fmt.Errorf("%w: a write got revision %d after %d", ErrWentBack, revision, c.st.Revision)
	}
	if shown {
		c.st.Revision = max(c.st.Revision, revision)
	}
	c.st.Room.Wrote(int64(t.size))
	for _, ch := range t.changes {
		switch {
		case ch.job != nil:
			c.st.applyJob(ch.key[len(jobPrefix):], ch.job, revision)
		case ch.slot != nil:
			slot := storedSlot(ch.slot, revision)
			c.st.putSlot(ch.key[len(slotPrefix):], &slot, revision)
		default:
			c.st.apply(ch.key, ch.msg, revision)
		}
	}
	c.st.Events.Stored(sealed)
	if b.stored != nil {
		b.stored()
	}
	c.st.Unlock()
	if c.Audited != nil && len(t.audit) > 0 {
		c.Audited(t.audit)
	}
	c.Committed()
	return revision, nil
}

func (c *Committer) send(ctx context.Context, t *Tx, compares []store.Compare, ops []store.Op) (int64, error) {
	if t.raise > 0 {
		return c.store.Raise(ctx, t.raise, compares, ops)
	}
	return c.store.Txn(ctx, compares, ops)
}
