package sched_test

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"pgregory.net/rapid"
)

// reservation is a node that must be reserved by the oracle's rule.
type reservation struct {
	node     string
	key      state.GroupKey
	index    int32
	priority int32
	waited   time.Duration
	until    int64
}

// planChecker compares one plan with the oracle.
type planChecker struct {
	*rapid.T
	in    sched.Input
	loads *loads
	plan  *sched.Plan
	fork  *state.State
	index uint64
	// final is the view after the whole plan.
	final *state.View
	// reserved are the nodes that are reserved so far. claims counts the instances that
	// claimed a node.
	reserved []reservation
	claims   int
}

// checkPlan goes through the groups in the plan's order. Each chosen node must be as good
// as the oracle's best at that point. Unplaced instances must fit nowhere. Nodes must be
// reserved for instances that have waited long.
func (w *world) checkPlan(t *rapid.T, in sched.Input, p *sched.Plan) *planChecker {
	j := &planChecker{T: t, in: in, loads: &w.loads, plan: p, fork: in.View.Fork(), index: in.View.Index()}
	stops := sched.Plan{Stops: p.Stops}
	for _, c := range stops.Commands(nil, 1000) {
		j.apply(c)
	}
	places, unplaced := p.Places, slices.Clone(p.Unplaced)
	for g := range in.View.Undecided() {
		for len(places) > 0 && places[0].Key == g.Key {
			j.place(&places[0])
			places = places[1:]
		}
		var mine []sched.Unplaced
		unplaced = slices.DeleteFunc(unplaced, func(u sched.Unplaced) bool {
			if u.Key == g.Key {
				mine = append(mine, u)
			}
			return u.Key == g.Key
		})
		view := j.fork.Snapshot()
		for _, u := range mine {
			j.unplaced(view, g, u)
			j.reasons(view, g, u)
		}
		j.claim(view, g, mine)
	}
	if len(places)+len(unplaced) > 0 {
		t.Fatalf("out of order: %v %v\n%s", places, unplaced, p)
	}
	j.final = j.fork.Snapshot()
	for _, u := range p.Unplaced {
		j.remedy(u)
	}
	for i, k := range p.Reserved {
		if i >= len(j.reserved) || (reservation{k.NodeID, k.Key, k.Index, j.reserved[i].priority, k.Waited, k.UntilUnixNano}) != j.reserved[i] ||
			k.SinceUnixNano != in.NowUnixNano-int64(k.Waited) {
			t.Fatalf("%+v is reserved, by the oracle %+v\n%s", k, j.reserved, p)
		}
	}
	return j
}

func (j *planChecker) apply(c state.ApplyPlan) {
	j.index++
	if r := j.fork.Apply(j.index, state.Command{NowUnixNano: j.in.NowUnixNano, ApplyPlan: &c}); len(r.Skipped) > 0 {
		j.Fatalf("skipped: %v\n%s", r.Skipped, j.plan)
	}
}

// isReserved reports whether a node is reserved for an instance of an earlier group.
func (j *planChecker) isReserved(node string) bool {
	return slices.ContainsFunc(j.reserved, func(k reservation) bool { return k.node == node })
}

func (j *planChecker) place(pl *sched.Place) {
	view := j.fork.Snapshot()
	job, _ := view.Job(pl.Key.JobKey(), pl.JobVersion)
	o := &oracle{view: view, key: pl.Key, ask: &job.Group(pl.Key.Group).Ask, loads: j.loads}
	// The view is older than the plan. In it, allocations that the plan gives up on lost
	// nodes have not ended yet.
	inst := j.in.View.Instance(pl.Key, pl.Index)
	declined := declinedNow(j.in, inst)
	failed, penalty := o.failures(inst), o.penalty()
	best, chosen, choices := math.Inf(-1), math.Inf(-1), 0
	for n := range view.Nodes() {
		s, ok := o.score(n, declined)
		if !ok || j.isReserved(n.ID) {
			continue
		}
		choices++
		s -= penalty * float64(failed[n.ID])
		best = max(best, s)
		if n.ID == pl.NodeID {
			chosen = s
		}
	}
	switch {
	case job.Type == state.System:
		if n, _ := view.Node(pl.NodeID); math.IsInf(chosen, -1) || int32(n.Num) != pl.Index {
			j.Fatalf("%s[%d] does not fit %s\n%s", pl.Key, pl.Index, pl.NodeName, j.plan)
		}
	case chosen < best-1e-9 || math.IsInf(best, -1) || math.Abs(pl.Score-chosen) > 1e-9:
		j.Fatalf("%s[%d] on %s scores %v (the plan says %v), the best %v of %d\n%s", pl.Key, pl.Index, pl.NodeName, chosen, pl.Score, best, choices, j.plan)
	}
	j.runsNowhere(job.Group(pl.Key.Group), pl)
	one := sched.Plan{Places: []sched.Place{*pl}}
	for _, c := range one.Commands(func() string { return fmt.Sprint("check", j.index) }, 1) {
		j.apply(c)
	}
}

// runsNowhere checks that no earlier attempt of an instance can still run if a lease binds
// the instance. Either the end of the attempt is confirmed. Or a lease binds the attempt's
// own version, and that lease and the stop time have passed.
func (j *planChecker) runsNowhere(spec *state.Group, pl *sched.Place) {
	if !spec.Singleton && !spec.Disconnect.StopRunning && !(spec.Disconnect.StopInRegion && !pl.Key.Local) {
		return
	}
	for a := range j.in.View.InstanceAllocs(pl.Key, pl.Index) {
		if !a.Charged {
			continue // its node, or an operator who removed the node, confirmed the end
		}
		job, _ := j.in.View.Job(pl.Key.JobKey(), a.JobVersion)
		ordered, n := job.Group(pl.Key.Group), j.in.Absence(a.NodeID)
		longest, none := j.longest(ordered, a.Local)
		switch {
		case none:
			j.Fatalf("%s[%d] may still run as %s on %s, which no lease binds\n%s", pl.Key, pl.Index, a.ID, a.NodeName, j.plan)
		case a.Live() && n.Unleased < longest*101/99+time.Second:
			j.Fatalf("%s[%d] may still run as %s on %s: its lease was granted %s ago\n%s", pl.Key, pl.Index, a.ID, a.NodeName, n.Unleased, j.plan)
		}
	}
}

// longest returns the longest time for which an instance runs on its node after the last
// grant, by the node's clock. none is true if no lease binds the instance.
func (j *planChecker) longest(g *state.Group, local bool) (d time.Duration, none bool) {
	c := j.in.View.Cluster()
	switch {
	case g.Singleton || g.Disconnect.StopRunning:
		return max(j.in.NodeLease, c.NodeLeaseMax) + g.KillTimeout, false
	case g.Disconnect.StopInRegion && !local:
		return c.RegionLeaseMax + g.KillTimeout, false
	}
	return 0, true
}

// unplaced checks that unplaced instances fit nowhere at the end of their group, except on
// reserved nodes.
func (j *planChecker) unplaced(view *state.View, g *state.GroupView, u sched.Unplaced) {
	job, _ := view.Job(u.Key.JobKey(), u.JobVersion)
	o := &oracle{view: view, key: u.Key, ask: &job.Group(u.Key.Group).Ask}
	var reserved int32
	for _, i := range indices(u.Ranges) {
		inst, fits := j.in.View.Instance(u.Key, i), int32(0)
		for n := range view.Nodes() {
			if u.System && int32(n.Num) != i {
				continue
			}
			if _, ok := o.score(n, declinedNow(j.in, inst)); ok && !j.isReserved(n.ID) {
				j.Fatalf("%s[%d] would fit %s\n%s", u.Key, i, n.Name, j.plan)
			} else if ok {
				fits++
			}
		}
		reserved += fits
		if !u.System {
			reserved = fits
		}
	}
	said := int32(0)
	for _, c := range u.Counts {
		if c.Reason == state.ReasonReserved {
			said = c.Count
		}
		if c.Message == "" {
			j.Fatalf("%s: %s is not explained", u.Key, c.Reason)
		}
	}
	if len(g.Slots) == 1 && said != reserved {
		j.Fatalf("%s: %d nodes are reserved, the plan says %d\n%s", u.Key, reserved, said, j.plan)
	}
}

func indices(ranges []sched.Range) (out []int32) {
	for _, r := range ranges {
		for i := r.From; i < r.To; i++ {
			out = append(out, i)
		}
	}
	return out
}

// claim reserves nodes for the instances of a group that have waited for a minute.
func (j *planChecker) claim(view *state.View, g *state.GroupView, unplaced []sched.Unplaced) {
	type waiting struct {
		sched.Unplaced
		index int32
	}
	var all []waiting
	for _, u := range unplaced {
		for _, i := range indices(u.Ranges) {
			all = append(all, waiting{u, i})
		}
	}
	slices.SortFunc(all, func(a, b waiting) int { return int(a.index - b.index) })
	limit := max(1, min(4, view.NodeCount()/8))
	for _, u := range all {
		job, _ := view.Job(u.Key.JobKey(), u.JobVersion)
		since := j.gone(job.Group(u.Key.Group), u.Key, u.index)
		for _, s := range g.Slots {
			if s.Generation == u.Generation && s.JobVersion == u.JobVersion && s.Wants(u.index) {
				since = max(since, s.CommittedUnixNano)
			}
			if u.System && s.Generation == u.Generation {
				since = max(since, s.CommittedUnixNano)
			}
		}
		waited := time.Duration(j.in.NowUnixNano - since)
		if waited < time.Minute || j.claims == limit {
			continue
		}
		o := &oracle{view: view, key: u.Key, ask: &job.Group(u.Key.Group).Ask}
		bare := &oracle{view: view, key: u.Key, ask: o.ask, empty: true}
		takers := 0
		best := reservation{key: u.Key, index: u.index, priority: job.Priority, waited: waited}
		if !u.System {
			best.until = nextChoice(since, j.in.NowUnixNano)
		}
		var missing float64
		var late bool
		for n := range view.Nodes() { // by id
			if _, ok := bare.score(n, nil); !ok || u.System && int32(n.Num) != u.index {
				continue
			}
			takers++
			if j.isReserved(n.ID) {
				continue
			}
			nl, nt := o.missing(n), o.late(n, since, j.in.NowUnixNano)
			if best.node == "" || late && !nt || late == nt && nl < missing {
				best.node, missing, late = n.ID, nl, nt
			}
		}
		if takers > 0 {
			j.claims++
		}
		if best.node != "" {
			j.reserved = append(j.reserved, best)
		}
	}
}

// gone returns when the newest attempt ended, or when it could be replaced because its node
// was lost.
func (j *planChecker) gone(spec *state.Group, key state.GroupKey, index int32) int64 {
	gone := j.in.View.Instance(key, index).EndedUnixNano
	for a := range j.in.View.InstanceAllocs(key, index) {
		n, ok := j.in.View.Node(a.NodeID)
		if !ok || !a.Live() {
			continue
		}
		absent := j.in.Absence(n.ID)
		wait := spec.Disconnect.After - absent.Silent
		if n.Status == state.NodeLeft {
			wait = -absent.Silent
		}
		job, _ := j.in.View.Job(key.JobKey(), a.JobVersion)
		if longest, none := j.longest(job.Group(key.Group), a.Local); !none {
			over := time.Duration(math.Ceil(float64(longest)*101/99)) + time.Second
			wait = max(wait, over-absent.Unleased)
		}
		gone = max(gone, j.in.NowUnixNano+int64(wait))
	}
	return gone
}

// checkExplain compares Explain with the oracle, node by node. A node with an instance is
// scored without that instance.
func (w *world) checkExplain(j *planChecker) {
	t, in := j.T, j.in
	unsettled := map[state.GroupKey]int{}
	for g := range in.View.Undecided() {
		unsettled[g.Key] = len(unsettled) + 1
	}
	for g := range in.View.Groups() {
		if len(g.Slots) == 0 {
			continue
		}
		job, _ := in.View.Job(g.Key.JobKey(), g.Slots[len(g.Slots)-1].JobVersion)
		for _, v := range sched.ExplainAsk(in, job, g.Key.Group) {
			o := &oracle{view: in.View, key: g.Key, ask: &job.Group(g.Key.Group).Ask, loads: j.loads}
			n, _ := in.View.Node(v.NodeID)
			_, more := o.score(n, nil)
			taken := int32(0)
			for a := range in.View.GroupAllocs(g.Key) {
				if a.NodeID == n.ID && a.Live() && a.Desired == state.Run {
					taken++
					o.without = a
				}
			}
			s, ok := o.score(n, nil)
			kept := slices.ContainsFunc(j.reserved, func(k reservation) bool {
				before := unsettled[k.key] < unsettled[g.Key]
				if unsettled[g.Key] == 0 {
					before = k.priority >= job.Priority
				}
				return k.node == n.ID && before
			})
			for _, term := range v.Terms {
				if term.Name == "reschedule" {
					s += term.Value // the terms are checked elsewhere
				}
			}
			switch {
			case v.Live != taken:
			case ok && math.Abs(s-v.Score) > 1e-9:
			case !ok && v.Reason == "":
			case v.Reason == state.ReasonReserved && !kept:
			case ok && kept && taken == 0 && v.Reason == "":
			case ok && v.Reason != "" && v.Reason != state.ReasonDeclined && v.Reason != state.ReasonReserved && (taken == 0 || more):
			case v.Reason != "" && v.Message == "":
			default:
				continue
			}
			t.Fatalf("%s: %s has %d and scores %v %v, takes one more %v, explained as %+v, reserved %+v\n%s", g.Key, v.NodeName, taken, s, ok, more, v, j.reserved, j.plan)
		}
	}
}

// checkShape checks a shape. A fit count equals the number of instances that a plan
// would place of a new job. The bins contain no more than the nodes have.
func (w *world) checkShape(t *rapid.T, in sched.Input) {
	fork := in.View.Fork()
	job := &state.Job{Version: 1, Type: state.Service, Priority: 101, Groups: []state.Group{{Name: "g"}}}
	for _, j := range w.jobs {
		if j.Key.Job == "j0" {
			job.Groups[0].Ask = j.Groups[0].Ask
		}
	}
	job.Groups[0].Ask.Resources.CPUMilli = max(100, job.Groups[0].Ask.Resources.CPUMilli)
	job.Groups[0].Ask.Pool = "default"
	ask := &job.Groups[0].Ask
	fork.Apply(in.View.Index()+1, state.Command{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{
		Slot: state.Slot{Namespace: "default", Job: "probe", Group: "g", To: 500, Generation: 1, JobVersion: 1, Desired: state.Run}, Job: job,
	}}}})
	probe := in
	probe.View = fork.Snapshot()
	placed := 0
	for _, p := range sched.Make(probe).Places {
		if p.Key.Job == "probe" {
			placed++
		}
	}
	if n := sched.FitCount(in, ask, 500); n != placed {
		t.Fatalf("%d of %+v fit by FitCount, %d were placed", n, ask, placed)
	}
	if n := sched.FitCount(in, ask, 1); n != min(1, placed) {
		t.Fatalf("%d of at most 1 fit", n)
	}
	var nodes int32
	for _, b := range sched.Bins(in.View, 3) {
		nodes += b.Nodes
		var have int32
		for n, u := range in.View.NodesInUse() {
			free := n.Capacity.Sub(u.Resources)
			if n.Eligible() && n.Pool == b.Pool && free.CPUMilli >= b.Free.CPUMilli && free.MemoryBytes >= b.Free.MemoryBytes && free.DiskBytes >= b.Free.DiskBytes {
				have++
			}
		}
		if have < b.Nodes {
			t.Fatalf("%d nodes have what %+v says", have, b)
		}
	}
	if sum := sched.Sum(in.View); nodes > sum.Ready {
		t.Fatalf("%d nodes in bins, %d ready", nodes, sum.Ready)
	}
}
