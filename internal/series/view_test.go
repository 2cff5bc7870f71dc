package series

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestSparklineDrawsValues(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		values []float64
		width  int
		want   string
	}{
		{nil, 10, ""},
		{[]float64{1, 2}, 0, ""},
		{[]float64{1, 2}, -1, ""},
		{[]float64{0, 1, 2, 3, 4, 5, 6, 7}, 8, "▁▂▃▄▅▆▇█"},
		{[]float64{0, 0, 7, 7, nan, nan, 7, nan}, 4, "▁█ █"},
		{[]float64{1, nan, 3}, 9, "▁ █"},
		{[]float64{nan, math.Inf(1)}, 9, "  "},
		{[]float64{0, 0}, 9, "▁▁"},
		{[]float64{5, 5}, 9, "▅▅"},
		{[]float64{230.1, nan, 231, 229.9}, 9, "▅ ▅▅"},
		{[]float64{200, 215}, 9, "▁█"},
		{[]float64{1e-4, 2e-4}, 9, "▅▅"},
		{[]float64{1e-2, 2e-2}, 9, "▁█"},
		{[]float64{-math.MaxFloat64, 0, math.MaxFloat64}, 3, "▁▅█"},
		{[]float64{-math.MaxFloat64, -math.MaxFloat64, 1, 1}, 2, "▁█"}, // the sum of a group overflows
	} {
		if got := Sparkline(c.values, c.width, 1e-3); got != c.want {
			t.Errorf("%v in %d: %q, want %q", c.values, c.width, got, c.want)
		}
	}
}

func TestSparklineFitsTheWidth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64(), 0, 300).Draw(t, "values")
		width := rapid.IntRange(0, 100).Draw(t, "width")
		if n := utf8.RuneCountInString(Sparkline(values, width, 0)); n != min(width, len(values)) {
			t.Fatalf("%d characters of %d values in %d", n, len(values), width)
		}
	})
}

// row returns points a minute apart.
func row(n int, f func(i int) float64) []Point {
	out := make([]Point, n)
	for i := range out {
		if v := f(i); !math.IsNaN(v) {
			out[i] = Point{Count: 12, Mean: v, Min: v, Max: v}
		}
	}
	return out
}

func TestTrendVerdicts(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	noise := func(s float64) float64 { return s * rng.NormFloat64() }
	for _, c := range []struct {
		name string
		n    int
		f    func(i int) float64
		want Verdict
	}{
		{"nothing", 0, func(int) float64 { return 0 }, TooFew},
		{"gaps", 500, func(int) float64 { return math.NaN() }, TooFew},
		{"eleven", 11, func(i int) float64 { return float64(i) }, TooFew},
		{"constant", 300, func(int) float64 { return 7 }, Flat},
		{"noise", 300, func(int) float64 { return 50 + noise(5) }, Flat},
		{"a line", 12, func(i int) float64 { return float64(i) }, Rising},
		{"a noisy line", 500, func(i int) float64 { return 10 + 0.1*float64(i) + noise(5) }, Rising},
		{"a falling one with gaps and outliers", 500, func(i int) float64 {
			switch {
			case i%3 == 0:
				return math.NaN()
			case i%7 == 0:
				return 1e6
			}
			return 100 - 0.1*float64(i) + noise(1)
		}, Falling},
		{"steps of the encoding", 1440, func(i int) float64 { return toValue(toOrdinal(1e12 + 1e6*float64(i))) }, Rising},
		{"a sawtooth", 600, func(i int) float64 { return float64(i%60) + 0.01*float64(i) }, Erratic},
		{"a wave", 360, func(i int) float64 { return math.Sin(float64(i) / 360 * 5 * math.Pi) }, Flat},
		{"a wave that rises", 360, func(i int) float64 { return math.Sin(float64(i)/360*20*math.Pi) + 0.003*float64(i) }, Erratic},
		{"rose, and stands still", 300, func(i int) float64 { return min(float64(i), 170) + noise(0.1) }, Changed},
		{"rose, and falls a little", 300, func(i int) float64 { return min(float64(i), 250-0.2*float64(i)) }, Changed},
	} {
		got := FitTrend(time.Unix(0, 0), time.Minute, row(c.n, c.f))
		if got.Verdict != c.want {
			t.Errorf("%s: %+v, want %s", c.name, got, c.want)
		}
		far := 1e18
		if got.Verdict == Falling {
			far = -far
		}
		f := got.Reaches(far)
		if f.Known || f.Why == "" {
			t.Errorf("%s: reaches the unreachable: %+v", c.name, f)
		}
	}
}

func TestForecastReachesALimit(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	rising := FitTrend(begin, time.Minute, row(100, func(i int) float64 { return float64(i) }))
	end := begin.Add(99*time.Minute + 30*time.Second)
	for _, c := range []struct {
		limit float64
		known bool
		at    time.Time
	}{
		{50, true, end}, {99, true, end}, {109, true, end.Add(10 * time.Minute)},
		{199, true, end.Add(100 * time.Minute)}, {99 + 5*99 + 1, false, time.Time{}},
	} {
		f := rising.Reaches(c.limit)
		if f.Known != c.known || f.Known && f.At.Sub(c.at).Abs() > time.Second {
			t.Errorf("%v: %+v, want %v at %s", c.limit, f, c.known, c.at)
		}
	}
	free := FitTrend(begin, time.Minute, row(100, func(i int) float64 { return 1e9 - 5e6*float64(i) }))
	if f := free.Reaches(0); !f.Known || f.At.Sub(end.Add(101*time.Minute)).Abs() > time.Second {
		t.Errorf("free space: %+v", f)
	}
}

func TestSpanHasTheUnitThatFits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 seconds", time.Second: "1 second", 119 * time.Second: "119 seconds", 2 * time.Minute: "2 minutes",
		90 * time.Minute: "90 minutes", 2*time.Hour + 20*time.Minute: "2 hours", 47 * time.Hour: "47 hours", 144 * time.Hour: "6 days",
	} {
		if got := words(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
	days := FitTrend(time.Unix(0, 0), time.Hour, row(145, func(i int) float64 { return float64(i) }))
	if why := days.Reaches(200).Why; why != "rising for 6 days; the line explains 100 %" {
		t.Errorf("%q", why)
	}
	if why := days.Reaches(1e6).Why; why != "rising, but not full within the next 30 days (by 6 days of values)" {
		t.Errorf("%q", why)
	}
}

// TestForecastIntervalIsCorrect: with independent noise the limit is reached between
// Earliest and Latest in about 99 of 100 cases, and the slope is near the true one.
func TestForecastIntervalIsCorrect(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	missed, total := 0, 0
	for range 100 {
		slope := 0.05 + rng.Float64()
		tr := FitTrend(time.Unix(0, 0), time.Minute, row(300, func(i int) float64 { return slope*float64(i) + 3*rng.NormFloat64() }))
		if tr.Verdict != Rising {
			continue
		}
		total++
		if slope/60 < tr.Low || slope/60 > tr.High {
			missed++
		}
		f := tr.Reaches(slope * 500)
		if !f.Known || f.Earliest.After(f.At) || !f.Latest.IsZero() && f.Latest.Before(f.At) {
			t.Fatalf("%+v of %+v", f, tr)
		}
	}
	if total < 75 || missed > total/25 {
		t.Errorf("%d of %d intervals missed the slope", missed, total)
	}
}
