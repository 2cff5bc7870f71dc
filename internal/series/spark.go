package series

import (
	"math"
	"strings"
)

var bars = []rune("▁▂▃▄▅▆▇█")

// alike is the share of the greatest value below which values are drawn alike.
const alike = 0.05

// Sparkline draws values, oldest first, in at most width characters from their
// least (▁) to their greatest (█); gaps (NaN, infinities) are spaces. More
// values than width are drawn as the means of groups, fewer take a character
// each. Values that are alike are drawn as a flat line, at the bottom where they
// are 0, in the middle otherwise: those that differ by less than noise, or by
// less than a twentieth of the greatest, which nobody needs to look at.
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
			groups[i] -= groups[i] // a gap stays one
		}
		low, high = -1, 1
	}
	return draw(groups, low, high)
}

// SparklineBetween draws on a given scale, such as 0 to the capacity, so that
// small movements look small. What lies outside is drawn at its end.
func SparklineBetween(values []float64, width int, low, high float64) string {
	return draw(regroup(values, width), low, high)
}

// regroup makes at most width values of any number, by the mean of those that
// are none of them gaps; a group of gaps is a gap.
func regroup(values []float64, width int) []float64 {
	n := min(len(values), max(width, 0))
	out := make([]float64, n)
	for i := range out {
		sum, count := 0.0, 0.0
		for _, v := range values[i*len(values)/n : (i+1)*len(values)/n] {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				sum, count = sum+v, count+1
			}
		}
		out[i] = sum / count // NaN of none
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
			// Each in parts, so that the ends of the scale cannot overflow.
			share := (v/2 - low/2) / (high/2 - low/2)
			i = int(min(max(share, 0), 1) * float64(len(bars)))
		}
		b.WriteRune(bars[min(i, len(bars)-1)])
	}
	return b.String()
}
