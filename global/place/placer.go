package place

import (
	"slices"
)

// placer offers unowned instances to the best candidates.
type placer struct {
	eval *evaluator
	plan *Plan
}

// share gives the unowned instances to the candidates.
func (pl *placer) share(w *work) {
	options, elsewhere := w.options()
	d := division{spec: w.group.Regions, desired: w.desired(), n: w.n, usedElsewhere: elsewhere, chunk: 1}
	out := d.divide(options)
	w.heldBack = out.heldBack
	pl.give(w, out.counts)
}

// give offers counts, by position in the candidates, and charges the regions. A
// region gets one range if a range of exactly its size is free, otherwise the
// first free indices.
func (pl *placer) give(w *work, counts []int) {
	ranges := make([][][2]int, len(counts))
	for i, n := range counts {
		if k := slices.IndexFunc(w.free, func(r [2]int) bool { return r[1]-r[0] == n }); k >= 0 {
			ranges[i] = [][2]int{w.free[k]}
			w.free = slices.Delete(w.free, k, k+1)
		}
	}
	for i, n := range counts {
		if n == 0 {
			continue
		}
		if ranges[i] == nil {
			ranges[i] = w.cutFree(n)
		}
		c := &w.candidates[i]
		for _, r := range ranges[i] {
			pl.offer(w, c, r[0], r[1])
		}
		pl.eval.ledger.charge(c.index, w.group.Ask, w.hash, n)
		if w.given[c.index] == 0 {
			w.placedAs[c.index] = *c
		}
		w.given[c.index] += n
		w.n -= n
	}
}

func (pl *placer) offer(w *work, c *candidate, from, to int) {
	pl.plan.Actions = append(pl.plan.Actions, Action{
		Kind: Offer, Namespace: w.job.Namespace, Job: w.job.Name, Group: w.group.Name, From: from, To: to,
		Region: pl.eval.regions[c.index].Name, JobVersion: w.job.Version, Run: w.job.Run, System: w.job.Type == System,
		Why: c.why(),
	})
}

// placeSystem offers one slot to every region that can run the group, the best
// first and at most spread.max.
func (pl *placer) placeSystem(w *work) {
	pl.eval.evaluate(w)
	has := map[string]bool{}
	for _, s := range w.job.slotsOf(w.group.Name) {
		has[s.Region] = true // also a slot that is being stopped
	}
	used := len(w.owned)
	for i := range w.candidates {
		c := &w.candidates[i]
		if c.reason != "" || has[pl.eval.regions[c.index].Name] {
			continue
		}
		if most := w.group.Regions.SpreadMax; most > 0 && used >= most {
			continue
		}
		used++
		pl.offer(w, c, 0, 1)
		pl.eval.ledger.charge(c.index, w.group.Ask, w.hash, pl.eval.regions[c.index].NodesReady)
		w.given[c.index], w.placedAs[c.index] = 1, *c
	}
	w.n = max(0, max(1, w.group.Regions.SpreadMin)-used)
}
