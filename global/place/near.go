package place

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

// target is a region or a point, and its distance.
type target struct {
	// name of the region; empty for a point on the map.
	name string
	topology.Distance
}

// targets of a near clause, seen from one region.
type targets struct {
	// nearest of all targets that match.
	nearest target
	// measured is the nearest target with a fresh measurement.
	measured target
}

// distances looks up the distances of near clauses. Equal clauses are common (a
// default of a whole team), and a clause by labels looks at every pair of regions,
// so results are cached for the plan.
type distances struct {
	view    *topology.View
	regions regionList
	origins map[string][]string
	known   map[string]*nearness
}

// nearness caches the distances of one target at one percentile: the indices of
// the target regions, and the result for each region that was looked up.
type nearness struct {
	to    []int
	at    []targets
	asked []bool
}

func newDistances(s Snapshot) *distances {
	return &distances{view: s.Topology, regions: s.Regions, origins: s.Origins, known: map[string]*nearness{}}
}

// of returns the targets of a near clause, by index of the region.
func (d *distances) of(n *Near) []targets {
	for i := range d.regions {
		d.at(n, i)
	}
	return d.nearness(n).at
}

// at returns the targets for one region.
func (d *distances) at(n *Near, i int) targets {
	known := d.nearness(n)
	if !known.asked[i] {
		known.at[i], known.asked[i] = d.measure(n, known.to, i), true
	}
	return known.at[i]
}

func (d *distances) nearness(n *Near) *nearness {
	key := fmt.Sprint(n.target(), n.Percentile)
	known := d.known[key]
	if known == nil {
		known = &nearness{at: make([]targets, len(d.regions)), asked: make([]bool, len(d.regions))}
		for to := range d.regions {
			if n.Location == nil && d.matches(n, to) {
				known.to = append(known.to, to)
			}
		}
		d.known[key] = known
	}
	return known
}

// target returns a cache key: equal keys name the same places.
func (n *Near) target() string {
	if n.Location != nil {
		return fmt.Sprint("@", n.Location.Latitude, ",", n.Location.Longitude)
	}
	return fmt.Sprintf("%q %q %q", n.Selector.Name, n.Selector.Labels, n.Domain)
}

// matches reports whether the region with index i is a target of the clause.
func (d *distances) matches(n *Near, i int) bool {
	if n.Domain != "" {
		return slices.Contains(d.origins[n.Domain], d.regions[i].Name)
	}
	return n.Selector.matches(d.regions[i])
}

func (d *distances) measure(n *Near, to []int, from int) (out targets) {
	if n.Location != nil && d.view != nil {
		out.nearest.Distance = d.view.DistanceToLocation(d.regions[from].Name, *n.Location, n.Percentile)
	}
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
		t.Distance = d.view.Distance(d.regions[from].Name, t.name, p)
	}
	return t
}

// nearer returns the nearer of two targets: a known distance before an unknown
// one, and a if they are equal.
func nearer(a, b target) target {
	if a.name == "" || b.Known() && (!a.Known() || b.RTT < a.RTT) {
		return b
	}
	return a
}

// defaultScale is the round trip that halves the score of a near clause without
// max_rtt: about the width of a continent.
const defaultScale = 100 * time.Millisecond

// closeness returns 1 at no distance, 1/2 at the clause's scale, and 0 where nothing
// is known. Stale, predicted and estimated values count a little less than
// fresh measurements, so that between equal values the measured one wins.
func (n *Near) closeness(t target) float64 {
	if !t.Known() {
		return 0
	}
	scale := float64(defaultScale)
	if n.MaxRTT > 0 {
		scale = float64(n.MaxRTT)
	}
	trust := 1.0
	switch {
	case t.Source == topology.Estimated, t.State == topology.Stale:
		trust = 0.9
	case t.Source == topology.Predicted:
		trust = 0.95
	}
	return trust * scale / (scale + float64(t.RTT))
}

// String prints the bound: "p99 at most 40ms to southeastasia".
func (n *Near) String() string {
	if n.MaxRTT <= 0 {
		return fmt.Sprintf("p%d to %s", max(n.Percentile, 50), n.where(n.Selector.Name))
	}
	return fmt.Sprintf("p%d at most %s to %s", max(n.Percentile, 50), n.MaxRTT, n.where(n.Selector.Name))
}

// where names the target; region is its name if the clause matches several.
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

// nothing returns the reason why the clause has no target at all.
func (n *Near) nothing() string {
	if n.Domain != "" {
		return n.Domain + " has no origin record, or all of its origins are drained"
	}
	return "no region matches " + n.Selector.String()
}

// say prints "p50 68ms measured to japaneast".
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
	case t.State == topology.Stale:
		return fmt.Sprintf("p%d %s stale to %s", p, round(t.RTT), to)
	}
	return fmt.Sprintf("p%d %s %s to %s", p, round(t.RTT), t.Source, to)
}

// round rounds to tenths of a millisecond.
func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// NearResult says how one region meets one near clause: the distance that
// decides, and the verdict.
type NearResult struct {
	Near *Near
	// Target is the region that decides; empty for a point on the map.
	Target string
	topology.Distance
	// Verdict is one of the constants below. Why explains it.
	Verdict, Why string
}

// Verdicts of a NearResult.
const (
	NearKept   = "kept"
	NearBroken = "broken"
	// NearUnknown: the bound is required, and no accepted distance shows
	// whether it is kept.
	NearUnknown = "unknown"
	// NearSoft: the bound is not required. It counts only in the score.
	NearSoft = "soft"
)

// NearResults returns how a region meets the near clauses of a group; nil for
// an unknown region.
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
			out = append(out, n.result(t.nearest, NearSoft, fmt.Sprintf("counts %.0f of %d in the score", float64(n.Weight)*n.closeness(t.nearest), n.Weight)))
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
