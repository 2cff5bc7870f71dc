package predict

import (
	"cmp"
	"math"
	"slices"

	"github.com/nusa-scheduler/nusa/topology"
)

// Flaw says why a sample is not believed.
type Flaw string

// The flaws, as words for people.
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

// Rejection is a sample that is not believed.
type Rejection struct {
	// Sample is its index in what was given.
	Sample int
	Flaw   Flaw
}

const (
	maxMS = float64(topology.MaxTableRTT) / 1e6
	// fibreMS is the time of a kilometre there and back at two thirds of the
	// speed of light, that of light in glass.
	fibreMS = 2 * 1000 / (299792.458 * 2 / 3)
	// placeKM: a location marks a city, machines stand about it.
	placeKM = 100
	// oddFactor and oddMS: what two measurements of one pair may differ by in
	// both ways at once before one must be wrong.
	oddFactor, oddMS = 3, 20
	// farFactor is the same for bounds that come from third regions: detours of
	// twice the shortest way are common on the Internet, of four times rare.
	farFactor, farMS = 4, 100
	// minWitnesses and maxWitnesses: third regions asked about a pair. Fewer tell
	// only of fewMS and more, seconds among milliseconds.
	minWitnesses, maxWitnesses = 5, 64
	fewMS                      = 1000
)

// Pair is two regions, A < B, and the round trip between them in milliseconds:
// the mean of the directions' medians.
type Pair struct {
	A, B int
	RTT  float64
}

// Clean merges the samples of each pair, without those that cannot be true: by
// themselves, beside others of the pair, beside those to third regions. Pairs
// are in order, rejections in that of the samples. Samples from a region to
// itself are ignored.
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
	var pairs []Pair
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

// flaw is what makes the sample impossible by itself, "" = nothing.
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

// compareEnds orders samples by their pair, whichever the direction.
func compareEnds(x, y Sample) int {
	if d := min(x.From, x.To) - min(y.From, y.To); d != 0 {
		return d
	}
	return max(x.From, x.To) - max(y.From, y.To)
}

// withoutTooFast rejects what light in fibre could not do. Three such samples
// and a quarter of all at one region speak against its location instead.
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

// odd reports whether two round trips of one pair contradict one another.
func odd(x, y float64) bool {
	return max(x, y) > oddFactor*min(x, y) && math.Abs(x-y) > oddMS
}

// dispute is a pair whose directions contradict one another.
type dispute struct {
	short, long     Pair
	shortOf, longOf []int // their samples
}

// merge makes one value of the samples of a pair. Of an even number the lower
// middle one is the median: what goes wrong with a round trip makes it longer.
func merge(samples []Sample, of []int, reject func(int, Flaw)) (Pair, *dispute) {
	p := Pair{A: min(samples[of[0]].From, samples[of[0]].To), B: max(samples[of[0]].From, samples[of[0]].To)}
	var ways [2][]int // A to B, B to A
	for _, i := range of {
		way := 0
		if samples[i].From == p.B {
			way = 1
		}
		ways[way] = append(ways[way], i)
	}
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

// resolveDisputes lets third regions decide between the directions of a pair; where
// they do not, the shorter one is believed.
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

// witnesses are the round trips of every region to those that it was measured
// with, by number.
type witnesses [][]end

type end struct {
	region int
	rtt    float64
}

func newWitnesses(regions int, pairs []Pair) witnesses {
	w := make(witnesses, regions)
	for _, p := range pairs { // in order, so that both lists come out sorted
		w[p.B] = append(w[p.B], end{p.A, p.RTT})
	}
	for _, p := range pairs {
		w[p.A] = append(w[p.A], end{p.B, p.RTT})
	}
	return w
}

// flaw compares a pair with what the triangle inequality makes of third regions
// k: |ak − bk| ≤ ab ≤ ak + kb. Routes break it often and by much, so it is the
// median of the lower bounds and the third of the upper ones that count, and
// only by a factor.
func (w witnesses) flaw(p Pair) Flaw {
	var lower, upper []float64
	for a, b := w[p.A], w[p.B]; len(a) > 0 && len(b) > 0 && len(lower) < maxWitnesses; {
		switch d := a[0].region - b[0].region; {
		case d < 0:
			a = a[1:]
		case d > 0:
			b = b[1:]
		default:
			lower = append(lower, math.Abs(a[0].rtt-b[0].rtt))
			upper = append(upper, a[0].rtt+b[0].rtt)
			a, b = a[1:], b[1:]
		}
	}
	slices.Sort(lower)
	slices.Sort(upper)
	switch n := len(lower); {
	case n == 0:
		return ""
	case n < minWitnesses:
		if p.RTT > farFactor*upper[n-1]+fewMS {
			return FlawLong
		}
	case farFactor*p.RTT < lower[n/2]-oddMS:
		return FlawShort
	case p.RTT > farFactor*upper[2]+farMS:
		return FlawLong
	}
	return ""
}

// withoutStrays splits pairs into those that third regions bear out, or say
// nothing of, and the others.
func withoutStrays(regions int, pairs []Pair) (kept []Pair, strays map[[2]int]Flaw) {
	third := newWitnesses(regions, pairs)
	strays = map[[2]int]Flaw{}
	kept = make([]Pair, 0, len(pairs))
	for _, p := range pairs {
		if f := third.flaw(p); f != "" {
			strays[[2]int{p.A, p.B}] = f
		} else {
			kept = append(kept, p)
		}
	}
	return kept, strays
}
