package place

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// HoldAfter is how long a group must be unplaced for lack of room before a region is asked to
	// hold one of its instances. The region then keeps the instance although it fits nowhere, and
	// reserves a node for it. Without holds, all room that becomes free would go to small
	// instances, and no region would ever report that a large one fits.
	HoldAfter = time.Minute
	// HoldFor is how long a region holds an instance before it returns the instance. Then another
	// region is tried, because room may have become free there. The same region is not asked again
	// for this long, whatever its answer is.
	HoldFor = 10 * time.Minute
	// nodesPerHold bounds what a region holds: one instance for each nodesPerHold ready nodes, but
	// at least one. In an overloaded federation all groups wait long. Without this bound, a full
	// region would have to hold all of them, although room that becomes free in other regions fits
	// them, too.
	nodesPerHold = 16
)

// HoldAttempt is a region that was asked to hold an instance of the group, and how long ago.
type HoldAttempt struct {
	Region string
	Ago    time.Duration
}

// placer offers unowned instances to the best candidates.
type placer struct {
	eval *evaluator
	plan *Plan
	// held is Snapshot.Held with the holds that this plan adds.
	held map[string]int
}

// share gives the unowned instances to the candidates. The group must be evaluated.
func (pl *placer) share(w *work) {
	if !pl.eachVersion([]*work{w}, func() {
		pl.eval.evaluate(w)
		pl.shareOut(w)
	}) {
		pl.shareOut(w)
	}
}

// eachVersion calls place first for the unowned instances that get the present version, then for those that get the
// earlier one, and then for those that are left, so that their reasons are known. So no canary waits for an instance of
// the earlier version that no region accepts, nor the other way round. It returns false, and calls nothing, unless
// instances get both versions and some region refuses one of them.
func (pl *placer) eachVersion(works []*work, place func()) bool {
	refused := func(w *work) bool { return len(w.group.Refused)+len(w.group.RefusedStable) > 0 }
	if works[0].job.Stable == nil || !slices.ContainsFunc(works, refused) {
		return false
	}
	var parts [2][][][2]int // by version and by group
	var both [2]bool
	for _, w := range works {
		present, earlier := w.byVersion()
		parts[0], parts[1] = append(parts[0], present), append(parts[1], earlier)
		both[0], both[1] = both[0] || len(present) > 0, both[1] || len(earlier) > 0
	}
	if !both[0] || !both[1] {
		return false
	}
	left := make([][][2]int, len(works))
	for _, free := range parts {
		for i, w := range works {
			w.setFree(free[i])
		}
		place()
		for i, w := range works {
			left[i] = append(left[i], w.free...)
		}
	}
	for i, w := range works {
		slices.SortFunc(left[i], func(a, b [2]int) int { return cmp.Compare(a[0], b[0]) })
		w.setFree(left[i])
	}
	if unplaced(works) > 0 {
		place()
	}
	return true
}

func (pl *placer) shareOut(w *work) {
	pl.canaries(w)
	options, elsewhere := w.options()
	d := division{spec: w.rule.apply(w.group.Regions), least: w.rule.Least, desired: w.desired(), n: w.n, usedElsewhere: elsewhere, chunk: 1}
	out := d.divide(options)
	w.heldBack = out.heldBack
	pl.give(w, out.counts)
}

// canaries places the canaries of a job with an order of regions where the rollout begins: evenly in the first
// RegionOrder.MaxParallel regions of the order that run the group. Each region without room is replaced by the next one
// that runs the group. Canaries for which none of them has room are left, and placed like other instances.
// The group must be evaluated.
func (pl *placer) canaries(w *work) {
	o := w.job.RegionOrder
	if o == nil || len(o.First) == 0 || w.group.CanaryFrom == 0 || w.n == 0 {
		return
	}
	others, n := w.canariesOnly()
	counts, has := make([]int, len(w.candidates)), w.canaryCounts(pl.eval.regions)
	turns := w.inTurn(pl.eval.regions)
	for n > 0 && len(turns) > 0 {
		next := -1
		for k, i := range turns[:min(len(turns), max(1, o.MaxParallel))] {
			if next < 0 || counts[i]+has[w.candidates[i].index] < counts[turns[next]]+has[w.candidates[turns[next]].index] {
				next = k
			}
		}
		i := turns[next]
		counts[i]++
		if n--; counts[i] == w.candidates[i].fits {
			turns = slices.Delete(turns, next, next+1)
		}
	}
	for i, k := range counts {
		if k > 0 {
			w.because = o.place(pl.eval.regions[w.candidates[i].index].Name)
			pl.give(w, slices.Concat(make([]int, i), []int{k}))
		}
	}
	w.because, w.free = "", append(others, w.free...)
	if w.n > 0 && slices.ContainsFunc(counts, func(k int) bool { return k > 0 }) {
		pl.eval.evaluate(w) // there is less room than before
	}
}

// give offers the given counts of instances, by position in the candidates, and charges the
// regions. A region gets one range if a free range has exactly its size, otherwise the first free
// indices.
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
		w.note(c, n)
		w.n -= n
	}
}

// offer offers instances to a region: those that get the same version together.
func (pl *placer) offer(w *work, c *candidate, from, to int) {
	for end := w.job.sameVersion(w.group, from, to); end < to; end = w.job.sameVersion(w.group, from, to) {
		pl.offer(w, c, from, end)
		from = end
	}
	version, of := w.job.versionOf(w.group, from)
	pl.plan.Actions = append(pl.plan.Actions, Action{
		Kind: Offer, Namespace: w.job.Namespace, Job: w.job.Name, Group: w.group.Name, From: from, To: to,
		Region: pl.eval.regions[c.index].Name, JobVersion: version, Run: w.job.Run, System: w.job.Type == System,
		Bound: of.Bound, StopTime: of.StopTime, Why: w.why(c),
	})
}

// placeSystem offers one slot to each region that can run the group, in the order of the
// candidates, but to at most spread.max regions.
func (pl *placer) placeSystem(w *work) {
	pl.eval.evaluate(w)
	has := map[string]bool{}
	for _, s := range w.job.slotsOf(w.group.Name) {
		has[s.Region] = true // a slot that is being stopped counts too
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
		w.note(c, 1)
	}
	w.n = max(0, max(1, w.group.Regions.SpreadMin)-used)
}

// hold offers one instance of a group that has waited long to a region that lacks only room. It
// chooses the region that was asked longest ago, then the one with the best score. Each offer
// restarts the wait, so a group has one hold at a time. Colocated groups are not held, because a
// region would have to hold all of them.
func (pl *placer) hold(w *work) {
	if w.n <= w.heldBack || len(w.given) > 0 || w.group.WaitedFor < HoldAfter {
		return
	}
	used := pl.eval.used(w)
	best := -1
	for i := range w.candidates {
		c := &w.candidates[i]
		if most := w.group.Regions.SpreadMax; most > 0 && used >= most && c.owned == 0 || !pl.mayHold(w, c) {
			continue
		}
		c.terms = pl.eval.terms(w, c, pl.eval.detailed(w))
		c.score = score(c.terms)
		if best < 0 || cmp.Or(cmp.Compare(pl.sinceHoldAttempt(w, c), pl.sinceHoldAttempt(w, &w.candidates[best])), cmp.Compare(c.score, w.candidates[best].score)) > 0 {
			best = i
		}
	}
	if best < 0 {
		return
	}
	c := &w.candidates[best]
	c.reason, c.returned, c.fits = "", nil, 1
	counts := make([]int, len(w.candidates))
	counts[best] = 1
	pl.give(w, counts)
	a := &pl.plan.Actions[len(pl.plan.Actions)-1]
	a.Hold = HoldFor
	if pl.held == nil {
		pl.held = map[string]int{}
	}
	pl.held[a.Region]++
	a.Why = fmt.Sprintf("has fitted nowhere for %.0f min: the region holds it for up to %.0f min and reserves a node for it",
		w.group.WaitedFor.Truncate(time.Minute).Minutes(), HoldFor.Minutes())
}

// mayHold reports whether the region lacks only room, was not asked recently, and does not hold too
// many instances.
func (pl *placer) mayHold(w *work, c *candidate) bool {
	r := pl.eval.regions[c.index]
	lacks := c.reason == ReasonNoCapacity || c.reason == ReasonReturnedRecently && c.returned.Backoff == 0
	return lacks && r.NodesReady > 0 && pl.held[r.Name] < max(1, r.NodesReady/nodesPerHold) && pl.sinceHoldAttempt(w, c) >= HoldFor
}

// sinceHoldAttempt returns how long ago the region was last asked to hold an instance of the group.
func (pl *placer) sinceHoldAttempt(w *work, c *candidate) time.Duration {
	for _, t := range w.group.HoldAttempts {
		if t.Region == pl.eval.regions[c.index].Name {
			return t.Ago
		}
	}
	return math.MaxInt64
}
