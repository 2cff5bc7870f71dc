package predict

import (
	"math"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

// Sample is one measured round trip as it was reported. The value may be impossible.
type Sample struct {
	// From and To are indexes of regions. RTT is in milliseconds.
	From, To int
	RTT      float64
	// Min is the smallest round trip of the same measurement, in milliseconds; 0 =
	// unknown.
	Min float64
}

// Options configure a fit.
type Options struct {
	// Seed is the seed of all randomness.
	Seed uint64
	// Locations are the locations of the regions; nil = unknown. The slice may be nil or
	// shorter than the number of regions. Locations bound round trips by the speed of
	// light. They also estimate the distance of regions that no chain of samples connects.
	Locations []*topology.Location
}

// minRTT and maxError bound predictions. unknownRTT and unknownError are the prediction if
// nothing is known: an average distance, which may be wrong by a factor of two. coverage
// is the share of predictions that have a smaller error than stated. priorError counts
// like priorWeight samples in the mean error.
const (
	minRTT       = time.Microsecond
	unknownRTT   = 100.0 // ms
	unknownError = 1.0
	maxError     = 10.0
	coverage     = 0.8
	priorError   = 0.35 // topology.EstimateError
	priorWeight  = 4    // samples
)

// spaces are the shapes of the fitted spaces. Their errors differ, so the mean of the
// spaces has a smaller error. Each sample is left out of the fit of one space.
var spaces = []shape{{12, 2}, {6, 4}, {20, 0}, {12, 2}, {6, 4}, {20, 0}}

// firmnesses are the strengths of the pull towards the start that a fit tries. Clean round
// trips need a small strength, noisy round trips a greater one. The smaller strength is
// chosen only if its loss is less than the other's loss times clearly, because few samples
// decide.
var firmnesses = []float64{1, 0.1}

const clearly = 0.95

// Model predicts the round trip of every pair of regions. It is immutable and
// safe for concurrent use.
type Model struct {
	n        int
	seed     uint64
	pairs    []Pair
	rejected []Rejection
	// measured, mapped and off have a value for each pair, at index i*n + j. measured is
	// the round trip in ms (NaN = not measured). mapped is the logarithm of the map's
	// round trip. off is the error of the map that was fitted without the sample, in
	// logarithms (NaN = not measured).
	measured, mapped, off []float64
	alike                 [][]like
	unlike                []float64
	// part holds the number of each region's component. Samples connect the regions of a
	// component, directly or over other regions.
	part      []int
	locations []*topology.Location
	// scale is the mean error of the samples of a region, by region. widen is the factor
	// by which an expected error is multiplied, so that four of five errors are smaller.
	scale []float64
	widen float64
}

// Fit makes a model from samples between the regions 0..regions−1. It takes about 600
// passes over the samples and 100 passes over all pairs: about 2 s for 1,000 regions with
// 32,000 samples. The model takes 64 bytes for each pair of regions.
func Fit(regions int, samples []Sample, o Options) *Model {
	pairs, rejected := Clean(regions, samples, o.Locations)
	m := &Model{n: regions, seed: o.Seed, pairs: pairs, rejected: rejected, locations: o.Locations}
	if len(m.locations) < regions {
		m.locations = make([]*topology.Location, regions)
	}
	m.connect()
	m.fitSpaces()
	m.findAlike()
	m.calibrate()
	return m
}

// Rejected lists the rejected samples in the order of their indexes.
func (m *Model) Rejected() []Rejection { return slices.Clone(m.rejected) }

// Measured returns the measured round trip of a pair. It returns false if the pair has no
// sample, or only rejected ones.
func (m *Model) Measured(i, j int) (time.Duration, bool) {
	v := m.measured[i*m.n+j]
	if math.IsNaN(v) {
		return 0, false
	}
	return duration(v), true
}

// RTT returns the round trip of two regions: measured, or else predicted. The value is 1
// µs..1 min and equal in both directions. relErr is the expected relative error. Four of
// five predictions have a smaller error than relErr. It is 0 for a measurement, and 1 or
// more if hardly anything is known.
func (m *Model) RTT(i, j int) (rtt time.Duration, relErr float64) {
	if d, ok := m.Measured(i, j); ok {
		return d, 0
	}
	if i == j {
		return minRTT, 0
	}
	if m.part[i] != m.part[j] {
		return m.unconnected(i, j)
	}
	log, sigma := m.local(min(i, j), max(i, j)) // min and max: both directions add in the same order and so get the same sum
	return duration(math.Exp(log)), min(math.Expm1(m.widen*sigma), maxError)
}

// unconnected predicts the round trip of two regions that no chain of samples connects.
func (m *Model) unconnected(i, j int) (time.Duration, float64) {
	if a, b := m.locations[i], m.locations[j]; a != nil && b != nil {
		return topology.EstimateRTT(*a, *b), topology.EstimateError
	}
	all := make([]float64, len(m.pairs))
	for k, p := range m.pairs {
		all[k] = p.RTT
	}
	if len(all) == 0 {
		return duration(unknownRTT), unknownError
	}
	slices.Sort(all)
	return duration(all[len(all)/2]), max(unknownError, min(all[len(all)*9/10]/all[len(all)/2]-1, maxError))
}

func duration(ms float64) time.Duration {
	return time.Duration(max(float64(minRTT), min(float64(topology.MaxTableRTT), ms*1e6)))
}

// connect finds the components of regions that samples connect.
func (m *Model) connect() {
	m.part = make([]int, m.n)
	for i := range m.part {
		m.part[i] = i
	}
	root := func(i int) int {
		for m.part[i] != i {
			m.part[i] = m.part[m.part[i]]
			i = m.part[i]
		}
		return i
	}
	for _, p := range m.pairs {
		a, b := root(p.A), root(p.B)
		m.part[max(a, b)] = min(a, b)
	}
	for i := range m.part {
		m.part[i] = root(i)
	}
}

// fitSpaces fits each space without its share of the samples. The map is the mean of all
// spaces. The error at a sample is that of the space that was fitted without the sample
// (cross-fitting).
func (m *Model) fitSpaces() {
	m.measured, m.off = m.square(math.NaN()), m.square(math.NaN())
	m.mapped = m.square(0)
	all := make([]logged, len(m.pairs))
	var unit float64
	for k, p := range m.pairs {
		all[k] = logged{p.A, p.B, math.Log(p.RTT)}
		unit += all[k].y / float64(len(all))
		m.set(m.measured, p.A, p.B, p.RTT)
	}
	if len(all) == 0 {
		return
	}
	r := random(m.seed)
	for i := len(all) - 1; i > 0; i-- {
		j := r.below(i + 1)
		all[i], all[j] = all[j], all[i]
	}
	best, firm := m.firmest(all, unit, r)
	m.addSpace(best, all, 0)
	for f := 1; f < len(spaces); f++ {
		m.addSpace(m.fitSpace(all, f, firm, unit, r), all, f)
	}
	for i := range m.n {
		for j := range i {
			m.mapped[i*m.n+j] = m.mapped[j*m.n+i]
		}
	}
}

// firmest fits the first space with each firmness. It returns the space that predicts its
// left-out samples best, and the firmness of that space.
func (m *Model) firmest(all []logged, unit float64, r random) (best *space, firm float64) {
	least := math.Inf(1)
	for _, try := range firmnesses {
		s := m.fitSpace(all, 0, try, unit, r)
		heights := s.heights(nil)
		var loss float64
		for k := 0; k < len(all); k += len(spaces) {
			log, _, _ := s.log(all[k].a, all[k].b, heights)
			loss += min(math.Abs(log-all[k].y), maxOff)
		}
		if best == nil || loss < clearly*least {
			best, firm, least = s, try, loss
		}
	}
	return best, firm
}

// fitSpace fits space f without its share of the samples.
func (m *Model) fitSpace(all []logged, f int, firm, unit float64, r random) *space {
	known := make([]logged, 0, len(all))
	for k, o := range all {
		if k%len(spaces) != f {
			known = append(known, o)
		}
	}
	r += random(f)
	s := newSpace(m.n, spaces[f], firm, unit, &r)
	s.fit(known)
	return s
}

// addSpace adds space f to the mean, and stores its errors at the samples that were left
// out of its fit.
func (m *Model) addSpace(s *space, all []logged, f int) {
	heights := s.heights(nil)
	for i := range m.n {
		for j := i + 1; j < m.n; j++ {
			log, _, _ := s.log(i, j, heights)
			m.mapped[i*m.n+j] += log / float64(len(spaces))
		}
	}
	for k := f; k < len(all); k += len(spaces) {
		log, _, _ := s.log(all[k].a, all[k].b, heights)
		m.set(m.off, all[k].a, all[k].b, max(-maxOff, min(maxOff, all[k].y-log)))
	}
}

func (m *Model) square(v float64) []float64 {
	s := make([]float64, m.n*m.n)
	for i := range s {
		s[i] = v
	}
	return s
}

func (m *Model) set(in []float64, i, j int, v float64) { in[i*m.n+j], in[j*m.n+i] = v, v }
