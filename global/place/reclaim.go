package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/global/region"
)

// Disconnected are the instances From ≤ i < To of a slot that no node of their region takes, while
// an earlier attempt may still run on a disconnected node. The region keeps the slot, so that they
// continue when the node reconnects.
//
// A plan reclaims them once other regions have room: it revokes them, and only then the region
// gives up on the disconnected node. Revoked instances are placed after the region has confirmed,
// so an instance never has two owners. Instances that the disconnected node still runs end when it
// reconnects.
//
// If the node reconnects before the region has given up, the region keeps the instance
// (region.Kept). Colocated groups are revoked even if a node reconnects meanwhile, because
// otherwise they might be separated.
type Disconnected struct {
	Group, Region string
	From, To      int
	// Generation is that of the slot. An entry with another generation is ignored.
	Generation int64
	// Node is the disconnected node.
	Node string
}

// span is a range of adjacent disconnected instances of one slot. Their nodes may differ.
type span struct {
	slot     *region.Slot
	from, to int
	// waits: this plan already changes another part of the slot, and a plan changes a slot only
	// once.
	waits bool
}

// reclaimer revokes disconnected instances when other regions have room, reserves that room for
// them, and places them after their region has released them.
type reclaimer struct {
	eval    *evaluator
	place   *placer
	move    *mover
	explain *explainer
	plan    *Plan
	// reserved holds the sets of groups of the jobs with released instances or pending revokes,
	// after reserveReclaimed has placed them or reserved room for them.
	reserved map[*Job][][]*work
	// decided holds the sets of groups of the jobs with disconnected instances, after these sets
	// were decided.
	decided map[*Job][][]*work
}

// worksOf returns the groups of set i of a job if room was reserved for them, otherwise nil.
func (rc *reclaimer) worksOf(j *Job, i int) []*work {
	if works := rc.reserved[j]; works != nil {
		return works[i]
	}
	return nil
}

// noteDecided keeps the groups of a job with disconnected instances for reclaim.
func (rc *reclaimer) noteDecided(j *Job, works []*work) {
	if len(j.Disconnected) > 0 {
		rc.decided[j] = append(rc.decided[j], works)
	}
}

// reclaim revokes disconnected instances, as far as other regions have room for them beside
// everything that this plan has placed. For colocated groups, a plan revokes everything that it can
// change, or nothing. Then there must also be room for their unowned instances, which are placed
// together with the revoked ones, and no region may be left with only some of the groups.
func (rc *reclaimer) reclaim(j *Job) {
	if len(rc.decided[j]) == 0 || j.Type == System {
		return
	}
	spans := rc.reclaimable(j)
	for _, works := range rc.decided[j] {
		rc.reclaimSet(j, works, spans)
	}
}

func (rc *reclaimer) reclaimSet(j *Job, works []*work, spans []span) {
	if len(works) > 1 && rc.pendingRevoke(works) != nil {
		return // the unowned instances wait for that revoke, and room is counted once
	}
	free := map[*work][][2]int{}
	from := map[*work]map[string]bool{}
	want := 0
	for _, w := range works {
		from[w] = map[string]bool{}
		for _, s := range spans {
			if s.slot.Group == w.group.Name && (len(works) == 1 || !s.waits) {
				free[w] = append(free[w], [2]int{s.from, s.to})
				from[w][s.slot.Region] = true
				want += s.to - s.from
			}
		}
	}
	if want == 0 {
		return
	}
	before := rc.eval.ledger
	if len(works) > 1 {
		rc.eval.ledger = before.clone()
		want += addUnowned(works, free)
	}
	offers, tried := rc.place.tryPlacement(works, free, from)
	placed := 0
	for _, o := range offers {
		placed += o.To - o.From
	}
	if len(works) > 1 && (placed < want || rc.separates(tried)) {
		offers, rc.eval.ledger = nil, before
	}
	rc.revokeReclaimed(j, spans, offers, len(works) == 1)
	for i, w := range works {
		if explained := w.n > 0 || len(w.given) > 0 || j.Explain; len(offers) == 0 && len(free[w]) > 0 && !explained {
			rc.explain.explainDisconnected(tried[i])
		}
	}
}

// reclaimable returns the spans of a job that may be revoked, sorted by group, the last indices
// first.
func (rc *reclaimer) reclaimable(j *Job) []span {
	parts := slices.Clone(j.Disconnected)
	slices.SortFunc(parts, func(a, b Disconnected) int { return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(b.To, a.To)) })
	var out []span
	for i := range parts {
		a := &parts[i]
		s := rc.slotOf(j, a)
		if s == nil {
			continue
		}
		last := len(out) - 1
		same := last >= 0 && out[last].slot == s
		if same && a.To >= out[last].from {
			out[last].from = min(out[last].from, a.From)
			continue
		}
		out = append(out, span{slot: s, from: a.From, to: a.To, waits: same || rc.revoked(j, s)})
	}
	return out
}

// separates reports whether a group would leave a region for good while a colocated group stays
// there.
func (rc *reclaimer) separates(tried []*work) bool {
	for _, w := range tried {
		for name := range w.without {
			i := rc.eval.regions.index(name)
			has := func(w *work) bool { return w.owned[name]+w.given[i] > 0 }
			if !has(w) && slices.ContainsFunc(tried, has) {
				return true
			}
		}
	}
	return false
}

// slotOf returns the slot that an entry is about. It returns nil if the slot differs from the entry
// or from what the job needs.
func (rc *reclaimer) slotOf(j *Job, a *Disconnected) *region.Slot {
	slots := j.slotsOf(a.Group)
	for i := range slots {
		s := &slots[i]
		if s.Region != a.Region || s.Generation != a.Generation || a.From < s.From || a.To > s.To || a.From >= a.To {
			continue
		}
		if j.changes(s, rc.eval.regions.of(s)) || s.Desired != region.DesiredRun || s.State == region.Done {
			return nil
		}
		return s
	}
	return nil
}

// revokeReclaimed revokes as many instances of each group as would be placed elsewhere: one span of
// a slot, the last indices first, so that the rest of the slot keeps its key. With unlessConnected
// the region keeps instances whose node has reconnected.
func (rc *reclaimer) revokeReclaimed(j *Job, spans []span, offers []Action, unlessConnected bool) {
	room, to := map[string]int{}, map[string][]string{}
	for _, o := range offers {
		room[o.Group] += o.To - o.From
		if !slices.Contains(to[o.Group], o.Region) {
			to[o.Group] = append(to[o.Group], o.Region)
		}
	}
	for _, t := range spans {
		s := t.slot
		n := min(room[s.Group], t.to-t.from)
		if t.waits || n == 0 {
			continue
		}
		room[s.Group] -= n
		rc.plan.Actions = append(rc.plan.Actions, Action{
			Kind: Revoke, Namespace: j.Namespace, Job: j.Name, Group: s.Group, From: t.to - n, To: t.to, Region: s.Region,
			JobVersion: s.JobVersion, Run: j.Run, Slot: *s, UnlessConnected: unlessConnected, Reason: ReasonNodeLost,
			Why: fmt.Sprintf("%s; no other node fits there, and there is room at %s", j.silentNodes(s, t.to-n, t.to), strings.Join(to[s.Group], ", ")),
		})
	}
}

// silentNodes names the disconnected nodes that may run instances of a slot.
func (j *Job) silentNodes(s *region.Slot, from, to int) string {
	var nodes []string
	for _, a := range j.Disconnected {
		about := a.Group == s.Group && a.Region == s.Region && a.Generation == s.Generation && a.From < to && a.To > from
		if about && !slices.Contains(nodes, a.Node) {
			nodes = append(nodes, a.Node)
		}
	}
	if more := len(nodes) - 1; more > 0 {
		return fmt.Sprintf("%s and %d more are disconnected and may run it until they reconnect", nodes[0], more)
	}
	return nodes[0] + " is disconnected and may run it until it reconnects"
}

// revoked reports whether the plan revokes a part of the slot because of latency. The next plan can
// change the rest.
func (rc *reclaimer) revoked(j *Job, s *region.Slot) bool {
	return len(j.Breaches) > 0 && slices.ContainsFunc(rc.plan.Actions, func(a Action) bool {
		return a.Kind == Revoke && a.Slot.Key() == s.Key() && a.Reason == ReasonRTTTooHigh
	})
}

// addUnowned adds the unowned instances to the ranges, and returns their number.
func addUnowned(works []*work, free map[*work][][2]int) (n int) {
	for _, w := range works {
		free[w] = append(free[w], w.free...)
		n += w.n
	}
	return n
}

// reserveReclaimed runs before any job is decided, so that no job takes room that is reserved for
// another job, however urgent it is. It places instances that regions released after a revoke. It
// reserves room for instances whose revoke is pending. Colocated groups are placed immediately.
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

// placeReleased places the released instances of a group. The other unowned instances of the group
// are placed when the job is decided.
func (rc *reclaimer) placeReleased(w *work) {
	released := w.released()
	if len(released) == 0 && len(w.breached) == 0 {
		return
	}
	all := w.free
	w.setFree(released)
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

// reserveRoom reserves room for the instances whose revoke is pending: it charges the regions that
// will get them. For colocated groups it also reserves room for the unowned instances, which wait
// for the revoke.
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

// pendingRevoke returns a slot of the colocated groups that its region has not released yet, or
// nil. Unowned instances wait for that release: if they were placed alone, they might take a region
// in which the other groups do not fit. Slots of disconnected regions do not count.
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

// wait sets the reason of groups that wait for a pending revoke.
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

// tryPlacement returns the offers that the plan would make next if the index ranges had no owner
// and must not go to the regions in from. It charges the regions for those offers. It also returns
// the groups after these offers.
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
