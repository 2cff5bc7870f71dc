package predict

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"

	"github.com/nusa-scheduler/nusa/topology"
)

// Flaw says why a sample is rejected.
type Flaw string

// The flaws. The values are texts for people.
const (
	FlawRegion     Flaw = "no such region"
	FlawNumber     Flaw = "not a number"
	FlawNotAbove0  Flaw = "not more than zero"
	FlawTooLong    Flaw = "longer than a minute"
	FlawMinimum    Flaw = "below its own minimum"
	FlawLight      Flaw = "faster than light in fibre"
	FlawOdd        Flaw = "far from the others of its pair"
	FlawDirections Flaw = "far from the opposite direction"
	FlawShort      Flaw = "too short beside the round trips to third regions"
	FlawLong       Flaw = "too long beside the round trips to third regions"
)

// Rejection is a rejected sample.
type Rejection struct {
	// Sample is the index of the rejected sample.
	Sample int
	Flaw   Flaw
}

const (
	maxMS = float64(topology.MaxTableRTT) / 1e6
	// fibreMS is the round trip of one kilometre in ms, at two thirds of the speed of
	// light, which is the speed of light in glass.
	fibreMS = 2 * 1000 / (299792.458 * 2 / 3)
	// placeKM is subtracted from the distance of two locations, because a location marks a
	// city and the machines are somewhere around the city.
	placeKM = 100
	// oddFactor and oddMS bound the difference of two measurements of one pair. If a
	// difference exceeds both, one measurement must be wrong.
	oddFactor, oddMS = 3, 20
	// farFactor and farMS are the same bounds for the difference from the values that
	// third regions imply. On the Internet, detours of twice the shortest path are common,
	// and detours of four times are rare.
	farFactor, farMS = 4, 100
	// maxWitnesses bounds the third regions that are compared. With fewer than
	// minWitnesses only a difference of fewMS counts, which shows for example that one
	// value is in seconds.
	minWitnesses, maxWitnesses = 5, 64
	fewMS                      = 1000
)

// Pair is two regions, A < B, and the round trip between them in milliseconds. The round
// trip is the mean of both directions' medians.
type Pair struct {
	A, B int
	RTT  float64
}

// Clean merges the samples of each pair of regions. It rejects samples that are impossible
// by themselves, and samples that other samples of the pair or samples to third regions
// contradict. The pairs are sorted. The rejections are in the order of the samples.
// Samples from a region to itself are ignored.
func Clean(regions int, samples []Sample, locations []*topology.Location) ([]Pair, []Rejection) {
	order := make([]int, len(samples))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return comparePairs(samples[x].pair(), samples[y].pair()) })
	return clean(regions, func(yield func(int, Sample) bool) {
		for _, i := range order {
			if !yield(i, samples[i]) {
				return
			}
		}
	}, locations)
}

// clean is Clean for samples that are sorted by their pairs. samples yields the same samples
// each time, with their indexes. So they need not be in memory: all samples of a thousand
// regions would take 32 MB.
func clean(regions int, samples iter.Seq2[int, Sample], locations []*topology.Location) ([]Pair, []Rejection) {
	flaws := map[int]Flaw{}
	reject := func(i int, f Flaw) { flaws[i] = f }
	number, tooFast := survey(regions, samples, locations)
	pairs := make([]Pair, 0, number)
	var disputed []dispute
	var of []numbered // the possible samples of a pair
	mergePair := func() {
		if len(of) == 0 {
			return
		}
		p, d := merge(of, reject)
		if d != nil {
			disputed = append(disputed, *d)
		} else {
			pairs = append(pairs, p)
		}
		of = of[:0]
	}
	for i, s := range samples {
		if len(of) > 0 && comparePairs(of[0].pair(), s.pair()) != 0 {
			mergePair()
		}
		switch f := s.flaw(regions); {
		case f != "":
			reject(i, f)
		case s.From == s.To:
		case tooFast(s):
			reject(i, FlawLight)
		default:
			of = append(of, numbered{s, i})
		}
	}
	mergePair()
	pairs, strays := withoutStrays(regions, resolveDisputes(regions, pairs, disputed, reject))
	if len(strays) > 0 {
		for i, s := range samples {
			if f := strays[s.pair()]; f != "" && flaws[i] == "" {
				reject(i, f)
			}
		}
	}
	rejected := make([]Rejection, 0, len(flaws))
	for _, i := range slices.Sorted(maps.Keys(flaws)) {
		rejected = append(rejected, Rejection{i, flaws[i]})
	}
	return pairs, rejected
}

// numbered is a sample with its index.
type numbered struct {
	Sample
	index int
}

// pair returns the pair of the sample, regardless of the direction, without a round trip.
func (s Sample) pair() Pair { return Pair{A: min(s.From, s.To), B: max(s.From, s.To)} }

// flaw returns why the sample by itself is impossible; "" if it is possible.
func (s Sample) flaw(regions int) Flaw {
	switch {
	case s.From < 0 || s.To < 0 || s.From >= regions || s.To >= regions:
		return FlawRegion
	case s.From == s.To:
		return ""
	case math.IsNaN(s.RTT) || math.IsInf(s.RTT, 0) || math.IsNaN(s.Min):
		return FlawNumber
	case s.RTT <= 0:
		return FlawNotAbove0
	case s.RTT > maxMS:
		return FlawTooLong
	case s.Min < 0 || s.RTT < s.Min:
		return FlawMinimum
	}
	return ""
}

// survey returns the number of pairs with possible samples, and a function that reports whether a
// sample is faster than light in fibre. But if a region has at least three such samples, and these
// are at least a quarter of its samples, the location of the region counts as wrong, and
// the samples do not count as faster.
func survey(regions int, samples iter.Seq2[int, Sample], locations []*topology.Location) (pairs int, tooFast func(Sample) bool) {
	located := len(locations) >= regions
	faster := func(s Sample) bool {
		a, b := locations[s.From], locations[s.To]
		return a != nil && b != nil && s.RTT < (topology.GreatCircle(*a, *b)-placeKM)*fibreMS
	}
	all, fast := make([]int, regions), make([]int, regions)
	last := Pair{A: -1}
	for _, s := range samples {
		if s.From == s.To || s.flaw(regions) != "" {
			continue
		}
		if p := s.pair(); p != last {
			last = p
			pairs++
		}
		beyond := located && faster(s)
		for _, end := range [2]int{s.From, s.To} {
			all[end]++
			if beyond {
				fast[end]++
			}
		}
	}
	wrong := func(region int) bool { return fast[region] >= 3 && 4*fast[region] >= all[region] }
	return pairs, func(s Sample) bool { return located && !wrong(s.From) && !wrong(s.To) && faster(s) }
}

// odd reports whether two round trips of one pair contradict each other.
func odd(x, y float64) bool {
	return max(x, y) > oddFactor*min(x, y) && math.Abs(x-y) > oddMS
}

// dispute is a pair of regions whose two directions contradict each other.
type dispute struct {
	short, long     Pair
	shortOf, longOf []int // the samples of the shorter and of the longer direction
}

// merge makes one value from the samples of a pair. It sorts of. It returns a dispute if the two
// directions contradict each other. The median of an even number of values is the lower
// one of the two in the middle, because errors make a round trip longer.
func merge(of []numbered, reject func(int, Flaw)) (Pair, *dispute) {
	p := of[0].pair()
	// The samples of A to B come first, then those of B to A.
	slices.SortStableFunc(of, func(x, y numbered) int { return cmp.Or(x.From-y.From, cmp.Compare(x.RTT, y.RTT)) })
	split := slices.IndexFunc(of, func(s numbered) bool { return s.From == p.B })
	if split < 0 {
		split = len(of)
	}
	ways := [2][]numbered{of[:split:split], of[split:]}
	var middle [2]float64
	for w, way := range ways {
		if len(way) == 0 {
			continue
		}
		middle[w] = way[(len(way)-1)/2].RTT
		ways[w] = slices.DeleteFunc(way, func(s numbered) bool {
			bad := odd(s.RTT, middle[w])
			if bad {
				reject(s.index, FlawOdd)
			}
			return bad
		})
	}
	switch there, back := middle[0], middle[1]; {
	case len(ways[0]) == 0:
		p.RTT = back
	case len(ways[1]) == 0:
		p.RTT = there
	case !odd(there, back):
		p.RTT = (there + back) / 2
	default:
		short, long := 0, 1
		if there > back {
			short, long = 1, 0
		}
		return p, &dispute{Pair{p.A, p.B, middle[short]}, Pair{p.A, p.B, middle[long]}, indexes(ways[short]), indexes(ways[long])}
	}
	return p, nil
}

func indexes(of []numbered) []int {
	out := make([]int, len(of))
	for k, s := range of {
		out[k] = s.index
	}
	return out
}

// resolveDisputes decides by third regions which direction of a pair is right. If third
// regions do not decide, the shorter direction counts as right.
func resolveDisputes(regions int, pairs []Pair, disputed []dispute, reject func(int, Flaw)) []Pair {
	if len(disputed) == 0 {
		return pairs
	}
	third := newWitnesses(regions, pairs)
	for _, d := range disputed {
		believed, losers := d.short, d.longOf
		if third.flaw(d.short) == FlawShort && third.flaw(d.long) == "" {
			believed, losers = d.long, d.shortOf
		}
		pairs = append(pairs, believed)
		for _, i := range losers {
			reject(i, FlawDirections)
		}
	}
	slices.SortFunc(pairs, comparePairs)
	return pairs
}

// comparePairs orders pairs by their regions.
func comparePairs(x, y Pair) int { return cmp.Or(cmp.Compare(x.A, y.A), cmp.Compare(x.B, y.B)) }

// witnesses holds the measured round trips between n regions in milliseconds, in both
// directions, at index i*n + j; 0 = not measured.
type witnesses struct {
	n   int
	rtt []float32
}

func newWitnesses(regions int, pairs []Pair) witnesses {
	w := witnesses{regions, make([]float32, regions*regions)}
	for _, p := range pairs {
		rtt := max(float32(p.RTT), math.SmallestNonzeroFloat32)
		w.rtt[p.A*w.n+p.B], w.rtt[p.B*w.n+p.A] = rtt, rtt
	}
	return w
}

// of returns the round trips of a region to all regions.
func (w witnesses) of(region int) []float32 { return w.rtt[region*w.n : (region+1)*w.n] }

// flaw compares a pair with the bounds of the triangle inequality over third regions k:
// |ak − bk| ≤ ab ≤ ak + kb. Real routes often break this inequality by far. So the bounds
// are the median of the lower bounds and the third smallest upper bound, each with a
// factor.
func (w witnesses) flaw(p Pair) Flaw {
	// n is the number of third regions. short counts the third regions for which the pair
	// is too short, and long those for which it is too long. veryLong counts the third
	// regions for which the pair is too long even by the wider bound that holds when there
	// are few third regions. These counts give the same result as a comparison with the
	// sorted bounds, and need no sorting.
	n, short, long, veryLong := 0, 0, 0, 0
	back := w.of(p.B)
	for k, there := range w.of(p.A) {
		if there == 0 || back[k] == 0 {
			continue
		}
		ak, kb := float64(there), float64(back[k])
		lower, upper := math.Abs(ak-kb), ak+kb
		n++
		if farFactor*p.RTT < lower-oddMS {
			short++
		}
		if p.RTT > farFactor*upper+farMS {
			long++
		}
		if p.RTT > farFactor*upper+fewMS {
			veryLong++
		}
		if n == maxWitnesses {
			break
		}
	}
	switch {
	case n == 0:
		return ""
	case n < minWitnesses:
		if veryLong == n {
			return FlawLong
		}
	case short >= n-n/2: // the pair is too short for the median of the lower bounds, too
		return FlawShort
	case long >= 3: // the pair is too long for the third smallest upper bound
		return FlawLong
	}
	return ""
}

// withoutStrays removes the pairs that third regions contradict. It returns the other
// pairs, and the flaws of the removed ones by their pair without a round trip.
func withoutStrays(regions int, pairs []Pair) (kept []Pair, strays map[Pair]Flaw) {
	third := newWitnesses(regions, pairs)
	strays = map[Pair]Flaw{}
	kept = slices.DeleteFunc(pairs, func(p Pair) bool {
		f := third.flaw(p)
		if f != "" {
			strays[Pair{A: p.A, B: p.B}] = f
		}
		return f != ""
	})
	return kept, strays
}
