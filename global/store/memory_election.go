package store

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// memoryElection is a candidate's key in a Memory. A goroutine renews the key until the election
// ends.
type memoryElection struct {
	c    *MemoryClient
	key  string
	rev  int64
	ttl  time.Duration
	stop context.CancelFunc
	done chan struct{} // closed when the renewing goroutine has ended
	lost chan struct{}
	once sync.Once
}

// Campaign implements Store.
func (c *MemoryClient) Campaign(ctx context.Context, prefix, value string, ttl time.Duration) (Election, error) {
	if err := c.connected(ctx); err != nil {
		return nil, err
	}
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	e := &memoryElection{c: c, ttl: ttl, stop: stop, done: make(chan struct{}), lost: make(chan struct{})}
	m := c.m
	m.mu.Lock()
	m.sequence++
	e.key = fmt.Sprintf("%s%016x", prefix, m.sequence)
	e.rev = m.apply([]Op{PutTTL(e.key, []byte(value), ttl)})
	m.mu.Unlock()
	go e.keepAlive(keep)

	for {
		m.mu.Lock()
		changed := m.changed.C()
		first, _ := m.first(prefix)
		m.mu.Unlock()
		if first.Key == e.key {
			return e, nil
		}
		var err error
		select {
		case <-changed:
			continue
		case <-ctx.Done():
			err = ctx.Err()
		case <-c.closed:
			err = ErrClosed
		case <-e.lost:
			err = fmt.Errorf("campaign under %s: %w", prefix, ErrNoQuorum)
		}
		e.withdraw()
		return nil, err
	}
}

// keepAlive renews the key at each third of the ttl. It closes lost when the key is removed, when
// the store is closed, or when no renewal has succeeded for the ttl.
func (e *memoryElection) keepAlive(ctx context.Context) {
	defer close(e.done)
	defer e.once.Do(func() { close(e.lost) })
	expired := time.NewTimer(e.ttl)
	defer expired.Stop()
	tick := time.NewTicker(e.ttl / 3)
	defer tick.Stop()
	for {
		m := e.c.m
		m.mu.Lock()
		changed, k := m.changed.C(), m.keys[e.key]
		m.mu.Unlock()
		e.c.mu.Lock()
		cut := e.c.cut
		e.c.mu.Unlock()
		if k == nil && !cut {
			return
		}
		if cut {
			changed = nil // a client that is cut sees no change
		}
		select {
		case <-ctx.Done():
			return
		case <-e.c.closed:
			return
		case <-expired.C:
			return
		case <-changed:
		case <-tick.C:
			if !cut && e.renew() {
				expired.Reset(e.ttl)
			}
		}
	}
}

func (e *memoryElection) renew() bool {
	m := e.c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.keys[e.key]
	return k != nil && k.CreateRevision == e.rev && k.expiry != nil && k.expiry.Reset(e.ttl)
}

// withdraw removes the key if the store can be reached. Otherwise the key expires.
func (e *memoryElection) withdraw() {
	e.stop()
	<-e.done
	e.c.mu.Lock()
	cut := e.c.cut
	e.c.mu.Unlock()
	if cut {
		return
	}
	m := e.c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.keys[e.key]; k != nil && k.CreateRevision == e.rev {
		m.apply([]Op{Delete(e.key)})
	}
}

// Guard implements Election.
func (e *memoryElection) Guard() Compare { return Create(e.key, e.rev) }

// Lost implements Election.
func (e *memoryElection) Lost() <-chan struct{} { return e.lost }

// Renew implements Election.
func (e *memoryElection) Renew(ctx context.Context) error {
	if err := e.c.connected(ctx); err != nil {
		return err
	}
	if !e.renew() {
		return fmt.Errorf("renew the candidacy: %w", ErrCompareFailed)
	}
	return nil
}

// Resign implements Election.
func (e *memoryElection) Resign(context.Context) error {
	e.withdraw()
	return nil
}
