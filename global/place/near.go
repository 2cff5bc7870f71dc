package place

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/place/rank"
	"github.com/nusa-scheduler/nusa/topology"
)

// target is a region or a point on the map, and its distance.
type target struct {
	// name is the name of the region; empty for a point on the map.
	name string
	topology.Distance
}

// targets are the decisive targets of a near clause, seen from one region.
type targets struct {
	// nearest is the nearest of all targets that match.
	nearest target
	// measured is the nearest target with a fresh measurement.
	measured target
}

// distances looks up the distances of near clauses, and keeps the results for the plan. That saves
// work: equal clauses are common, for example as the default of a team, and a clause by labels
// looks at every pair of regions.
type distances struct {
	view    *topology.View
	regions regionList
	origins map[string][]string
	known   map[string]*nearness
	key     []byte
	// number is the index of each region in the view; -1: the view does not have it. The list is
	// made at the first use.
	number []int
	// pairs is the number of distances between two regions that were looked up. matches is the
	// number of regions that were compared with a selector of labels, for a target or for an Index.
	pairs, matches int
}

// nearness keeps the distances to the targets of one clause at one percentile.
type nearness struct {
	distances *distances
	near      *Near
	// to are the indices of the target regions, once found.
	to    []int
	found bool
	// few holds the results for the first regions that were looked up, at most fewLookups. Then at
	// replaces few: it has an element for each region, which is valid where asked is set.
	few   map[int]targets
	at    []targets
	asked []bool
	// looked is the number of regions that were looked up.
	looked int
}

// fewLookups is the number of results beyond which a nearness keeps one result for each region.
const fewLookups = 16

func newDistances(s Snapshot) *distances {
	return &distances{view: s.Topology, regions: s.Regions, origins: s.Origins, known: map[string]*nearness{}}
}

// at returns the targets of a near clause, seen from region i.
func (d *distances) at(n *Near, i int) targets { return d.of(n).of(i) }

// of returns the distances of a near clause.
func (d *distances) of(n *Near) *nearness {
	d.key = n.appendTarget(d.key[:0])
	known := d.known[string(d.key)]
	if known == nil {
		known = &nearness{distances: d, near: n, few: map[int]targets{}}
		d.known[string(d.key)] = known
	}
	return known
}

// of returns the targets, seen from region i.
func (k *nearness) of(i int) targets {
	if k.at == nil {
		if t, ok := k.few[i]; ok {
			return t
		}
		if len(k.few) < fewLookups {
			t := k.distances.measure(k.near, k.targets(), i)
			k.few[i] = t
			k.looked++
			return t
		}
		k.at, k.asked = make([]targets, len(k.distances.regions)), make([]bool, len(k.distances.regions))
		for j, t := range k.few {
			k.at[j], k.asked[j] = t, true
		}
	}
	if !k.asked[i] {
		k.at[i], k.asked[i] = k.distances.measure(k.near, k.targets(), i), true
		k.looked++
	}
	return k.at[i]
}

// ahead returns how many distances must still be looked up until the distances of all regions are
// known.
func (k *nearness) ahead() int {
	return max(0, len(k.distances.regions)-k.looked) * len(k.targets())
}

// targets returns the indices of the target regions.
func (k *nearness) targets() []int {
	if !k.found {
		k.to, k.found = k.distances.targets(k.near), true
	}
	return k.to
}

func (d *distances) targets(n *Near) (to []int) {
	switch {
	case n.Location != nil:
		return nil
	case n.Domain == "" && n.Selector.Name != "":
		if i := d.regions.index(n.Selector.Name); i >= 0 && n.Selector.Matches(d.regions[i]) {
			to = append(to, i)
		}
		return to
	case n.Domain != "":
		for _, name := range d.origins[n.Domain] {
			if i := d.regions.index(name); i >= 0 {
				to = append(to, i)
			}
		}
		slices.Sort(to)
		return slices.Compact(to)
	}
	d.matches += len(d.regions)
	for i, r := range d.regions {
		if n.Selector.Matches(r) {
			to = append(to, i)
		}
	}
	return to
}

// appendTarget appends the key of a clause's targets. Clauses with equal keys have the
// same targets and the same percentile.
func (n *Near) appendTarget(b []byte) []byte {
	b = appendNumber(b, uint64(n.Percentile))
	if n.Location != nil {
		b = append(b, '@')
		b = appendNumber(b, math.Float64bits(n.Location.Latitude))
		return appendNumber(b, math.Float64bits(n.Location.Longitude))
	}
	if n.Domain != "" {
		return appendWord(append(b, '.'), n.Domain)
	}
	return n.Selector.appendKey(append(b, '='))
}

// appendKey appends the key of a selector. Selectors with equal keys select the same
// regions.
func (s Selector) appendKey(b []byte) []byte {
	b = appendWord(b, s.Name)
	b = appendNumber(b, uint64(len(s.Labels)))
	if len(s.Labels) == 1 {
		for k, v := range s.Labels {
			return appendWord(appendWord(b, k), v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		b = appendWord(appendWord(b, k), s.Labels[k])
	}
	return b
}

func appendNumber(b []byte, n uint64) []byte { return binary.AppendUvarint(b, n) }

func appendWord(b []byte, s string) []byte { return append(appendNumber(b, uint64(len(s))), s...) }

func (d *distances) measure(n *Near, to []int, from int) (out targets) {
	if n.Location != nil && d.view != nil {
		out.nearest.Distance = d.view.DistanceToLocation(d.regions[from].Name, *n.Location, n.Percentile)
	}
	d.pairs += len(to)
	for _, i := range to {
		t := d.between(from, i, n.Percentile)
		out.nearest = nearer(out.nearest, t)
		if t.State == topology.OK && t.Source == topology.Measured {
			out.measured = nearer(out.measured, t)
		}
	}
	return out
}

func (d *distances) between(from, to int, p topology.Percentile) target {
	t := target{name: d.regions[to].Name}
	switch {
	case from == to:
		t.State, t.Source = topology.OK, topology.Measured
	case d.view != nil:
		if d.number == nil {
			d.number = numbers(d.view, d.regions)
		}
		if d.number[from] >= 0 && d.number[to] >= 0 {
			t.Distance = d.view.DistanceAt(d.number[from], d.number[to], p)
		}
	}
	return t
}

// numbers returns the index of each region in a view; -1: the view does not have it.
func numbers(v *topology.View, regions regionList) []int {
	out := make([]int, len(regions))
	for i, r := range regions {
		out[i] = i
		if i >= v.Len() || v.NameAt(i) != r.Name {
			out[i] = v.IndexOf(r.Name)
		}
	}
	return out
}

// nearer returns the nearer of two targets. A known distance is nearer than an unknown one. If both
// are equal, it returns a.
func nearer(a, b target) target {
	if a.name == "" || b.Known() && (!a.Known() || b.RTT < a.RTT) {
		return b
	}
	return a
}

// defaultScale is the round trip at which a near clause without max_rtt has half its score. It is
// about the width of a continent.
const defaultScale = 100 * time.Millisecond

// closeness returns 1 at distance 0, 1/2 at the clause's scale, and 0 for an unknown distance.
// Stale, predicted and estimated values count a little less than fresh measurements. So a measured
// value beats an equal value that was not measured.
func (n *Near) closeness(t target) float64 {
	if !t.Known() {
		return 0
	}
	scale, trust := n.scale(), 1.0
	switch {
	case t.Source == topology.Estimated, t.State == topology.Stale:
		trust = 0.9
	case t.Source == topology.Predicted:
		trust = 0.95
	}
	return trust * scale / (scale + float64(t.RTT))
}

// scale returns the round trip at which the closeness of a measured target is one half.
func (n *Near) scale() float64 {
	switch {
	case n.Data > 0:
		return float64(dataHalf) * dataEachTrip / float64(n.Data)
	case n.MaxRTT > 0:
		return float64(n.MaxRTT)
	}
	return float64(defaultScale)
}

// The throughput of a path is not measured, but it falls with the round trips: a sender has a window of some
// MiB in flight. So each round trip is taken to move dataEachTrip, which is the largest window that Linux gives
// a connection by default. dataHalf is the time to move data at which a clause adds half of its weight.
const (
	dataEachTrip = 4 << 20
	dataHalf     = 10 * time.Minute
)

// moving returns about how long it takes to move the data of a clause over a distance.
func (n *Near) moving(rtt time.Duration) time.Duration {
	took := float64(n.Data) / dataEachTrip * float64(rtt)
	return time.Duration(min(took, float64(maxMoving)))
}

// sayMoving prints, for example, "moving the data takes about 18m8s".
func (n *Near) sayMoving(d topology.Distance) string {
	took := n.moving(d.RTT)
	return "moving the data takes about " + took.Round(max(time.Millisecond, min(time.Second, took/10))).String()
}

// maxMoving bounds what moving returns: a year.
const maxMoving = 8760 * time.Hour

// String prints the bound, for example "p99 at most 40ms to southeastasia".
func (n *Near) String() string {
	if n.MaxRTT <= 0 {
		return fmt.Sprintf("p%d to %s", max(n.Percentile, 50), n.where(n.Selector.Name))
	}
	return fmt.Sprintf("p%d at most %s to %s", max(n.Percentile, 50), n.MaxRTT, n.where(n.Selector.Name))
}

// where names the target. region is the target's name if the clause matches several regions.
func (n *Near) where(region string) string {
	switch {
	case n.Location != nil && n.Location.Name != "":
		return n.Location.Name
	case n.Location != nil:
		return fmt.Sprintf("%.2f,%.2f", n.Location.Latitude, n.Location.Longitude)
	case n.Domain != "":
		return strings.TrimPrefix(region+", an origin of "+n.Domain, ", ")
	case region == "":
		return "any region that matches " + n.Selector.String()
	}
	return region
}

// nothing returns why the clause has no target.
func (n *Near) nothing() string {
	if n.Domain != "" {
		return n.Domain + " has no origin record, or all of its origins are drained"
	}
	return "no region matches " + n.Selector.String()
}

// say prints, for example, "p50 68ms measured to japaneast".
func (n *Near) say(t target) string {
	to := n.where(t.name)
	p := max(n.Percentile, 50)
	switch {
	case t.State == topology.Unreachable:
		return fmt.Sprintf("p%d unreachable to %s", p, to)
	case t.Source == topology.None && n.Location != nil:
		return fmt.Sprintf("p%d unknown to %s, since the region has no location", p, to)
	case t.Source == topology.None:
		return fmt.Sprintf("p%d unknown to %s", p, to)
	case t.RTT == 0 && t.Source == topology.Measured:
		return "is " + to
	case t.State == topology.Stale:
		return fmt.Sprintf("p%d %s stale to %s", p, round(t.RTT), to)
	}
	if n.Data > 0 {
		return fmt.Sprintf("p%d %s %s to %s: %s", p, round(t.RTT), t.Source, to, n.sayMoving(t.Distance))
	}
	return fmt.Sprintf("p%d %s %s to %s", p, round(t.RTT), t.Source, to)
}

// round rounds a duration to tenths of a millisecond.
func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// NearResult says how one region meets one near clause: the decisive distance, and the verdict.
type NearResult struct {
	Near *Near
	// Target is the decisive region; empty for a point on the map.
	Target string
	topology.Distance
	// Verdict is one of the constants below. Why explains it.
	Verdict, Why string
}

// The verdicts of a NearResult.
const (
	NearKept   = "kept"
	NearBroken = "broken"
	// NearUnknown: the bound is required, and no accepted distance shows whether it is kept.
	NearUnknown = "unknown"
	// NearSoft: the bound is not required, and counts only in the score.
	NearSoft = "soft"
)

// NearResults returns how a region meets the near clauses of a group, or nil for an unknown region.
func (f *BoundTracker) NearResults(g *Group, region string) []NearResult {
	at := f.distances.regions.index(region)
	if at < 0 {
		return nil
	}
	var out []NearResult
	for i := range g.Regions.Near {
		n := &g.Regions.Near[i]
		t := f.distances.at(n, at)
		if !n.Required {
			why := fmt.Sprintf("counts %.0f of %d in the score", float64(n.Weight)*n.closeness(t.nearest), n.Weight)
			if n.Data > 0 && t.nearest.Known() {
				why += ": " + n.sayMoving(t.nearest.Distance)
			}
			out = append(out, n.result(t.nearest, NearSoft, why))
			continue
		}
		d := n.deciding(t)
		guess := d.State != topology.OK || d.Source != topology.Measured
		switch n.refuses(t) {
		case "":
			why := ""
			if guess && n.Location == nil {
				why = "since the clause says unknown: " + string(n.Unknown)
			}
			out = append(out, n.result(d, NearKept, why))
		case ReasonRTTTooHigh:
			out = append(out, n.result(d, NearBroken, ""))
		default:
			why := "nothing is known of it"
			if n.Location != nil {
				why = "the region has no location"
			} else if d.name == "" {
				why = n.nothing()
			} else if d.Source != topology.None {
				why = "only what was measured and is fresh counts, unless the clause says unknown: predicted"
			}
			out = append(out, n.result(d, NearUnknown, why))
		}
	}
	return out
}

func (n *Near) result(t target, verdict, why string) NearResult {
	return NearResult{Near: n, Target: t.name, Distance: t.Distance, Verdict: verdict, Why: why}
}

// rebase makes a column of upper bounds current in a later view in which the target's round trips
// are the same, because the bounds depend on nothing else of a view. It reports whether it could.
func (c *specColumn) rebase(x *Index, g *Group, d *distances) bool {
	if !c.bounded || c.rules != x.rules || x.view == nil || c.view == nil {
		return false
	}
	to := d.of(&g.Regions.Near[0]).targets()
	if len(to) != 1 || to[0] != c.near[0][0] || x.number[to[0]] < 0 || !x.view.SameTrips(c.view, x.number[to[0]]) {
		return false
	}
	for _, s := range c.exacted {
		c.scores[s.Region], c.known[s.Region] = s.Score, false
	}
	c.exacted, c.view = c.exacted[:0], x.view
	for k := range g.Regions.Near {
		c.origins[k] = d.origins[g.Regions.Near[k].Domain]
	}
	return true
}

// bound returns an upper bound for what the only near clause can add to the score of a region. It
// looks at one direction only, which is enough because the worse direction decides.
func (c *specColumn) bound(n *Near, i int, d *distances) int32 {
	rtt := time.Duration(0)
	if to := c.near[0][0]; to != i && d.number[i] >= 0 {
		rtt = d.view.LeastRTT(d.number[to], d.number[i], n.Percentile)
	}
	return thousandths(float64(n.Weight) * (c.scale / (c.scale + float64(rtt)))) // as closeness does
}

// exact returns the score that the rule gives to a region. Only the near clause may still refuse
// the region.
func (c *specColumn) exact(g *Group, i int, d *distances) int32 {
	if c.bounded && !c.known[i] {
		c.exacted = append(c.exacted, rank.Spot{Region: int32(i), Score: c.scores[i]})
		weight := thousandths(float64(g.preference(d.regions[i])))
		c.scores[i] = addNear(weight, g, func(k int) targets { return d.measure(&g.Regions.Near[k], c.near[k], i) })
		c.known[i] = true
	}
	return c.scores[i]
}

// addNear adds the terms of near clauses to the score of a region. at returns the targets of a
// clause, seen from that region.
func addNear(score int32, g *Group, at func(clause int) targets) int32 {
	for k := range g.Regions.Near {
		n := &g.Regions.Near[k]
		t := at(k)
		if n.Required && n.refuses(t) != "" {
			return rank.Refused
		}
		score += thousandths(n.term(t))
	}
	return score
}
