package tasks

import (
	"encoding/binary"
	mathbits "math/bits"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
)

// bits has a bit for each record of a segment.
type bits []uint64

func newBits(n uint32) bits { return make(bits, (n+63)/64) }

func allBits(n uint32) bits {
	b := newBits(n)
	for i := range b {
		b[i] = ^uint64(0)
	}
	if n%64 != 0 {
		b[len(b)-1] = 1<<(n%64) - 1
	}
	return b
}

func (b bits) set(i uint32) { b[i/64] |= 1 << (i % 64) }

func (b bits) and(o bits) {
	for i := range b {
		b[i] &= o[i]
	}
}

func (b bits) or(o bits) {
	for i := range b {
		b[i] |= o[i]
	}
}

// before returns the greatest number below i whose bit is set, or -1.
func (b bits) before(i int) int {
	for i > 0 {
		word := b[(i-1)/64] << (63 - (i-1)%64)
		if word != 0 {
			return i - 1 - mathbits.LeadingZeros64(word)
		}
		i = (i - 1) / 64 * 64
	}
	return -1
}

// filter says which ids a segment does not have: a Bloom filter of filterBits bits an id, with filterHashes
// hashes. About one in 80 of the other ids may be in it. The ids are random, and so are their own hashes.
type filter []byte

const (
	filterBits   = 10
	filterHashes = 4
)

func newFilter(n int) filter { return make(filter, n*filterBits/8+1) }

func (f filter) each(id [taskpage.IDBytes]byte, do func(at, mask uint64) bool) {
	a, b := binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:])|1
	for i := range uint64(filterHashes) {
		bit := (a + i*b) % uint64(len(f)*8)
		if !do(bit/8, 1<<(bit%8)) {
			return
		}
	}
}

func (f filter) add(id [taskpage.IDBytes]byte) {
	f.each(id, func(at, mask uint64) bool { f[at] |= byte(mask); return true })
}

// may returns false if the segment does not have the id.
func (f filter) may(id [taskpage.IDBytes]byte) bool {
	if len(f) == 0 {
		return true
	}
	may := true
	f.each(id, func(at, mask uint64) bool { may = f[at]&byte(mask) != 0; return may })
	return may
}
