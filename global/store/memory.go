package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// memoryHistory bounds the events that a Memory holds for watches; older ones
// are compacted.
const memoryHistory = 10_000

// Memory is a store in memory that any number of clients share, with the
// semantics of etcd. It lives as long as its process: simulations and tests.
type Memory struct {
	mu        sync.Mutex
	revision  int64
	compacted int64
	keys      map[string]*memoryKey
	history   []Event
	changed   chan struct{} // closed and replaced at each change
	sequence  int64         // names candidates
}

type memoryKey struct {
	KV
	expiry *time.Timer // nil: for ever
}

// NewMemory makes an empty store. Its revision starts at 1, as etcd's does.
func NewMemory() *Memory {
	return &Memory{revision: 1, keys: map[string]*memoryKey{}, changed: make(chan struct{})}
}

// Client opens a connection of its own to the store.
func (m *Memory) Client() *MemoryClient {
	return &MemoryClient{m: m, closed: make(chan struct{}), state: make(chan struct{})}
}

// Compact forgets the history up to a revision.
func (m *Memory) Compact(revision int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.compact(revision)
	m.signal()
}

func (m *Memory) compact(revision int64) {
	m.compacted = max(m.compacted, min(revision, m.revision))
	n, _ := slices.BinarySearchFunc(m.history, m.compacted+1, func(e Event, r int64) int {
		return int(e.ModRevision - r)
	})
	m.history = slices.Clone(m.history[n:])
}

// signal wakes everybody who waits for a change. mu is held.
func (m *Memory) signal() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// apply writes ops at one new revision. mu is held. The timer of a key that
// expires is named by the revision that set it, so a later write outlives it.
func (m *Memory) apply(ops []Op) int64 {
	rev := m.revision + 1
	wrote := false
	for _, op := range ops {
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
	m.signal()
	return rev
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

// first answers the candidate that is elected under a prefix: the one created
// first. mu is held.
func (m *Memory) first(prefix string) (KV, bool) {
	var best KV
	for key, k := range m.keys {
		if strings.HasPrefix(key, prefix) && (best.Key == "" || k.CreateRevision < best.CreateRevision) {
			best = k.KV
		}
	}
	return best, best.Key != ""
}

// MemoryClient is one connection to a Memory; it implements Store. Its
// connection can be cut, as a network would.
type MemoryClient struct {
	m         *Memory
	closeOnce sync.Once
	closed    chan struct{}

	mu    sync.Mutex
	cut   bool
	state chan struct{} // closed and replaced when cut changes
}

// Cut parts this client from the store, or heals it: while it is cut nothing
// is answered and elections are not kept alive.
func (c *MemoryClient) Cut(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut != cut {
		c.cut = cut
		close(c.state)
		c.state = make(chan struct{})
	}
}

// connected waits until the client is not cut.
func (c *MemoryClient) connected(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	for {
		c.mu.Lock()
		cut, state := c.cut, c.state
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
			return fmt.Errorf("store is out of reach: %w", ErrNoQuorum)
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
	if err := c.connected(ctx); err != nil {
		return 0, err
	}
	c.m.mu.Lock()
	rev := c.m.revision
	var kvs []KV
	for key, k := range c.m.keys {
		if strings.HasPrefix(key, prefix) {
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

// Txn implements Store.
func (c *MemoryClient) Txn(ctx context.Context, compares []Compare, ops []Op) (int64, error) {
	if err := checkTxn(compares, ops); err != nil {
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

// Watch implements Store.
func (c *MemoryClient) Watch(ctx context.Context, prefix string, after int64, send func([]Event) error) error {
	for {
		c.m.mu.Lock()
		changed := c.m.changed
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
				continue // cut for long: a watch waits until it is healed
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
