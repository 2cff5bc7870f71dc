package topology

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Bounds and defaults of CheckOptions.
const (
	// MaxFindings bounds CheckOptions.Limit.
	MaxFindings = 1000
	// defaultFindings is the default of CheckOptions.Limit.
	defaultFindings = 20
	// DefaultMinGain is a tenth, because percentiles of successive windows of ten minutes
	// differ by up to a tenth.
	DefaultMinGain = 0.1
	// DefaultMinRatio and DefaultMinDelta mean a difference of a quarter and of 10 ms. The
	// round trips of both directions use the same two paths, so such a difference is
	// suspicious.
	DefaultMinRatio = 1.25
	DefaultMinDelta = 10 * time.Millisecond
	// DefaultMinLoss is a loss of one probe in twenty.
	DefaultMinLoss = 0.05
	// minLost is how many more probes one direction must lose than the other for the
	// difference to count.
	minLost = 3
)

// fibreSpeed, in km/s, is the speed of light in single-mode fibre with a group index of
// 1.468 at 1,550 nm (data sheets of ITU-T G.652 fibres). No measurement can be faster than
// this along the great circle. The usual value 2/3 c is 2 % less. With it, some possible
// measurements would count as impossible.
const fibreSpeed = 299792.458 / 1.468

// CheckOptions are the thresholds of a check. A value of 0 means the default.
type CheckOptions struct {
	// Percentile is the percentile for violations. Asymmetries compare medians.
	Percentile Percentile
	// MinGain is the gain of a relay, 0..1, above which a pair is a violation.
	MinGain float64
	// MinRatio (1 or more) and MinDelta are thresholds for the medians of two directions.
	// An asymmetry reaches both.
	MinRatio float64
	MinDelta time.Duration
	// MinLoss is the threshold for the difference of two directions' loss, 0..1.
	MinLoss float64
	// Limit bounds the listed findings of each kind. It is clamped to 1..MaxFindings.
	Limit int
}

func (o CheckOptions) defaults() CheckOptions {
	o.MinGain = cmp.Or(o.MinGain, DefaultMinGain)
	o.MinRatio = cmp.Or(o.MinRatio, DefaultMinRatio)
	o.MinDelta = cmp.Or(o.MinDelta, DefaultMinDelta)
	o.MinLoss = cmp.Or(o.MinLoss, DefaultMinLoss)
	o.Limit = min(cmp.Or(max(o.Limit, 0), defaultFindings), MaxFindings)
	return o
}

// Findings holds the worst findings of a kind, the worst first, and the number of all
// findings of that kind.
type Findings[T any] struct {
	Total int
	List  []T // at most the limit
}

// topFindings collects findings and holds the first ones in the order of compare.
type topFindings[T any] struct {
	limit   int
	compare func(a, b T) int
	Findings[T]
}

func (t *topFindings[T]) add(x T) {
	t.Total++
	if len(t.List) == t.limit && t.compare(x, t.List[t.limit-1]) >= 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(t.List, x, t.compare)
	t.List = slices.Insert(t.List, at, x)
	t.List = t.List[:min(len(t.List), t.limit)]
}

// Violation is a violation of the triangle inequality: a pair whose path over one relay is
// shorter than the direct path. All three edges were measured.
type Violation struct {
	From, Via, To string
	// Direct and Relayed are round trips at the requested percentile.
	Direct, Relayed time.Duration
	// Gain is 1 - Relayed/Direct, 0..1.
	Gain float64
	// State is the worst state of the three edges.
	State State
}

// Violations returns the measured directed pairs that gain more than minGain (0..1) by the
// best single relay, sorted by gain and then by names. It lists the first limit of them;
// limit is clamped to 1..MaxFindings. Unreachable edges are left out. For n regions
// Violations takes n³ steps, which is about a second for 1,000 regions.
func (v *View) Violations(p Percentile, minGain float64, limit int) Findings[Violation] {
	type hit struct {
		from, via, to int
		gain          float64
	}
	n := len(v.regions)
	hits := topFindings[hit]{limit: min(max(limit, 1), MaxFindings), compare: func(a, b hit) int {
		return cmp.Or(cmp.Compare(b.gain, a.gain), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	}}
	m := v.roundTrips(p)
	best, via := make([]int64, n), make([]int32, n)
	for i := range n {
		direct := m[i*n : (i+1)*n]
		bestRelays(m, direct, best, via, minGain)
		for j, d := range direct {
			if via[j] >= 0 {
				hits.add(hit{i, int(via[j]), j, 1 - float64(best[j])/float64(d)})
			}
		}
	}
	out := Findings[Violation]{Total: hits.Total}
	for _, h := range hits.List {
		x := Violation{
			From: v.regions[h.from].Name, Via: v.regions[h.via].Name, To: v.regions[h.to].Name,
			Direct:  time.Duration(m[h.from*n+h.to]),
			Relayed: time.Duration(m[h.from*n+h.via] + m[h.via*n+h.to]),
			Gain:    h.gain, State: OK,
		}
		for _, e := range []Edge{v.edge(h.from, h.to), v.edge(h.from, h.via), v.edge(h.via, h.to)} {
			x.State = max(x.State, e.State)
		}
		out.List = append(out.List, x)
	}
	return out
}

// bestRelays computes, for one row direct of the matrix m, the round trip over the best
// single relay and the index of that relay. Of equally good relays it chooses the first.
// If no relay gains more than minGain, the index is -1.
func bestRelays(m, direct, best []int64, via []int32, minGain float64) {
	n := len(direct)
	for j, d := range direct {
		// Only a relay with a sum below best[j] counts. So the comparison in the loop
		// below nearly always fails, which the processor's branch prediction learns.
		best[j], via[j] = 0, -1
		if d < noWay {
			best[j] = int64(math.Ceil(float64(d) * (1 - minGain)))
		}
	}
	for a, head := range direct {
		if head >= noWay {
			continue
		}
		row := m[a*n : (a+1)*n]
		best, via := best[:len(row)], via[:len(row)]
		for j, rest := range row {
			if sum := head + rest; sum < best[j] {
				best[j], via[j] = sum, int32(a)
			}
		}
	}
}

// Asymmetry is a pair whose two directions differ. Both directions were measured.
type Asymmetry struct {
	// Slow is the direction with the greater median, or with the greater loss
	// if Loss is set.
	Slow, Fast Edge
	// Loss: the directions differ in loss, not in the median.
	Loss bool
}

// Asymmetries returns the pairs of regions whose medians differ by at least minDelta and
// minRatio. After these it returns the pairs whose loss differs by at least minLoss and
// minLost probes. Both are sorted by the difference and then by names. For limit see
// Violations.
func (v *View) Asymmetries(minRatio float64, minDelta time.Duration, minLoss float64, limit int) Findings[Asymmetry] {
	found := topFindings[Asymmetry]{limit: min(max(limit, 1), MaxFindings), compare: func(a, b Asymmetry) int {
		if a.Loss != b.Loss {
			return cmp.Compare(rank01(a.Loss), rank01(b.Loss))
		}
		if a.Loss {
			return cmp.Or(cmp.Compare(b.lossDelta(), a.lossDelta()), a.compareNames(b))
		}
		return cmp.Or(cmp.Compare(b.delta(), a.delta()), a.compareNames(b))
	}}
	v.measuredPairs(func(a, b *Edge) {
		if a.State == Unreachable || b.State == Unreachable {
			return
		}
		if a.P50 < b.P50 {
			a, b = b, a
		}
		x := Asymmetry{Slow: *a, Fast: *b}
		if x.delta() >= minDelta && float64(a.P50) >= minRatio*float64(b.P50) {
			found.add(x)
			return
		}
		if a.Loss < b.Loss {
			x.Slow, x.Fast = x.Fast, x.Slow
		}
		x.Loss = true
		if x.lossDelta() >= minLoss && lost(x.Slow)-lost(x.Fast) >= minLost {
			found.add(x)
		}
	})
	return found.Findings
}

func rank01(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (a Asymmetry) delta() time.Duration { return a.Slow.P50 - a.Fast.P50 }

func (a Asymmetry) lossDelta() float64 { return a.Slow.Loss - a.Fast.Loss }

func (a Asymmetry) compareNames(b Asymmetry) int {
	return cmp.Or(cmp.Compare(a.Slow.From, b.Slow.From), cmp.Compare(a.Slow.To, b.Slow.To))
}

// lost returns the number of lost probes of an edge. Edge.Samples counts the other probes.
func lost(e Edge) float64 {
	if e.Loss >= 1 {
		return float64(max(e.Samples, minLost))
	}
	return float64(e.Samples) * e.Loss / (1 - e.Loss)
}

// measuredPairs calls f with both edges of each pair that was measured in both directions,
// in the order of names. f must not retain the pointers.
func (v *View) measuredPairs(f func(a, b *Edge)) {
	n := len(v.regions)
	for i := range n {
		for j := i + 1; j < n; j++ {
			there, okThere := v.measured(i, j)
			back, okBack := v.measured(j, i)
			if okThere && okBack {
				f(&there, &back)
			}
		}
	}
}

// Impossible is a round trip faster than light. Either a location is wrong, or a nearer
// host responds instead of the region.
type Impossible struct {
	Edge Edge
	// RTT is the smallest known round trip of the edge.
	RTT time.Duration
	// Km is the distance of the two locations. Light is the round trip of light in fibre
	// of that length.
	Km    float64
	Light time.Duration
}

// FibreRTT returns the shortest possible round trip between two places, which light in
// fibre along the great circle would have. See fibreSpeed.
func FibreRTT(a, b Location) time.Duration {
	return time.Duration(2 * GreatCircle(a, b) / fibreSpeed * float64(time.Second))
}

// impossible finds round trips below FibreRTT, and a small set of regions whose wrong
// locations would explain them. It repeatedly chooses the region that is in most of the
// remaining pairs.
func (v *View) impossible(limit int) (Findings[Impossible], []Suspect) {
	found := topFindings[Impossible]{limit: limit, compare: func(a, b Impossible) int {
		return cmp.Or(cmp.Compare(b.Light-b.RTT, a.Light-a.RTT),
			cmp.Compare(a.Edge.From, b.Edge.From), cmp.Compare(a.Edge.To, b.Edge.To))
	}}
	n := len(v.regions)
	var pairs [][2]int
	for i := range n {
		for j := range n {
			if x, ok := v.impossibleEdge(i, j); ok {
				found.add(x)
				pairs = append(pairs, [2]int{i, j})
			}
		}
	}
	var suspects []Suspect
	for len(pairs) > 0 && len(suspects) < limit {
		count := make([]int, n)
		for _, p := range pairs {
			count[p[0]]++
			count[p[1]]++
		}
		worst := 0
		for i := range count {
			if count[i] > count[worst] {
				worst = i
			}
		}
		suspects = append(suspects, Suspect{v.regions[worst].Name, count[worst]})
		pairs = slices.DeleteFunc(pairs, func(p [2]int) bool { return p[0] == worst || p[1] == worst })
	}
	return found.Findings, suspects
}

// impossibleEdge returns an edge as a finding if its measurement is faster than light.
func (v *View) impossibleEdge(i, j int) (Impossible, bool) {
	a, b := v.regions[i].Location, v.regions[j].Location
	c := v.cell(i, j)
	if c.state == Unknown || i == j || a == nil || b == nil || c.p50 == 0 && c.state == Unreachable { // an unreachable edge without p50 never had a response
		return Impossible{}, false
	}
	rtt := c.p50.Duration()
	if c.min > 0 {
		rtt = min(rtt, c.min.Duration())
	}
	light := FibreRTT(*a, *b)
	if rtt >= light {
		return Impossible{}, false
	}
	e, _ := v.measured(i, j)
	return Impossible{Edge: e, RTT: rtt, Km: GreatCircle(*a, *b), Light: light}, true
}

// Doubtful is a measurement that the predictor holds to be wrong.
type Doubtful struct {
	Edge Edge
	// Guess is the prediction without the measurement. Its Source is None if there is no
	// prediction.
	Guess Edge
}

// doubtful finds doubted measurements, sorted by their difference from the prediction.
// Impossible measurements are left out, because they are another kind of finding.
func (v *View) doubtful(limit int) Findings[Doubtful] {
	off := func(x Doubtful) time.Duration { return (x.Edge.P50 - x.Guess.P50).Abs() }
	found := topFindings[Doubtful]{limit: limit, compare: func(a, b Doubtful) int {
		return cmp.Or(cmp.Compare(off(b), off(a)), cmp.Compare(a.Edge.From, b.Edge.From), cmp.Compare(a.Edge.To, b.Edge.To))
	}}
	n := len(v.regions)
	for k := range v.doubts {
		if _, impossible := v.impossibleEdge(k/n, k%n); impossible {
			continue
		}
		if e, ok := v.measured(k/n, k%n); ok {
			found.add(Doubtful{Edge: e, Guess: v.guessed(k/n, k%n)})
		}
	}
	return found.Findings
}

// String prints the doubted measurement, the reason, and the expected value.
func (x Doubtful) String() string {
	s := fmt.Sprintf("%s → %s: %.1fms is %s", x.Edge.From, x.Edge.To, ms(x.Edge.P50), x.Edge.Doubt)
	if x.Guess.Source != None {
		s += fmt.Sprintf("; %s is %.1fms", x.Guess.Source, ms(x.Guess.P50))
	}
	return s
}

// Suspect is a region whose location may be wrong. Edges is the number of impossible round
// trips that a wrong location would explain.
type Suspect struct {
	Region string
	Edges  int
}

func (s Suspect) String() string {
	return fmt.Sprintf("the location of %s would explain %d of them", s.Region, s.Edges)
}
