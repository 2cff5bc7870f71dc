package predict

import (
	"cmp"
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
	flaws := map[int]Flaw{}
	reject := func(i int, f Flaw) { flaws[i] = f }
	good := make([]int, 0, len(samples))
	for i, s := range samples {
		if f := s.flaw(regions); f != "" {
			reject(i, f)
		} else if s.From != s.To {
			good = append(good, i)
		}
	}
	good = withoutTooFast(regions, samples, good, locations, reject)
	slices.SortStableFunc(good, func(x, y int) int { return compareEnds(samples[x], samples[y]) })
	ends := 0
	for k := range good {
		if k == 0 || compareEnds(samples[good[k-1]], samples[good[k]]) != 0 {
			ends++
		}
	}
	pairs := make([]Pair, 0, ends)
	var disputed []dispute
	for rest := good; len(rest) > 0; {
		end := 1
		for end < len(rest) && compareEnds(samples[rest[0]], samples[rest[end]]) == 0 {
			end++
		}
		p, d := merge(samples, rest[:end], reject)
		rest = rest[end:]
		if d != nil {
			disputed = append(disputed, *d)
		} else {
			pairs = append(pairs, p)
		}
	}
	pairs, strays := withoutStrays(regions, resolveDisputes(regions, pairs, disputed, reject))
	rejected := make([]Rejection, 0, len(flaws))
	for i, s := range samples {
		f := flaws[i]
		if f == "" {
			f = strays[[2]int{min(s.From, s.To), max(s.From, s.To)}]
		}
		if f != "" {
			rejected = append(rejected, Rejection{i, f})
		}
	}
	return pairs, rejected
}

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

// compareEnds orders samples by their pair of regions, regardless of the direction.
func compareEnds(x, y Sample) int {
	if d := min(x.From, x.To) - min(y.From, y.To); d != 0 {
		return d
	}
	return max(x.From, x.To) - max(y.From, y.To)
}

// withoutTooFast rejects samples that are faster than light in fibre. But if a region has
// at least three such samples, and these are at least a quarter of its samples, the
// location of the region counts as wrong, and the samples are not rejected.
func withoutTooFast(regions int, samples []Sample, good []int, locations []*topology.Location, reject func(int, Flaw)) []int {
	if len(locations) < regions {
		return good
	}
	tooFast := func(s Sample) bool {
		a, b := locations[s.From], locations[s.To]
		return a != nil && b != nil && s.RTT < (topology.GreatCircle(*a, *b)-placeKM)*fibreMS
	}
	all, fast := make([]int, regions), make([]int, regions)
	for _, i := range good {
		for _, end := range []int{samples[i].From, samples[i].To} {
			all[end]++
			if tooFast(samples[i]) {
				fast[end]++
			}
		}
	}
	wrong := func(region int) bool { return fast[region] >= 3 && 4*fast[region] >= all[region] }
	return slices.DeleteFunc(good, func(i int) bool {
		s := samples[i]
		bad := tooFast(s) && !wrong(s.From) && !wrong(s.To)
		if bad {
			reject(i, FlawLight)
		}
		return bad
	})
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
func merge(samples []Sample, of []int, reject func(int, Flaw)) (Pair, *dispute) {
	p := Pair{A: min(samples[of[0]].From, samples[of[0]].To), B: max(samples[of[0]].From, samples[of[0]].To)}
	// The samples of A to B come first, then those of B to A.
	slices.SortStableFunc(of, func(x, y int) int { return samples[x].From - samples[y].From })
	split := slices.IndexFunc(of, func(i int) bool { return samples[i].From == p.B })
	if split < 0 {
		split = len(of)
	}
	ways := [2][]int{of[:split:split], of[split:]}
	var middle [2]float64
	for w, way := range ways {
		if len(way) == 0 {
			continue
		}
		slices.SortStableFunc(way, func(x, y int) int { return cmp.Compare(samples[x].RTT, samples[y].RTT) })
		middle[w] = samples[way[(len(way)-1)/2]].RTT
		ways[w] = slices.DeleteFunc(way, func(i int) bool {
			bad := odd(samples[i].RTT, middle[w])
			if bad {
				reject(i, FlawOdd)
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
		return p, &dispute{Pair{p.A, p.B, middle[short]}, Pair{p.A, p.B, middle[long]}, ways[short], ways[long]}
	}
	return p, nil
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

func comparePairs(x, y Pair) int {
	if x.A != y.A {
		return x.A - y.A
	}
	return x.B - y.B
}

// witnesses holds the measured round trips of every region, sorted by the region at the
// other end.
type witnesses [][]end

type end struct {
	region int
	rtt    float64
}

func newWitnesses(regions int, pairs []Pair) witnesses {
	w, counts := make(witnesses, regions), make([]int, regions)
	for _, p := range pairs {
		counts[p.A]++
		counts[p.B]++
	}
	all := make([]end, 0, 2*len(pairs))
	for i, n := range counts {
		w[i], all = all[:0:n], all[n:n]
	}
	for _, p := range pairs { // visit the pairs in order, so that the lists of both ends are sorted
		w[p.B] = append(w[p.B], end{p.A, p.RTT})
	}
	for _, p := range pairs {
		w[p.A] = append(w[p.A], end{p.B, p.RTT})
	}
	return w
}

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
	for a, b := w[p.A], w[p.B]; len(a) > 0 && len(b) > 0 && n < maxWitnesses; {
		switch d := a[0].region - b[0].region; {
		case d < 0:
			a = a[1:]
		case d > 0:
			b = b[1:]
		default:
			lower, upper := math.Abs(a[0].rtt-b[0].rtt), a[0].rtt+b[0].rtt
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
			a, b = a[1:], b[1:]
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
// pairs, and the flaws of the removed ones.
func withoutStrays(regions int, pairs []Pair) (kept []Pair, strays map[[2]int]Flaw) {
	third := newWitnesses(regions, pairs)
	strays = map[[2]int]Flaw{}
	kept = slices.DeleteFunc(pairs, func(p Pair) bool {
		f := third.flaw(p)
		if f != "" {
			strays[[2]int{p.A, p.B}] = f
		}
		return f != ""
	})
	return kept, strays
}
