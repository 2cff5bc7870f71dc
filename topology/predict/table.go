package predict

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// minKnown is the least number of measured pairs that a region needs for predictions.
	// With fewer pairs the network coordinate of the region predicts better.
	minKnown = 4
	// maxFitted bounds the mean number of samples of a region in a fit. More samples make
	// the fit slower, but not better.
	maxFitted = 64
	// usualGap is the assumed relative difference of a pair's two directions if fewer than
	// minGaps pairs were measured in both directions. leastGap is the least such
	// difference.
	usualGap, leastGap, minGaps = 0.1, 0.01, 20
	// outdatedShare is the share of the samples that may change until a table is outdated.
	outdatedShare = 0.02
	// errorUnit is the unit of the expected errors in a table.
	errorUnit = 1.0 / 5000
)

// Table holds the predictions for all pairs of a view's regions. It implements
// topology.Predictor. It takes 4 bytes for each directed pair. It is immutable and safe
// for concurrent use.
type Table struct {
	n      int
	names  []string
	number map[string]int
	// rtt and relErr are the round trip of a pair and its expected relative error, in errorUnit,
	// at the index that at returns. An rtt of 0 is unknown.
	rtt    []topology.Span
	relErr []uint16
	doubts []topology.Doubt
	// medians are the measurements from which the table was made, as the matrix stores them, at
	// index i*n + j; 0 = none.
	medians []topology.Span
	count   int
	doubted map[[2]int]bool
}

// samplesOf yields the measured medians of a view, sorted by their pairs. The index of a sample is
// i*n + j.
func samplesOf(v *topology.View) iter.Seq2[int, Sample] {
	n := len(v.Names())
	return func(yield func(int, Sample) bool) {
		for i := range n {
			for j := i + 1; j < n; j++ {
				for _, way := range [2][2]int{{i, j}, {j, i}} {
					p50, least, ok := v.MeasuredAt(way[0], way[1])
					if ok && !yield(way[0]*n+way[1], Sample{From: way[0], To: way[1], RTT: milliseconds(p50), Min: milliseconds(least)}) {
						return
					}
				}
			}
		}
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// NewTable makes a table from the measurements of a view. Measurements that contradict
// each other, measurements to third regions, or the speed of light are doubted and not
// used. NewTable costs as much as Fit with at most 64 samples a region, plus less than a
// microsecond for each pair without a measurement.
func NewTable(v *topology.View, seed uint64) *Table {
	regions, samples := v.Regions(), samplesOf(v)
	n := len(regions)
	t := &Table{
		n: n, names: v.Names(), number: make(map[string]int, n), rtt: make([]topology.Span, n*(n-1)/2), relErr: make([]uint16, n*(n-1)/2),
		medians: make([]topology.Span, n*n), doubted: map[[2]int]bool{},
	}
	locations := make([]*topology.Location, n)
	for i := range regions {
		locations[i] = regions[i].Location
	}
	for k, s := range samples {
		t.medians[k] = spanOf(s.RTT)
		t.count++
	}
	pairs, rejected := clean(n, samples, locations)
	for _, r := range rejected {
		from, to := r.Sample/n, r.Sample%n
		t.doubted[[2]int{from, to}] = true
		t.doubts = append(t.doubts, topology.Doubt{From: regions[from].Name, To: regions[to].Name, Why: string(r.Flaw)})
	}
	known, gap := make([]int, n), errorOf(t.gap())
	for _, p := range pairs {
		known[p.A]++
		known[p.B]++
		k := t.at(p.A, p.B)
		t.rtt[k], t.relErr[k] = spanOf(p.RTT), gap
	}
	enough := 0
	for i := range regions {
		if known[i] >= minKnown {
			t.number[regions[i].Name] = i
			enough++
		}
	}
	if enough > 1 && len(pairs) < n*(n-1)/2 {
		t.fit(pairs, known, locations, seed)
	}
	return t
}

// at returns the index of a pair in rtt and relErr, for i < j.
func (t *Table) at(i, j int) int { return i*(2*t.n-i-1)/2 + j - i - 1 }

// fit predicts the round trips of the pairs without a measurement.
func (t *Table) fit(pairs []Pair, known []int, locations []*topology.Location, seed uint64) {
	step := (len(pairs) + maxFitted*t.n - 1) / (maxFitted * t.n)
	var samples []Sample
	for k := 0; k < len(pairs); k += step {
		samples = append(samples, Sample{From: pairs[k].A, To: pairs[k].B, RTT: pairs[k].RTT})
	}
	m := Fit(t.n, samples, Options{Seed: seed, Locations: locations})
	for i := range t.n {
		for j := i + 1; j < t.n; j++ {
			at := t.at(i, j)
			if t.rtt[at] > 0 || known[i] < minKnown || known[j] < minKnown {
				continue
			}
			rtt, relErr := m.RTT(i, j)
			if m.part[i] != m.part[j] || relErr >= unknownError {
				continue // without the table, coordinates or locations give a prediction that is as good
			}
			t.rtt[at], t.relErr[at] = spanOf(milliseconds(rtt)), errorOf(relErr)
		}
	}
}

// gap returns the relative difference of two directions that four of five pairs do not
// exceed.
func (t *Table) gap() float64 {
	gaps := make([]float64, 0, t.count/2) // one for each pair that was measured in both directions
	for i := range t.n {
		for j := i + 1; j < t.n; j++ {
			a, b := t.medians[i*t.n+j], t.medians[j*t.n+i]
			if a > 0 && b > 0 && !t.doubted[[2]int{i, j}] && !t.doubted[[2]int{j, i}] {
				gaps = append(gaps, float64(max(a, b).Duration())/float64(min(a, b).Duration())-1)
			}
		}
	}
	if len(gaps) < minGaps {
		return usualGap
	}
	slices.SortFunc(gaps, cmp.Compare)
	return max(leastGap, gaps[int(coverage*float64(len(gaps)))])
}

// spanOf converts milliseconds. The result is at least 1, because 0 means that there is no
// measurement.
func spanOf(ms float64) topology.Span {
	if !(ms > 0) {
		return 1
	}
	return max(1, topology.SpanOf(time.Duration(math.Round(min(ms, maxMS)*float64(time.Millisecond)))))
}

func errorOf(relErr float64) uint16 { return uint16(min(relErr/errorUnit+0.5, math.MaxUint16)) }

// Samples returns the number of measurements from which the table was made, including
// doubted measurements.
func (t *Table) Samples() int { return t.count }

// Number implements topology.Predictor. Only regions with at least minKnown measured pairs
// have a number.
func (t *Table) Number(region string) int {
	if i, ok := t.number[region]; ok {
		return i
	}
	return -1
}

// RTT implements topology.Predictor. If only one direction was measured, its value
// predicts the other direction. The error is then the usual difference of two directions.
func (t *Table) RTT(i, j int) (rtt time.Duration, relErr float64, ok bool) {
	if i == j {
		return 0, 0, false
	}
	at := t.at(min(i, j), max(i, j))
	return t.rtt[at].Duration(), float64(t.relErr[at]) / (1 / errorUnit), t.rtt[at] > 0
}

// Doubts implements topology.Predictor.
func (t *Table) Doubts() []topology.Doubt { return t.doubts }

// Outdated reports whether a view differs noticeably from the view of the table: it has
// other regions, a doubted measurement has changed, or more than a fiftieth of all
// measurements were added, removed or changed. A measurement counts as changed if it
// differs by more than a tenth and by more than a millisecond.
func (t *Table) Outdated(v *topology.View) bool {
	if !slices.Equal(v.Names(), t.names) {
		return true
	}
	changed := 0
	for i := range t.n {
		for j := range t.n {
			is := topology.Span(0)
			if p50, _, ok := v.MeasuredAt(i, j); ok && i != j {
				is = spanOf(milliseconds(p50))
			}
			was := t.medians[i*t.n+j]
			if is == was {
				continue
			}
			long, short := max(was, is).Duration(), min(was, is).Duration()
			if was == 0 || is == 0 || long-short > max(was.Duration()/10, time.Millisecond) {
				changed++
				if t.doubted[[2]int{i, j}] {
					return true
				}
			}
		}
	}
	return float64(changed) > outdatedShare*float64(t.count)
}
