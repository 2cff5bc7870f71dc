package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

const (
	// maxDemandPairs bounds the ordered pairs that ProbeDemand returns. Rules with the most pairs
	// are left out first: a rule about all regions prefers no pair.
	maxDemandPairs = 1 << 16
	// softDemand is the demand of a clause that is not required and has full weight. A required
	// clause has requiredDemand. In regions that run the group, a required clause has demand 1,
	// because its bound may break there.
	softDemand     = 0.5
	requiredDemand = 0.8
)

// ProbeDemand returns how much the near clauses of jobs depend on each pair of regions, in both
// directions: a value above 0 and at most 1. Missing pairs have 0. Stopped jobs do not count.
func ProbeDemand(s Snapshot) map[string]map[string]float64 {
	d := newDistances(s)
	rules, allowing := map[string]*demandRule{}, map[string][]string{}
	shared := map[*Group][]*demandRule{} // most jobs share their groups with others
	for i := range s.Jobs {
		j := &s.Jobs[i]
		for k := range j.Groups {
			g := &j.Groups[k]
			if j.Stopped {
				continue
			}
			of, known := shared[g]
			if !known {
				for n := range g.Regions.Near {
					of = append(of, d.addDemand(rules, allowing, g, &g.Regions.Near[n]))
				}
				shared[g] = of
			}
			for n, r := range of {
				if r == nil || !g.Regions.Near[n].Required {
					continue
				}
				for _, slot := range j.slotsOf(g.Name) {
					r.runs[slot.Region] = true
				}
			}
		}
	}
	out := map[string]map[string]float64{}
	left := maxDemandPairs
	for _, key := range slices.SortedFunc(maps.Keys(rules), func(a, b string) int {
		return cmp.Or(cmp.Compare(rules[a].pairs(), rules[b].pairs()), cmp.Compare(a, b))
	}) {
		r := rules[key]
		left -= r.pairs()
		if left < 0 {
			break
		}
		for _, from := range r.from {
			for _, to := range r.to {
				raise(out, from, to, r.value(from))
				raise(out, to, from, r.value(from))
			}
		}
	}
	return out
}

// demandRule merges the clauses of groups that have equal allowed regions and targets. Rules share
// from.
type demandRule struct {
	from, to []string
	most     float64
	// runs are the regions that run a group which requires the clause.
	runs map[string]bool
}

func (r *demandRule) pairs() int { return 2 * len(r.from) * len(r.to) }

func (r *demandRule) value(from string) float64 {
	if r.runs[from] {
		return 1
	}
	return r.most
}

// addDemand adds one near clause of a group to the rules, and returns its rule, or nil for a clause that asks about
// no pair. allowing has the allowed regions, by the text of RegionsSpec.Allow.
func (d *distances) addDemand(rules map[string]*demandRule, allowing map[string][]string, g *Group, n *Near) *demandRule {
	if n.Location != nil || !n.Required && n.Weight <= 0 {
		return nil // a point cannot be probed
	}
	allow := fmt.Sprintf("%v", g.Regions.Allow)
	key := allow + " " + string(n.appendTarget(nil))
	r := rules[key]
	if r == nil {
		if _, known := allowing[allow]; !known {
			allowing[allow] = d.allowed(g.Regions.Allow)
		}
		r = &demandRule{from: allowing[allow], runs: map[string]bool{}}
		for _, i := range d.targets(n) {
			r.to = append(r.to, d.regions[i].Name)
		}
		rules[key] = r
	}
	if n.Required {
		r.most = max(r.most, requiredDemand)
	} else {
		r.most = max(r.most, softDemand*float64(n.Weight)/100)
	}
	return r
}

// allowed returns the names of the regions that one of the selectors allows.
func (d *distances) allowed(allow []Selector) (names []string) {
	for i := range d.regions {
		if allowed(allow, d.regions[i]) {
			names = append(names, d.regions[i].Name)
		}
	}
	return names
}

func raise(out map[string]map[string]float64, from, to string, value float64) {
	if from == to || value <= 0 {
		return
	}
	if out[from] == nil {
		out[from] = map[string]float64{}
	}
	out[from][to] = max(out[from][to], value)
}
