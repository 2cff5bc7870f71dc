package place

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/global/region"
)

// Leave says what a plan does with the instances of a group in a draining region.
type Leave struct {
	Namespace, Job, Group string
	// Region is the draining region.
	Region string
	// Count is how many instances the plan revokes, which are then placed elsewhere. Left is how
	// many the region keeps for now.
	Count, Left int
	// Why says why instances stay for now. It is empty if none stays.
	Why string
}

// String prints, for example, "leave 2 of default/api/web from sea, 4 stay: …".
func (l Leave) String() string {
	out := fmt.Sprintf("leave %d of %s/%s/%s from %s", l.Count, l.Namespace, l.Job, l.Group, l.Region)
	if l.Left > 0 {
		out += fmt.Sprintf(", %d stay: %s", l.Left, l.Why)
	}
	return out
}

// drainer moves instances out of draining regions: at most max_parallel of a group at a time, and
// only as many as other regions have room for. Instances of an array that wait for their turn leave at once, because
// they do not run. Colocated groups leave a region together.
type drainer struct {
	eval    *evaluator
	place   *placer
	reclaim *reclaimer
	plan    *Plan
	so      *soFar
}

// drain decides for groups that are placed together.
func (dr *drainer) drain(j *Job, works []*work) {
	var names []string
	for _, w := range works {
		for _, s := range dr.staying(w, "") {
			if !slices.Contains(names, s.Region) {
				names = append(names, s.Region)
			}
		}
	}
	for _, w := range works {
		dr.held(w)
	}
	slices.Sort(names)
	for _, name := range names {
		if len(works) == 1 {
			dr.some(works[0], name)
		} else {
			dr.together(j, works, name)
		}
	}
}

// staying returns the slots that a group still has in a draining region, the last indices first.
// Name "" means all draining regions. Slots that another action of the plan changes are left out.
func (dr *drainer) staying(w *work, name string) (out []*region.Slot) {
	slots := w.job.slotsOf(w.group.Name)
	for i := range slices.Backward(slots) {
		s := &slots[i]
		at := dr.eval.regions.of(s)
		if at == nil || !at.Draining || name != "" && s.Region != name || !movable(s) || s.Desired != region.DesiredRun {
			continue
		}
		if !w.job.changes(s, at) && !dr.so.changes(s) {
			out = append(out, s)
		}
	}
	return out
}

// held notes which instances stay because the rollout is held and no version is known that they could keep.
func (dr *drainer) held(w *work) {
	if w.job.RolloutHold == "" {
		return
	}
	stay := map[string]int{}
	slots := w.job.slotsOf(w.group.Name)
	for i := range slots {
		s := &slots[i]
		if at := dr.eval.regions.of(s); at != nil && at.Draining && movable(s) && w.job.holds(s, at) && !w.job.keepsStable(s) {
			stay[s.Region] += s.Count()
		}
	}
	for _, name := range slices.Sorted(maps.Keys(stay)) {
		dr.leave(w, name, 0, stay[name], w.job.RolloutHold)
	}
}

// some revokes instances of one group in a region: as many as may be down now and fit elsewhere.
func (dr *drainer) some(w *work, name string) {
	slots := dr.staying(w, name)
	total := 0
	for _, s := range slots {
		total += s.Count()
	}
	at := dr.eval.regions.index(name)
	if !dr.eval.regions[at].Connected {
		dr.leave(w, name, 0, total, "it is not connected, and cannot confirm that it stopped them")
		return
	}
	may, why := max(1, w.group.MaxParallel)-dr.so.down(w), "they follow when those run elsewhere"
	if n := dr.waiting(w, name); n > 0 {
		may, why = n, "they follow when those have moved"
	}
	if may <= 0 {
		dr.leave(w, name, 0, total, "they follow when the instances that do not run now run again")
		return
	}
	var ranges [][2]int
	want := 0
	for _, s := range slots {
		n := min(may-want, s.Count())
		if n > 0 {
			ranges = append(ranges, [2]int{s.To - n, s.To})
			want += n
		}
	}
	offers, _ := dr.place.tryPlacement([]*work{w}, map[*work][][2]int{w: ranges}, map[*work]map[string]bool{w: {name: true}})
	room, to := roomOf(offers)
	left := room
	for _, s := range slots {
		n := min(left, s.Count())
		if n == 0 {
			break
		}
		dr.revoke(w, s, s.To-n, to)
		left -= n
	}
	if room < want {
		why = "no other region has room for more"
	}
	dr.leave(w, name, room, total-room, why)
}

// waiting returns how many instances of an array wait for their turn in a region, as far as the region has reported
// since the latest change of its slots. The lowest indices begin first, so these are the last ones. A few of the last
// ones run if lower ones have failed and wait for their next attempt.
func (dr *drainer) waiting(w *work, name string) int {
	var slots []*region.Slot
	all := w.job.slotsOf(w.group.Name)
	for i := range all {
		if s := &all[i]; s.Region == name && s.Desired == region.DesiredRun && !s.Vacant {
			slots = append(slots, s)
		}
	}
	if c, known := reported(w.job, w.group.Name, name, slots); known && w.group.Parallel > 0 {
		return min(c.Waiting, c.Open)
	}
	return 0
}

// together revokes everything that colocated groups have in a region, if other regions have room
// for all of it.
func (dr *drainer) together(j *Job, works []*work, name string) {
	free, from := map[*work][][2]int{}, map[*work]map[string]bool{}
	totals := map[*work]int{}
	want, waits := 0, ""
	if s := dr.reclaim.pendingRevoke(works); s != nil {
		waits = fmt.Sprintf("they follow when %s has given up %s%s", s.Region, s.Group, region.FormatRange(s.From, s.To))
	}
	for _, w := range works {
		from[w] = map[string]bool{name: true}
		for _, s := range dr.staying(w, name) {
			free[w] = append(free[w], [2]int{s.From, s.To})
			totals[w] += s.Count()
		}
		want += totals[w]
		if waits == "" && dr.so.down(w) > 0 {
			waits = "they follow when the instances that do not run now run again"
		}
	}
	if at := dr.eval.regions.index(name); !dr.eval.regions[at].Connected {
		waits = "it is not connected, and cannot confirm that it stopped them"
	}
	room, to := 0, ""
	if waits == "" {
		before := dr.eval.ledger
		dr.eval.ledger = before.clone()
		offers, tried := dr.place.tryPlacement(works, free, from)
		room, to = roomOf(offers)
		if room < want || dr.reclaim.separates(tried) {
			dr.eval.ledger, waits = before, "no other region has room for all of the colocated groups"
		}
	}
	for _, w := range works {
		if totals[w] == 0 {
			continue
		}
		if waits != "" {
			dr.leave(w, name, 0, totals[w], waits)
			continue
		}
		for _, s := range dr.staying(w, name) {
			dr.revoke(w, s, s.From, to)
		}
		dr.leave(w, name, totals[w], 0, "")
	}
}

// roomOf returns how many instances the offers place, and the regions that get them.
func roomOf(offers []Action) (n int, names string) {
	var to []string
	for _, o := range offers {
		n += o.To - o.From
		if !slices.Contains(to, o.Region) {
			to = append(to, o.Region)
		}
	}
	return n, strings.Join(to, ", ")
}

func (dr *drainer) revoke(w *work, s *region.Slot, from int, to string) {
	dr.plan.Actions = append(dr.plan.Actions, Action{
		Kind: Revoke, Namespace: w.job.Namespace, Job: w.job.Name, Group: s.Group, From: from, To: s.To, Region: s.Region,
		JobVersion: s.JobVersion, Run: w.job.Run, Slot: *s, Reason: ReasonDraining,
		Why: "an operator drains the region, and there is room at " + to,
	})
}

func (dr *drainer) leave(w *work, name string, n, left int, why string) {
	l := Leave{Namespace: w.job.Namespace, Job: w.job.Name, Group: w.group.Name, Region: name, Count: n, Left: left}
	if left > 0 {
		l.Why = why
	}
	dr.plan.Leaves = append(dr.plan.Leaves, l)
}

// soFar is the part of the plan that concerns the job that is being decided.
type soFar struct {
	plan *Plan
	// first is the number of actions that the plan had before the first action for the job.
	first int
}

// changes reports whether an action of the plan changes a stored slot of the job.
func (so *soFar) changes(s *region.Slot) bool {
	return slices.ContainsFunc(so.plan.Actions[so.first:], func(a Action) bool {
		return a.Kind != Offer && a.Slot.Group == s.Group && a.Slot.From == s.From && a.Slot.Region == s.Region
	})
}

// down returns how many instances of a group do not run: instances without an owner, instances
// that are being revoked, and instances that their owners have not started.
func (so *soFar) down(w *work) int {
	n := w.n + w.job.Down[w.group.Name]
	for _, k := range w.given {
		n += k
	}
	for _, s := range w.job.slotsOf(w.group.Name) {
		if (leaving(s) || s.Vacant && !w.job.free(&s)) && !returnsHeld(&s) {
			n += s.Count()
		}
	}
	for _, a := range so.plan.Actions[so.first:] {
		if a.Kind == Revoke && a.Group == w.group.Name {
			n += a.To - a.From
		}
	}
	return n
}

// returnsHeld reports whether a slot returns to a region that holds its running instances.
func returnsHeld(s *region.Slot) bool {
	return s.ReturnTo != "" && slices.ContainsFunc(s.Former, func(f region.FormerOwner) bool { return f.Region == s.ReturnTo && f.Hold })
}
