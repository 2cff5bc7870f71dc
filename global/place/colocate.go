package place

import (
	"fmt"
	"math"
	"slices"
)

// placeSet places groups that must share their regions: a region that runs one of the groups runs
// all of them.
//
// Usually each group first fills up the regions that the other groups use. Then regions without any
// of the groups get a bundle: unplaced instances of all groups, in proportion. The opposite order
// is used if it places more instances: a group that takes the last room beside the others may leave
// too little for a bundle in a new region.
func (pl *placer) placeSet(works []*work) {
	if !works[0].job.Explain && unplaced(works) == 0 {
		return
	}
	// The groups open a region in proportion, so all instances come first, whatever version they get.
	pl.placeTogether(works)
	if unplaced(works) > 0 {
		pl.eachVersion(works, func() { pl.placeTogether(works) })
	}
}

func (pl *placer) placeTogether(works []*work) {
	for _, w := range works {
		pl.eval.evaluate(w)
		pl.canaries(w)
	}
	started := slices.ContainsFunc(works, func(w *work) bool { return len(w.homes()) > 0 })
	if !started || slices.ContainsFunc(works, func(w *work) bool { return w.n == 0 }) {
		pl.fillAndOpen(works)
		return
	}
	before, opened, at := pl.eval.ledger.clone(), copies(works), len(pl.plan.Actions)
	pl.fillAndOpen(works)
	if unplaced(works) == 0 {
		return
	}
	filled, after := slices.Clone(pl.plan.Actions[at:]), pl.eval.ledger
	pl.plan.Actions, pl.eval.ledger = pl.plan.Actions[:at], before
	pl.placeBundle(opened)
	pl.fillAndOpen(opened)
	if unplaced(opened) >= unplaced(works) {
		pl.plan.Actions, pl.eval.ledger = append(pl.plan.Actions[:at], filled...), after
		return
	}
	for i, w := range works {
		*w = *opened[i]
	}
}

// fillAndOpen fills up regions, and then opens regions that run none of the groups.
func (pl *placer) fillAndOpen(works []*work) {
	// Each round except the last one opens a region or fills one.
	for before := -1; before != unplaced(works); {
		before = unplaced(works)
		pl.fillUp(works)
		if !slices.ContainsFunc(works, func(w *work) bool { return w.n == 0 }) {
			pl.placeBundle(works)
		}
	}
	for _, w := range works {
		pl.stayBeside(w, works)
	}
}

// fillUp places groups in regions that the other groups use. Groups without any instance go first,
// because they decide where the others may grow.
func (pl *placer) fillUp(works []*work) {
	started := slices.ContainsFunc(works, func(w *work) bool { return len(w.homes()) > 0 })
	for _, nowhere := range []bool{true, false} {
		for _, w := range works {
			if started && w.n > 0 && (len(w.homes()) == 0) == nowhere {
				pl.placeBeside(w, works)
			}
		}
	}
}

// stayBeside refuses the regions that do not run each of the other groups. A group without any
// instance refuses no region.
func (pl *placer) stayBeside(w *work, works []*work) {
	for _, other := range works {
		homes := other.homes()
		if other == w || len(homes) == 0 {
			continue
		}
		for i := range w.candidates {
			c := &w.candidates[i]
			if c.reason == "" && !homes[c.index] && w.given[c.index] == 0 {
				c.refuse(ReasonColocation)
				c.colocation = fmt.Sprintf("%s does not run here and stays where it is", other.group.Name)
			}
		}
	}
	pl.eval.sort(w)
}

// placeBeside places a group in regions that run all other groups.
func (pl *placer) placeBeside(w *work, works []*work) {
	pl.eval.evaluate(w)
	pl.stayBeside(w, works)
	options, elsewhere := w.options()
	spec := w.rule.apply(w.group.Regions)
	spec.SpreadMin = max(spec.SpreadMin, len(options)) // each of them must get the group
	if spec.SpreadMax > 0 {
		spec.SpreadMin = min(spec.SpreadMin, spec.SpreadMax)
	}
	out := division{spec: spec, desired: w.desired(), n: w.n, usedElsewhere: elsewhere, chunk: 1}.divide(options)
	w.heldBack = out.heldBack
	pl.give(w, out.counts)
}

// placeBundle places the unplaced instances of every group in regions that run none of the groups.
// The group with most unplaced instances leads, and the others follow in proportion. A region takes
// at least as many instances of the leading group as give each other group one instance.
func (pl *placer) placeBundle(works []*work) {
	lead, least := works[0], works[0].n
	for _, w := range works {
		pl.eval.evaluate(w)
		if w.n > lead.n {
			lead = w
		}
		least = min(least, w.n)
	}
	chunk := (lead.n + least - 1) / least
	usedElsewhere := pl.refuseForOthers(works)
	counts := make([]option, 0, len(lead.candidates))
	for i := range lead.candidates {
		c := &lead.candidates[i]
		if c.reason != "" {
			continue
		}
		n := pl.bundleFits(works, lead, c)
		if n < chunk {
			c.refuse(ReasonColocation)
			c.colocation = fmt.Sprintf("the colocated groups do not all fit: %d of %s would, at least %d are needed", n, lead.group.Name, chunk)
			continue
		}
		counts = append(counts, option{fits: n, weight: c.weight})
	}
	pl.eval.sort(lead)
	spec, total := bundleSpec(works, lead), lead.n
	out := division{spec: spec, least: lead.rule.Least, desired: lead.desired(), n: total, usedElsewhere: usedElsewhere, chunk: chunk}.divide(counts)
	for _, w := range works {
		w.heldBack = 0
	}
	lead.heldBack = out.heldBack

	// The rounding is cumulative. So each region gets at most the proportion rounded up,
	// and all regions together get every instance of the groups that follow.
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
		if total > lead.heldBack {
			w.rule = lead.rule
			w.rule.Why = "as " + lead.group.Name + ", with which it is colocated"
		}
	}
	for _, w := range works {
		if w == lead {
			pl.give(w, out.counts)
		} else {
			pl.give(w, follow[w])
		}
	}
}

// refuseForOthers refuses a region for all groups if one of them refuses it or already runs there.
// It makes the score of a region the sum of the scores of all groups. It returns the number of
// regions in use.
func (pl *placer) refuseForOthers(works []*work) (inUse int) {
	type together struct {
		by     *work
		reason string
		score  float64
		inUse  bool
	}
	all := make([]together, len(pl.eval.regions))
	for _, w := range works {
		for i := range w.candidates {
			c := &w.candidates[i]
			t := &all[c.index]
			if c.reason != "" && t.by == nil {
				t.by, t.reason = w, pl.eval.message(w, c)
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
				c.colocation = "it runs its share of the colocated groups already"
			default:
				c.terms = append(c.terms, Term{Name: "colocated", Value: t.score - c.score, Detail: "scores of the other colocated groups"})
				c.score = score(c.terms)
			}
		}
		pl.eval.sort(w)
	}
	for _, t := range all {
		if t.inUse {
			inUse++
		}
	}
	return inUse
}

// bundleFits returns the greatest number of instances of the leading group that fits together with
// the proportional numbers of the other groups.
func (pl *placer) bundleFits(works []*work, lead *work, c *candidate) int {
	low, high := 0, c.fits
	for low < high {
		n := (low + high + 1) / 2
		parts := make([]part, 0, len(works))
		for _, w := range works {
			parts = append(parts, part{ask: w.group.Ask, hash: w.hash, n: (n*w.n + lead.n - 1) / lead.n})
		}
		if pl.eval.ledger.fitsTogether(c.index, parts) {
			low = n
		} else {
			high = n - 1
		}
	}
	return low
}

// bundleSpec returns the strictest spread of all groups, with the Divide rule of the leading group.
func bundleSpec(works []*work, lead *work) RegionsSpec {
	spec := lead.rule.apply(lead.group.Regions)
	most := math.MaxInt
	for _, w := range works {
		spec.SpreadMin = max(spec.SpreadMin, w.group.Regions.SpreadMin)
		if w.group.Regions.SpreadMax > 0 {
			most = min(most, w.group.Regions.SpreadMax)
		}
		most = min(most, w.desired()) // each region needs an instance of each group
	}
	spec.SpreadMax, spec.SpreadMin = most, min(spec.SpreadMin, most)
	return spec
}
