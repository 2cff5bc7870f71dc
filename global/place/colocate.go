package place

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// placeSet places groups that must share their regions: a region that runs one
// of them runs all of them. Each group fills up the regions in which the others
// are already, and regions that have none of them take a bundle of everything
// that is left, in the proportion of what is left. Filling up comes first, unless
// more is placed the other way round: a group that takes the last room beside the
// others may leave these nothing to open a region with.
func (p *planner) placeSet(works []*work) {
	if !works[0].job.Explain && left(works) == 0 {
		return
	}
	for _, w := range works {
		p.evaluate(w)
	}
	started := slices.ContainsFunc(works, func(w *work) bool { return len(w.homes()) > 0 })
	if !started || slices.ContainsFunc(works, func(w *work) bool { return w.n == 0 }) {
		p.fillAndOpen(works)
		return
	}
	before, opened, at := p.ledger.clone(), clones(works), len(p.plan.Actions)
	p.fillAndOpen(works)
	if left(works) == 0 {
		return
	}
	filled, after := slices.Clone(p.plan.Actions[at:]), p.ledger
	p.plan.Actions, p.ledger = p.plan.Actions[:at], before
	p.placeBundle(opened)
	p.fillAndOpen(opened)
	if left(opened) >= left(works) {
		p.plan.Actions, p.ledger = append(p.plan.Actions[:at], filled...), after
		return
	}
	for i, w := range works {
		*w = *opened[i]
	}
}

// fillAndOpen places what it can, filling up first.
func (p *planner) fillAndOpen(works []*work) {
	// Each round but the last opens a region or fills one.
	for before := -1; before != left(works); {
		before = left(works)
		p.fillUp(works)
		if !slices.ContainsFunc(works, func(w *work) bool { return w.n == 0 }) {
			p.placeBundle(works)
		}
	}
	for _, w := range works {
		p.stayBeside(w, works)
	}
}

// clones are the groups as they are, to try something with.
func clones(works []*work) []*work {
	out := make([]*work, len(works))
	for i, w := range works {
		c := *w
		c.free, c.candidates = slices.Clone(w.free), slices.Clone(w.candidates)
		c.given, c.placedAs, c.owned = maps.Clone(w.given), maps.Clone(w.placedAs), maps.Clone(w.owned)
		out[i] = &c
	}
	return out
}

// left is how many instances of all groups have no owner.
func left(works []*work) int {
	n := 0
	for _, w := range works {
		n += w.n
	}
	return n
}

// fillUp places groups where the others are already. Groups that are nowhere
// yet go first: they decide where the others may grow.
func (p *planner) fillUp(works []*work) {
	started := slices.ContainsFunc(works, func(w *work) bool { return len(w.homes()) > 0 })
	for _, nowhere := range []bool{true, false} {
		for _, w := range works {
			if started && w.n > 0 && (len(w.homes()) == 0) == nowhere {
				p.placeBeside(w, works)
			}
		}
	}
}

// homes are the indices of the regions that have instances of the group.
func (w *work) homes() map[int]bool {
	out := map[int]bool{}
	for _, c := range w.candidates {
		if c.owned+w.given[c.index] > 0 {
			out[c.index] = true
		}
	}
	return out
}

// stayBeside refuses the regions that miss one of the other groups. Groups
// that are nowhere yet forbid nothing.
func (p *planner) stayBeside(w *work, works []*work) {
	for _, other := range works {
		homes := other.homes()
		if other == w || len(homes) == 0 {
			continue
		}
		for i := range w.candidates {
			c := &w.candidates[i]
			if c.reason == "" && !homes[c.index] && w.given[c.index] == 0 {
				c.refuse(ReasonColocation)
				c.colocation = fmt.Sprintf("%s is not here and stays where it is", other.group.Name)
			}
		}
	}
	p.sort(w)
}

// placeBeside places a group where all the others are.
func (p *planner) placeBeside(w *work, works []*work) {
	p.evaluate(w)
	p.stayBeside(w, works)
	options, elsewhere := w.options()
	spec := w.group.Regions
	spec.SpreadMin = max(spec.SpreadMin, len(options)) // none of them may miss it
	if spec.SpreadMax > 0 {
		spec.SpreadMin = min(spec.SpreadMin, spec.SpreadMax)
	}
	out := division{spec: spec, desired: w.desired(), n: w.n, usedElsewhere: elsewhere, chunk: 1}.divide(options)
	w.heldBack = out.heldBack
	p.give(w, out.counts)
}

// placeBundle places what is left of every group in regions that have none of
// them. The group with most left leads; the others follow in proportion, and a
// region takes at least so many of the leader that each of the others has one.
func (p *planner) placeBundle(works []*work) {
	lead, least := works[0], works[0].n
	for _, w := range works {
		p.evaluate(w)
		if w.n > lead.n {
			lead = w
		}
		least = min(least, w.n)
	}
	chunk := (lead.n + least - 1) / least
	usedElsewhere := p.refuseForOthers(works)
	counts := make([]option, 0, len(lead.candidates))
	for i := range lead.candidates {
		c := &lead.candidates[i]
		if c.reason != "" {
			continue
		}
		n := p.bundleFits(works, lead, c)
		if n < chunk {
			c.refuse(ReasonColocation)
			c.colocation = fmt.Sprintf("not all of the groups that belong together fit: %d of %s would, at least %d are needed", n, lead.group.Name, chunk)
			continue
		}
		counts = append(counts, option{fits: n, weight: c.weight})
	}
	p.sort(lead)
	spec, total := bundleSpec(works, lead), lead.n
	out := division{spec: spec, desired: lead.desired(), n: total, usedElsewhere: usedElsewhere, chunk: chunk}.divide(counts)
	for _, w := range works {
		w.heldBack = 0
	}
	lead.heldBack = out.heldBack

	// Cumulative rounding: what the followers get in a region is never more
	// than the proportion rounded up, and over all regions exactly theirs.
	follow := make(map[*work][]int, len(works))
	for _, w := range works {
		if w == lead {
			continue
		}
		byIndex, sum := map[int]int{}, 0
		for i, n := range out.counts {
			byIndex[lead.candidates[i].index] = (sum+n)*w.n/total - sum*w.n/total
			sum += n
		}
		gets := make([]int, len(w.candidates))
		for i := range w.candidates {
			gets[i] = byIndex[w.candidates[i].index]
		}
		follow[w] = gets
	}
	for _, w := range works {
		if w == lead {
			p.give(w, out.counts)
		} else {
			p.give(w, follow[w])
		}
	}
}

// refuseForOthers refuses a region for all groups if one of them may not be
// there, or is there already, makes the score of a region the sum over the
// groups, and counts the regions that are in use.
func (p *planner) refuseForOthers(works []*work) (inUse int) {
	type together struct {
		by     *work
		reason string
		score  float64
		inUse  bool
	}
	all := make([]together, len(p.snap.Regions))
	for _, w := range works {
		for i := range w.candidates {
			c := &w.candidates[i]
			t := &all[c.index]
			if c.reason != "" && t.by == nil {
				t.by, t.reason = w, p.message(w.group, c)
			}
			t.score += c.score
			t.inUse = t.inUse || c.owned > 0
		}
	}
	for _, w := range works {
		for i := range w.candidates {
			c := &w.candidates[i]
			t := all[c.index]
			switch {
			case c.reason != "":
			case t.by != nil:
				c.refuse(ReasonColocation)
				c.colocation = fmt.Sprintf("%s cannot be here: %s", t.by.group.Name, t.reason)
			case t.inUse:
				c.refuse(ReasonColocation)
				c.colocation = "it has its part of the groups that belong together"
			default:
				c.terms = append(c.terms, Term{Name: "colocated", Value: t.score - c.score, Detail: "scores of the groups that belong here too"})
				c.score = score(c.terms)
			}
		}
		p.sort(w)
	}
	for _, t := range all {
		if t.inUse {
			inUse++
		}
	}
	return inUse
}

// refuse takes the region out of the choice.
func (c *candidate) refuse(reason string) { c.reason, c.score, c.terms = reason, 0, nil }

// bundleFits is the greatest number of the leader that fits together with the
// others' proportion of it.
func (p *planner) bundleFits(works []*work, lead *work, c *candidate) int {
	low, high := 0, min(c.fits, lead.n)
	for low < high {
		n := (low + high + 1) / 2
		parts := make([]part, 0, len(works))
		for _, w := range works {
			parts = append(parts, part{ask: w.group.Ask, hash: w.hash, n: (n*w.n + lead.n - 1) / lead.n})
		}
		if p.ledger.fitsTogether(c.index, parts) {
			low = n
		} else {
			high = n - 1
		}
	}
	return low
}

// bundleSpec is the strictest spread of the groups, and the leader's divide.
func bundleSpec(works []*work, lead *work) RegionsSpec {
	spec := lead.group.Regions
	most := math.MaxInt
	for _, w := range works {
		spec.SpreadMin = max(spec.SpreadMin, w.group.Regions.SpreadMin)
		if w.group.Regions.SpreadMax > 0 {
			most = min(most, w.group.Regions.SpreadMax)
		}
		most = min(most, w.desired()) // each region needs one of each
	}
	spec.SpreadMax, spec.SpreadMin = most, min(spec.SpreadMin, most)
	return spec
}
