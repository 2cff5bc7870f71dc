package series

import "math"

// Values are stored with mantissaBits of the 52 bits of their mantissa. The relative error
// is at most 2^-13 (0.012 %), and integers up to 8,192 are exact. This suffices for a
// graph and halves the space that noise needs on disk.
const (
	mantissaBits = 12
	droppedBits  = 52 - mantissaBits
)

// An ordinal represents a value: it is the rounded bits of the float as a signed integer.
// Ordinals have the order of their values. Similar values have similar ordinals at every
// magnitude, so that differences are small numbers. Every |ordinal| is below 2^23.
type ordinal = int32

const (
	none       ordinal = math.MinInt32 // no value
	maxOrdinal ordinal = 0x7ff<<mantissaBits - 1
)

// toOrdinal rounds to the nearest ordinal; NaN and infinities give none.
func toOrdinal(v float64) ordinal {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return none
	}
	bits := math.Float64bits(math.Abs(v))
	o := min(ordinal((bits+1<<(droppedBits-1))>>droppedBits), maxOrdinal)
	if v < 0 {
		return -o
	}
	return o
}

// toValue returns the value of an ordinal; NaN for none.
func toValue(o ordinal) float64 {
	if o == none {
		return math.NaN()
	}
	if o < 0 {
		return -math.Float64frombits(uint64(-o) << droppedBits)
	}
	return math.Float64frombits(uint64(o) << droppedBits)
}

// cell is a window of one field: the number n of its values (0 = a gap), and their
// minimum, mean and maximum, with min ≤ mean ≤ max.
type cell struct {
	n              int32
	min, mean, max ordinal
}

// fold returns the cell of a window that is made of these cells. The mean is weighted by
// the numbers of values.
func fold(cells []cell) cell {
	var out cell
	for _, c := range cells {
		if c.n == 0 {
			continue
		}
		if out.n == 0 {
			out.min, out.max = c.min, c.max
		}
		out.n += c.n
		out.min, out.max = min(out.min, c.min), max(out.max, c.max)
	}
	if out.n == 0 {
		return out
	}
	sum, weight := 0.0, 1/float64(out.n) // weighted before adding: cannot overflow
	for _, c := range cells {
		if c.n > 0 {
			sum += toValue(c.mean) * (float64(c.n) * weight)
		}
	}
	mean := toOrdinal(sum)
	out.mean = min(max(mean, out.min), out.max)
	return out
}
