package topology

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// CheckResult is the result of a check. Each list is bounded by the options'
// limit and has a total.
type CheckResult struct {
	Options CheckOptions
	Regions int
	Pairs   PairCounts
	// Violations are pairs with a shorter path over a relay. See
	// View.Violations.
	Violations Findings[Violation]
	// Asymmetries are pairs whose directions differ. See View.Asymmetries.
	Asymmetries Findings[Asymmetry]
	// Cuts are pairs that are reachable in one direction only.
	Cuts Findings[Cut]
	// Unreached are regions that some or all other regions cannot reach.
	Unreached Findings[Unreached]
	// Stale are the stale edges, the oldest first.
	Stale Findings[Edge]
	// Impossible are the round trips that are faster than light, those with the greatest
	// difference first. Suspects are the regions whose locations may be wrong.
	Impossible Findings[Impossible]
	Suspects   []Suspect
	// Doubtful are the doubted measurements, the farthest from the prediction first.
	Doubtful Findings[Doubtful]
}

// PairCounts counts ordered pairs of regions by the source and state of their edge.
type PairCounts struct {
	Measured, Stale, Unreachable, Predicted, Estimated, Unknown int
}

// Cut is a pair of regions in which only one region reaches the other.
type Cut struct {
	// Working is the reachable direction, Blocked the unreachable one.
	Working, Blocked Edge
}

// Unreached is a region that some or all other regions cannot reach.
type Unreached struct {
	Region string
	// By lists at most maxNamed regions that cannot reach the region. ByCount counts all
	// regions that cannot reach it, and ReachedCount those that can.
	By           []string
	ByCount      int
	ReachedCount int
}

// maxNamed bounds the regions that are named in one finding.
const maxNamed = 8

// Check finds anomalies in a view: pairs with a shorter path over a relay, directions that
// differ, cuts, and stale, impossible or doubtful measurements. Predictions and estimates
// are only counted. For n regions Check takes n³ steps.
func Check(v *View, o CheckOptions) CheckResult {
	o = o.defaults()
	r := CheckResult{Options: o, Regions: len(v.regions)}
	r.Violations = v.Violations(o.Percentile, o.MinGain, o.Limit)
	r.Asymmetries = v.Asymmetries(o.MinRatio, o.MinDelta, o.MinLoss, o.Limit)
	r.Cuts = v.cuts(o.Limit)
	r.Unreached = v.unreached(o.Limit)
	r.Impossible, r.Suspects = v.impossible(o.Limit)
	r.Doubtful = v.doubtful(o.Limit)
	stale := topFindings[Edge]{limit: o.Limit, compare: func(a, b Edge) int {
		return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	}}
	for i := range v.regions {
		for j := range v.regions {
			if i == j {
				continue
			}
			e := v.edge(i, j)
			switch {
			case e.Source == Predicted:
				r.Pairs.Predicted++
			case e.Source == Estimated:
				r.Pairs.Estimated++
			case e.Source == None:
				r.Pairs.Unknown++
			case e.State == Unreachable:
				r.Pairs.Unreachable++
			case e.State == Stale:
				r.Pairs.Stale++
				stale.add(e)
			default:
				r.Pairs.Measured++
			}
		}
	}
	r.Stale = stale.Findings
	return r
}

func (v *View) cuts(limit int) Findings[Cut] {
	found := topFindings[Cut]{limit: limit, compare: func(a, b Cut) int {
		return cmp.Or(cmp.Compare(a.Blocked.From, b.Blocked.From), cmp.Compare(a.Blocked.To, b.Blocked.To))
	}}
	v.measuredPairs(func(a, b *Edge) {
		if a.State == Unreachable {
			a, b = b, a
		}
		if b.State == Unreachable && a.State == OK {
			found.add(Cut{Working: *a, Blocked: *b})
		}
	})
	return found.Findings
}

// unreached returns the regions that other regions cannot reach. A region that more
// regions cannot reach comes first.
func (v *View) unreached(limit int) Findings[Unreached] {
	found := topFindings[Unreached]{limit: limit, compare: func(a, b Unreached) int {
		return cmp.Or(cmp.Compare(b.ByCount, a.ByCount), cmp.Compare(a.Region, b.Region))
	}}
	n := len(v.regions)
	for to := range n {
		u := Unreached{Region: v.regions[to].Name}
		for from := range n {
			c := v.cell(from, to)
			switch {
			case c.state == Unknown || from == to:
			case c.state == Unreachable:
				u.ByCount++
				if len(u.By) < maxNamed {
					u.By = append(u.By, v.regions[from].Name)
				}
			case v.stateOf(from, to) == OK:
				u.ReachedCount++
			}
		}
		if u.ByCount > 0 {
			found.add(u)
		}
	}
	return found.Findings
}

// Empty reports whether there is no finding.
func (r CheckResult) Empty() bool {
	return r.Violations.Total+r.Asymmetries.Total+r.Cuts.Total+r.Unreached.Total+r.Stale.Total+r.Impossible.Total+r.Doubtful.Total == 0
}

// String prints the result, one line for each finding.
func (r CheckResult) String() string {
	var b strings.Builder
	n := r.Pairs
	fmt.Fprintf(&b, "%d regions; ordered pairs: %d measured, %d stale, %d unreachable, %d predicted, %d estimated, %d unknown\n",
		r.Regions, n.Measured, n.Stale, n.Unreachable, n.Predicted, n.Estimated, n.Unknown)
	section(&b, fmt.Sprintf("pairs that gain more than %.0f%% by one relay", r.Options.MinGain*100), r.Violations)
	section(&b, "pairs that differ by direction", r.Asymmetries)
	section(&b, "pairs cut one way", r.Cuts)
	section(&b, "regions out of reach for others", r.Unreached)
	section(&b, "stale measurements", r.Stale)
	section(&b, "measurements faster than light in fibre", r.Impossible)
	for _, s := range r.Suspects {
		fmt.Fprintf(&b, "  %s\n", s)
	}
	section(&b, "measurements that are not believed", r.Doubtful)
	if r.Empty() {
		b.WriteString("nothing odd was found\n")
	}
	return b.String()
}

func section[T any](b *strings.Builder, title string, f Findings[T]) {
	if f.Total == 0 {
		return
	}
	fmt.Fprintf(b, "%s: %d", title, f.Total)
	if len(f.List) < f.Total {
		fmt.Fprintf(b, ", the first %d", len(f.List))
	}
	b.WriteString("\n")
	for _, x := range f.List {
		fmt.Fprintf(b, "  %s\n", sentence(x))
	}
}

func sentence(x any) string {
	if e, ok := x.(Edge); ok {
		return fmt.Sprintf("%s → %s: %.1fms, %s old", e.From, e.To, ms(e.P50), e.Age.Round(time.Second))
	}
	return fmt.Sprint(x)
}

// String prints for example "a → b: 100.0ms, by c 80.0ms: 20% less".
func (x Violation) String() string {
	s := fmt.Sprintf("%s → %s: %.1fms, by %s %.1fms: %.0f%% less", x.From, x.To, ms(x.Direct), x.Via, ms(x.Relayed), x.Gain*100)
	if x.State == Stale {
		s += " (partly stale)"
	}
	return s
}

// String prints both directions and their difference.
func (a Asymmetry) String() string {
	if a.Loss {
		return fmt.Sprintf("%s → %s loses %.0f%% of probes, back %.0f%%", a.Slow.From, a.Slow.To, a.Slow.Loss*100, a.Fast.Loss*100)
	}
	return fmt.Sprintf("%s → %s: %.1fms, back %.1fms: %.1fms more", a.Slow.From, a.Slow.To, ms(a.Slow.P50), ms(a.Fast.P50), ms(a.delta()))
}

func (c Cut) String() string {
	return fmt.Sprintf("%s cannot reach %s, which reaches it in %.1fms: does it let probes in?", c.Blocked.From, c.Blocked.To, ms(c.Working.P50))
}

func (u Unreached) String() string {
	by := strings.Join(u.By, ", ")
	if more := u.ByCount - len(u.By); more > 0 {
		by += fmt.Sprintf(" and %d more", more)
	}
	if u.ReachedCount == 0 {
		return fmt.Sprintf("%s is reached by no region; %s tried", u.Region, by)
	}
	return fmt.Sprintf("%s is reached by %d, but not by %s", u.Region, u.ReachedCount, by)
}

func (x Impossible) String() string {
	return fmt.Sprintf("%s → %s: %.1fms over %.0f km, for which light in fibre takes %.1fms: a wrong location, or a nearer host answers",
		x.Edge.From, x.Edge.To, ms(x.RTT), x.Km, ms(x.Light))
}
