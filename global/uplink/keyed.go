package uplink

import (
	"context"
	"sync"
)

// keyedLock is a lock for each key. The zero value is ready to use.
type keyedLock struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// lock takes the lock of a key. It waits until the lock is free or ctx ends.
func (l *keyedLock) lock(ctx context.Context, key string) (release func(), err error) {
	for {
		l.mu.Lock()
		if l.held == nil {
			l.held = map[string]chan struct{}{}
		}
		waiting, busy := l.held[key]
		if !busy {
			done := make(chan struct{})
			l.held[key] = done
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.held, key)
				close(done)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-waiting:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
