package series

import (
	"math"
	"strings"
)

var bars = []rune("▁▂▃▄▅▆▇█")

// alike is a share of the greatest value. Differences below that share are not drawn.
const alike = 0.05

// Sparkline draws values, oldest first, in at most width characters, from their minimum
// (▁) to their maximum (█). Gaps (NaN, infinities) are spaces. If there are more values
// than width, each character is the mean of a group of values. Values that differ by less
// than noise, or by less than a twentieth of the greatest value, are drawn as a flat line.
// The line is at the bottom if all values are 0, and otherwise in the middle.
func Sparkline(values []float64, width int, noise float64) string {
	groups := regroup(values, width)
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range groups {
		if !math.IsNaN(v) {
			low, high = min(low, v), max(high, v)
		}
	}
	if greatest := max(math.Abs(low), math.Abs(high)); greatest > 0 && high-low < max(noise, greatest*alike) {
		for i := range groups {
			groups[i] -= groups[i] // NaN − NaN is NaN, so a gap stays a gap
		}
		low, high = -1, 1
	}
	return draw(groups, low, high)
}

// regroup returns at most width values: the means of groups of values, without gaps. A
// group that has only gaps is a gap.
func regroup(values []float64, width int) []float64 {
	n := min(len(values), max(width, 0))
	out := make([]float64, n)
	for i := range out {
		mean, count := 0.0, 0.0
		for _, v := range values[i*len(values)/n : (i+1)*len(values)/n] {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				count++
				mean += v/count - mean/count // a sum of large values could overflow
			}
		}
		if count == 0 {
			mean = math.NaN()
		}
		out[i] = mean
	}
	return out
}

func draw(values []float64, low, high float64) string {
	var b strings.Builder
	for _, v := range values {
		if math.IsNaN(v) {
			b.WriteByte(' ')
			continue
		}
		i := 0
		if high > low {
			// The values are halved, so that their differences cannot overflow.
			share := (v/2 - low/2) / (high/2 - low/2)
			i = int(min(max(share, 0), 1) * float64(len(bars)))
		}
		b.WriteRune(bars[min(i, len(bars)-1)])
	}
	return b.String()
}
