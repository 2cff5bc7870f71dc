package master

import (
	"crypto/rand"

	"github.com/google/uuid"
)

// idSource makes random UUIDs and asks the system for the randomness of 256 at
// once. Not safe for concurrent use.
type idSource struct {
	random [256 * len(uuid.UUID{})]byte
	left   int // bytes of random that are not used yet
}

func (s *idSource) next() string {
	if s.left == 0 {
		rand.Read(s.random[:]) // never fails
		s.left = len(s.random)
	}
	s.left -= len(uuid.UUID{})
	id := uuid.UUID(s.random[s.left:][:len(uuid.UUID{})])
	id[6] = id[6]&0x0f | 4<<4 // version 4: random
	id[8] = id[8]&0x3f | 2<<6 // variant 2: RFC 9562
	return id.String()
}
