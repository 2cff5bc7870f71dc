package series

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Bounds of a trend.
const (
	// trendPoints bounds the points of a fit, and so its pairs to 44,850 (4 ms
	// to sort); of more the medians of neighbours are taken.
	trendPoints = 300
	// trendLeast points and more can have a trend.
	trendLeast = 12
	// trendZ is the 99 % quantile, both sides, of the normal distribution: for
	// the test of a trend and the interval of its slope.
	trendZ = 2.576
	// trendFit is how much of the values' deviation a line must explain. Below
	// it goes up and down more than along: a sawtooth, a daily wave.
	trendFit = 0.6
	// trendRecent is the share of its slope that the last third must still have:
	// what grew last week and stands still now fills nothing up.
	trendRecent = 0.3
	// trendReach is how many times its span a trend is carried into the future.
	trendReach = 5
)

// Verdict says whether values have a trend.
type Verdict string

// Verdicts. All but Rising and Falling mean that there is no telling.
const (
	Rising  Verdict = "rising"
	Falling Verdict = "falling"
	Flat    Verdict = "no trend"                      // none that differs from chance
	Erratic Verdict = "no trend: the values vary"     // a line explains them poorly
	Changed Verdict = "no trend: it changed its pace" // the latest third goes elsewhere
	TooFew  Verdict = "too few values for a trend"
)

// Trend is a line through measured values. Slopes are in units per second; Low
// and High are the ends of its 99 % confidence interval, which holds where the
// values' errors are independent and is too narrow where they are not.
type Trend struct {
	Verdict          Verdict
	Slope, Low, High float64
	// Fit is the share of the median absolute deviation from the median that
	// the line explains: 1 for points on a line, 0 or less for none.
	Fit float64
	// Value is that of the line at the time At of the last value.
	Value float64
	At    time.Time
	Span  time.Duration // from the first value to the last
	N     int           // values
}

// FitTrend fits a line to the means of a row of points that begin at start and
// are step apart. The slope is the median of those between all pairs of points
// (Theil 1950; Sen, J. Am. Stat. Assoc. 63, 1968), so that up to 29 % of
// outliers do not move it; that there is a trend at all is decided by the test
// of Mann and Kendall; the interval is Sen's.
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

	level := make([]float64, len(gx)) // of the line, at the last value
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

// trendValues are the times of the values, in seconds, and the values.
func trendValues(step time.Duration, points []Point) (x, y []float64) {
	for i, p := range points {
		if p.Count > 0 && !math.IsNaN(p.Mean) && !math.IsInf(p.Mean, 0) {
			x = append(x, (float64(i)+0.5)*step.Seconds())
			y = append(y, p.Mean)
		}
	}
	return x, y
}

// thin takes medians of neighbours so that at most trendPoints are left.
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

// pairSlopes returns the slopes between all pairs, ascending, and how many more
// of them rise than fall.
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

// kendallVariance is the variance of s above without a trend, corrected for
// values that are equal (Kendall, Rank Correlation Methods).
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

// middle is the median; it sorts its argument.
func middle(v []float64) float64 {
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return v[n/2-1]/2 + v[n/2]/2
	}
	return v[len(v)/2]
}

// deviation is the median distance from the median.
func deviation(v []float64) float64 {
	m := middle(slices.Clone(v))
	away := make([]float64, len(v))
	for i, x := range v {
		away[i] = math.Abs(x - m)
	}
	return middle(away)
}

// Forecast says when a trend reaches a limit.
type Forecast struct {
	// Known: At is the best estimate, and by the interval of the slope it lies
	// between Earliest and Latest. Latest is zero where it may never be.
	Known                bool
	At, Earliest, Latest time.Time
	// Why says in words what the forecast rests on, or why there is none.
	Why string
}

// Reaches carries the trend on to a limit, such as a capacity that use rises
// to, or zero that free space falls to. It answers for five times the span that
// was measured: beyond that a line tells nothing.
func (t Trend) Reaches(limit float64) Forecast {
	if t.Verdict != Rising && t.Verdict != Falling {
		return Forecast{Why: string(t.Verdict)}
	}
	away := limit - t.Value
	if away == 0 || (away < 0) == (t.Verdict == Rising) {
		return Forecast{Known: true, At: t.At, Earliest: t.At, Latest: t.At, Why: "it is there already"}
	}
	after := func(slope float64) (time.Time, bool) {
		seconds := away / slope
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
		return Forecast{Why: fmt.Sprintf("%s, but not there within %s, as far as %s of values can tell", t.Verdict, words(trendReach*t.Span), words(t.Span))}
	}
	f := Forecast{Known: true, At: at}
	f.Earliest, _ = after(fast)
	f.Latest, _ = after(slow)
	f.Why = fmt.Sprintf("%s for %s; the line explains %.0f %%", t.Verdict, words(t.Span), 100*t.Fit)
	return f
}

// words are a span for people, in the one unit that fits: "6 days".
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
