package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/nusa-scheduler/nusa/global/region"
)

// reserveReclaimed runs before any job is decided, so that no job takes room
// that is reserved for another, however urgent it is. It places instances that
// regions released after a revoke, and reserves room for instances whose revoke
// is pending. Colocated groups are placed at once.
func (rc *reclaimer) reserveReclaimed(j *Job) {
	reclaimed := slices.ContainsFunc(j.Slots, leaving) ||
		slices.ContainsFunc(j.Groups, func(g Group) bool { return len(g.Released) > 0 })
	if !reclaimed || j.Stopped || j.Type == System {
		return
	}
	for _, set := range j.sets() {
		works := rc.eval.newWorks(j, set)
		rc.reserved[j] = append(rc.reserved[j], works)
		switch {
		case len(works) == 1:
			rc.placeReleased(works[0])
			rc.reserveRoom(works)
		case rc.pendingRevoke(works) != nil:
			rc.reserveRoom(works)
		case slices.ContainsFunc(works, func(w *work) bool { return len(w.released()) > 0 }):
			for _, w := range works {
				w.without = w.releasedBy()
			}
			rc.place.placeSet(works)
			for _, w := range works {
				w.without = nil
			}
		}
	}
}

// placeReleased places the released instances of a group. Its other unowned
// instances are placed when the job is decided.
func (rc *reclaimer) placeReleased(w *work) {
	released := w.released()
	if len(released) == 0 && len(w.breached) == 0 {
		return
	}
	all := w.free
	w.free, w.n = nil, 0
	for _, f := range released {
		w.addFree(f[0], f[1])
	}
	w.without = w.releasedBy()
	rc.eval.evaluate(w)
	rc.move.better(w) // marks the regions that the group leaves
	rc.place.share(w)
	w.without = nil
	left := w.free
	w.free, w.n = nil, 0
	for _, r := range all {
		from := r[0]
		for _, f := range released {
			if f[0] >= r[0] && f[1] <= r[1] {
				w.addFree(from, f[0])
				from = f[1]
			}
		}
		w.addFree(from, r[1])
	}
	for _, r := range left {
		w.addFree(r[0], r[1])
	}
	slices.SortFunc(w.free, func(a, b [2]int) int { return cmp.Compare(a[0], b[0]) })
}

// reserveRoom charges the regions that will get the instances whose revoke is
// pending, so that no other job takes that room. For colocated groups it also
// reserves room for the unowned instances, which wait for the revoke.
func (rc *reclaimer) reserveRoom(works []*work) {
	free := map[*work][][2]int{}
	from := map[*work]map[string]bool{}
	for _, w := range works {
		from[w] = map[string]bool{}
		if len(works) > 1 {
			from[w] = w.releasedBy()
		}
		for _, s := range w.job.slotsOf(w.group.Name) {
			if to := min(s.To, w.group.Count); leaving(s) && s.ReturnTo == "" && s.From < to && !s.System {
				free[w] = append(free[w], [2]int{s.From, to})
				from[w][s.Region] = true
			}
		}
	}
	if len(free) == 0 {
		return
	}
	if len(works) > 1 {
		addUnowned(works, free)
	}
	_, tried := rc.place.tryPlacement(works, free, from)
	for i, w := range works {
		w.room = tried[i].given
	}
}

// pendingRevoke returns a slot of the colocated groups that its region has not
// released yet, nil if there is none. Unowned instances wait for that release:
// placed alone they may take a region in which the other groups do not fit.
// Disconnected regions are not waited for.
func (rc *reclaimer) pendingRevoke(works []*work) *region.Slot {
	for _, w := range works {
		slots := w.job.slotsOf(w.group.Name)
		for i := range slots {
			s := &slots[i]
			if !leaving(*s) || s.System || s.From >= w.group.Count {
				continue
			}
			if r := rc.eval.regions.of(s); r != nil && r.Connected && !r.Lost {
				return s
			}
		}
	}
	return nil
}

// wait gives groups that wait for a pending revoke their reason.
func (rc *reclaimer) wait(works []*work, s *region.Slot) {
	if !works[0].job.Explain && unplaced(works) == 0 {
		return
	}
	for _, w := range works {
		rc.eval.evaluate(w)
		w.refuseAll(fmt.Sprintf("%s%s is being revoked at %s; both are placed together after that", s.Group, region.FormatRange(s.From, s.To), s.Region))
		rc.eval.sort(w)
	}
}

// tryPlacement returns the offers that the plan would make next if the index ranges
// had no owner and must not go to the regions in from. It charges the regions for
// those offers, and also returns the groups as they would be then.
func (pl *placer) tryPlacement(works []*work, free map[*work][][2]int, from map[*work]map[string]bool) ([]Action, []*work) {
	tried := make([]*work, len(works))
	for i, w := range works {
		c := *w
		c.given, c.placedAs, c.owned = maps.Clone(w.given), map[int]candidate{}, maps.Clone(w.owned)
		c.free, c.n, c.without = nil, 0, from[w]
		for _, r := range free[w] {
			c.addFree(r[0], r[1])
		}
		for _, s := range w.job.slotsOf(w.group.Name) {
			for _, r := range c.free {
				if n := min(r[1], s.To) - max(r[0], s.From); n > 0 && s.Desired == region.DesiredRun {
					c.owned[s.Region] -= n
				}
			}
		}
		tried[i] = &c
	}
	at := len(pl.plan.Actions)
	if len(tried) == 1 {
		pl.eval.evaluate(tried[0])
		pl.share(tried[0])
	} else {
		pl.placeSet(tried)
	}
	offers := slices.Clone(pl.plan.Actions[at:])
	pl.plan.Actions = pl.plan.Actions[:at]
	return offers, tried
}
