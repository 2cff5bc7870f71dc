package series

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Bounds of a trend.
const (
	// trendPoints bounds the points of a fit, so that it has at most 44,850 pairs (4 ms to
	// sort). If there are more points, neighbouring points are replaced by their median.
	trendPoints = 300
	// trendLeast is the least number of points for a trend.
	trendLeast = 12
	// trendZ is the two-sided 99 % quantile of the normal distribution, for the test of
	// a trend and the interval of its slope.
	trendZ = 2.576
	// trendFit is the share of the values' deviation that a line must explain. Below that
	// share the values mostly go up and down, for example in a daily wave.
	trendFit = 0.6
	// trendRecent is the share of the slope that the last third of the values must still
	// have. A value that grew last week and is constant now reaches no limit.
	trendRecent = 0.3
	// trendReach bounds the extrapolation of a trend: to so many times the measured span.
	trendReach = 5
)

// Verdict is the result of a fit.
type Verdict string

// The verdicts. All except Rising and Falling mean that no forecast is possible.
const (
	Rising  Verdict = "rising"
	Falling Verdict = "falling"
	Flat    Verdict = "no trend"                      // the slope may be due to chance
	Erratic Verdict = "no trend: the values vary"     // a line explains the values poorly
	Changed Verdict = "no trend: it changed its pace" // the latest third has another slope
	TooFew  Verdict = "too few values for a trend"
)

// Trend is a line through measured values. Slope, Low and High are in units per second.
// Low and High are the ends of the slope's 99 % confidence interval. The interval is
// correct if the errors of the values are independent, and otherwise too narrow.
type Trend struct {
	Verdict          Verdict
	Slope, Low, High float64
	// Fit is the share of the median absolute deviation that the line explains: 1 for
	// points on a line, 0 or less for no line.
	Fit float64
	// Value is the value of the line at At, the time of the last value.
	Value float64
	At    time.Time
	Span  time.Duration // from the first value to the last
	N     int           // number of values
}

// FitTrend fits a line to the means of points. The first point begins at start, and the
// points are step apart. The slope is the median of the slopes between all pairs of points
// (Theil 1950; Sen, J. Am. Stat. Assoc. 63, 1968), so that up to 29 % of outliers do not
// change it. The test of Mann and Kendall decides whether there is a trend. The interval
// is Sen's.
func FitTrend(start time.Time, step time.Duration, points []Point) Trend {
	x, y := trendValues(step, points)
	t := Trend{Verdict: TooFew, N: len(x)}
	if len(x) == 0 {
		return t
	}
	t.At = start.Add(time.Duration(x[len(x)-1] * float64(time.Second)))
	t.Span = time.Duration((x[len(x)-1] - x[0]) * float64(time.Second))
	t.Value = y[len(y)-1]
	if len(x) < trendLeast {
		return t
	}
	gx, gy := thin(x, y)
	slopes, s := pairSlopes(gx, gy)
	t.Slope = middle(slopes)
	spread := trendZ * math.Sqrt(kendallVariance(gy))
	n := float64(len(slopes))
	t.Low = slopes[max(int((n-spread)/2), 0)]
	t.High = slopes[min(int((n+spread)/2), len(slopes)-1)]

	level := make([]float64, len(gx)) // the values, moved parallel to the line to the last time
	for i := range gx {
		level[i] = gy[i] + t.Slope*(x[len(x)-1]-gx[i])
	}
	t.Value = middle(slices.Clone(level))
	t.Fit = 1 - deviation(level)/deviation(gy)
	recent, _ := pairSlopes(gx[len(gx)*2/3:], gy[len(gy)*2/3:])
	switch {
	case math.Abs(s) <= spread || t.Slope == 0 || t.Low <= 0 && t.High >= 0:
		t.Verdict = Flat
	case middle(recent)/t.Slope < trendRecent:
		t.Verdict = Changed
	case !(t.Fit >= trendFit):
		t.Verdict = Erratic
	case t.Slope > 0:
		t.Verdict = Rising
	default:
		t.Verdict = Falling
	}
	return t
}

// trendValues returns the times of the values, in seconds since the start, and the values.
func trendValues(step time.Duration, points []Point) (x, y []float64) {
	for i, p := range points {
		if p.Count > 0 && !math.IsNaN(p.Mean) && !math.IsInf(p.Mean, 0) {
			x = append(x, (float64(i)+0.5)*step.Seconds())
			y = append(y, p.Mean)
		}
	}
	return x, y
}

// thin replaces neighbouring values by their median, so that at most trendPoints remain.
func thin(x, y []float64) ([]float64, []float64) {
	n := min(len(x), trendPoints)
	gx, gy := make([]float64, n), make([]float64, n)
	for i := range n {
		from, to := i*len(x)/n, (i+1)*len(x)/n
		gx[i] = (x[from] + x[to-1]) / 2
		gy[i] = middle(slices.Clone(y[from:to]))
	}
	return gx, gy
}

// pairSlopes returns the slopes between all pairs of points, ascending. s is the number of
// rising pairs minus the number of falling pairs.
func pairSlopes(x, y []float64) (slopes []float64, s float64) {
	slopes = make([]float64, 0, len(x)*(len(x)-1)/2)
	for i := range x {
		for j := range i {
			slope := (y[i] - y[j]) / (x[i] - x[j])
			slopes = append(slopes, slope)
			switch {
			case slope > 0:
				s++
			case slope < 0:
				s--
			}
		}
	}
	slices.Sort(slopes)
	return slopes, s
}

// kendallVariance returns the variance that the s of pairSlopes has for values without a
// trend, corrected for equal values (Kendall, Rank Correlation Methods).
func kendallVariance(y []float64) float64 {
	sorted := slices.Sorted(slices.Values(y))
	term := func(n int) float64 { f := float64(n); return f * (f - 1) * (2*f + 5) / 18 }
	v, run := term(len(y)), 1
	for i := 1; i <= len(sorted); i++ {
		if i < len(sorted) && sorted[i] == sorted[i-1] {
			run++
			continue
		}
		v -= term(run)
		run = 1
	}
	return max(v, 0)
}

// middle returns the median. It sorts its argument.
func middle(v []float64) float64 {
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return v[n/2-1]/2 + v[n/2]/2
	}
	return v[len(v)/2]
}

// deviation returns the median of the distances from the median.
func deviation(v []float64) float64 {
	m := middle(slices.Clone(v))
	distances := make([]float64, len(v))
	for i, x := range v {
		distances[i] = math.Abs(x - m)
	}
	return middle(distances)
}

// Forecast is the time when a trend reaches a limit.
type Forecast struct {
	// Known: At is the best estimate. According to the interval of the slope the time lies
	// between Earliest and Latest. Latest is zero if the limit may never be reached.
	Known                bool
	At, Earliest, Latest time.Time
	// Why says what the forecast is based on, or why there is no forecast.
	Why string
}

// Reaches extrapolates the trend to a limit, for example to the capacity if use is rising,
// or to zero if free space is falling. It gives no time beyond trendReach times the
// measured span, because a line says nothing about such times.
func (t Trend) Reaches(limit float64) Forecast {
	if t.Verdict != Rising && t.Verdict != Falling {
		return Forecast{Why: string(t.Verdict)}
	}
	rest := limit - t.Value
	if rest == 0 || (rest < 0) == (t.Verdict == Rising) {
		return Forecast{Known: true, At: t.At, Earliest: t.At, Latest: t.At, Why: "the limit is reached already"}
	}
	after := func(slope float64) (time.Time, bool) {
		seconds := rest / slope
		if !(seconds > 0 && seconds <= trendReach*t.Span.Seconds()) {
			return time.Time{}, false
		}
		return t.At.Add(time.Duration(seconds * float64(time.Second))), true
	}
	fast, slow := t.High, t.Low
	if t.Verdict == Falling {
		fast, slow = slow, fast
	}
	at, ok := after(t.Slope)
	if !ok {
		return Forecast{Why: fmt.Sprintf("%s, but not full within the next %s (by %s of values)", t.Verdict, words(trendReach*t.Span), words(t.Span))}
	}
	f := Forecast{Known: true, At: at}
	f.Earliest, _ = after(fast)
	f.Latest, _ = after(slow)
	f.Why = fmt.Sprintf("%s for %s; the line explains %.0f %%", t.Verdict, words(t.Span), 100*t.Fit)
	return f
}

// words formats a span in the unit that fits best, for example "6 days".
func words(d time.Duration) string {
	unit, one := "second", time.Second
	switch {
	case d >= 48*time.Hour:
		unit, one = "day", 24*time.Hour
	case d >= 2*time.Hour:
		unit, one = "hour", time.Hour
	case d >= 2*time.Minute:
		unit, one = "minute", time.Minute
	}
	n := int64(d.Round(one) / one)
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprintf("%d %s", n, unit)
}
