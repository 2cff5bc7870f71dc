package series

import "math"

// Values are kept with mantissaBits of their 52: a relative error of at most
// 2^-13 (0.012 %), and integers up to 8,192 exactly. A graph needs no more, and
// it halves what noise costs on disk.
const (
	mantissaBits = 12
	droppedBits  = 52 - mantissaBits
)

// A value is handled as its ordinal: the truncated bits of the float read as a
// signed integer. The order is that of the values, and near values have near
// ordinals, whatever their magnitude, so that differences are small numbers.
// Every |ordinal| is below 2^23.
type ordinal = int32

const (
	none       ordinal = math.MinInt32 // no value
	maxOrdinal ordinal = 0x7ff<<mantissaBits - 1
)

// toOrdinal rounds to the nearest kept value; NaN and infinities are none.
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

// toValue is the value of an ordinal; NaN of none.
func toValue(o ordinal) float64 {
	if o == none {
		return math.NaN()
	}
	if o < 0 {
		return -math.Float64frombits(uint64(-o) << droppedBits)
	}
	return math.Float64frombits(uint64(o) << droppedBits)
}

// cell is what a window holds of one field: n values (0: a gap) with their
// least, mean and greatest as ordinals, least ≤ mean ≤ greatest.
type cell struct {
	n              int32
	min, mean, max ordinal
}

// fold is the cell of the window that these cells make up, oldest first. Its
// mean is that of all values, weighted by their number.
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
