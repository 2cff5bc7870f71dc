package uplink

import (
	"context"
	"sync"
)

// keyedLock has one holder at a time for each key. The zero value is ready to
// use.
type keyedLock struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// lock waits for a key until ctx ends.
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
