package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/nusa-scheduler/nusa/global/region"
)

// Movable is a slot of a lost region that may move now; package failover decides when. A plan takes
// the slot over only if another region has room. Colocated groups move together or not at all. An
// entry about a slot that has changed is ignored.
type Movable struct {
	Group, Region string
	From, To      int
	Generation    int64
	// Fence is the region's fence after it was declared lost. NothingRuns: an operator stated that
	// nothing runs there any more.
	Fence       uint64
	NothingRuns bool
}

// Stay is a slot that may move but stays.
type Stay struct {
	Namespace, Job string
	// Slot is the slot at the lost region.
	Slot region.Slot
	// Why says in one line why the slot stays. Pending counts, for each reason, the regions and
	// nodes that do not take the slot's instances. Pending is empty if the slot does not wait for
	// a region.
	Why     string
	Pending []region.CountedReason
}

// String prints, for example, "stay default/api/web[0-3] at sea: …".
func (s Stay) String() string {
	out := fmt.Sprintf("stay %s/%s/%s%s at %s: %s", s.Namespace, s.Job, s.Slot.Group, region.FormatRange(s.Slot.From, s.Slot.To), s.Slot.Region, s.Why)
	for _, c := range s.Pending {
		out += fmt.Sprintf("; %s %d %s", c.Reason, c.Count, c.What)
		if c.Message != "" {
			out += " (" + c.Message + ")"
		}
	}
	return out
}

// taker takes over slots of lost regions.
type taker struct {
	eval    *evaluator
	place   *placer
	reclaim *reclaimer
	explain *explainer
	plan    *Plan
	// took are the jobs with slots that the plan takes over. The rest of such a job is decided in
	// the next plan, when its slots have new owners.
	took map[*Job]bool
	// refused holds, by job, the groups of the slots that find no region.
	refused map[*Job][]*work
}

// due is a slot that may move.
type due struct {
	Movable
	slot *region.Slot
}

// takeOver takes over the slots of a job that are due, as far as other regions have room.
func (tk *taker) takeOver(j *Job) {
	if j.Stopped || j.Type == System {
		return
	}
	for _, set := range j.sets() {
		all := tk.due(j, set)
		if len(set) == 1 {
			tk.takeSet(j, set, all)
			continue
		}
		// Colocated groups leave one lost region at a time, because the decision about the next
		// region depends on where they are after that.
		for _, name := range regionsOf(all) {
			from := slices.DeleteFunc(slices.Clone(all), func(d due) bool { return d.Region != name })
			if tk.together(j, set, name, from) && tk.takeSet(j, set, from) {
				break
			}
		}
	}
}

// movableAt returns the index in Movable of the entry about a slot, or -1.
func (j *Job) movableAt(s *region.Slot) int {
	return slices.IndexFunc(j.Movable, func(m Movable) bool {
		return m.Group == s.Group && m.Region == s.Region && m.From == s.From && m.To == s.To && m.Generation == s.Generation
	})
}

// due returns the slots of a set that may move, in the order of Job.Slots.
func (tk *taker) due(j *Job, set []*Group) (out []due) {
	for _, g := range set {
		slots := j.slotsOf(g.Name)
		for i := range slots {
			s := &slots[i]
			at := j.movableAt(s)
			if at < 0 || !movable(s) || s.Vacant || s.To > g.Count {
				continue // a slot that is out of range is stopped first
			}
			r := tk.eval.regions.of(s)
			if kind, _, _ := j.correct(s, r); kind == Stop || r == nil || !r.Lost {
				continue
			}
			if stays := !g.OnDisconnect.Replace || g.Bound && s.Unbound; stays && !j.Movable[at].NothingRuns {
				continue // the job has changed since package failover decided that the slot may move
			}
			d := due{j.Movable[at], s}
			if former := j.awaited(s); former != "" {
				tk.stay(j, []due{d}, fmt.Sprintf("version %d must not run beside another one, and %s may still run it", j.Version, former), nil)
				continue
			}
			if s.Crowded() && !d.NothingRuns {
				tk.stay(j, []due{d}, fmt.Sprintf("%d regions may still run it", len(s.Former)), nil)
				continue
			}
			out = append(out, d)
		}
	}
	return out
}

// movable reports whether a slot may get another owner. A slot that had to stop may move too, if it
// is wanted again before its owner has confirmed.
func movable(s *region.Slot) bool { return !s.System && s.State != region.Done }

func regionsOf(all []due) []string {
	names := map[string]bool{}
	for _, d := range all {
		names[d.Region] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// together reports whether all slots that colocated groups have in a lost region are due, and no
// other slot of the groups is being moved.
func (tk *taker) together(j *Job, set []*Group, name string, from []due) bool {
	for _, g := range set {
		slots := j.slotsOf(g.Name)
		for i := range slots {
			s := &slots[i]
			if s.Region != name || !movable(s) || s.Vacant || s.From >= g.Count {
				continue
			}
			if !slices.ContainsFunc(from, func(d due) bool { return d.slot == s }) {
				tk.stay(j, from, fmt.Sprintf("colocated with %s%s, which does not move yet", s.Group, region.FormatRange(s.From, s.To)), nil)
				return false
			}
		}
	}
	if s := tk.reclaim.pendingRevoke(tk.eval.newWorks(j, set)); s != nil {
		tk.stay(j, from, fmt.Sprintf("colocated with %s%s, which %s gives up now", s.Group, region.FormatRange(s.From, s.To), s.Region), nil)
		return false
	}
	return true
}

// takeSet takes over the slots of one group, or all slots of colocated groups in one lost region.
// It reports whether it did.
func (tk *taker) takeSet(j *Job, set []*Group, slots []due) bool {
	if len(slots) == 0 {
		return false
	}
	if tk.returnToHolder(j, slots, len(set) > 1) {
		return true
	}
	works := tk.eval.newWorks(j, set)
	free, from, want := map[*work][][2]int{}, map[*work]map[string]bool{}, 0
	for _, w := range works {
		from[w] = map[string]bool{}
		for _, d := range slots {
			if d.Group != w.group.Name {
				continue
			}
			free[w] = append(free[w], [2]int{d.From, d.To})
			from[w][d.Region] = true
			want += d.To - d.From
			for _, f := range d.slot.Former { // a region gets no new order before it has confirmed the last one
				from[w][f.Region] = true
			}
		}
	}
	before := tk.eval.ledger
	if len(set) > 1 {
		tk.eval.ledger = before.clone()
	}
	offers, tried := tk.place.tryPlacement(works, free, from)
	placed := 0
	for _, o := range offers {
		placed += o.To - o.From
	}
	if len(set) > 1 && (placed < want || tk.reclaim.separates(tried)) {
		offers, tk.eval.ledger = nil, before
	}
	tk.assign(j, slots, offers, tried, len(set) > 1)
	if len(offers) > 0 && tk.refused[j] == nil && tk.eval.detailed(works[0]) {
		tk.explainTaken(tried, slots)
	}
	return len(offers) > 0
}

// explainTaken explains why the new regions were chosen. The slots that move count in their new
// regions.
func (tk *taker) explainTaken(tried []*work, slots []due) {
	for _, w := range tried {
		moves := 0
		w.owned = map[string]int{}
		for _, s := range w.job.slotsOf(w.group.Name) {
			if s.Desired != region.DesiredRun {
				continue
			}
			if slices.ContainsFunc(slots, func(d due) bool { return d.slot.Key() == s.Key() }) {
				moves += s.Count()
				continue
			}
			w.owned[s.Region] += s.Count()
		}
		if moves == 0 {
			continue
		}
		w.n = 0
		tk.explain.explain(w)
		tk.plan.Groups[len(tk.plan.Groups)-1].Moved = true
	}
}

// returnToHolder gives slots back to the region that still runs their instances. That region is
// back and holds them, and the region that replaced them is lost now. No other room is needed.
func (tk *taker) returnToHolder(j *Job, slots []due, together bool) bool {
	to := make([]string, len(slots))
	found := false
	for i, d := range slots {
		to[i] = tk.holder(d.slot)
		if together && to[i] != to[0] {
			return false
		}
		found = found || to[i] != ""
	}
	if !found {
		return false
	}
	for i, d := range slots {
		if to[i] != "" {
			why := "it holds the instances since it returned"
			tk.add(j, d, []Part{{From: d.From, To: d.To, Region: to[i], Why: why}}, together)
		}
	}
	return true
}

// holder returns the region that holds the instances of a slot, or "" if there is none.
func (tk *taker) holder(s *region.Slot) string {
	connected := func(name string) bool {
		i := tk.eval.regions.index(name)
		return i >= 0 && tk.eval.regions[i].Connected && !tk.eval.regions[i].Lost
	}
	if s.ReturnTo != "" && connected(s.ReturnTo) {
		return s.ReturnTo
	}
	for _, f := range slices.Backward(s.Former) {
		if f.Hold && connected(f.Region) {
			return f.Region
		}
	}
	return ""
}

// assign gives the offered room to the slots of each group, in as few parts as possible. The last
// indices go first, so that the part that stays keeps its key.
func (tk *taker) assign(j *Job, slots []due, offers []Action, tried []*work, together bool) {
	type room struct {
		region, why string
		n           int
	}
	rooms := map[string][]room{}
	for _, o := range offers {
		all := rooms[o.Group]
		i := slices.IndexFunc(all, func(r room) bool { return r.region == o.Region })
		if i < 0 {
			all, i = append(all, room{region: o.Region, why: o.Why}), len(all)
		}
		all[i].n += o.To - o.From
		rooms[o.Group] = all
	}
	for _, d := range slots {
		all, left := rooms[d.Group], d.To-d.From
		var parts []Part
		for left > 0 {
			// Take the region with most room, or one that has room for the whole rest.
			best := -1
			for i, r := range all {
				if r.n > 0 && (best < 0 || all[best].n < left && r.n > all[best].n) {
					best = i
				}
			}
			if best < 0 {
				break
			}
			n := min(left, all[best].n)
			all[best].n -= n
			parts = append([]Part{{From: d.From + left - n, To: d.From + left, Region: all[best].region, Why: all[best].why}}, parts...)
			left -= n
		}
		if len(parts) > 0 {
			tk.add(j, d, parts, together)
		}
		if left > 0 {
			w := tried[slices.IndexFunc(tried, func(w *work) bool { return w.group.Name == d.Group })]
			why := "no other region has room for " + fmt.Sprint(left) + " of it"
			if left == d.To-d.From {
				why = "no other region takes it"
			}
			if together {
				why = "no other region takes all of the colocated groups"
			}
			lost := func(c region.CountedReason) bool { return c.Reason == ReasonLost }
			tk.stay(j, []due{d}, why, slices.DeleteFunc(tk.explain.pending(w), lost))
			tk.refused[j] = append(tk.refused[j], w)
		}
	}
}

// add adds the takeover of a slot to the plan.
func (tk *taker) add(j *Job, d due, parts []Part, together bool) {
	g := j.group(d.Group)
	version := j.Version
	if d.slot.JobVersion < g.UnchangedSince {
		version, g = j.versionOf(g, d.From)
	}
	a := Action{
		Kind: Takeover, Namespace: j.Namespace, Job: j.Name, Group: d.Group, From: d.From, To: d.To, Region: d.Region,
		JobVersion: version, Run: j.Run, Slot: *d.slot, Bound: g.Bound, StopTime: g.StopTime, Parts: parts,
		Fence: d.Fence, NothingRuns: d.NothingRuns, Why: "region " + d.Region + " is lost",
	}
	if together {
		a.Set = d.Region + " " + j.SetOf(d.Group)
	}
	tk.plan.Actions = append(tk.plan.Actions, a)
	tk.took[j] = true
}

func (tk *taker) stay(j *Job, slots []due, why string, pending []region.CountedReason) {
	for _, d := range slots {
		tk.plan.Stays = append(tk.plan.Stays, Stay{Namespace: j.Namespace, Job: j.Name, Slot: *d.slot, Why: why, Pending: pending})
	}
}

// explainRefused explains the groups of slots that find no region, unless the plan already explains
// the group.
func (tk *taker) explainRefused(j *Job) {
	slices.SortFunc(tk.refused[j], func(a, b *work) int { return cmp.Compare(a.group.Name, b.group.Name) })
	for _, w := range tk.refused[j] {
		if !slices.ContainsFunc(tk.plan.Groups, func(g GroupExplanation) bool {
			return g.Namespace == j.Namespace && g.Job == j.Name && g.Group == w.group.Name
		}) {
			tk.explain.explainDisconnected(w)
		}
	}
}

// leaving reports whether a slot is being revoked, and its owner has not confirmed that yet.
func leaving(s region.Slot) bool { return s.Desired == region.DesiredRevoke && !s.Vacant }

// free reports whether the indices of a slot are placed as if they had no owner: the slot is
// vacant, and the present version may run beside what a former owner may run.
func (j *Job) free(s *region.Slot) bool { return s.Vacant && !s.System && j.awaited(s) == "" }

// fillVacant replaces offers of indices of vacant slots by takeovers of those slots, so that the
// former owners stay on record.
func (j *Job) fillVacant(actions []Action) []Action {
	if !slices.ContainsFunc(j.Slots, func(s region.Slot) bool { return s.Vacant }) {
		return actions
	}
	out := make([]Action, 0, len(actions))
	at := map[string]int{} // by key of a slot, the position of its takeover in out
	for _, a := range actions {
		if a.Kind != Offer || a.Namespace != j.Namespace || a.Job != j.Name {
			out = append(out, a)
			continue
		}
		from := a.From
		slots := j.slotsOf(a.Group)
		for i := range slots {
			s := &slots[i]
			first, end := max(from, s.From), min(a.To, s.To)
			if !s.Vacant || first >= end {
				continue
			}
			out = a.appendPart(out, from, first)
			k, has := at[s.Key()]
			if !has {
				k, at[s.Key()] = len(out), len(out)
				out = append(out, Action{
					Kind: Takeover, Namespace: a.Namespace, Job: a.Job, Group: a.Group, From: s.From, To: s.To, Region: s.Region,
					JobVersion: a.JobVersion, Run: a.Run, Slot: *s, Bound: a.Bound, StopTime: a.StopTime, Why: s.Region + " has given it up",
				})
			}
			out[k].Parts = append(out[k].Parts, Part{From: first, To: end, Region: a.Region, Why: a.Why, Hold: a.Hold})
			slices.SortFunc(out[k].Parts, func(a, b Part) int { return cmp.Compare(a.From, b.From) })
			from = end
		}
		out = a.appendPart(out, from, a.To)
	}
	return out
}

// appendPart appends the offer of the indices from ≤ i < to, unless there are none.
func (a Action) appendPart(out []Action, from, to int) []Action {
	if from < to {
		a.From, a.To = from, to
		out = append(out, a)
	}
	return out
}
