package sched

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// ReserveAfter is how long an instance is without a node until one is kept for
// it: groups that come later in the plan's order are not put there, so that
// what ends on it makes room for the one that waits and not for the next small
// one. At least DeclineMemory, so that no node is kept that declined it.
const ReserveAfter = time.Minute

// maxKept bounds the nodes that a plan keeps, and with them what keeping costs.
const maxKept = 4

// firstHold is for how long the choice of a node lasts at least; see chosen.
const firstHold = 10 * time.Minute

// ReservedNode is a node that a plan puts nothing on that comes after an instance
// which has waited long.
type ReservedNode struct {
	NodeID   string
	NodeName string
	Key      state.GroupKey // of the instance that it is kept for
	Index    int32
	Waited   time.Duration
	// SinceUnixNano is when it began to wait. UntilUnixNano is when another node
	// may be chosen, if it still waits then; 0 where no other would do.
	SinceUnixNano, UntilUnixNano int64

	pos int32
}

// claim is an instance for which a node is to be kept.
type claim struct {
	*class
	ranking *ranking // nil: only the node at pos will do
	pos     int32
	key     state.GroupKey
	index   int32
	// since is when its slot came, its last attempt ended, or it was to be
	// replaced because that is on a lost node.
	since int64
}

// claim notes an instance that no node takes now, if it has waited long enough
// and an empty node would take it.
func (d *decision) claim(c claim, inst *state.Instance) {
	c.since = max(d.slot.CommittedUnixNano, inst.EndedUnixNano)
	due := func() bool { return d.in.NowUnixNano >= c.since+int64(ReserveAfter) }
	if !due() || len(d.claims) == maxKept || c.ranking != nil && !c.ranking.everTakes() {
		return
	}
	at, _ := slices.BinarySearchFunc(d.live, inst.Index, func(a *state.Alloc, i int32) int { return cmp.Compare(a.Index, i) })
	for ; at < len(d.live) && d.live[at].Index == inst.Index; at++ { // on lost nodes
		gone, _ := d.due(d.spec, d.live[at])
		c.since = max(c.since, gone)
	}
	if !due() {
		return
	}
	c.key, c.index = d.g.Key, inst.Index
	d.own = append(d.own, c)
}

// claimed hands the group's claims on to the groups that come after it, the
// lowest indices first.
func (d *decision) claimed() {
	if len(d.own) == 0 {
		return
	}
	limit := max(1, min(maxKept, len(d.nodes.nodes)/8))
	slices.SortFunc(d.own, func(a, b claim) int { return cmp.Compare(a.index, b.index) })
	d.claims = append(d.claims, d.own[:min(len(d.own), limit-len(d.claims))]...)
}

// reserve keeps nodes for the claims so far. Called when something that comes
// after them is about to be placed, and not before: most plans have nothing
// that waits, or nothing else to place. It says whether more nodes are kept.
func (p *planner) reserve() bool {
	if p.heard == len(p.claims) {
		return false
	}
	t := p.nodes
	had := len(t.kept)
	for ; p.heard < len(p.claims); p.heard++ {
		c := &p.claims[p.heard]
		if pos, until := p.nodeFor(c); pos >= 0 {
			n := &t.nodes[pos]
			t.kept = append(t.kept, ReservedNode{
				NodeID: n.ID, NodeName: n.Name, Key: c.key, Index: c.index,
				Waited: time.Duration(p.in.NowUnixNano - c.since), SinceUnixNano: c.since, UntilUnixNano: until, pos: pos,
			})
		}
	}
	return len(t.kept) > had
}

// nodeFor chooses the node that is kept for an instance, of those that would
// take it when they are empty and are not kept yet, and until when the choice
// holds; -1 if there is none. It is
// the one that lacks least of those on which nothing was put since the choice
// began, else of all. Without that, a node on which much ends at once would be
// chosen in the place of one that is nearly free, which others then fill up
// again; like this every node that is chosen is empty when what ran at the
// beginning has ended.
func (p *planner) nodeFor(c *claim) (pos int32, until int64) {
	t := p.nodes
	if c.ranking == nil {
		if t.keeps(c.pos) != nil {
			return -1, 0
		}
		return c.pos, 0
	}
	began, ends := chosen(c.since+int64(ReserveAfter), p.in.NowUnixNano)
	p.wake(ends) // who is refused may be placed when it is another node
	best, least, disturbed := int32(-1), 0.0, false
	for i := range t.nodes {
		n := &t.nodes[i]
		if !c.ranking.suits[i] || t.keeps(n.pos) != nil {
			continue
		}
		lack := c.lack(n)
		if best >= 0 && !disturbed && lack >= least || c.refuseEmpty(n) != "" {
			continue
		}
		late := t.placedAfter(n, began, p.in.NowUnixNano)
		if best < 0 || disturbed && !late || disturbed == late && lack < least {
			best, least, disturbed = n.pos, lack, late
		}
	}
	return best, ends
}

// chosen is when the choice of a node began that holds now, and when it ends:
// from when the instance became due, and anew after 10 minutes, then 20, 40 and
// so on, because the node may run what never ends. So an instance that fits an empty node gets one
// within the longest time T that others run, or within 3 T if that is longer
// than firstHold.
func chosen(due, now int64) (began, ends int64) {
	hold := int64(firstHold)
	for ; now-due >= hold; hold *= 2 {
		due += hold
	}
	return due, due + hold
}

// lack is how much of a node must still be freed for one more instance, as a
// share of what the node has: the greatest of its resources. Negative where it
// has room, and only a port or the like is missing. A dedicated instance needs
// all of it.
func (c *class) lack(n *node) float64 {
	need := c.Resources
	if c.Dedicated {
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
	if len(c.units) > 0 {
		var gpu, used int64
		for _, u := range c.units {
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

// everTakes says that a node takes an instance of the class when it is empty.
func (r *ranking) everTakes() bool {
	if !r.asked {
		r.asked = true
		for i := range r.table.nodes {
			if r.suits[i] && r.refuseEmpty(&r.table.nodes[i]) == "" {
				r.takes = true
				break
			}
		}
	}
	return r.takes
}

// keeps is what a node is kept for; nil if it is not.
func (t *table) keeps(pos int32) *ReservedNode {
	for i := range t.kept {
		if t.kept[i].pos == pos {
			return &t.kept[i]
		}
	}
	return nil
}

// placedAfter says that a node has something that was put on it after a time.
func (t *table) placedAfter(n *node, unixNano, now int64) bool {
	if n.newest == 0 {
		for a := range t.view.NodeAllocs(n.ID) {
			if a.Charged {
				n.newest = max(n.newest, a.CreatedUnixNano)
			}
		}
	}
	return n.newest > unixNano || len(n.planned) > 0 && now > unixNano
}

// keptMark tells apart which nodes are kept; 0 while none is.
func (p *planner) keptMark() uint64 {
	if n := len(p.nodes.kept); n > 0 {
		return p.made<<8 | uint64(n)
	}
	return 0
}

// choices is how many nodes fit and are not kept.
func (p *picker) choices() int {
	n := p.fitting
	for i := range p.table.kept {
		if p.room[p.table.kept[i].pos] {
			n--
		}
	}
	return n
}

// forWhom says what a node is kept for, since when it has waited, and until when
// the node is kept.
func (k *ReservedNode) forWhom(region string) string {
	text := "kept for " + k.Key.JobKey().In(region) + " " + k.Key.Group + "[" + strconv.Itoa(int(k.Index)) + "], which has waited since " +
		moment(k.SinceUnixNano, 0) + ", until it is placed"
	if k.UntilUnixNano > 0 {
		text += " or at least " + moment(k.UntilUnixNano, k.SinceUnixNano)
	}
	return text
}

// waited is in whole minutes: a text that is the same for a while is not sent
// anew after each plan.
func (k *ReservedNode) waited() string {
	return strings.TrimSuffix(k.Waited.Truncate(time.Minute).String(), "0s")
}

// keptBefore are the nodes that a plan keeps from a group that would be placed
// now, or from a group that is not there yet and has the priority; and those
// that it keeps for the group itself.
func keptBefore(in Input, key state.GroupKey, priority int32) (others, own []ReservedNode) {
	p := &planner{Planner: NewPlanner(), in: in, plan: &Plan{}}
	p.in.MaxPlaces = defaultMaxPlaces
	groups := slices.Collect(in.View.Undecided())
	end := slices.IndexFunc(groups, func(g *state.GroupView) bool { return g.Key == key })
	there := end >= 0
	if !there {
		end = slices.IndexFunc(groups, func(g *state.GroupView) bool { return len(g.Slots) > 0 && in.priority(g) < priority })
	}
	switch {
	case there:
		groups = groups[:end+1]
	case end >= 0:
		groups = groups[:end]
	}
	if !slices.ContainsFunc(groups, in.mayClaim) {
		return nil, nil
	}
	for _, g := range groups {
		p.group(g)
	}
	if len(p.claims) == 0 {
		return nil, nil
	}
	p.reserve()
	for _, k := range p.nodes.kept {
		if k.Key == key {
			own = append(own, k)
		} else {
			others = append(others, k)
		}
	}
	return others, own
}

// mayClaim is false for groups that certainly have no claim, and cheap.
func (in *Input) mayClaim(g *state.GroupView) bool {
	return slices.ContainsFunc(g.Slots, func(s *state.Slot) bool {
		return s.Desired == state.Run && in.NowUnixNano >= s.CommittedUnixNano+int64(ReserveAfter)
	})
}

// priority of the versions of a group's job that are to run: the greatest.
func (in *Input) priority(g *state.GroupView) int32 {
	most := int32(0)
	for _, s := range g.Slots {
		if job, ok := in.View.Job(g.Key.JobKey(), s.JobVersion); ok {
			most = max(most, job.Priority)
		}
	}
	return most
}
