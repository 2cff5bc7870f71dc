package series

import (
	"encoding/binary"
	"math/bits"
)

// A column is a list of small non-negative integers below 2^rawBits. It begins with a
// mode. The mode is the parameter of a Rice code (R. F. Rice, JPL 79-22, 1979), or one of
// two numbers that describe the whole column.
const (
	rawBits   = 25
	modeBits  = 5
	modeEqual = 30 // all numbers are equal, and the number follows once
	modeZero  = 31 // every number is 0
	// maxUnary one bits mean that the number follows in binary. So an outlier costs
	// maxUnary+rawBits bits, and not bits in proportion to its size.
	maxUnary = 12
)

type bitWriter struct {
	buf []byte
	acc uint64
	n   uint // bits in acc, less than 32 between calls
}

// put appends the k ≤ 32 low bits of v. The other bits of v must be 0.
func (w *bitWriter) put(v uint32, k uint) {
	w.acc = w.acc<<k | uint64(v)
	w.n += k
	if w.n >= 32 {
		w.n -= 32
		w.buf = binary.BigEndian.AppendUint32(w.buf, uint32(w.acc>>w.n))
	}
}

// finish pads the last byte with zeros and returns all bytes.
func (w *bitWriter) finish() []byte {
	for w.n > 0 {
		k := min(w.n, 8)
		w.n -= k
		w.buf = append(w.buf, byte(w.acc>>w.n)<<(8-k))
	}
	return w.buf
}

func (w *bitWriter) column(numbers []uint32) {
	equal, lengths := true, 0
	for _, u := range numbers {
		equal = equal && u == numbers[0]
		lengths += bits.Len32(u)
	}
	switch {
	case equal && (len(numbers) == 0 || numbers[0] == 0):
		w.put(modeZero, modeBits)
		return
	case equal:
		w.put(modeEqual, modeBits)
		w.put(numbers[0], rawBits)
		return
	}
	k := riceParameter(numbers, lengths/len(numbers))
	w.put(uint32(k), modeBits)
	for _, u := range numbers {
		q := u >> k
		if q >= maxUnary {
			w.put(1<<maxUnary-1, maxUnary)
			w.put(u, rawBits)
			continue
		}
		w.put((1<<q-1)<<1, uint(q)+1)
		w.put(u&(1<<k-1), k)
	}
}

// riceParameter returns the parameter near the mean bit length of the numbers that needs
// the fewest bits. A few outliers hardly change the mean length, unlike the mean of the
// numbers.
func riceParameter(numbers []uint32, length int) uint {
	best, least := uint(0), ^uint32(0)
	for k := max(length-2, 0); k <= min(length+1, rawBits-1); k++ {
		cost := uint32(0)
		for _, u := range numbers {
			if q := u >> k; q < maxUnary {
				cost += q + 1 + uint32(k)
			} else {
				cost += maxUnary + rawBits
			}
		}
		if cost < least {
			best, least = uint(k), cost
		}
	}
	return best
}

// bitReader reads the bits of a bitWriter. After the end it reads zeros and sets short.
type bitReader struct {
	buf   []byte
	acc   uint64 // the next bits, the highest first
	n     uint   // number of valid bits in acc
	short bool
}

func (r *bitReader) fill() {
	if len(r.buf) >= 8 {
		r.acc |= binary.BigEndian.Uint64(r.buf) >> r.n
		took := (64 - r.n) / 8
		r.buf = r.buf[took:]
		r.n += took * 8
		r.acc &= ^uint64(0) << (64 - r.n)
		return
	}
	for r.n <= 56 && len(r.buf) > 0 {
		r.acc |= uint64(r.buf[0]) << (56 - r.n)
		r.buf = r.buf[1:]
		r.n += 8
	}
}

func (r *bitReader) get(k uint) uint32 {
	if r.n < k {
		if r.fill(); r.n < k {
			r.short, r.n, r.acc = true, 0, 0
			return 0
		}
	}
	v := uint32(r.acc >> (64 - k))
	r.acc <<= k
	r.n -= k
	return v
}

// column fills numbers. Damaged bytes also decode to numbers below 2^rawBits.
func (r *bitReader) column(numbers []uint32) {
	k := uint(r.get(modeBits))
	if k >= rawBits {
		v := uint32(0)
		if k == modeEqual {
			v = r.get(rawBits)
		} else if k != modeZero {
			r.short = true
		}
		for i := range numbers {
			numbers[i] = v
		}
		return
	}
	for i := range numbers {
		if r.n < maxUnary+rawBits {
			r.fill()
		}
		q := uint(bits.LeadingZeros64(^r.acc))
		if q >= maxUnary {
			r.get(maxUnary)
			numbers[i] = r.get(rawBits)
			continue
		}
		r.get(q + 1)
		numbers[i] = (uint32(q)<<k | r.get(k)) & (1<<rawBits - 1)
	}
}

func zigzag(v int32) uint32   { return uint32(v<<1) ^ uint32(v>>31) }
func unzigzag(u uint32) int32 { return int32(u>>1) ^ -int32(u&1) }
