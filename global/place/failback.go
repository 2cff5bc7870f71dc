package place

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
)

// FailbackMode says who decides on the return of slots to the region from which a verdict moved
// them. The wire enum is FAILBACK_MODE_ and upper case.
type FailbackMode string

const (
	FailbackReview FailbackMode = "review"
	FailbackAuto   FailbackMode = "auto"
	FailbackNever  FailbackMode = "never"
)

// Return is a slot, or a part of a slot, that a verdict moved and that may return to its former
// region.
type Return struct {
	Namespace, Job, Group string
	From, To              int
	// Owner is the region that has the instances now. Home is the region that had them.
	Owner, Home string
	// Returns: the plan revokes the instances now, or they follow when max_parallel allows.
	Returns bool
	// Why says why the instances stay or wait. It is empty if they return now.
	Why string
}

// String prints, for example, "return default/api/web[0-1] from eu to sea". The reason follows.
func (r Return) String() string {
	verb := "return"
	if !r.Returns {
		verb = "keep"
	}
	out := fmt.Sprintf("%s %s/%s/%s%s from %s to %s", verb, r.Namespace, r.Job, r.Group, region.FormatRange(r.From, r.To), r.Owner, r.Home)
	if r.Why != "" {
		out += ": " + r.Why
	}
	return out
}

// returner lets slots return to their home: at most max_parallel instances of a group at a time,
// and only as many as the home has room for. Colocated groups return together.
type returner struct {
	eval *evaluator
	plan *Plan
	so   *soFar
	// all makes the plan for an operator's question: it plans every return, without regard to
	// max_parallel and to rules about which only an operator decides.
	all bool
}

// failback decides for groups that are placed together.
func (rt *returner) failback(j *Job, works []*work) {
	var moved []*region.Slot
	for _, w := range works {
		slots := j.slotsOf(w.group.Name)
		for i := range slots {
			if s := &slots[i]; s.Home != "" && s.ReturnTo == "" && s.Desired != region.DesiredStop && movable(s) && s.From < w.group.Count {
				moved = append(moved, s)
			}
		}
	}
	if len(moved) == 0 {
		return
	}
	if len(works) > 1 {
		rt.together(j, works, moved)
		return
	}
	w := works[0]
	may := max(1, w.group.MaxParallel)
	if !rt.all {
		may -= rt.so.down(w)
	}
	for _, s := range slices.Backward(moved) {
		ready, why := rt.ready(j, s, false)
		if !ready {
			rt.note(s, s.From, s.To, false, why)
			continue
		}
		home := rt.eval.regions.index(s.Home)
		n, why := rt.room(w, home, s.Count())
		if n < s.Count() {
			rt.note(s, s.From, s.To-n, false, why)
		}
		if n == 0 {
			continue
		}
		now := max(0, min(n, may))
		if rt.all {
			now = n
		}
		rt.eval.ledger.charge(home, w.group.Ask, w.hash, n)
		if now < n {
			rt.note(s, s.To-n, s.To-now, true, "follows when the instances that do not run now run again")
		}
		if now > 0 {
			rt.revoke(j, s, s.To-now)
			may -= now
		}
	}
}

// ready reports whether a slot may return to its home now, apart from room. If not, it returns the
// reason. must says that the slot cannot stay, whatever the group's failback rule is.
func (rt *returner) ready(j *Job, s *region.Slot, must bool) (bool, string) {
	g := j.group(s.Group)
	i := rt.eval.regions.index(s.Home)
	if i < 0 {
		return false, "there is no region " + s.Home
	}
	home := rt.eval.regions[i]
	changes := j.changes(s, rt.eval.regions.of(s))
	unconfirmed := slices.ContainsFunc(s.Former, func(f region.FormerOwner) bool { return f.Region == s.Home })
	owner := rt.eval.regions.of(s)
	back := g.OnDisconnect.Failback
	switch {
	case !home.Connected || home.Lost:
		return false, s.Home + " is not connected"
	case unconfirmed:
		return false, s.Home + " has not confirmed yet what it still runs of it"
	case owner == nil || !owner.Connected:
		return false, s.Region + " is not connected, and cannot confirm that it stopped them"
	case changes || s.Desired != region.DesiredRun || rt.so.changes(s):
		return false, "waits for another change of the slot"
	case must:
		return true, ""
	case j.Type == Batch:
		return false, "a batch instance would lose its work"
	case back.Mode == FailbackNever:
		return false, "failback.mode is never"
	case home.Returning || rt.all:
		return true, ""
	case home.Unsteady:
		return false, s.Home + " was lost three times within an hour: only an operator returns it"
	case back.Mode != FailbackAuto:
		return false, fmt.Sprintf("failback.mode is review: `nusa region failback %s --apply` returns it", s.Home)
	case home.healthyFor(rt.eval.now) < back.After:
		return false, fmt.Sprintf("returns in %s, if %s stays healthy", (back.After - home.healthyFor(rt.eval.now)).Round(time.Second), s.Home)
	}
	return true, ""
}

// room returns how many of n instances the home takes, and why it does not take all.
func (rt *returner) room(w *work, home, n int) (int, string) {
	c, of := candidate{index: home}, *w
	of.free = nil // the instances that return have an owner
	rt.eval.filter(&of, &c)
	if c.reason != "" && c.reason != ReasonNoCapacity && c.reason != ReasonReturnedRecently {
		return 0, rt.eval.message(&of, &c)
	}
	if c.reason != "" || c.fits < n {
		return max(0, min(c.fits, n)), rt.eval.regions[home].Name + " has no room for it"
	}
	return n, ""
}

// together returns to one home all slots of colocated groups that have this home and the same
// owner, or none of them. If a group has no instances at the owner any more, the other groups
// follow it in any case, because the groups share their regions.
func (rt *returner) together(j *Job, works []*work, moved []*region.Slot) {
	type route struct{ owner, home string }
	routes := map[route][]*region.Slot{}
	var order []route
	for _, s := range moved {
		r := route{s.Region, s.Home}
		if routes[r] == nil {
			order = append(order, r)
		}
		routes[r] = append(routes[r], s)
	}
	slices.SortFunc(order, func(a, b route) int { return cmp.Or(cmp.Compare(a.home, b.home), cmp.Compare(a.owner, b.owner)) })
	for _, r := range order {
		why := ""
		var parts []part
		home := rt.eval.regions.index(r.home)
		separated := slices.ContainsFunc(works, func(w *work) bool { return w.owned[r.owner] == 0 })
		for _, s := range routes[r] {
			ready, because := rt.ready(j, s, separated)
			w := works[slices.IndexFunc(works, func(w *work) bool { return w.group.Name == s.Group })]
			switch {
			case why != "":
			case !ready:
				why = because
			case !rt.all && !separated && rt.so.down(w) > 0:
				why = "follows when the instances that do not run now run again"
			default:
				_, why = rt.room(w, home, s.Count())
			}
			parts = append(parts, part{ask: w.group.Ask, hash: w.hash, n: s.Count()})
		}
		if why == "" && !rt.eval.ledger.fitsTogether(home, parts) {
			why = r.home + " has no room for all of the colocated groups"
		}
		for i, s := range routes[r] {
			if why != "" {
				rt.note(s, s.From, s.To, false, why)
				continue
			}
			rt.eval.ledger.charge(home, parts[i].ask, parts[i].hash, parts[i].n)
			rt.revoke(j, s, s.From)
		}
	}
}

// note adds to the plan what happens to a part of a slot. A part that stays is added only for an
// operator's question.
func (rt *returner) note(s *region.Slot, from, to int, returns bool, why string) {
	if !returns && !rt.all {
		return
	}
	rt.plan.Returns = append(rt.plan.Returns, Return{
		Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: from, To: to, Owner: s.Region, Home: s.Home, Returns: returns, Why: why,
	})
}

func (rt *returner) revoke(j *Job, s *region.Slot, from int) {
	rt.note(s, from, s.To, true, "")
	rt.plan.Actions = append(rt.plan.Actions, Action{
		Kind: Revoke, Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: from, To: s.To, Region: s.Region, ReturnTo: s.Home,
		JobVersion: s.JobVersion, Run: j.Run, Slot: *s, Reason: ReasonFailback, Why: "it returns to " + s.Home,
	})
}

// Returns lists the slots whose home is the named region: which of them an operator can let
// return, and why the other slots stay.
func Returns(s Snapshot, home string) []Return {
	p := newPlanner(s)
	p.assume()
	p.back.all = true
	for i := range s.Jobs {
		j := &s.Jobs[i]
		p.so.first = len(p.plan.Actions)
		if j.Stopped || j.Type == System {
			continue
		}
		for _, set := range j.sets() {
			p.back.failback(j, p.eval.newWorks(j, set))
		}
	}
	out := slices.DeleteFunc(p.plan.Returns, func(r Return) bool { return r.Home != home })
	slices.SortFunc(out, func(a, b Return) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Group, b.Group), cmp.Compare(a.From, b.From))
	})
	return out
}
