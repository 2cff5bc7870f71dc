package sched

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// unplaced explains instances that no node takes; nodes that declined are left
// out, said is the words of the latest of them.
func (d *decision) unplaced(r *ranking, ranges []Range, declined []string, said string) {
	if !r.looked {
		r.looked, r.hopeless = true, r.class.hopeless()
	}
	f := r.hopeless
	switch {
	case f != nil:
	case len(declined) > 0:
		f = r.refusals(declined, said)
	case r.refused == nil || r.refusedAt != len(r.table.changed) || r.refusedKept != d.keptMark():
		f = r.refusals(nil, "")
		r.refused, r.refusedAt, r.refusedKept = f, len(r.table.changed), d.keptMark()
	default:
		f = r.refused
	}
	d.addUnplaced(Unplaced{Ranges: ranges, Counts: f.counts, Never: f.never}, f.reason, f.message)
}

// refusals is why no node takes one more instance of a class.
type refusals struct {
	// counts over nodes, the most frequent reason first, each with its figures.
	counts []state.Count
	// reason and message are those of the one that stands in the way.
	reason  state.Reason
	message string
	// never says that no node would take it even when it is empty.
	never bool
}

func (t *tally) refusals() *refusals {
	f := &refusals{reason: state.ReasonNoNodes, message: "the region has no nodes", counts: t.counts()}
	if len(f.counts) > 0 {
		b := blocking(f.counts)
		f.reason, f.message = b.Reason, b.Message
	}
	return f
}

// unfit is why a node would not do whatever is free on it: what it is. Empty
// for nodes that suit.
func (c *class) unfit(n *node) state.Reason {
	if n.ControlPlane {
		return state.ReasonControlPlaneHost
	}
	return c.refuseKind(n)
}

// refusals looks at what each node has free. A node that suits but takes no work
// now, because it is silent, drained or cordoned, counts only if it would take
// the instance otherwise, or if all that suit are so: what it lacks besides is
// nothing to wait for. Nodes that left do not count.
func (c *class) refusals(declined []string, said string) *refusals {
	t := newTally(c)
	t.said = said
	var closed []*node
	for n := range c.table.present() {
		r := c.unfit(n)
		switch {
		case r != "":
		case !n.Eligible():
			closed = append(closed, n)
			continue
		default:
			t.suited++
			if r = c.refuseRoom(n); r == "" && slices.Contains(declined, n.ID) {
				r = state.ReasonDeclined
			}
			if r == "" && c.table.keeps(n.pos) != nil {
				r = state.ReasonReserved
			}
		}
		if r != "" {
			t.add(n, r)
		}
	}
	for _, n := range closed {
		if t.suited == 0 || c.refuseRoom(n) == "" {
			t.add(n, c.refuseStatus(n))
		}
	}
	return t.refusals()
}

// hopeless is why no node that takes work would take an instance even if nothing
// ran on it; nil if one would. Nodes that suit count with what they lack then:
// with what none of them has enough of, if there is such a thing. If all that
// suit are silent, drained or cordoned, it is about those.
func (c *class) hopeless() *refusals {
	t := newTally(c)
	t.empty = true
	var open, closed []*node
	for n := range c.table.present() {
		r := c.unfit(n)
		switch {
		case r != "":
			t.add(n, r)
		case !n.Eligible():
			closed = append(closed, n)
		case c.refuseEmpty(n) == "":
			return nil
		default:
			open = append(open, n)
		}
	}
	large := func(n *node) bool { return c.refuseEmpty(n) == "" }
	never := !slices.ContainsFunc(closed, large)
	switch {
	case len(open) > 0:
		for _, n := range slices.DeleteFunc(closed, func(n *node) bool { return !large(n) }) {
			t.add(n, c.refuseStatus(n))
		}
	case never:
		open = closed
	default:
		return nil
	}
	if len(open)+len(t.by) == 0 {
		return nil // there are no nodes yet
	}
	var most state.Resources
	for _, n := range open {
		most = largest(most, n.Capacity)
	}
	t.suited = len(open)
	short := c.shortOf(most)
	for _, n := range open {
		empty := n.emptied()
		t.add(empty, cmp.Or(short, c.refuseRoom(empty)))
	}
	f := t.refusals()
	f.never = never
	return f
}

// blocking is the reason that stands in the way: the most frequent one of nodes
// that would do otherwise, if there are any.
func blocking(counts []state.Count) state.Count {
	return slices.MinFunc(counts, func(a, b state.Count) int { // the first of equals, and they are sorted
		return cmp.Compare(farFromFitting(a.Reason), farFromFitting(b.Reason))
	})
}

// farFromFitting ranks what refuses a node: no room, or its agent's word, only
// refuses those that would do, and one that is kept has even room. One that
// takes no work now counts only if it would do.
func farFromFitting(r state.Reason) int {
	switch r {
	case state.ReasonReserved:
		return -1
	case state.ReasonNodeLost, state.ReasonNodeDraining, state.ReasonNodeCordoned:
		return 1
	case state.ReasonNotAllowed: // of one that would do otherwise
		return 2
	case state.ReasonConstraint, state.ReasonDriverMissing, state.ReasonCapabilityMissing:
		return 3
	case state.ReasonPoolMismatch, state.ReasonControlPlaneHost:
		return 4
	}
	return 0
}

// tally counts the nodes that refuse an instance of a class, by reason.
type tally struct {
	*class
	by map[state.Reason]*refusedBy
	// said is why the latest node declined, in its words.
	said string
	// suited are the nodes of the right kind that take work; empty says that they
	// are looked at as if nothing ran on them.
	suited int
	empty  bool
}

// refusedBy are the nodes that refuse for one reason.
type refusedBy struct {
	nodes int
	// example is the one that comes closest, the first by id among equals.
	example *node
	// exprs counts the first false constraint of each node.
	exprs map[string]int
}

func newTally(c *class) *tally { return &tally{class: c, by: map[state.Reason]*refusedBy{}} }

func (t *tally) add(n *node, r state.Reason) {
	b := t.by[r]
	if b == nil {
		b = &refusedBy{example: n}
		t.by[r] = b
	}
	b.nodes++
	if r == state.ReasonConstraint {
		if b.exprs == nil {
			b.exprs = map[string]int{}
		}
		b.exprs[t.describeConstraint(n)]++
		return
	}
	if t.has(n, r) > t.has(b.example, r) {
		b.example = n
	}
}

// has is how much is free on a node of what it lacks.
func (c *class) has(n *node, r state.Reason) int64 {
	switch r {
	case state.ReasonInsufficientCPU:
		return n.free.CPUMilli
	case state.ReasonInsufficientMemory:
		return n.free.MemoryBytes
	case state.ReasonInsufficientDisk:
		return n.free.DiskBytes
	case state.ReasonInsufficientGPU:
		return c.freeGPU(n)
	case state.ReasonPortsExhausted:
		return int64(c.dynamicLeft(n))
	}
	return 0
}

// counts puts the most frequent reason first, equals by name.
func (t *tally) counts() []state.Count {
	out := make([]state.Count, 0, len(t.by))
	for r, b := range t.by {
		out = append(out, state.Count{Reason: r, Count: int32(b.nodes), Message: t.message(r, b)})
	}
	slices.SortFunc(out, func(a, b state.Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(string(a.Reason), string(b.Reason)))
	})
	return out
}

// message says what was asked and what the closest node has.
func (t *tally) message(r state.Reason, b *refusedBy) string {
	switch r {
	case state.ReasonConstraint:
		most := ""
		for _, text := range slices.Sorted(maps.Keys(b.exprs)) {
			if most == "" || b.exprs[text] > b.exprs[most] {
				most = text
			}
		}
		return most + " (" + plural(b.exprs[most], "node") + ")"
	case state.ReasonDeclined:
		return declinedText(b.nodes, b.example.Name, t.said)
	}
	if need, has := t.figures(b.example, r); need != "" {
		switch {
		case t.empty && b.nodes == t.suited:
			return "needs " + need + ", the largest node that suits otherwise, " + b.example.Name + ", has " + has
		case t.empty: // others lack something else
			return "needs " + need + ", the largest of " + plural(b.nodes, "node") + ", " + b.example.Name + ", has " + has
		case b.nodes == 1:
			return "needs " + need + ", " + b.example.Name + " has " + has + " free"
		}
		return "needs " + need + ", the most free of " + plural(b.nodes, "node") + " is " + has + " on " + b.example.Name
	}
	where := b.example.Name
	if b.nodes > 1 {
		where += fmt.Sprintf(" and %d more", b.nodes-1)
	}
	switch said := t.describe(b.example, r); {
	case farFromFitting(r) != 1 || t.suited == 0:
		return said + " (" + where + ")"
	case t.empty:
		return said + ", and is large enough (" + where + ")"
	default:
		return said + ", and would fit (" + where + ")"
	}
}

// declinedText says who declined, and in the words of the latest why: they name
// what is wrong with the job, or what the node's operator does not allow.
func declinedText(nodes int, example, said string) string {
	switch {
	case said == "":
		return plural(nodes, "node") + " declined it, such as " + example
	case nodes == 1:
		return example + " declined it: " + said
	}
	return plural(nodes, "node") + " declined it, such as " + example + "; the latest said: " + said
}

// figures are what is asked of a resource and what is free of it on a node;
// empty for other reasons.
func (c *class) figures(n *node, r state.Reason) (need, has string) {
	switch r {
	case state.ReasonInsufficientCPU:
		return milli(c.Resources.CPUMilli) + " cpu", milli(n.free.CPUMilli)
	case state.ReasonInsufficientMemory:
		return size(c.Resources.MemoryBytes) + " memory", size(n.free.MemoryBytes)
	case state.ReasonInsufficientDisk:
		return size(c.Resources.DiskBytes) + " disk", size(n.free.DiskBytes)
	case state.ReasonInsufficientGPU:
		return "gpu " + c.needGPU(), freeGPUs(n)
	case state.ReasonPortsExhausted:
		has = strconv.Itoa(max(0, c.dynamicLeft(n)))
		if n.PortMax > 0 {
			has += " of " + strconv.Itoa(int(n.PortMin)) + ".." + strconv.Itoa(int(n.PortMax))
		}
		return plural(len(c.Ports)-c.static, "dynamic port"), has
	}
	return "", ""
}
