package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/global/region"
)

// Disconnected are owned instances From ≤ i < To that no node of their region takes,
// while an earlier attempt of them may still run on a lost node. The region
// keeps them, so that they go on when the node is back. They are taken back
// once other regions have room: at that moment, and not before, the region
// gives up on the lost node. What is taken back is placed when the region has
// confirmed, so an instance never has two owners; what the lost node still runs
// ends when it is back. If the node is back before the region has given up, the
// region keeps the instance (region.Kept). Groups that belong together move
// whichever of their nodes are back meanwhile: else they might be torn apart.
type Disconnected struct {
	Group, Region string
	From, To      int
	// Generation of the slot; of another one it says nothing.
	Generation int64
	// Node that is silent.
	Node string
}

// span are touching instances of one slot that are away, whichever nodes are
// silent.
type span struct {
	slot     *region.Slot
	from, to int
	// waits: a plan acts once on a slot, and this is not what it acts on.
	waits bool
}

// reclaim takes back what is away, as far as other regions have room for it
// beside all that this plan has given. Of groups that belong together a plan
// takes back all that it can act on, or nothing: there must be room for what of
// them has no owner too, which is placed with it, and no region may be left with
// some of the groups.
func (p *planner) reclaim(j *Job) {
	if len(p.disconnected[j]) == 0 || j.Type == System {
		return
	}
	stretches := p.reclaimable(j)
	for _, works := range p.disconnected[j] {
		if len(works) > 1 && p.pendingRevoke(works) != nil {
			continue // what has no owner goes with that, and cannot be counted on twice
		}
		free := map[*work][][2]int{}
		from := map[*work]map[string]bool{}
		want := 0
		for _, w := range works {
			from[w] = map[string]bool{}
			for _, s := range stretches {
				if s.slot.Group == w.group.Name && (len(works) == 1 || !s.waits) {
					free[w] = append(free[w], [2]int{s.from, s.to})
					from[w][s.slot.Region] = true
					want += s.to - s.from
				}
			}
		}
		if want == 0 {
			continue
		}
		before := p.ledger
		if len(works) > 1 {
			p.ledger = before.clone()
			want += unowned(works, free)
		}
		offers, tried := p.tryPlacement(works, free, from)
		placed := 0
		for _, o := range offers {
			placed += o.To - o.From
		}
		if len(works) > 1 && (placed < want || p.separates(tried)) {
			offers, p.ledger = nil, before
		}
		p.revokeReclaimed(j, stretches, offers, len(works) == 1)
		for i, w := range works {
			if explained := w.n > 0 || len(w.given) > 0 || j.Explain; len(offers) == 0 && len(free[w]) > 0 && !explained {
				p.explainDisconnected(tried[i])
			}
		}
	}
}

// reclaimable of a job that may be taken back, by group and the last indices first.
func (p *planner) reclaimable(j *Job) []span {
	parts := slices.Clone(j.Disconnected)
	slices.SortFunc(parts, func(a, b Disconnected) int { return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(b.To, a.To)) })
	var out []span
	for i := range parts {
		a := &parts[i]
		s := p.slotOf(j, a)
		if s == nil {
			continue
		}
		last := len(out) - 1
		same := last >= 0 && out[last].slot == s
		if same && a.To >= out[last].from {
			out[last].from = min(out[last].from, a.From)
			continue
		}
		out = append(out, span{slot: s, from: a.From, to: a.To, waits: same || p.revoked(j, s)})
	}
	return out
}

// separates says that a group leaves a region for good where another one stays.
func (p *planner) separates(tried []*work) bool {
	for _, w := range tried {
		for name := range w.without {
			i := p.region(name)
			has := func(w *work) bool { return w.owned[name]+w.given[i] > 0 }
			if !has(w) && slices.ContainsFunc(tried, has) {
				return true
			}
		}
	}
	return false
}

// explainDisconnected says how other regions fared that have no room. What is away has
// an owner, so it is not unplaced.
func (p *planner) explainDisconnected(w *work) {
	w.n, w.owned = 0, map[string]int{}
	for _, s := range w.job.slotsOf(w.group.Name) {
		if s.Desired == region.DesiredRun {
			w.owned[s.Region] += s.Count()
		}
	}
	p.explain(w)
}

// slotOf is the slot that an entry is about; nil if it is not as the entry
// says, or not as the job wants it.
func (p *planner) slotOf(j *Job, a *Disconnected) *region.Slot {
	slots := j.slotsOf(a.Group)
	for i := range slots {
		s := &slots[i]
		if s.Region != a.Region || s.Generation != a.Generation || a.From < s.From || a.To > s.To || a.From >= a.To {
			continue
		}
		if kind, _, _ := j.correct(s, p.at(s)); kind != "" || s.Desired != region.DesiredRun || s.State == region.Done {
			return nil
		}
		return s
	}
	return nil
}

// revokeReclaimed revokes as many of each group as would be placed elsewhere: of a slot
// one stretch at a time, and the last indices first, so that what stays of it
// keeps its key. unlessHeard: what the region hears of again by then stays.
func (p *planner) revokeReclaimed(j *Job, stretches []span, offers []Action, unlessHeard bool) {
	room, to := map[string]int{}, map[string][]string{}
	for _, o := range offers {
		room[o.Group] += o.To - o.From
		if !slices.Contains(to[o.Group], o.Region) {
			to[o.Group] = append(to[o.Group], o.Region)
		}
	}
	for _, t := range stretches {
		s := t.slot
		n := min(room[s.Group], t.to-t.from)
		if t.waits || n == 0 {
			continue
		}
		room[s.Group] -= n
		p.plan.Actions = append(p.plan.Actions, Action{
			Kind: Revoke, Namespace: j.Namespace, Job: j.Name, Group: s.Group, From: t.to - n, To: t.to, Region: s.Region,
			JobVersion: s.JobVersion, Run: j.Run, Slot: *s, UnlessConnected: unlessHeard, Reason: ReasonNodeLost,
			Why: fmt.Sprintf("%s; no other node fits there, and there is room at %s", j.silentNodes(s, t.to-n, t.to), strings.Join(to[s.Group], ", ")),
		})
	}
}

// silentNodes says which nodes are that may run instances of a slot.
func (j *Job) silentNodes(s *region.Slot, from, to int) string {
	var nodes []string
	for _, a := range j.Disconnected {
		about := a.Group == s.Group && a.Region == s.Region && a.Generation == s.Generation && a.From < to && a.To > from
		if about && !slices.Contains(nodes, a.Node) {
			nodes = append(nodes, a.Node)
		}
	}
	if more := len(nodes) - 1; more > 0 {
		return fmt.Sprintf("%s and %d more are silent and may run it until they are back", nodes[0], more)
	}
	return nodes[0] + " is silent and may run it until it is back"
}

// revoked says that the plan takes a part of the slot back for latency: then the
// rest has its turn in the next one.
func (p *planner) revoked(j *Job, s *region.Slot) bool {
	return len(j.Breaches) > 0 && slices.ContainsFunc(p.plan.Actions, func(a Action) bool {
		return a.Kind == Revoke && a.Slot.Key() == s.Key() && a.Reason == ReasonRTTTooHigh
	})
}

// reserveReclaimed comes before any job is decided, so that none takes what was
// promised to another, however urgent it is. It places what regions have given
// up because a plan took it back, and charges the room for what they are still to
// give up. Of groups that belong together all is placed at once.
func (p *planner) reserveReclaimed(j *Job) {
	promised := slices.ContainsFunc(j.Slots, func(s region.Slot) bool { return s.Desired == region.DesiredRevoke }) ||
		slices.ContainsFunc(j.Groups, func(g Group) bool { return len(g.Released) > 0 })
	if !promised || j.Stopped || j.Type == System {
		return
	}
	for _, set := range j.sets() {
		works := p.newWorks(j, set)
		p.works[j] = append(p.works[j], works)
		switch {
		case len(works) == 1:
			p.placeReleased(works[0])
			p.reserveRoom(works)
		case p.pendingRevoke(works) != nil:
			p.reserveRoom(works)
		case slices.ContainsFunc(works, func(w *work) bool { return len(w.released()) > 0 }):
			for _, w := range works {
				w.without = w.releasedBy()
			}
			p.placeSet(works)
			for _, w := range works {
				w.without = nil
			}
		}
	}
}

// placeReleased places what was taken back; what else has no owner has its turn
// with the job.
func (p *planner) placeReleased(w *work) {
	freed := w.released()
	if len(freed) == 0 && len(w.breached) == 0 {
		return
	}
	all := w.free
	w.free, w.n = nil, 0
	for _, f := range freed {
		w.addFree(f[0], f[1])
	}
	w.without = w.releasedBy()
	p.evaluate(w)
	p.better(w) // says which regions it leaves
	p.share(w)
	w.without = nil
	left := w.free
	w.free, w.n = nil, 0
	for _, r := range all {
		from := r[0]
		for _, f := range freed {
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

// reserveRoom charges the regions that will get what is being taken back, so that
// the room for it is not promised to others meanwhile. Of groups that belong
// together what has no owner waits for that, and its room is kept too.
func (p *planner) reserveRoom(works []*work) {
	free := map[*work][][2]int{}
	from := map[*work]map[string]bool{}
	for _, w := range works {
		from[w] = map[string]bool{}
		if len(works) > 1 {
			from[w] = w.releasedBy()
		}
		for _, s := range w.job.slotsOf(w.group.Name) {
			if to := min(s.To, w.group.Count); s.Desired == region.DesiredRevoke && s.From < to && !s.System {
				free[w] = append(free[w], [2]int{s.From, to})
				from[w][s.Region] = true
			}
		}
	}
	if len(free) == 0 {
		return
	}
	if len(works) > 1 {
		unowned(works, free)
	}
	_, tried := p.tryPlacement(works, free, from)
	for i, w := range works {
		w.room = tried[i].given
	}
}

// released is what has no owner because a plan took it back, ascending.
func (w *work) released() (out [][2]int) {
	for _, f := range w.group.Released {
		for _, r := range w.free {
			if from, to := max(f.From, r[0]), min(f.To, r[1]); from < to {
				out = append(out, [2]int{from, to})
			}
		}
	}
	slices.SortFunc(out, func(a, b [2]int) int { return cmp.Compare(a[0], b[0]) })
	for i := len(out) - 1; i > 0; i-- { // one index may be told of twice
		if out[i][0] < out[i-1][1] {
			out[i-1][1] = max(out[i-1][1], out[i][1])
			out = slices.Delete(out, i, i+1)
		}
	}
	return out
}

// releasedBy are the regions that gave up what has no owner yet.
func (w *work) releasedBy() map[string]bool {
	out := map[string]bool{}
	for _, f := range w.group.Released {
		if slices.ContainsFunc(w.free, func(r [2]int) bool { return max(f.From, r[0]) < min(f.To, r[1]) }) {
			out[f.Region] = true
		}
	}
	return out
}

// pendingRevoke is a part of groups that belong together which its region is still to
// give up; nil if there is none. What has no owner waits for that: placed by
// itself it may take a region in which the others do not fit, and then they have
// nowhere to go. A region that is cut off is not waited for.
func (p *planner) pendingRevoke(works []*work) *region.Slot {
	for _, w := range works {
		slots := w.job.slotsOf(w.group.Name)
		for i := range slots {
			s := &slots[i]
			if s.Desired != region.DesiredRevoke || s.System || s.From >= w.group.Count {
				continue
			}
			if r := p.at(s); r != nil && r.Connected && !r.Lost {
				return s
			}
		}
	}
	return nil
}

// wait gives the reason to groups that wait for what is awaited.
func (p *planner) wait(works []*work, s *region.Slot) {
	if !works[0].job.Explain && left(works) == 0 {
		return
	}
	for _, w := range works {
		p.evaluate(w)
		w.refuseAll(fmt.Sprintf("%s%s is being taken back from %s, and goes with it", s.Group, region.FormatRange(s.From, s.To), s.Region))
		p.sort(w)
	}
}

// refuseAll refuses the regions that have room, kept or not, because of a group
// that belongs to this one.
func (w *work) refuseAll(beside string) {
	for i := range w.candidates {
		if c := &w.candidates[i]; c.reason == "" || c.reason == ReasonNoCapacity && w.room[c.index] > 0 {
			c.refuse(ReasonColocation)
			c.colocation = beside
		}
	}
}

// unowned adds what has no owner to the ranges, and answers how many that are.
func unowned(works []*work, free map[*work][][2]int) (n int) {
	for _, w := range works {
		free[w] = append(free[w], w.free...)
		n += w.n
	}
	return n
}

// tryPlacement answers what would be offered if those index ranges had no owner, and
// were not to go to those regions, after all that the plan has given. The
// regions are charged for it. It also answers the groups as they would be.
func (p *planner) tryPlacement(works []*work, free map[*work][][2]int, from map[*work]map[string]bool) ([]Action, []*work) {
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
	at := len(p.plan.Actions)
	if len(tried) == 1 {
		p.evaluate(tried[0])
		p.share(tried[0])
	} else {
		p.placeSet(tried)
	}
	offers := slices.Clone(p.plan.Actions[at:])
	p.plan.Actions = p.plan.Actions[:at]
	return offers, tried
}
