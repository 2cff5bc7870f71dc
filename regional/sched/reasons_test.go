package sched_test

import (
	"slices"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

var (
	closedReasons = []state.Reason{state.ReasonNodeLost, state.ReasonNodeDraining, state.ReasonNodeCordoned}
	kindReasons   = []state.Reason{state.ReasonPoolMismatch, state.ReasonDriverMissing, state.ReasonCapabilityMissing, state.ReasonConstraint, state.ReasonNotAllowed, state.ReasonControlPlaneHost}
)

// refusing counts the nodes that take no instance, according to the oracle.
type refusing struct {
	wrong          int // nodes that never fit, however much is free
	open, closed   int // feasible nodes that take work now (open) or take none now (closed)
	openLarge      int // open nodes with room for the ask when they are empty
	fits, fitEmpty int // closed nodes that have room for the ask now, or when they are empty
}

func refusals(view *state.View, key state.GroupKey, ask *state.Ask) (r refusing) {
	now := &oracle{view: view, key: key, ask: ask, closed: true}
	bare := &oracle{view: view, key: key, ask: ask, closed: true, empty: true}
	for n := range view.Nodes() {
		_, fits := now.score(n, nil)
		_, large := bare.score(n, nil)
		open := n.Status == state.NodeReady && !n.Cordoned && !n.Draining
		switch {
		case n.Status == state.NodeLeft:
		case !now.suits(n):
			r.wrong++
		case open:
			r.open++
			if large {
				r.openLarge++
			}
		default:
			r.closed++
			if fits {
				r.fits++
			}
			if large {
				r.fitEmpty++
			}
		}
	}
	return r
}

// reasons checks the reasons of unplaced instances. A node counts for its kind, or for the
// resource that it lacks. A node that takes no work counts only if it would
// fit otherwise, or if no other node is feasible. The reason is a resource if a feasible
// node takes work.
func (j *planChecker) reasons(view *state.View, g *state.GroupView, u sched.Unplaced) {
	if u.System || len(g.Slots) != 1 {
		return // the instance's reasons were counted while the group was placed
	}
	job, _ := view.Job(u.Key.JobKey(), u.JobVersion)
	r := refusals(view, u.Key, &job.Group(u.Key.Group).Ask)
	neverFits := r.openLarge == 0 && (r.open > 0 || r.fitEmpty == 0) && r.wrong+r.open+r.closed > 0
	closed, never := r.fits, false
	switch {
	case neverFits && r.open == 0: // closed nodes count as if they took work
		closed, never = 0, true
		r.open = r.closed
	case neverFits:
		closed, never = r.fitEmpty, r.fitEmpty == 0
	case r.open == 0:
		closed = r.closed
	}
	sum := func(reasons []state.Reason) (n int) {
		for _, c := range u.Counts {
			if reasons == nil || slices.Contains(reasons, c.Reason) {
				n += int(c.Count)
			}
		}
		return n
	}
	is := [3]int{sum(kindReasons), sum(closedReasons), sum(nil)}
	should := [3]int{r.wrong, closed, r.wrong + closed + r.open}
	if is != should || u.Never != never {
		j.Fatalf("%s: kind, closed and all are %v, should be %v; never %v: %+v", u.Key, is, should, never, u)
	}
	if r.open > 0 && (slices.Contains(closedReasons, u.Reason) || slices.Contains(kindReasons, u.Reason)) {
		j.Fatalf("%s: %s is the reason, though %d nodes are feasible", u.Key, u.Reason, r.open)
	}
	if u.Message == "" || len(u.Counts) == 0 && u.Reason != state.ReasonNoNodes {
		j.Fatalf("%s: not explained: %+v", u.Key, u)
	}
}

// remedy checks that the remedy of the plan makes one more instance fit. There must be a
// remedy whenever less of one resource is enough.
func (j *planChecker) remedy(u sched.Unplaced) {
	if u.System {
		return
	}
	in := j.in
	in.View = j.final
	job, _ := in.View.Job(u.Key.JobKey(), u.JobVersion)
	c := sched.Remedy(in, job, u.Key.Group)
	if c != nil {
		n, _ := in.View.Node(c.NodeID)
		o := &oracle{view: in.View, key: u.Key, ask: &c.Ask}
		if _, ok := o.score(n, nil); !ok || len(c.What) == 0 {
			j.Fatalf("%s: %s, but it would not: %+v", u.Key, c, c.Ask)
		}
	}
	isReserved := func(n *state.Node) bool {
		return slices.ContainsFunc(j.reserved, func(k reservation) bool { return k.node == n.ID })
	}
	o := &oracle{view: in.View, key: u.Key, ask: &job.Group(u.Key.Group).Ask}
	for n := range in.View.Nodes() {
		if _, ok := o.score(n, nil); ok && !isReserved(n) {
			return // the node's agent declined the instance, or room became free after the group was placed
		}
	}
	for n := range in.View.Nodes() {
		less := *o.ask
		o := &oracle{view: in.View, key: u.Key, ask: &less}
		free := n.Capacity
		for a := range in.View.NodeAllocs(n.ID) {
			if a.Charged {
				free = free.Sub(a.Resources)
			}
		}
		if free.CPUMilli <= 0 || isReserved(n) {
			continue
		}
		less.Resources.CPUMilli = min(less.Resources.CPUMilli, free.CPUMilli)
		if _, ok := o.score(n, nil); ok && (c == nil || len(c.What) > 1) {
			j.Fatalf("%s: less cpu is enough for %s, the remedy is %v", u.Key, n.Name, c)
		}
	}
}
