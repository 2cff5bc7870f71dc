package compact

import (
	"reflect"
	"sync"
)

// sharedMost bounds the number of values that a Shared remembers.
const sharedMost = 4096

// Shared makes equal values share their memory. Nobody may change a value that Of returned. Shared
// is safe for concurrent use.
type Shared[T any] struct {
	mu    sync.Mutex
	known map[uint64]T
}

// Of returns an equal value from an earlier call, or v if it remembers none. Different values
// should have different hashes.
func (s *Shared[T]) Of(hash uint64, v T) T {
	s.mu.Lock()
	seen, known := s.known[hash]
	s.mu.Unlock()
	if known && reflect.DeepEqual(seen, v) {
		return seen
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= sharedMost {
		s.known = map[uint64]T{}
	}
	s.known[hash] = v
	return v
}
