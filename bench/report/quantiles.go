package report

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Quantiles holds quantiles of durations, in milliseconds, by the nearest rank.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// QuantilesOf returns the quantiles of durations; zeros if there are none. It sorts its
// argument.
func QuantilesOf(all []time.Duration) Quantiles {
	if len(all) == 0 {
		return Quantiles{}
	}
	slices.Sort(all)
	at := func(p float64) float64 {
		rank := int(math.Ceil(p * float64(len(all))))
		return Milliseconds(all[max(rank, 1)-1])
	}
	return Quantiles{P50: at(0.50), P90: at(0.90), P99: at(0.99), Max: at(1)}
}

// Milliseconds returns d in milliseconds, rounded to microseconds.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Seconds returns d in seconds, rounded to tenths of milliseconds.
func Seconds(d time.Duration) float64 { return Round(d.Seconds(), 4) }

func Round(v float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(v*p) / p
}

// PerSecond returns n divided by the seconds of d; 0 if d is not positive.
func PerSecond(n int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return Round(float64(n)/d.Seconds(), 1)
}

func (q Quantiles) String() string {
	ms := func(v float64) string {
		if v >= 100 {
			return fmt.Sprintf("%.0f ms", v)
		}
		return fmt.Sprintf("%.3g ms", v)
	}
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, max %s", ms(q.P50), ms(q.P90), ms(q.P99), ms(q.Max))
}
