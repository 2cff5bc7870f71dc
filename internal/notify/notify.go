package notify

import "sync"

// Signal wakes any number of waiters when a state has changed. The zero value is ready to
// use. A Signal is safe for concurrent use.
//
// A waiter that must not miss a change calls C before it reads the state, or under the
// same lock.
type Signal struct {
	mu sync.Mutex
	// ch is nil while no caller waits.
	ch chan struct{}
}

// C returns a channel that the next Notify closes.
func (s *Signal) C() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

// Notify closes the channel that earlier calls of C returned. It costs nothing
// but the lock while no caller waits.
func (s *Signal) Notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}
