package sched

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// NodeFit says how a node fares for an instance of a group: one that it has
// already is scored without itself, as when it was placed.
type NodeFit struct {
	NodeID   string
	NodeName string
	Live     int32 // live instances of the group there
	// Reason is empty where the node would do. One that has instances has a
	// reason only if others wait that it does not take, or if it would no longer
	// do for its own.
	Reason  state.Reason
	Message string // figures: "needs 500m cpu, 300m free of 4"
	Score   float64
	Terms   []Term
}

// Explain answers for every node that did not leave, best first, the refused
// ones after them by id. Nil when the group is not held. It looks at each node by itself, without
// the index that Make uses.
func Explain(in Input, key state.GroupKey) []NodeFit {
	g, ok := in.View.Group(key)
	if !ok || len(g.Slots) == 0 {
		return nil
	}
	version := g.Slots[0].JobVersion
	for _, s := range g.Slots {
		version = max(version, s.JobVersion)
	}
	job, ok := in.View.Job(key.JobKey(), version)
	if !ok {
		return nil
	}
	return ExplainAsk(in, job, key.Group)
}

// ExplainAsk is Explain for a job that need not be stored: a dry run. Live
// instances of a stored job of that name count.
func ExplainAsk(in Input, job *state.Job, group string) []NodeFit {
	spec := job.Group(group)
	if spec == nil {
		return nil
	}
	key := state.GroupKey{Namespace: job.Key.Namespace, Job: job.Key.Job, Group: group, Local: job.Key.Local}
	t := newTable(in.View)
	e := &explainer{class: newClass(t, in.Funcs, &spec.Ask, job.Key), here: map[string]int32{}, there: map[string]int32{}, last: map[string]*state.Alloc{}}
	for a := range in.View.GroupAllocs(key) {
		if pos, ok := t.byNum[a.NodeNum]; ok && a.Live() && a.Desired == state.Run {
			e.here[a.NodeID]++
			e.last[a.NodeID] = a
			if n := &t.nodes[pos]; e.refuseStatus(n) == "" && e.refuseKind(n) == "" {
				e.there[e.value(n)]++
			}
		}
	}
	if job.Type != state.System {
		e.burdens(in, key)
	}
	t.kept, e.own = keptBefore(in, key, job.Priority)
	out := make([]NodeFit, 0, len(t.nodes))
	for i := range t.nodes {
		if n := &t.nodes[i]; n.Status != state.NodeLeft || e.here[n.ID] > 0 {
			v := e.verdict(n)
			v.Message = e.withKept(n, v)
			out = append(out, v)
		}
	}
	slices.SortStableFunc(out, func(a, b NodeFit) int {
		ab, bb := a.Live > 0 || a.Reason == "", b.Live > 0 || b.Reason == ""
		switch {
		case ab && bb:
			return cmp.Compare(b.Score, a.Score)
		case ab:
			return -1
		case bb:
			return 1
		}
		return 0
	})
	return out
}

// explainer looks at nodes for one group.
type explainer struct {
	*class
	here  map[string]int32        // the group's instances by node
	there map[string]int32        // and by spread value
	last  map[string]*state.Alloc // one of them by node
	// waits says that instances are wanted and have no node; declined and failed
	// are what they met, by node.
	waits    bool
	declined map[string]string
	failed   map[string]int
	// own are the nodes that are kept for the group's own instances.
	own []ReservedNode
}

// withKept is a verdict's message with what the node is kept for, where that is
// not what is said already.
func (e *explainer) withKept(n *node, v NodeFit) string {
	said := v.Message
	also := func(text string) {
		if said != "" {
			text = said + "; " + text
		}
		said = text
	}
	region := e.table.view.Cluster().Region
	if k := e.table.keeps(n.pos); k != nil && v.Reason != state.ReasonReserved {
		also(k.forWhom(region))
	}
	for i := range e.own {
		if e.own[i].pos == n.pos {
			also(e.own[i].forWhom(region))
		}
	}
	return said
}

// verdict is about one more instance, or the one that the node has.
func (e *explainer) verdict(n *node) NodeFit {
	v := NodeFit{NodeID: n.ID, NodeName: n.Name, Live: e.here[n.ID]}
	refuse := func(n *node, r state.Reason) { v.Reason, v.Message = r, e.describe(n, r) }
	if r := e.refuseStatus(n); r != "" {
		refuse(n, r)
		switch besides := cmp.Or(e.unfit(n), e.refuseRoom(n)); {
		case besides == "":
			v.Message += ", and would fit"
		case besides != r:
			v.Message += "; besides: " + e.describe(n, besides)
		}
		return v
	}
	if r := e.refuseKind(n); r != "" {
		refuse(n, r)
		return v
	}
	seen, here, there := n, v.Live, e.there[e.value(n)]
	if v.Live > 0 {
		seen, here, there = without(n, e.last[n.ID]), here-1, there-1
	}
	if r := e.refuseRoom(seen); r != "" {
		refuse(seen, r)
		return v
	}
	r := state.Reason("")
	if v.Live > 0 && e.waits {
		r = e.refuseRoom(n)
	}
	switch {
	case r != "":
		refuse(n, r)
	case e.declined[n.ID] != "":
		v.Reason, v.Message = state.ReasonDeclined, e.declined[n.ID]
	case (v.Live == 0 || e.waits) && e.table.keeps(n.pos) != nil:
		refuse(n, state.ReasonReserved)
	}
	v.Terms = e.terms(nil, seen, e.affinity(seen), here, there, strconv.Quote(e.value(n)))
	if times := e.failed[n.ID]; times > 0 {
		v.Terms = append(v.Terms, failedTerm(times, e.most()))
	}
	v.Score = score(v.Terms)
	return v
}

// most is the greatest number of the group's instances on one spread value; 0
// where the group has no spread.
func (e *explainer) most() int32 {
	most := int32(0)
	if e.Spread != "" {
		for _, n := range e.there {
			most = max(most, n)
		}
	}
	return most
}

// without is the node as if it did not have an allocation that it is charged
// for.
func without(n *node, a *state.Alloc) *node {
	m := *n
	m.free = n.free.Add(a.Resources)
	m.allocs--
	m.ports = slices.DeleteFunc(slices.Clone(n.ports), func(port int32) bool {
		return slices.ContainsFunc(a.Ports, func(g state.PortGrant) bool { return g.Port == port })
	})
	m.gpu = slices.Clone(n.gpu)
	for _, g := range a.GPUs {
		if i := slices.IndexFunc(n.GPUs, func(d state.GPU) bool { return d.ID == g.Device }); i >= 0 {
			m.gpu[i] -= g.ShareMilli
		}
	}
	m.apart = slices.DeleteFunc(slices.Clone(n.apart), func(tag string) bool { return slices.Contains(a.Apart, tag) })
	if a.Dedicated {
		m.dedicated--
	}
	return &m
}

// burdens notes what the group's waiting instances met.
func (e *explainer) burdens(in Input, key state.GroupKey) {
	g, ok := in.View.Group(key)
	if !ok {
		return // a dry run of a new one: nothing is there that could wait
	}
	missing := g.Wanted
	live := map[int32]bool{}
	for a := range in.View.GroupAllocs(key) {
		if a.Live() {
			live[a.Index] = true
		}
	}
	e.declined, e.failed = map[string]string{}, map[string]int{}
	for inst := range in.View.Instances(key) {
		slot := state.SlotOf(g.Slots, inst.Index)
		switch wanted := slot != nil && slot.Wants(inst.Index); {
		case !wanted:
			delete(live, inst.Index)
			continue
		case inst.Finished():
			if !live[inst.Index] {
				missing--
			}
			continue
		case inst.EndedUnixNano == 0 || live[inst.Index]:
			continue
		}
		for _, b := range in.blamed(key, inst) {
			e.failed[b.node] = max(e.failed[b.node], b.times)
		}
		exclude, _ := in.excluded(inst)
		for _, id := range exclude {
			e.declined[id] = "its agent declined an instance that waits"
			if inst.Message != "" {
				e.declined[id] += ": " + inst.Message
			}
		}
	}
	e.waits = missing > int32(len(live))
}
