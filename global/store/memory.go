package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/notify"
)

// memoryHistory bounds the events that a Memory holds for watches. Older events are compacted.
const memoryHistory = 10_000

// Memory is a store in memory with the semantics of etcd. Any number of clients may share it. It
// lives as long as its process, and is for simulations and tests.
type Memory struct {
	mu        sync.Mutex
	revision  int64
	compacted int64
	keys      map[string]*memoryKey
	history   []Event
	changed   notify.Signal // notified at each change
	sequence  int64         // sequence number of the last candidate's key
	surplus   int64         // the surplus is below 0 in a store that Snapshot made
}

type memoryKey struct {
	KV
	expiry *time.Timer // nil: the key does not expire
}

// NewMemory makes an empty store. Its revision starts at 1, as in etcd.
func NewMemory() *Memory {
	return &Memory{revision: 1, keys: map[string]*memoryKey{}}
}

// Snapshot returns a copy of this store, as if it was restored from a snapshot. Keys with a TTL do
// not expire in the copy.
func (m *Memory) Snapshot() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := NewMemory()
	out.revision, out.compacted, out.sequence, out.surplus = m.revision, m.revision, m.sequence, -m.revision
	for name, k := range m.keys {
		out.keys[name] = &memoryKey{KV: k.KV}
	}
	return out
}

// Client opens a connection to the store.
func (m *Memory) Client() *MemoryClient {
	return &MemoryClient{m: m, closed: make(chan struct{})}
}

// Compact drops the history up to a revision.
func (m *Memory) Compact(revision int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.compact(revision)
	m.changed.Notify()
}

func (m *Memory) compact(revision int64) {
	m.compacted = max(m.compacted, min(revision, m.revision))
	n, _ := slices.BinarySearchFunc(m.history, m.compacted+1, func(e Event, r int64) int {
		return int(e.ModRevision - r)
	})
	m.history = slices.Clone(m.history[n:])
}

// apply writes ops at one new revision. A key's timer holds the revision of the write that set it,
// so that the timer does not delete a later write. mu is held.
func (m *Memory) apply(ops []Op) int64 {
	rev := m.revision + 1
	wrote := false
	for _, op := range m.single(ops) {
		old := m.keys[op.Key]
		if old != nil && old.expiry != nil {
			old.expiry.Stop()
		}
		if op.Delete {
			if old == nil {
				continue
			}
			delete(m.keys, op.Key)
			m.history = append(m.history, Event{KV: KV{Key: op.Key, ModRevision: rev}, Deleted: true})
			wrote = true
			continue
		}
		k := &memoryKey{KV: KV{Key: op.Key, Value: slices.Clone(op.Value), CreateRevision: rev, ModRevision: rev}}
		if old != nil {
			k.CreateRevision = old.CreateRevision
		}
		if op.TTL > 0 {
			k.expiry = time.AfterFunc(op.TTL, func() { m.expire(op.Key, rev) })
		}
		m.keys[op.Key] = k
		m.history = append(m.history, Event{KV: k.KV})
		wrote = true
	}
	if !wrote {
		return m.revision
	}
	m.revision = rev
	if len(m.history) > 2*memoryHistory {
		m.compact(m.history[len(m.history)-memoryHistory].ModRevision - 1)
	}
	m.changed.Notify()
	return rev
}

// single replaces each deletion of a range in ops by one deletion for each key. mu is held.
func (m *Memory) single(ops []Op) (out []Op) {
	for _, op := range ops {
		if op.End == "" {
			out = append(out, op)
			continue
		}
		for key := range m.keys {
			if key >= op.Key && key < op.End {
				out = append(out, Delete(key))
			}
		}
	}
	slices.SortFunc(out, func(a, b Op) int { return strings.Compare(a.Key, b.Key) })
	return out
}

func (m *Memory) expire(key string, revision int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.keys[key]; k != nil && k.ModRevision == revision {
		m.apply([]Op{Delete(key)})
	}
}

func (m *Memory) holds(c Compare) bool {
	var kv KV
	if k := m.keys[c.Key]; k != nil {
		kv = k.KV
	}
	if c.Target == TargetCreate {
		return kv.CreateRevision == c.Revision
	}
	return kv.ModRevision == c.Revision
}

// first returns the elected candidate under a prefix, which is the one that was created first. mu
// is held.
func (m *Memory) first(prefix string) (KV, bool) {
	var best KV
	for key, k := range m.keys {
		if strings.HasPrefix(key, prefix) && (best.Key == "" || k.CreateRevision < best.CreateRevision) {
			best = k.KV
		}
	}
	return best, best.Key != ""
}

// MemoryClient is one connection to a Memory. It implements Store. The connection can be cut, as by
// a network failure.
type MemoryClient struct {
	m         *Memory
	closeOnce sync.Once
	closed    chan struct{}

	mu    sync.Mutex
	cut   bool
	state notify.Signal // notified when cut changes
}

// Cut disconnects this client from the store, or reconnects it. While it is cut, operations block
// until they time out, and elections are not renewed.
func (c *MemoryClient) Cut(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut != cut {
		c.cut = cut
		c.state.Notify()
	}
}

// connected waits until the client is not cut.
func (c *MemoryClient) connected(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	for {
		c.mu.Lock()
		cut, state := c.cut, c.state.C()
		c.mu.Unlock()
		select {
		case <-c.closed:
			return ErrClosed
		default:
		}
		if !cut && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return ctx.Err()
		}
		select {
		case <-c.closed:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("the store cannot be reached: %w", ErrNoQuorum)
		case <-state:
		}
	}
}

// Get implements Store.
func (c *MemoryClient) Get(ctx context.Context, key string) (KV, bool, int64, error) {
	if err := c.connected(ctx); err != nil {
		return KV{}, false, 0, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if k := c.m.keys[key]; k != nil {
		return k.KV, true, c.m.revision, nil
	}
	return KV{}, false, c.m.revision, nil
}

// List implements Store.
func (c *MemoryClient) List(ctx context.Context, prefix string, visit func(KV) error) (int64, error) {
	return c.list(ctx, func(key string) bool { return strings.HasPrefix(key, prefix) }, visit)
}

// Range implements Store.
func (c *MemoryClient) Range(ctx context.Context, from, end string, visit func(KV) error) (int64, error) {
	return c.list(ctx, func(key string) bool { return from <= key && key < end }, visit)
}

func (c *MemoryClient) list(ctx context.Context, chosen func(key string) bool, visit func(KV) error) (int64, error) {
	if err := c.connected(ctx); err != nil {
		return 0, err
	}
	c.m.mu.Lock()
	rev := c.m.revision
	var kvs []KV
	for key, k := range c.m.keys {
		if chosen(key) {
			kvs = append(kvs, k.KV)
		}
	}
	c.m.mu.Unlock()
	slices.SortFunc(kvs, func(a, b KV) int { return strings.Compare(a.Key, b.Key) })
	for _, kv := range kvs {
		if err := visit(kv); err != nil {
			return rev, err
		}
	}
	return rev, nil
}

// Surplus implements Store.
func (c *MemoryClient) Surplus(ctx context.Context) (Surplus, error) {
	if err := c.connected(ctx); err != nil {
		return Surplus{}, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return Surplus{Least: c.m.surplus, Most: c.m.surplus, Known: true}, nil
}

// MaxOps implements Store.
func (c *MemoryClient) MaxOps() int { return MaxTxnOps }

// Txn implements Store.
func (c *MemoryClient) Txn(ctx context.Context, compares []Compare, ops []Op) (int64, error) {
	if err := checkTxn(c.MaxOps(), compares, ops); err != nil {
		return 0, err
	}
	if err := c.connected(ctx); err != nil {
		return 0, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for _, cmp := range compares {
		if !c.m.holds(cmp) {
			return c.m.revision, fmt.Errorf("%w: %s", ErrCompareFailed, cmp.Key)
		}
	}
	return c.m.apply(ops), nil
}

// Raise implements Store.
func (c *MemoryClient) Raise(ctx context.Context, above int64, compares []Compare, ops []Op) (int64, error) {
	ops = append(slices.Clone(ops), Put(raisedKey, nil))
	if err := checkTxn(c.MaxOps(), compares, ops); err != nil {
		return 0, err
	}
	if err := c.connected(ctx); err != nil {
		return 0, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for _, cmp := range compares {
		if !c.m.holds(cmp) {
			return c.m.revision, fmt.Errorf("raise the revisions: %w: %s", ErrCompareFailed, cmp.Key)
		}
	}
	c.m.revision = max(c.m.revision, above)
	return c.m.apply(ops), nil
}

// Watch implements Store.
func (c *MemoryClient) Watch(ctx context.Context, prefix string, after int64, send func([]Event) error) error {
	for {
		c.m.mu.Lock()
		changed := c.m.changed.C()
		if after < c.m.compacted {
			c.m.mu.Unlock()
			return fmt.Errorf("watch of %s after %d: %w", prefix, after, ErrCompacted)
		}
		n, _ := slices.BinarySearchFunc(c.m.history, after+1, func(e Event, r int64) int {
			return int(e.ModRevision - r)
		})
		var events []Event
		for _, e := range c.m.history[n:] {
			if strings.HasPrefix(e.Key, prefix) {
				events = append(events, e)
			}
		}
		now := c.m.revision
		c.m.mu.Unlock()
		if len(events) > 0 {
			switch err := c.connected(ctx); {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil && !errors.Is(err, ErrClosed):
				continue // cut for longer than opTimeout: a watch waits for the reconnect
			case err != nil:
				return err
			}
			if err := send(events); err != nil {
				return err
			}
		}
		after = now
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closed:
			return ErrClosed
		case <-changed:
		}
	}
}

// Leader implements Store.
func (c *MemoryClient) Leader(ctx context.Context, prefix string) (KV, bool, error) {
	if err := c.connected(ctx); err != nil {
		return KV{}, false, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	kv, ok := c.m.first(prefix)
	return kv, ok, nil
}

// Close implements Store.
func (c *MemoryClient) Close() error {
	c.closeOnce.Do(func() { close(c.closed) })
	return nil
}
