package sched

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// unplaced explains instances that no node takes.
func (d *decision) unplaced(r *ranking, ranges []Range, declined []string) {
	u := Unplaced{Ranges: ranges}
	if len(d.nodes.nodes) == 0 {
		d.addUnplaced(u, state.ReasonNoNodes, "the region has no nodes")
		return
	}
	f := r.refused
	switch {
	case len(declined) > 0:
		f = r.refusals(declined)
	case f == nil || r.refusedAt != len(r.table.changed) || r.refusedKept != d.keptMark():
		f = r.refusals(nil)
		r.refused, r.refusedAt, r.refusedKept = f, len(r.table.changed), d.keptMark()
	}
	u.Counts, u.Never = f.counts, f.never
	d.addUnplaced(u, f.reason, f.message)
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

func (c *class) refusals(declined []string) *refusals {
	f := &refusals{reason: state.ReasonNoFittingNode, message: "no node fits", never: true}
	t := newTally(c)
	for i := range c.table.nodes {
		n := &c.table.nodes[i]
		r := c.refuse(n)
		switch {
		case r != "":
		case slices.Contains(declined, n.ID):
			r = state.ReasonDeclined
		case c.table.keeps(n.pos) != nil:
			r = state.ReasonReserved
		}
		if r != "" {
			t.add(n, r)
		}
		if !n.ControlPlane && c.refuseKind(n) == "" {
			t.suited(n)
			f.never = f.never && c.refuseEmpty(n) != ""
		}
	}
	f.counts = t.counts(f.never)
	if len(f.counts) > 0 {
		b := blocking(f.counts)
		f.reason, f.message = b.Reason, b.Message
	}
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
// refuses those that would do, and one that is kept has even room.
func farFromFitting(r state.Reason) int {
	switch r {
	case state.ReasonReserved:
		return -1
	case state.ReasonPoolMismatch, state.ReasonControlPlaneHost:
		return 3
	case state.ReasonNodeLost, state.ReasonNodeDraining, state.ReasonNodeCordoned:
		return 2
	case state.ReasonConstraint, state.ReasonDriverMissing, state.ReasonCapabilityMissing:
		return 1
	}
	return 0
}

// tally counts the nodes that refuse an instance of a class, by reason.
type tally struct {
	*class
	by map[state.Reason]*refusedBy
	// largest nodes of the right kind, by what they have when empty; nil before
	// the first.
	cpu, memory, disk *node
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
	switch r {
	case state.ReasonInsufficientCPU:
		b.closer(n, func(n *node) int64 { return n.free.CPUMilli })
	case state.ReasonInsufficientMemory:
		b.closer(n, func(n *node) int64 { return n.free.MemoryBytes })
	case state.ReasonInsufficientDisk:
		b.closer(n, func(n *node) int64 { return n.free.DiskBytes })
	case state.ReasonConstraint:
		if b.exprs == nil {
			b.exprs = map[string]int{}
		}
		b.exprs[t.describeConstraint(n)]++
	}
}

func (b *refusedBy) closer(n *node, has func(*node) int64) {
	if has(n) > has(b.example) {
		b.example = n
	}
}

// suited notes a node of the right kind.
func (t *tally) suited(n *node) {
	larger := func(have **node, has func(*node) int64) {
		if *have == nil || has(n) > has(*have) {
			*have = n
		}
	}
	larger(&t.cpu, func(n *node) int64 { return n.Capacity.CPUMilli })
	larger(&t.memory, func(n *node) int64 { return n.Capacity.MemoryBytes })
	larger(&t.disk, func(n *node) int64 { return n.Capacity.DiskBytes })
}

// counts puts the most frequent reason first, equals by name. never says that
// no node would do even when it is empty: then the largest one is named.
func (t *tally) counts(never bool) []state.Count {
	out := make([]state.Count, 0, len(t.by))
	for r, b := range t.by {
		out = append(out, state.Count{Reason: r, Count: int32(b.nodes), Message: t.message(r, b, never)})
	}
	slices.SortFunc(out, func(a, b state.Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(string(a.Reason), string(b.Reason)))
	})
	return out
}

// message says what was asked and what the closest node has.
func (t *tally) message(r state.Reason, b *refusedBy, never bool) string {
	need, free := t.Resources, b.example.free
	switch r {
	case state.ReasonInsufficientCPU:
		return b.shortOf("cpu", milli, need.CPUMilli, free.CPUMilli, never, t.cpu, func(n *node) int64 { return n.Capacity.CPUMilli })
	case state.ReasonInsufficientMemory:
		return b.shortOf("memory", size, need.MemoryBytes, free.MemoryBytes, never, t.memory, func(n *node) int64 { return n.Capacity.MemoryBytes })
	case state.ReasonInsufficientDisk:
		return b.shortOf("disk", size, need.DiskBytes, free.DiskBytes, never, t.disk, func(n *node) int64 { return n.Capacity.DiskBytes })
	case state.ReasonConstraint:
		most := ""
		for _, text := range slices.Sorted(maps.Keys(b.exprs)) {
			if most == "" || b.exprs[text] > b.exprs[most] {
				most = text
			}
		}
		return most + " (" + plural(b.exprs[most], "node") + ")"
	case state.ReasonDeclined:
		return plural(b.nodes, "node") + " declined it, such as " + b.example.Name
	}
	where := b.example.Name
	if b.nodes > 1 {
		where += fmt.Sprintf(" and %d more", b.nodes-1)
	}
	return t.describe(b.example, r) + " (" + where + ")"
}

func (b *refusedBy) shortOf(what string, text func(int64) string, need, free int64, never bool, largest *node, has func(*node) int64) string {
	ask := "needs " + text(need) + " " + what + ", "
	switch {
	case never && largest != nil && need > has(largest):
		return ask + "the largest node that suits otherwise, " + largest.Name + ", has " + text(has(largest))
	case b.nodes == 1:
		return ask + b.example.Name + " has " + text(free) + " free"
	}
	return ask + "the most free of " + plural(b.nodes, "node") + " is " + text(free) + " on " + b.example.Name
}
