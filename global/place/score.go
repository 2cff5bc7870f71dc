package place

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// The terms of a score. `near` and `prefer` have the weights that the job gives them (usually at
// most 50 and ±100). The other terms decide between regions that the job scores equally.
const (
	// capacityWeight is multiplied by the free share of the resource that is scarcest for the ask.
	capacityWeight = 20.0
	// stickyBonus is added for a region that has instances of the group, because a gain of a few
	// milliseconds is no reason to use another region.
	stickyBonus = 10.0
	// freshFor is the age up to which a report costs nothing: three report intervals, so two lost
	// reports do not matter.
	freshFor = 15 * time.Second
	// stalePenalty is subtracted for each 10 s beyond freshFor, up to maxStalePenalty.
	stalePenalty    = 1.0
	maxStalePenalty = 10.0
)

// terms returns the parts of a candidate's score. detail adds texts, which are expensive, so plans
// that are not shown do without them.
func (ev *evaluator) terms(w *work, c *candidate, detail bool) []Term {
	g, r := w.group, ev.regions[c.index]
	terms := make([]Term, 0, 2+len(g.Regions.Near)) // most candidates have none of the other terms
	add := func(name string, value float64, say func() string) {
		// The value is rounded to thousandths, so that it is equal on every machine.
		t := Term{Name: name, Value: math.Round(value*1000) / 1000}
		if detail {
			t.Detail = say()
		}
		terms = append(terms, t)
	}
	share, dim := ev.headroom(c.index, g.Ask)
	c.share = share
	add("capacity", capacityWeight*share, func() string {
		return fmt.Sprintf("%.0f%% of its %s is unreserved", 100*share, dim)
	})
	for i := range g.Regions.Near {
		n := &g.Regions.Near[i]
		t := w.near[i].of(c.index)
		add("near", n.term(t), func() string { return n.say(n.scored(t)) })
	}
	if c.weight != 0 {
		add("prefer", float64(c.weight), func() string { return fmt.Sprintf("weight %d in regions.prefer", c.weight) })
	}
	if c.owned > 0 {
		add("sticky", stickyBonus, func() string { return fmt.Sprintf("runs %d of the group", c.owned) })
	}
	if age := r.reportAge(ev.now); age > freshFor {
		add("stale", stale(age), func() string {
			return "report is " + age.Round(time.Second).String() + " old"
		})
	}
	return terms
}

// stale returns the term for a report of this age.
func stale(age time.Duration) float64 {
	if age <= freshFor {
		return 0
	}
	late := float64(age-freshFor) / float64(10*time.Second)
	return -min(maxStalePenalty, stalePenalty*late)
}

// term returns the term of a near clause for a region with these targets.
func (n *Near) term(t targets) float64 { return float64(n.Weight) * n.closeness(n.scored(t)) }

// scored returns the target whose distance counts in the score.
func (n *Near) scored(t targets) target {
	if n.Required {
		return n.deciding(t)
	}
	return t.nearest
}

// headroom returns the free share, 0..1, of the resource that is scarcest among those that the ask
// needs. All charges that the region's report does not include are subtracted.
func (ev *evaluator) headroom(index int, a Ask) (share float64, dim string) {
	return ev.regions[index].headroom(ev.ledger.of(index), a)
}

// headroom returns the free share of one region, beside the given charges.
func (r *Region) headroom(charged charges, a Ask) (share float64, dim string) {
	free := r.Free.plus(charged.total(), -1).dims()
	share, dim = 1, "capacity"
	for d, need := range a.Resources().dims() {
		if need <= 0 {
			continue
		}
		s := 0.0
		if total := r.Capacity.dims()[d]; total > 0 {
			s = min(1, max(0, float64(free[d])/float64(total)))
		}
		if dim == "capacity" || s < share {
			share, dim = s, dimNames[d]
		}
	}
	return share, dim
}

func score(terms []Term) float64 {
	sum := 0.0
	for _, t := range terms {
		sum += t.Value
	}
	return math.Round(sum*1000) / 1000
}

// preference returns the sum of the job's weights for a region.
func (g *Group) preference(r *Region) int {
	sum := 0
	for _, pref := range g.Regions.Prefer {
		if pref.Selector.Matches(r) {
			sum += pref.Weight
		}
	}
	return sum
}

// tieBand is the difference of scores below which regions count as equal: 2.5 % of a region's
// capacity. It is less than the least weight in prefer, which is 1. Differences of this size change
// with each report, so they must decide nothing.
const tieBand = 0.5

// spreadTies orders the regions whose scores are within tieBand of the best score, so that many
// equal jobs do not all choose the same region. The candidates must be sorted.
//
// First come regions that have instances of the group, then those in which all wanted instances
// fit, then the others. The name of the job rotates the middle part: it chooses two of these
// regions, and the one with more free room comes first.
func (ev *evaluator) spreadTies(w *work) {
	tied := 0
	for i := range w.candidates {
		c := &w.candidates[i]
		c.tied = 0
		if tied == i && c.reason == "" && c.score >= w.candidates[0].score-tieBand {
			tied++
		}
	}
	rest := w.candidates[:tied]
	rest = rest[front(rest, func(c *candidate) bool { return c.owned > 0 }):]
	rest = rest[:front(rest, func(c *candidate) bool { return c.fits >= w.wanted })]
	n := uint64(len(rest))
	if n < 2 {
		return
	}
	hash := nameHash(w)
	turn(rest, int(hash%n))
	other := 1 + int(hash>>32%(n-1))
	if rest[other].share > rest[0].share {
		rest[0], rest[other] = rest[other], rest[0]
	}
	for i := range rest {
		rest[i].tied = len(rest)
	}
}

// front moves the candidates for which yes returns true to the front, and returns their number. It
// keeps the order within both parts.
func front(all []candidate, yes func(*candidate) bool) int {
	switch len(all) {
	case 0:
		return 0
	case 1:
		if yes(&all[0]) {
			return 1
		}
		return 0
	}
	half := len(all) / 2
	first := front(all[:half], yes)
	second := front(all[half:], yes)
	if first < half && second > 0 {
		turn(all[first:half+second], half-first)
	}
	return first + second
}

// turn moves the first n candidates behind the others.
func turn(all []candidate, n int) {
	slices.Reverse(all[:n])
	slices.Reverse(all[n:])
	slices.Reverse(all)
}

// nameHash returns a hash of the job's name, so that all groups of a job choose the same regions.
// It is equal on every machine.
func nameHash(w *work) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211 // of FNV-1a
	h := uint64(offset)
	for _, part := range [...]string{w.job.Namespace, "/", w.job.Name} {
		for i := range len(part) {
			h = (h ^ uint64(part[i])) * prime
		}
	}
	return h
}
