package sched

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// NodeFit says how a node fits an instance of a group. If the node already has an instance
// of the group, it is scored as if that instance were not there.
type NodeFit struct {
	NodeID   string
	NodeName string
	Live     int32 // how many live instances of the group the node has
	// Reason is empty if the node fits. A node that has instances of the group has a reason
	// only in two cases: it refuses other instances that wait, or it would now refuse its
	// own instance.
	Reason  state.Reason
	Message string // for example "needs 500m cpu, 300m free of 4"
	Score   float64
	Terms   []Term
}

// Explain returns how every node that has not left fits the group, the best first and
// refused ones last. A node without an instance is scored for one more instance, another
// node for the instance that it has. Explain reads every node. It does not use the index
// that Make uses.
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

// ExplainAsk is like Explain, but the job need not be stored: it serves dry runs. Live
// instances of a stored job of that name count.
func ExplainAsk(in Input, job *state.Job, group string) []NodeFit {
	spec := job.Group(group)
	if spec == nil {
		return nil
	}
	key := state.GroupKey{Namespace: job.Key.Namespace, Job: job.Key.Job, Group: group, Local: job.Key.Local}
	t := newNodeTable(in.View)
	t.weigh(in.Load)
	f := newFilter(t, in.Funcs, &spec.Ask, job.Key)
	e := &explainer{filter: f, onNode: map[string]int32{}, onValue: map[string]int32{}, last: map[string]*state.Alloc{}}
	for a := range in.View.GroupAllocs(key) {
		if pos, ok := t.byNum[a.NodeNum]; ok && a.Live() && a.Desired == state.Run {
			e.onNode[a.NodeID]++
			e.last[a.NodeID] = a
			if n := &t.nodes[pos]; refuseStatus(n) == "" && f.refuseKind(n) == "" {
				e.onValue[f.spreadValue(n)]++
			}
		}
	}
	if job.Type != state.System {
		e.addWaiting(in, key)
	}
	t.reserved, e.own = reservedFrom(in, key, job.Priority)
	out := make([]NodeFit, 0, len(t.nodes))
	for i := range t.nodes {
		if n := &t.nodes[i]; n.Status != state.NodeLeft || e.onNode[n.ID] > 0 {
			fit := e.fit(n)
			fit.Message = e.withReservations(n, fit)
			out = append(out, fit)
		}
	}
	slices.SortStableFunc(out, func(a, b NodeFit) int {
		afits, bfits := a.Live > 0 || a.Reason == "", b.Live > 0 || b.Reason == ""
		switch {
		case afits && bfits:
			return cmp.Compare(b.Score, a.Score)
		case afits:
			return -1
		case bfits:
			return 1
		}
		return 0
	})
	return out
}

// explainer computes how nodes fit one group.
type explainer struct {
	filter  *filter
	onNode  map[string]int32        // the group's instances on each node
	onValue map[string]int32        // the group's instances on each spread value
	last    map[string]*state.Alloc // one of the group's allocations on each node
	// waits is true when wanted instances have no node. declined and failed describe the
	// declines and failures of those instances, by node.
	waits    bool
	declined map[string]string
	failed   map[string]int
	// own are the nodes that are reserved for the group's own instances.
	own []ReservedNode
}

// withReservations returns the message of a fit. It adds for which instances the node is
// reserved, unless the message already says so.
func (e *explainer) withReservations(n *node, fit NodeFit) string {
	message := fit.Message
	also := func(text string) {
		if message != "" {
			text = message + "; " + text
		}
		message = text
	}
	t := e.filter.table
	region := t.view.Cluster().Region
	if k := t.reservedFor(n.pos); k != nil && fit.Reason != state.ReasonReserved {
		also(k.describe(region))
	}
	for i := range e.own {
		if e.own[i].pos == n.pos {
			also(e.own[i].describe(region))
		}
	}
	return message
}

// fit returns how a node fits one more instance, or the instance that the node has.
func (e *explainer) fit(n *node) NodeFit {
	f := e.filter
	v := NodeFit{NodeID: n.ID, NodeName: n.Name, Live: e.onNode[n.ID]}
	refuse := func(n *node, r state.Reason) { v.Reason, v.Message = r, describe(f, n, r) }
	if r := refuseStatus(n); r != "" {
		refuse(n, r)
		switch besides := cmp.Or(f.refuseKindOrHost(n), f.refuseRoom(n)); {
		case besides == "":
			v.Message += ", and would fit"
		case besides != r:
			v.Message += "; besides: " + describe(f, n, besides)
		}
		return v
	}
	if r := f.refuseKind(n); r != "" {
		refuse(n, r)
		return v
	}
	value := f.spreadValue(n)
	scored, placed := n, placedCounts{v.Live, e.onValue[value]}
	if v.Live > 0 {
		scored = n.without(e.last[n.ID])
		placed.onNode--
		placed.onValue--
	}
	if r := f.refuseRoom(scored); r != "" {
		refuse(scored, r)
		return v
	}
	r := state.Reason("")
	if v.Live > 0 && e.waits {
		r = f.refuseRoom(n)
	}
	switch {
	case r != "":
		refuse(n, r)
	case e.declined[n.ID] != "":
		v.Reason, v.Message = state.ReasonDeclined, e.declined[n.ID]
	case (v.Live == 0 || e.waits) && f.table.reservedFor(n.pos) != nil:
		refuse(n, state.ReasonReserved)
	}
	v.Terms = f.scoreTerms(nil, scored, f.affinityScore(scored), placed, strconv.Quote(value))
	if times := e.failed[n.ID]; times > 0 {
		v.Terms = append(v.Terms, failureTerm(times, e.mostOnValue()))
	}
	v.Score = sumTerms(v.Terms)
	return v
}

// mostOnValue returns the greatest number of the group's instances that share a spread
// value. It is 0 if the group has no spread.
func (e *explainer) mostOnValue() int32 {
	most := int32(0)
	if e.filter.ask.Spread != "" {
		for _, n := range e.onValue {
			most = max(most, n)
		}
	}
	return most
}

// addWaiting adds the declines and failures of the group's waiting instances.
func (e *explainer) addWaiting(in Input, key state.GroupKey) {
	g, ok := in.View.Group(key)
	if !ok {
		return // this is a dry run of a new group without instances
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
		for _, b := range in.failuresOf(key, inst) {
			e.failed[b.node] = max(e.failed[b.node], b.times)
		}
		exclude, _ := in.declinedBy(inst)
		for _, id := range exclude {
			e.declined[id] = "its agent declined an instance that waits"
			if inst.Message != "" {
				e.declined[id] += ": " + inst.Message
			}
		}
	}
	e.waits = missing > int32(len(live))
}
