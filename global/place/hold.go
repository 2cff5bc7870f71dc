package place

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

const (
	// HoldAfter is how long a group gets nothing, because no region has room, until
	// a region is asked to hold one of its instances: to keep it although it
	// fits nowhere, and a node for it. Without that, what ends makes room for
	// many small instances and never for one large one: no region would ever
	// report that it fits.
	HoldAfter = time.Minute
	// HoldFor is how long a region holds an instance before it gives it back,
	// and then another region has its turn: there something may have become free
	// meanwhile. Nor is it asked again earlier, whatever it answers.
	HoldFor = 10 * time.Minute
)

// HoldAttempt is when a region was asked last to hold an instance of a group.
type HoldAttempt struct {
	Region string
	Ago    time.Duration
}

// hold offers one instance of a group that has waited long to a region that only
// lacks room: the one whose turn is longest ago, then the best. One at a time: each offer begins the wait anew.
// Groups that belong together are not held, a region would have to hold all.
func (p *planner) hold(w *work) {
	if w.n <= w.heldBack || len(w.given) > 0 || w.group.WaitedFor < HoldAfter {
		return
	}
	used := p.used(w)
	best := -1
	for i := range w.candidates {
		c := &w.candidates[i]
		if most := w.group.Regions.SpreadMax; most > 0 && used >= most && c.owned == 0 || !p.mayHold(w, c) {
			continue
		}
		c.terms = p.terms(w, c, p.detailed(w))
		c.score = score(c.terms)
		if best < 0 || cmp.Or(cmp.Compare(p.sinceHoldAttempt(w, c), p.sinceHoldAttempt(w, &w.candidates[best])), cmp.Compare(c.score, w.candidates[best].score)) > 0 {
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
	p.give(w, counts)
	a := &p.plan.Actions[len(p.plan.Actions)-1]
	a.Hold = HoldFor
	a.Why = fmt.Sprintf("has fitted nowhere for %.0f min: it is held for up to %.0f min, and a node kept for it",
		w.group.WaitedFor.Truncate(time.Minute).Minutes(), HoldFor.Minutes())
}

// mayHold: it would do, were there room, and was not asked lately.
func (p *planner) mayHold(w *work, c *candidate) bool {
	r := &p.snap.Regions[c.index]
	lacks := c.reason == ReasonNoCapacity || c.reason == ReasonReturnedRecently && c.returned.Backoff == 0
	return lacks && r.NodesReady > 0 && p.sinceHoldAttempt(w, c) >= HoldFor
}

// sinceHoldAttempt is how long ago a region was asked last.
func (p *planner) sinceHoldAttempt(w *work, c *candidate) time.Duration {
	for _, t := range w.group.HoldAttempts {
		if t.Region == p.snap.Regions[c.index].Name {
			return t.Ago
		}
	}
	return math.MaxInt64
}
