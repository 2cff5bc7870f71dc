package global

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of the committer.
const (
	// commitQueue is how many requests wait for a transaction at most.
	commitQueue = 1024
	// commitRequests is how many requests share a transaction at most.
	commitRequests = 512
	// commitOps leaves one compare of a transaction to the election key.
	commitOps = store.MaxTxnOps - 1
	// commitBytes is the most a shared transaction writes.
	commitBytes = store.MaxTxnBytes - 64*1024
	// recentKeys is how many idempotency keys are remembered after their
	// commit: enough for those whose look-up happened before it.
	recentKeys = 16_384
)

var (
	// ErrQueueFull: more requests wait than the committer takes.
	ErrQueueFull = errors.New("too many writes are waiting")
	// ErrNotActive: this server is not, or no longer, the active one.
	ErrNotActive = errors.New("this server is no longer the active one")
	// errTxFull: the request does not fit into what is left of a shared
	// transaction; it goes first into the next one.
	errTxFull = errors.New("transaction is full")
)

// commitRequest asks for a write. prepare reads the state through the tx and
// puts its changes; an error of it is the answer, and none of its changes is
// written. It runs under the state's lock and may run twice.
type commitRequest struct {
	prepare func(*Tx) error
	done    chan commitResult // capacity 1
}

type commitResult struct {
	revision int64
	err      error
}

// Committer is the one writer of the active server: it gathers the requests
// that wait into one transaction, which compares every key it writes and the
// election key, and applies what was written to the state.
type Committer struct {
	st    *State
	store store.Store
	guard store.Compare
	queue chan commitRequest
	ended chan struct{} // closed when run has returned
	// committed is called after each transaction, without the lock.
	committed func()
	observe   func(requests int, took time.Duration)
}

func NewCommitter(st *State, s store.Store, guard store.Compare) *Committer {
	return &Committer{
		st: st, store: s, guard: guard, queue: make(chan commitRequest, commitQueue), ended: make(chan struct{}),
		committed: func() {}, observe: func(int, time.Duration) {},
	}
}

// Do waits until prepare's changes are durable and answers their revision.
// When ctx ends first, whether they will be is unknown.
func (c *Committer) Do(ctx context.Context, prepare func(*Tx) error) (int64, error) {
	return c.Begin(prepare)(ctx)
}

// Begin queues a request and answers how to wait for it. Requests are
// prepared in the order in which they began.
func (c *Committer) Begin(prepare func(*Tx) error) (wait func(context.Context) (int64, error)) {
	req := commitRequest{prepare: prepare, done: make(chan commitResult, 1)}
	select {
	case c.queue <- req:
		return func(ctx context.Context) (int64, error) { return c.wait(ctx, req) }
	default:
		return func(context.Context) (int64, error) { return 0, ErrQueueFull }
	}
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

// Run commits until ctx ends or a write failed in a way after which this
// server cannot know what is stored: then it must give up leadership and load
// anew. Requests that still wait are answered with ErrNotActive.
func (c *Committer) Run(ctx context.Context) error {
	defer c.refuseWaiting()
	defer close(c.ended)
	var carry *commitRequest
	for {
		var first commitRequest
		switch {
		case carry != nil:
			first, carry = *carry, nil
		default:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case first = <-c.queue:
			}
		}
		var err error
		if carry, err = c.batch(ctx, first); err != nil {
			if carry != nil {
				carry.done <- commitResult{err: ErrNotActive}
			}
			return err
		}
	}
}

func (c *Committer) refuseWaiting() {
	for {
		select {
		case r := <-c.queue:
			r.done <- commitResult{err: ErrNotActive}
		default:
			return
		}
	}
}

// batch commits one transaction: first and whatever waits and fits. It answers
// the request that did not fit. Refusals are told after the write, since they
// may be about a change in it.
func (c *Committer) batch(ctx context.Context, first commitRequest) (carry *commitRequest, err error) {
	t := NewTx(c.st)
	var members, refused []commitRequest
	var refusals []error
	c.st.mu.Lock()
	for next, more := first, true; more; {
		mark := t.mark()
		err := next.prepare(t)
		if err == nil {
			err = t.full()
		}
		switch {
		case err == nil:
			members = append(members, next)
		case errors.Is(err, errTxFull) && len(members) > 0:
			t.rollback(mark)
			carry = &next
		case errors.Is(err, errTxFull):
			err = fmt.Errorf("%w: %w", store.ErrTooLarge, err)
			fallthrough
		default:
			t.rollback(mark)
			refused, refusals = append(refused, next), append(refusals, err)
		}
		if more = false; carry == nil && len(members)+len(refused) < commitRequests {
			select {
			case next = <-c.queue:
				more = true
			default:
			}
		}
	}
	c.st.mu.Unlock()
	var revision int64
	if len(members) > 0 {
		revision, err = c.write(ctx, t)
	}
	for _, m := range members {
		m.done <- commitResult{revision: revision, err: err}
	}
	for i, m := range refused {
		m.done <- commitResult{err: refusals[i]}
	}
	return carry, err
}

func (c *Committer) write(ctx context.Context, t *Tx) (int64, error) {
	if len(t.changes) == 0 {
		c.st.mu.Lock()
		defer c.st.mu.Unlock()
		return c.st.Revision, nil
	}
	compares := make([]store.Compare, 0, len(t.changes)+1)
	compares = append(compares, c.guard)
	ops := make([]store.Op, 0, len(t.changes))
	for _, ch := range t.changes {
		if !ch.blind {
			compares = append(compares, store.Mod(ch.key, ch.known))
		}
		ops = append(ops, store.Op{Key: ch.key, Value: ch.value, Delete: ch.msg == nil, TTL: ch.ttl})
	}
	start := time.Now()
	// A transaction that was sent is waited for even when leadership ends:
	// its callers are told the truth.
	revision, err := c.store.Txn(context.WithoutCancel(ctx), compares, ops)
	if err != nil {
		return 0, err
	}
	c.observe(len(t.changes), time.Since(start))
	c.st.mu.Lock()
	c.st.Revision = max(c.st.Revision, revision)
	for _, ch := range t.changes {
		c.st.apply(ch.key, ch.msg, revision)
	}
	c.st.mu.Unlock()
	c.committed()
	return revision, nil
}

// txChange is one key to write: msg nil deletes it.
type txChange struct {
	key   string
	msg   proto.Message
	value []byte
	ttl   time.Duration
	// known is the revision at which the state knows the key; blind ones are
	// not compared.
	known int64
	blind bool
}

// Tx is a transaction in the making: the state with changes laid over it.
type Tx struct {
	State   *State
	changes []txChange
	size    int
	undo    []txChange // previous versions of overwritten changes
	undoAt  []int
}

func NewTx(st *State) *Tx { return &Tx{State: st} }

// txMark remembers where a request's changes begin.
func (t *Tx) mark() int { t.undo, t.undoAt = nil, nil; return len(t.changes) }

func (t *Tx) rollback(mark int) {
	for i := len(t.undo) - 1; i >= 0; i-- {
		t.changes[t.undoAt[i]] = t.undo[i]
	}
	t.changes = t.changes[:mark]
	t.size = 0
	for _, ch := range t.changes {
		t.size += len(ch.key) + len(ch.value) + 64
	}
}

func (t *Tx) full() error {
	if len(t.changes) > commitOps || t.size > commitBytes {
		return fmt.Errorf("%w: %d writes of %d bytes", errTxFull, len(t.changes), t.size)
	}
	return nil
}

func (t *Tx) find(key string) (txChange, bool) {
	for _, ch := range t.changes {
		if ch.key == key {
			return ch, true
		}
	}
	return txChange{}, false
}

func (t *Tx) set(ch txChange) error {
	if ch.msg != nil {
		var err error
		if ch.value, err = Encode(ch.msg); err != nil {
			return err
		}
	}
	t.size += len(ch.key) + len(ch.value) + 64
	for i := range t.changes {
		if t.changes[i].key == ch.key {
			ch.known = t.changes[i].known
			t.undo, t.undoAt = append(t.undo, t.changes[i]), append(t.undoAt, i)
			t.changes[i] = ch
			return nil
		}
	}
	t.changes = append(t.changes, ch)
	return nil
}

// Job answers a job's record as the transaction leaves it, with the revision
// of the stored one (0 when this transaction changes it, or there is none).
func (t *Tx) Job(k JobKey) (*nusav1.JobRecord, int64) {
	if ch, ok := t.find(k.RecordKey()); ok {
		rec, _ := ch.msg.(*nusav1.JobRecord)
		return rec, 0
	}
	if j := t.State.Jobs[k]; j != nil {
		return j.Record, j.Revision
	}
	return nil, 0
}

// spec is the encoded spec of a job as the transaction leaves it.
func (t *Tx) spec(k JobKey) []byte {
	if ch, ok := t.find(k.RecordKey()); ok {
		rec, _ := ch.msg.(*nusav1.JobRecord)
		b, _ := EncodeSpec(rec) // of a record that was encoded before
		return b
	}
	if j := t.State.Jobs[k]; j != nil {
		return j.EncodedSpec
	}
	return nil
}

func (t *Tx) PutJob(k JobKey, rec *nusav1.JobRecord) error {
	_, known := t.State.JobRecord(k)
	return t.set(txChange{key: k.RecordKey(), msg: rec, known: known})
}

// DeleteJob forgets a job that has no slots, and how it ended.
func (t *Tx) DeleteJob(k JobKey) error {
	_, known := t.State.JobRecord(k)
	if err := t.set(txChange{key: k.RecordKey(), known: known}); err != nil {
		return err
	}
	if err := t.DeleteBlind(k.HealthyKey()); err != nil {
		return err
	}
	return t.DeleteBlind(k.ResultKey())
}

// Slots are a group's slots as the transaction leaves them (group "" = all).
func (t *Tx) Slots(k JobKey, group string) []region.Slot {
	var out []region.Slot
	if j := t.State.Jobs[k]; j != nil {
		for _, s := range j.Slots {
			if group != "" && s.Group != group {
				continue
			}
			if _, changed := t.find(slotKey(s)); !changed {
				out = append(out, s)
			}
		}
	}
	for _, ch := range t.changes {
		s, ok := ch.msg.(*nusav1.Slot)
		if ok && s.GetNamespace() == k.Namespace && s.GetJob() == k.Name && (group == "" || s.GetGroup() == group) {
			out = append(out, SlotFromProto(ch.key[len(SlotPrefix):], s, ch.known))
		}
	}
	return out
}

// Stale says whether a change was decided over another state of its slot.
func (t *Tx) Stale(changes []region.Change) bool {
	for _, c := range changes {
		var stored int64
		if j := t.State.Jobs[slotJob(c.Slot)]; j != nil {
			stored = j.Slots[c.Slot.Key()].Revision
		}
		if _, changed := t.find(slotKey(c.Slot)); changed || c.Slot.Revision != stored {
			return true
		}
	}
	return false
}

// ChangeSlots writes what the cores decided.
func (t *Tx) ChangeSlots(changes []region.Change) error {
	for _, c := range changes {
		ch := txChange{key: slotKey(c.Slot), known: c.Slot.Revision}
		if !c.Delete {
			ch.msg = SlotToProto(c.Slot)
		}
		if err := t.set(ch); err != nil {
			return err
		}
	}
	return nil
}

// Region is as job: a region's record and the revision of the stored one.
func (t *Tx) Region(name string) (*nusav1.Region, int64) {
	if ch, ok := t.find(RegionKey(name)); ok {
		r, _ := ch.msg.(*nusav1.Region)
		return r, 0
	}
	if r := t.State.Regions[name]; r != nil {
		return r.Record, r.Revision
	}
	return nil, 0
}

// ErrTooManyRegions: see maxRegions.
var ErrTooManyRegions = fmt.Errorf("there are %d regions, the most a federation takes", maxRegions)

// PutRegion stores a region.
func (t *Tx) PutRegion(name string, r *nusav1.Region) error {
	if old, _ := t.Region(name); old == nil && len(t.State.Regions) >= maxRegions {
		return ErrTooManyRegions
	}
	ch := txChange{key: RegionKey(name), msg: r}
	if known := t.State.Regions[name]; known != nil {
		ch.known = known.Revision
	}
	return t.set(ch)
}

// DeleteRegion forgets a region and its checkpoint.
func (t *Tx) DeleteRegion(name string) error {
	known := t.State.Regions[name]
	if known == nil {
		return nil
	}
	for i := range known.chunks {
		if err := t.DeleteBlind(CheckpointKey(name, i)); err != nil {
			return err
		}
	}
	return t.set(txChange{key: RegionKey(name), known: known.Revision})
}

// PutBlind writes a record that only this kind of request writes.
func (t *Tx) PutBlind(key string, m proto.Message, ttl time.Duration) error {
	return t.set(txChange{key: key, msg: m, ttl: ttl, blind: true})
}

// DeleteBlind removes such a record.
func (t *Tx) DeleteBlind(key string) error { return t.set(txChange{key: key, blind: true}) }

// putNew writes a record that must not exist.
func (t *Tx) putNew(key string, m proto.Message, ttl time.Duration) error {
	return t.set(txChange{key: key, msg: m, ttl: ttl})
}
