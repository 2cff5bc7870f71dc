package predict

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/topology"
)

// plane places regions at random in a square of 200 ms, with small heights. This is a
// metric space, which a map can describe exactly.
func plane(n int, seed random) (rtt func(i, j int) float64) {
	x, y, h := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range n {
		x[i], y[i], h[i] = 200*seed.float(), 200*seed.float(), 1+5*seed.float()
	}
	return func(i, j int) float64 { return math.Hypot(x[i]-x[j], y[i]-y[j]) + h[i] + h[j] }
}

// some returns measurements of the pairs that Next chooses. It starts without
// measurements.
func some(n, each int, seed uint64, rtt func(i, j int) float64) []Sample {
	quota := make([]int, n)
	for i := range quota {
		quota[i] = each
	}
	var samples []Sample
	for _, p := range Fit(n, nil, Options{Seed: seed}).Next(quota, nil) {
		samples = append(samples, Sample{From: p.From, To: p.To, RTT: rtt(p.From, p.To)})
	}
	return samples
}

// errorsOf returns the sorted relative errors of unmeasured pairs and the share
// of them within the stated error.
func errorsOf(m *Model, rtt func(i, j int) float64) (errs []float64, within float64) {
	for i := range m.n {
		for j := range i {
			if _, measured := m.Measured(i, j); measured {
				continue
			}
			got, stated := m.RTT(i, j)
			err := math.Abs(got.Seconds()*1000-rtt(i, j)) / rtt(i, j)
			errs = append(errs, err)
			if err <= stated {
				within++
			}
		}
	}
	slices.Sort(errs)
	return errs, within / float64(len(errs))
}

func TestMetricSpaceIsPredictedWell(t *testing.T) {
	for seed := range uint64(3) {
		rtt := plane(60, random(seed+1))
		m := Fit(60, some(60, 10, seed, rtt), Options{Seed: seed})
		if len(m.Rejected()) > 0 {
			t.Errorf("seed %d: rejected %v", seed, m.Rejected())
		}
		errs, within := errorsOf(m, rtt)
		median, p90 := errs[len(errs)/2], errs[len(errs)*9/10]
		t.Logf("seed %d: median %.4f, p90 %.4f of %d, %.2f within", seed, median, p90, len(errs), within)
		if median > 0.02 || p90 > 0.08 {
			t.Errorf("seed %d: median error %.3f, p90 %.3f, want 0.02, 0.08", seed, median, p90)
		}
		if within < 0.65 {
			t.Errorf("seed %d: %.2f of errors within the stated one, want about 0.8", seed, within)
		}
	}
}

// TestStraysAreRejected: samples that third regions contradict are rejected, and do not
// change the predictions.
func TestStraysAreRejected(t *testing.T) {
	const n = 60
	rtt := plane(n, 5)
	clean := some(n, 12, 1, rtt)
	dirty := slices.Clone(clean)
	var want []Rejection
	for i := range dirty {
		switch {
		case i%40 == 7:
			dirty[i].RTT = 4000 + float64(i)
			want = append(want, Rejection{i, FlawLong})
		case i%40 == 27 && dirty[i].RTT > 120:
			dirty[i].RTT = 0.2
			want = append(want, Rejection{i, FlawShort})
		}
	}
	m := Fit(n, dirty, Options{Seed: 1})
	if got := m.Rejected(); !reflect.DeepEqual(got, want) {
		t.Errorf("rejected %v, want %v", got, want)
	}
	errs, _ := errorsOf(m, rtt)
	if median := errs[len(errs)/2]; median > 0.04 {
		t.Errorf("median error %.3f", median)
	}
}

func TestCleanMergesAndRejects(t *testing.T) {
	singapore, tokyo := &topology.Location{Latitude: 1.35, Longitude: 103.8}, &topology.Location{Latitude: 35.7, Longitude: 139.7}
	for _, tc := range []struct {
		name    string
		samples []Sample
		want    string // pairs, rejections
	}{
		{"none", nil, "[] []"},
		{"impossible", []Sample{
			{0, 1, math.NaN(), 0}, {0, 1, math.Inf(1), 0}, {0, 1, -3, 0}, {0, 1, 0, 0}, {0, 1, 60_001, 0},
			{0, 1, 5, 6}, {0, 1, 5, math.NaN()}, {0, 1, 5, -1}, {0, 9, 5, 0}, {-1, 0, 5, 0}, {0, 0, -5, 0}, {1, 0, 7, 7},
		}, "[{0 1 7}] [{0 not a number} {1 not a number} {2 not more than zero} {3 not more than zero} {4 longer than a minute} " +
			"{5 below its own minimum} {6 not a number} {7 below its own minimum} {8 no such region} {9 no such region}]"},
		{"directions agree", []Sample{{0, 1, 10, 0}, {1, 0, 14, 0}}, "[{0 1 12}] []"},
		{"directions contradict", []Sample{{0, 1, 4000, 0}, {1, 0, 14, 0}}, "[{0 1 14}] [{0 far from the opposite direction}]"},
		{"repeats", []Sample{{0, 1, 10, 0}, {0, 1, 12, 0}, {0, 1, 5000, 0}}, "[{0 1 12}] [{2 far from the others of its pair}]"},
		{"two repeats", []Sample{{0, 1, 5000, 0}, {0, 1, 12, 0}}, "[{0 1 12}] [{0 far from the others of its pair}]"},
		{"light", []Sample{{2, 3, 20, 0}, {3, 2, 70, 0}}, "[{2 3 70}] [{0 faster than light in fibre}]"},
	} {
		pairs, rejected := Clean(4, tc.samples, []*topology.Location{nil, nil, singapore, tokyo})
		if got := fmt.Sprint(pairs, " ", rejected); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
}

// TestThirdRegionsDecide: if two directions contradict each other, third regions decide
// which one is right.
func TestThirdRegionsDecide(t *testing.T) {
	rtt := plane(20, 3)
	a, b := 0, 1
	for j := range 20 {
		if rtt(0, j) > rtt(a, b) {
			b = j
		}
	}
	var samples []Sample
	for i := range 20 {
		for j := range i {
			if min(i, j) != a || max(i, j) != b {
				samples = append(samples, Sample{From: i, To: j, RTT: rtt(i, j)})
			}
		}
	}
	samples = append(samples, Sample{From: a, To: b, RTT: 0.3}, Sample{From: b, To: a, RTT: rtt(a, b)})
	pairs, rejected := Clean(20, samples, nil)
	if want := []Rejection{{len(samples) - 2, FlawDirections}}; !reflect.DeepEqual(rejected, want) {
		t.Errorf("rejected %v, want %v", rejected, want)
	}
	if !slices.Contains(pairs, Pair{a, b, rtt(a, b)}) {
		t.Error("the possible direction is rejected")
	}
}

// TestUnconnectedRegionsArePredictedFromLocations: the round trip of regions that no chain
// of samples connects is estimated from their locations.
func TestUnconnectedRegionsArePredictedFromLocations(t *testing.T) {
	singapore, tokyo := &topology.Location{Latitude: 1.35, Longitude: 103.8}, &topology.Location{Latitude: 35.7, Longitude: 139.7}
	samples := []Sample{{0, 1, 5, 0}, {1, 2, 7, 0}, {3, 4, 9, 0}}
	m := Fit(6, samples, Options{Locations: []*topology.Location{singapore, nil, nil, tokyo, nil, nil}})
	if rtt, stated := m.RTT(0, 3); rtt != topology.EstimateRTT(*singapore, *tokyo) || stated != topology.EstimateError {
		t.Errorf("with locations: %v, %g", rtt, stated)
	}
	for _, pair := range [][2]int{{0, 4}, {5, 1}, {5, 3}} {
		if rtt, stated := m.RTT(pair[0], pair[1]); rtt <= 0 || stated < unknownError {
			t.Errorf("%v: %v ± %g, want an error that says that nothing is known", pair, rtt, stated)
		}
	}
	if _, stated := Fit(2, nil, Options{}).RTT(0, 1); stated < unknownError {
		t.Errorf("without samples: ± %g", stated)
	}
}

// TestPredictionProperties: for any samples, predictions are valid round trips, and equal
// each time and in both directions. Probes do not exceed the quotas.
func TestPredictionProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 12).Draw(t, "regions")
		value := rapid.OneOf(
			rapid.Float64Range(0.1, 300), rapid.Float64Range(1, 30), rapid.Float64(),
			rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, -1, 1e-300, 59_999, 5000}),
		)
		var samples []Sample
		for range rapid.IntRange(0, 60).Draw(t, "samples") {
			s := Sample{From: rapid.IntRange(-1, n).Draw(t, "from"), To: rapid.IntRange(-1, n).Draw(t, "to"), RTT: value.Draw(t, "rtt")}
			if rapid.IntRange(0, 5).Draw(t, "with minimum") == 0 {
				s.Min = value.Draw(t, "min")
			}
			samples = append(samples, s)
		}
		o := Options{Seed: rapid.Uint64().Draw(t, "seed")}
		m, again := Fit(n, samples, o), Fit(n, samples, o)
		for i := range n {
			for j := range n {
				rtt, stated := m.RTT(i, j)
				if rtt < minRTT || rtt > topology.MaxTableRTT || math.IsNaN(stated) || stated < 0 || stated > maxError {
					t.Fatalf("%d to %d: %v ± %g", i, j, rtt, stated)
				}
				back, statedBack := m.RTT(j, i)
				if back != rtt || statedBack != stated {
					t.Fatalf("%d to %d: %v ± %g, back %v ± %g", i, j, rtt, stated, back, statedBack)
				}
				if twin, _ := again.RTT(i, j); twin != rtt {
					t.Fatalf("%d to %d: %v, and the second time %v", i, j, rtt, twin)
				}
			}
		}
		last := -1
		for _, r := range m.Rejected() {
			if r.Sample <= last || r.Sample >= len(samples) || r.Flaw == "" {
				t.Fatalf("rejected %v", m.Rejected())
			}
			last = r.Sample
		}
		quota := rapid.SliceOfN(rapid.IntRange(0, 5), n, n).Draw(t, "quota")
		can := func(a, b int) bool { return (a+b)%3 != 0 }
		probes := m.Next(quota, can)
		seen := map[[2]int]bool{}
		left := slices.Clone(quota)
		for _, p := range probes {
			pair := [2]int{min(p.From, p.To), max(p.From, p.To)}
			_, measured := m.Measured(p.From, p.To)
			left[p.From]--
			if p.From == p.To || seen[pair] || measured || !can(pair[0], pair[1]) || left[p.From] < 0 {
				t.Fatalf("probes %v with quota %v: %v must not be probed", probes, quota, p)
			}
			seen[pair] = true
		}
		if !reflect.DeepEqual(probes, again.Next(quota, can)) {
			t.Fatal("other probes the second time")
		}
	})
}

// TestNextFindsTheNearest: the regions are pairs of twins at the same place. After some
// random probes and a few chosen probes, every region has measured its twin.
func TestNextFindsTheNearest(t *testing.T) {
	const n = 80
	far := plane(n/2, 9)
	rtt := func(i, j int) float64 {
		if i/2 == j/2 {
			return 0.5
		}
		return far(i/2, j/2)
	}
	samples := some(n, 10, 1, rtt)
	m := Fit(n, samples, Options{Seed: 1})
	quota := make([]int, n)
	for i := range quota {
		quota[i] = 2
	}
	for _, p := range m.Next(quota, nil) {
		samples = append(samples, Sample{From: p.From, To: p.To, RTT: rtt(p.From, p.To)})
	}
	m = Fit(n, samples, Options{Seed: 1})
	for i := 0; i < n; i += 2 {
		if got, ok := m.Measured(i, i+1); !ok || got != 500*time.Microsecond {
			t.Errorf("regions %d and %d are twins, and the pair was not measured", i, i+1)
		}
	}
}

func BenchmarkFit(b *testing.B) {
	for _, n := range []int{100, 1000} {
		rtt := plane(n, 1)
		samples := some(n, 32, 1, rtt)
		b.Run(fmt.Sprintf("regions=%d/neighbours=32", n), func(b *testing.B) {
			for b.Loop() {
				Fit(n, samples, Options{Seed: 1})
			}
		})
	}
}
