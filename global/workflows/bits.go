package workflows

import "math/bits"

// set is a set of steps, by their indices.
type set []uint64

func newSet(n int) set { return make(set, (n+63)/64) }

func (s set) add(i int) { s[i/64] |= 1 << (i % 64) }

func (s set) addAll(steps []int) {
	for _, i := range steps {
		s.add(i)
	}
}

func (s set) empty() bool {
	for _, w := range s {
		if w != 0 {
			return false
		}
	}
	return true
}

// take removes the first steps, at most so many, and returns them.
func (s set) take(most int) (out []int) {
	for at, w := range s {
		for w != 0 && len(out) < most {
			i := bits.TrailingZeros64(w)
			w &^= 1 << i
			out = append(out, at*64+i)
		}
		s[at] = w
		if len(out) == most {
			return out
		}
	}
	return out
}
