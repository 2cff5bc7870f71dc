package sched

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// refusals says why no node takes one more instance of an ask.
type refusals struct {
	// counts has the number of nodes for each reason, the most frequent reason first, with
	// figures in the message.
	counts []state.Count
	// reason and message come from the count that blocks the instance: see blocking.
	reason  state.Reason
	message string
	// never is true when no node has room for an instance even if nothing runs on it.
	never bool
}

// refusalsNow checks what is free on each node now. Some feasible nodes take no work now,
// because they are silent, draining or cordoned. Such a node counts only if it would
// otherwise take the instance, or if all feasible nodes are in that condition. If it also
// lacks something else, waiting for it would not help. Nodes that have left do not count.
func refusalsNow(f *filter, declined []string, message string) *refusals {
	t := newTally(f)
	t.declineMessage = message
	var closed []*node
	for n := range f.table.present() {
		r := f.refuseKindOrHost(n)
		switch {
		case r != "":
		case !n.Eligible():
			closed = append(closed, n)
			continue
		default:
			t.feasible++
			r = f.refuseRoom(n)
			if r == "" && slices.Contains(declined, n.ID) {
				r = state.ReasonDeclined
			}
			if r == "" && f.table.reservedFor(n.pos) != nil {
				r = state.ReasonReserved
			}
		}
		if r != "" {
			t.add(n, r)
		}
	}
	for _, n := range closed {
		if t.feasible == 0 || f.refuseRoom(n) == "" {
			t.add(n, refuseStatus(n))
		}
	}
	return t.refusals()
}

// neverFits returns why no node that takes work would take an instance even if nothing ran
// on it. It returns nil if some node would take one. A feasible node that is too small
// counts for the resource that it lacks. If it lacks several resources, a resource that
// every feasible node lacks comes first. If all feasible nodes are silent, draining or
// cordoned, the counts are about those nodes.
func neverFits(f *filter) *refusals {
	t := newTally(f)
	t.empty = true
	var open, closed []*node
	for n := range f.table.present() {
		r := f.refuseKindOrHost(n)
		switch {
		case r != "":
			t.add(n, r)
		case !n.Eligible():
			closed = append(closed, n)
		case f.refuseEmpty(n) == "":
			return nil
		default:
			open = append(open, n)
		}
	}
	large := func(n *node) bool { return f.refuseEmpty(n) == "" }
	never := !slices.ContainsFunc(closed, large)
	switch {
	case len(open) > 0:
		for _, n := range slices.DeleteFunc(closed, func(n *node) bool { return !large(n) }) {
			t.add(n, refuseStatus(n))
		}
	case never:
		open = closed
	default:
		return nil
	}
	if len(open)+len(t.by) == 0 {
		return nil // the region has no nodes yet
	}
	var most state.Resources
	for _, n := range open {
		most = largest(most, n.Capacity)
	}
	t.feasible = len(open)
	short := f.shortOf(most)
	for _, n := range open {
		empty := n.emptied()
		t.add(empty, cmp.Or(short, f.refuseRoom(empty)))
	}
	out := t.refusals()
	out.never = never
	return out
}

// blocking returns the count that blocks an instance. It is the most frequent reason of
// nodes that would fit otherwise, if there are such nodes.
func blocking(counts []state.Count) state.Count {
	return slices.MinFunc(counts, func(a, b state.Count) int { // MinFunc returns the first of equal counts, and the counts are sorted
		return cmp.Compare(distanceToFit(a.Reason), distanceToFit(b.Reason))
	})
}

// distanceToFit ranks a reason by how close its nodes are to taking the instance. A
// reserved node even has room. Nodes without room, and nodes that declined, would fit
// otherwise. A node that takes no work now is counted only if it would fit otherwise.
func distanceToFit(r state.Reason) int {
	switch r {
	case state.ReasonReserved:
		return -1
	case state.ReasonNodeLost, state.ReasonNodeDraining, state.ReasonNodeCordoned:
		return 1
	case state.ReasonNotAllowed: // this reason is counted only for nodes that would fit otherwise
		return 2
	case state.ReasonConstraint, state.ReasonDriverMissing, state.ReasonCapabilityMissing:
		return 3
	case state.ReasonPoolMismatch, state.ReasonControlPlaneHost:
		return 4
	}
	return 0
}

// tally counts the nodes that refuse an instance, by reason.
type tally struct {
	filter *filter
	by     map[state.Reason]*refusedBy
	// declineMessage is the message of the latest decline.
	declineMessage string
	// feasible counts the feasible nodes that take work.
	feasible int
	// empty is true when nodes are checked as if nothing ran on them.
	empty bool
}

// refusedBy are the nodes that refuse an instance for one reason.
type refusedBy struct {
	nodes int
	// example is the node that comes closest to taking the instance, the first by id among
	// equals.
	example *node
	// exprs counts the nodes by their first false constraint.
	exprs map[string]int
}

func newTally(f *filter) *tally { return &tally{filter: f, by: map[state.Reason]*refusedBy{}} }

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
		b.exprs[describeConstraint(t.filter, n)]++
		return
	}
	if freeOf(t.filter, n, r) > freeOf(t.filter, b.example, r) {
		b.example = n
	}
}

func (t *tally) refusals() *refusals {
	out := &refusals{reason: state.ReasonNoNodes, message: "the region has no nodes", counts: t.counts()}
	if len(out.counts) > 0 {
		b := blocking(out.counts)
		out.reason, out.message = b.Reason, b.Message
	}
	return out
}

// counts returns the counts, the most frequent reason first. Equal counts are sorted by
// reason.
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

// message returns the amount in the ask and the amount on the closest node.
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
		return declinedText(b.nodes, b.example.Name, t.declineMessage)
	}
	if need, free := figures(t.filter, b.example, r); need != "" {
		switch {
		case t.empty && b.nodes == t.feasible:
			return "needs " + need + ", the largest suitable node, " + b.example.Name + ", has " + free
		case t.empty: // the nodes that are not counted here have too little of something else
			return "needs " + need + ", the largest of " + plural(b.nodes, "node") + ", " + b.example.Name + ", has " + free
		case b.nodes == 1:
			return "needs " + need + ", " + b.example.Name + " has " + free + " free"
		}
		return "needs " + need + ", the most free of " + plural(b.nodes, "node") + " is " + free + " on " + b.example.Name
	}
	where := b.example.Name
	if b.nodes > 1 {
		where += fmt.Sprintf(" and %d more", b.nodes-1)
	}
	switch text := describe(t.filter, b.example, r); {
	case distanceToFit(r) != 1 || t.feasible == 0:
		return text + " (" + where + ")"
	case t.empty:
		return text + ", and is large enough (" + where + ")"
	default:
		return text + ", and would fit (" + where + ")"
	}
}

// declinedText returns which nodes declined and the message of the latest decline. In that
// message the agent names the fault in the job, or what the node's operator does not allow.
func declinedText(nodes int, example, message string) string {
	switch {
	case message == "":
		return plural(nodes, "node") + " declined it, such as " + example
	case nodes == 1:
		return example + " declined it: " + message
	}
	return plural(nodes, "node") + " declined it, such as " + example + "; the latest message: " + message
}
