package place

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/topology"
)

// Move says how the plan reacts to a sustained breach.
type Move struct {
	Namespace, Job string
	Breach         Breach
	// Count is how many instances the plan revokes, which are then placed elsewhere.
	Count int
	// InProgress: more instances follow when the instances that are down run again.
	InProgress bool
	Why        string
}

// String prints, for example, "move 2 of default/api/web from sea: …" or "stay …".
func (m Move) String() string {
	what := fmt.Sprintf("%s/%s/%s", m.Namespace, m.Job, m.Breach.Group)
	if m.Count > 0 {
		return fmt.Sprintf("move %d of %s from %s: %s", m.Count, what, m.Breach.Region, m.Why)
	}
	return fmt.Sprintf("stay %s at %s: %s", what, m.Breach.Region, m.Why)
}

// mover moves instances out of regions that do not keep a required bound.
type mover struct {
	eval *evaluator
	plan *Plan
}

func (mv *mover) addMove(w *work, b *Breach, m Move) {
	m.Namespace, m.Job, m.Breach = w.job.Namespace, w.job.Name, *b
	mv.plan.Moves = append(mv.plan.Moves, m)
}

// stay records that a group does not move.
func (mv *mover) stay(w *work, why string) {
	for _, name := range slices.Sorted(maps.Keys(w.breached)) {
		if w.owned[name] > 0 {
			mv.addMove(w, w.breached[name], Move{Why: "stays: " + why})
		}
	}
}

// better returns, for each region with a sustained breach, the candidates that justify a move. If
// there are any, it marks the region as one that the group leaves.
func (mv *mover) better(w *work) map[string][]int {
	out := map[string][]int{}
	for name, b := range w.breached {
		for i := range w.candidates {
			c := &w.candidates[i]
			if (c.reason == "" || c.reason == ReasonNoCapacity && w.room[c.index] > 0) && topology.ImprovesEnough(b.Latest, mv.rttAt(w, b, c)) {
				out[name] = append(out[name], c.index)
			}
		}
		w.leaving[name] = w.job.Type == Service && len(out[name]) > 0
	}
	return out
}

// rttAt returns the round trip that a broken bound would have at a candidate.
func (mv *mover) rttAt(w *work, b *Breach, c *candidate) time.Duration {
	n := w.group.bound(b)
	t := n.deciding(mv.eval.distances.at(n, c.index))
	if !t.Known() {
		return b.Latest // an unknown distance is no certain gain
	}
	return t.RTT
}

// moveAway revokes instances in regions with a sustained breach. It revokes as many as fit in
// better regions, but at most max_parallel instances may be down at a time. An instance has one
// owner, so it is placed again only after the region has confirmed the revoke.
func (mv *mover) moveAway(w *work, better map[string][]int) {
	if w.job.Type == Batch {
		mv.stay(w, "a batch instance would lose its work")
		return
	}
	down := w.n + w.job.Down[w.group.Name]
	for _, n := range w.given {
		down += n
	}
	for _, s := range w.job.slotsOf(w.group.Name) {
		if leaving(s) || s.Vacant && !w.job.free(&s) {
			down += s.Count()
		}
	}
	parallel := max(1, w.group.MaxParallel)
	for _, name := range slices.Sorted(maps.Keys(w.breached)) {
		b := w.breached[name]
		if w.owned[name] == 0 {
			continue
		}
		if len(better[name]) == 0 {
			mv.addMove(w, b, Move{Why: "stays: " + mv.noneBetter(w, b)})
			continue
		}
		if down >= parallel {
			mv.addMove(w, b, Move{InProgress: true, Why: fmt.Sprintf("continues when the instances that do not run now run again: %d, and update.max_parallel is %d", down, parallel)})
			continue
		}
		n, to := mv.room(w, better[name], min(parallel-down, w.owned[name]))
		n = mv.revoke(w, b, n, to)
		if n == 0 {
			mv.addMove(w, b, Move{Why: "stays: regions.spread leaves no other place for it"})
			continue
		}
		down += n
		mv.addMove(w, b, Move{Count: n, InProgress: true, Why: fmt.Sprintf("%d of %d move now; there is room at %s", n, n+w.owned[name], to)})
	}
}

// room returns how many of n instances the better regions would take, and the names of those
// regions. It charges that room, so that later jobs do not get it.
func (mv *mover) room(w *work, better []int, n int) (int, string) {
	var options []option
	var at []int
	elsewhere := 0
	for i := range w.candidates {
		c := &w.candidates[i]
		owned := w.owned[mv.eval.regions[c.index].Name] + w.given[c.index]
		fits, _ := mv.eval.ledger.fits(c.index, w.group.Ask, w.hash)
		if slices.Contains(better, c.index) && fits > 0 {
			options, at = append(options, option{fits: fits, owned: owned, weight: c.weight}), append(at, c.index)
		} else if owned > 0 && !w.leaving[mv.eval.regions[c.index].Name] {
			elsewhere++
		}
	}
	d := division{spec: w.rule.apply(w.group.Regions), least: w.rule.Least, desired: w.desired(), n: n, usedElsewhere: elsewhere, chunk: 1}
	sum, names := 0, []string{}
	for i, k := range d.divide(options).counts {
		if k > 0 {
			sum += k
			mv.eval.ledger.charge(at[i], w.group.Ask, w.hash, k)
			names = append(names, mv.eval.regions[at[i]].Name)
		}
	}
	return sum, strings.Join(names, ", ")
}

// revoke revokes up to n instances, and returns how many it revoked. The last instances go first,
// so that the rest of a slot keeps its key.
func (mv *mover) revoke(w *work, b *Breach, n int, to string) int {
	slots, revoked := w.job.slotsOf(w.group.Name), 0
	for i := len(slots) - 1; i >= 0 && revoked < n; i-- {
		s := &slots[i]
		if w.job.changes(s, mv.eval.regions.of(s)) || s.Region != b.Region || s.Desired != region.DesiredRun || s.State == region.Done {
			continue
		}
		k := min(n-revoked, s.Count())
		mv.plan.Actions = append(mv.plan.Actions, Action{
			Kind: Revoke, Namespace: w.job.Namespace, Job: w.job.Name, Group: s.Group, From: s.To - k, To: s.To,
			Region: s.Region, JobVersion: s.JobVersion, Run: w.job.Run, Slot: *s, Reason: ReasonRTTTooHigh,
			Why: fmt.Sprintf("%s, %s; better at %s", b.Near, b, to),
		})
		revoked += k
	}
	w.owned[b.Region] -= revoked
	return revoked
}

// noneBetter returns why no region is better.
func (mv *mover) noneBetter(w *work, b *Breach) string {
	best, gain := "", time.Duration(0)
	for i := range w.candidates {
		c := &w.candidates[i]
		if g := b.Latest - mv.rttAt(w, b, c); c.reason == "" && (best == "" || g > gain) {
			best, gain = mv.eval.regions[c.index].Name, g
		}
	}
	if best == "" {
		return "no other region that the job allows keeps the bound and has room"
	}
	return fmt.Sprintf("%s keeps the bound and would gain only %s; a move needs %s and a third", best, round(gain), topology.MinMoveGain)
}
