package sched

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// ReserveAfter is how long an instance must be without a node before a node is reserved for
// it. Groups that come later in the plan's order are not placed on that node. So room that
// is released there goes to the waiting instance, not to the next small one. ReserveAfter
// is at least DeclineMemory, so that no node is reserved that has just declined the
// instance.
const ReserveAfter = time.Minute

// maxReserved bounds the nodes that a plan reserves, and so the cost of reserving.
const maxReserved = 4

// firstHold is how long the first choice of a node stays valid: see choiceAt.
const firstHold = 10 * time.Minute

// ReservedNode is a node that is reserved for an instance that has waited long. Later
// instances in the plan are not placed on it.
type ReservedNode struct {
	NodeID   string
	NodeName string
	Key      state.GroupKey // the group of the waiting instance
	Index    int32
	Waited   time.Duration
	// SinceUnixNano is when the instance began to wait. UntilUnixNano is when another node
	// may be chosen if the instance still waits. It is 0 if no other node is possible.
	SinceUnixNano, UntilUnixNano int64

	pos int32
}

// claim is an instance for which a node is to be reserved.
type claim struct {
	filter  *filter
	ranking *ranking // nil: only the node at pos is possible
	pos     int32
	key     state.GroupKey
	index   int32
	// since is when the instance began to wait: when its slot arrived, when its last
	// attempt ended, or when it could be replaced because its node is lost.
	since int64
}

// reservations are the claims in a plan.
type reservations struct {
	// claims are in the order of the plan. The first handled of them have been processed:
	// each got a node, or no node was left for it.
	claims  []claim
	handled int
	// own are the claims of the present group. They bind only later groups.
	own []claim
}

// endGroup adds the present group's claims to claims, the lowest indices first. From then
// on they bind later groups.
func (r *reservations) endGroup(t *nodeTable) {
	if len(r.own) == 0 {
		return
	}
	limit := max(1, min(maxReserved, len(t.nodes)/8))
	slices.SortFunc(r.own, func(a, b claim) int { return cmp.Compare(a.index, b.index) })
	r.claims = append(r.claims, r.own[:min(len(r.own), limit-len(r.claims))]...)
	r.own = nil
}

// reserve reserves nodes for the claims so far. It reports whether it reserved any. It is
// called only when an instance that comes after the claims is about to be placed. In most
// plans no instance has waited that long, or nothing else is to be placed.
func (p *planner) reserve() bool {
	r := &p.reserved
	if r.handled == len(r.claims) {
		return false
	}
	t := p.cache.nodes
	had := len(t.reserved)
	for ; r.handled < len(r.claims); r.handled++ {
		c := &r.claims[r.handled]
		if pos, until := p.nodeFor(c); pos >= 0 {
			n := &t.nodes[pos]
			t.reserved = append(t.reserved, ReservedNode{
				NodeID: n.ID, NodeName: n.Name, Key: c.key, Index: c.index,
				Waited: time.Duration(p.in.NowUnixNano - c.since), SinceUnixNano: c.since, UntilUnixNano: until, pos: pos,
			})
		}
	}
	return len(t.reserved) > had
}

// nodeFor chooses the node that is reserved for an instance, and returns until when the
// choice is valid. It returns -1 if there is no node. A node is possible if it would take
// the instance when it is empty, and is not reserved yet. nodeFor chooses the node that
// must release the least.
//
// Nodes on which nothing was placed since the choice began come first. Without that rule, a
// node on which much ends at once would replace a nearly free node, and other instances
// would then fill that one again. With the rule, a chosen node is empty once all instances
// from the beginning of the choice have ended.
func (p *planner) nodeFor(c *claim) (pos int32, until int64) {
	t := p.cache.nodes
	if c.ranking == nil {
		if t.reservedFor(c.pos) != nil {
			return -1, 0
		}
		return c.pos, 0
	}
	began, ends := choiceAt(c.since+int64(ReserveAfter), p.in.NowUnixNano)
	wakeEarlier(&p.wakeAt, ends) // instances that are refused now may be placed when the choice changes
	best, least, bestUsed := int32(-1), 0.0, false
	for i := range t.nodes {
		n := &t.nodes[i]
		if !c.ranking.feasible.ok[i] || t.reservedFor(n.pos) != nil {
			continue
		}
		missing := missingShare(c.filter, n)
		if best >= 0 && !bestUsed && missing >= least || c.filter.refuseEmpty(n) != "" {
			continue
		}
		used := t.placedAfter(n, began, p.in.NowUnixNano)
		if best < 0 || bestUsed && !used || bestUsed == used && missing < least {
			best, least, bestUsed = n.pos, missing, used
		}
	}
	return best, ends
}

// choiceAt returns when the present choice of a node began, and when it ends. The first
// choice begins when the instance became due. A new choice begins after 10 minutes, and
// again after 20, 40 and so on, because the chosen node may run instances that never end.
// So an instance that fits an empty node gets a node within T, the longest time that other
// instances run, or within 3 T if that is longer than firstHold.
func choiceAt(due, now int64) (began, ends int64) {
	hold := int64(firstHold)
	for ; now-due >= hold; hold *= 2 {
		due += hold
	}
	return due, due + hold
}

// missingShare returns how much a node must still release for one more instance. It is a
// share of the node's capacity, for the resource with the greatest share. It is negative if
// the node has room and, for example, only a port is missing. A dedicated instance needs
// the whole node.
func missingShare(f *filter, n *node) float64 {
	need := f.ask.Resources
	if f.ask.Dedicated {
		need = n.Capacity
	}
	most := -1.0
	of := func(need, free, capacity int64) {
		if capacity > 0 {
			most = max(most, float64(need-free)/float64(capacity))
		}
	}
	of(need.CPUMilli, n.free.CPUMilli, n.Capacity.CPUMilli)
	of(need.MemoryBytes, n.free.MemoryBytes, n.Capacity.MemoryBytes)
	of(need.DiskBytes, n.free.DiskBytes, n.Capacity.DiskBytes)
	if len(f.units) > 0 {
		var gpu, used int64
		for _, u := range f.units {
			gpu += int64(u.milli)
		}
		for _, u := range n.gpu {
			used += int64(u)
		}
		all := int64(len(n.gpu)) * 1000
		of(gpu, all-used, all)
	}
	return most
}

// reservedMark identifies the set of reserved nodes. It is 0 while no node is reserved.
func (p *planner) reservedMark() uint64 {
	if n := len(p.cache.nodes.reserved); n > 0 {
		return p.cache.plans<<8 | uint64(n)
	}
	return 0
}

// describe returns for which instance a node is reserved, since when that instance has
// waited, and until when the node is reserved.
func (k *ReservedNode) describe(region string) string {
	text := "reserved for " + k.Key.JobKey().In(region) + " " + k.Key.Group + "[" + strconv.Itoa(int(k.Index)) + "], which has waited since " +
		moment(k.SinceUnixNano, 0) + ", until it is placed"
	if k.UntilUnixNano > 0 {
		text += " or at least " + moment(k.UntilUnixNano, k.SinceUnixNano)
	}
	return text
}

// waited returns the wait in whole minutes. A text that changes only once a minute is not
// sent again after each plan.
func (k *ReservedNode) waited() string {
	return strings.TrimSuffix(k.Waited.Truncate(time.Minute).String(), "0s")
}

// reservedFrom returns the nodes that a plan made now would reserve before it reaches a
// group (others), and the nodes that it would reserve for the group itself (own). A group
// that the state does not have counts as a group of the given priority.
func reservedFrom(in Input, key state.GroupKey, priority int32) (others, own []ReservedNode) {
	p := &planner{cache: NewPlanner(), in: in, plan: &Plan{}}
	p.in.MaxPlaces = defaultMaxPlaces
	groups := slices.Collect(in.View.Undecided())
	end := slices.IndexFunc(groups, func(g *state.GroupView) bool { return g.Key == key })
	exists := end >= 0
	if !exists {
		end = slices.IndexFunc(groups, func(g *state.GroupView) bool { return len(g.Slots) > 0 && in.priority(g) < priority })
	}
	switch {
	case exists:
		groups = groups[:end+1]
	case end >= 0:
		groups = groups[:end]
	}
	if !slices.ContainsFunc(groups, in.mayReserve) {
		return nil, nil
	}
	for _, g := range groups {
		p.group(g)
	}
	if len(p.reserved.claims) == 0 {
		return nil, nil
	}
	p.reserve()
	for _, k := range p.cache.nodes.reserved {
		if k.Key == key {
			own = append(own, k)
		} else {
			others = append(others, k)
		}
	}
	return others, own
}
