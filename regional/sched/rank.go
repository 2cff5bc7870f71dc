package sched

import (
	"slices"
	"strconv"
)

// feasible holds which nodes are feasible for an ask, whatever is free on them. Asks
// that differ only in amounts share it.
type feasible struct {
	ok       []bool    // of each node: status and kind allow it
	affinity []float64 // of each node
	bucket   []int32   // of each node: its spread value
	labels   []string  // of each bucket: its value, quoted
	nodes    []int     // of each bucket: how many nodes are feasible
}

func newFeasible(f *filter) *feasible {
	n := len(f.table.nodes)
	s := &feasible{ok: make([]bool, n), affinity: make([]float64, n), bucket: make([]int32, n)}
	values := map[string]int32{}
	for i := range f.table.nodes {
		n := &f.table.nodes[i]
		if refuseStatus(n) != "" || f.refuseKind(n) != "" {
			continue
		}
		s.ok[i] = true
		s.affinity[i] = f.affinityScore(n)
		v := f.spreadValue(n)
		b, ok := values[v]
		if !ok {
			b = int32(len(values))
			values[v] = b
			s.labels, s.nodes = append(s.labels, strconv.Quote(v)), append(s.nodes, 0)
		}
		s.bucket[i] = b
		s.nodes[b]++
	}
	return s
}

// ranking sorts the nodes of an ask by score, so that the best node is found without
// reading every node. It has every node: nothing is sampled.
type ranking struct {
	filter   *filter
	feasible *feasible
	room     []bool   // of each node: it is feasible and has room now
	pushed   []uint32 // of each node: its stamp when it was last pushed, plus 1
	fitting  int      // number of nodes with room
	// heaps of entries, one for each bucket. An entry is outdated and skipped if its
	// stamp is not the stamp of its node; if the node still fits, a newer entry exists.
	heaps []entries
	// seen is the number of the table's changes that the ranking has processed.
	seen int
	used uint64 // see Planner.lookups
	// refused is valid while nothing has changed since refusedAt, and while the same
	// nodes are reserved; refusedReserved identifies the plan and the reserved nodes.
	refused         *refusals
	refusedAt       int
	refusedReserved uint64
	// fitsEmpty says that some node has room when it is empty; valid if checkedEmpty.
	checkedEmpty, fitsEmpty bool
	// never says why no node has room even when it is empty; nil if one has. It is
	// valid if checkedNever.
	checkedNever bool
	never        *refusals
}

// newRanking reads every node. old, if not nil, is an unused ranking whose memory is
// reused.
func newRanking(f *filter, s *feasible, old *ranking) *ranking {
	nodes := f.table.nodes
	r := &ranking{filter: f, feasible: s, seen: len(f.table.changed)}
	if old != nil {
		r.room, r.pushed, r.heaps = old.room, old.pushed, old.heaps
		old.room, old.pushed, old.heaps = nil, nil, nil
		clear(r.room)
		clear(r.pushed)
	} else {
		r.room, r.pushed = make([]bool, len(nodes)), make([]uint32, len(nodes))
	}
	r.heaps = slices.Grow(r.heaps[:0], len(s.nodes))[:len(s.nodes)]
	for b, n := range s.nodes {
		r.heaps[b] = slices.Grow(r.heaps[b][:0], n+64)
	}
	var like *node // the previous node: equal nodes reuse its score
	var score float64
	for i := range nodes {
		n := &nodes[i]
		if !s.ok[i] || f.refuseRoom(n) != "" {
			continue
		}
		if like == nil || n.free != like.free || n.Capacity != like.Capacity {
			like, score = n, fitScore(n.Capacity, n.free, f.ask.Resources)
		}
		r.room[i] = true
		r.fitting++
		r.pushed[i] = n.stamp + 1
		h := &r.heaps[s.bucket[i]]
		*h = append(*h, entry{score + s.affinity[i], n.pos, n.stamp})
	}
	for b := range r.heaps {
		r.heaps[b].build()
	}
	return r
}

// push adds a node to the heap of its bucket. When as many entries are outdated as are
// valid, push drops the outdated entries below the top.
func (r *ranking) push(e entry) {
	h := &r.heaps[r.feasible.bucket[e.pos]]
	if h.replaceTop(e) {
		return
	}
	if len(*h) == cap(*h) && len(*h) > 64 {
		fresh := slices.DeleteFunc(*h, func(e entry) bool { return e.stamp != r.filter.table.nodes[e.pos].stamp || !r.room[e.pos] })
		fresh.build()
		*h = slices.Grow(fresh, len(fresh)+64)
	}
	h.push(e)
}

func (r *ranking) entry(n *node) entry {
	r.pushed[n.pos] = n.stamp + 1
	return entry{r.filter.baseScore(n, r.feasible.affinity[n.pos]), n.pos, n.stamp}
}

// catchUp updates the ranking with the placements since it was last used.
func (r *ranking) catchUp() {
	t := r.filter.table
	for _, pos := range t.changed[r.seen:] {
		n := &t.nodes[pos]
		if r.check(n) && r.pushed[pos] != n.stamp+1 {
			r.push(r.entry(n))
		}
	}
	r.seen = len(t.changed)
}

// check updates whether a changed node has room.
func (r *ranking) check(n *node) bool {
	had, has := r.room[n.pos], r.feasible.ok[n.pos] && r.filter.refuseRoom(n) == ""
	switch {
	case had && !has:
		r.fitting--
	case has && !had:
		r.fitting++
	}
	r.room[n.pos] = has
	return has
}

// everFits reports whether some node has room for an instance when it is empty.
func (r *ranking) everFits() bool {
	if !r.checkedEmpty {
		r.checkedEmpty = true
		nodes := r.filter.table.nodes
		for i := range nodes {
			if r.feasible.ok[i] && r.filter.refuseEmpty(&nodes[i]) == "" {
				r.fitsEmpty = true
				break
			}
		}
	}
	return r.fitsEmpty
}

// refusals returns why no node takes one more instance. Nodes in declined are left
// out, and count as declined with the message of the latest decline. reserved
// identifies the set of reserved nodes.
func (r *ranking) refusals(declined []string, message string, reserved uint64) *refusals {
	if !r.checkedNever {
		r.checkedNever, r.never = true, neverFits(r.filter)
	}
	changes := len(r.filter.table.changed)
	switch {
	case r.never != nil:
		return r.never
	case len(declined) > 0:
		return refusalsNow(r.filter, declined, message)
	case r.refused == nil || r.refusedAt != changes || r.refusedReserved != reserved:
		r.refused, r.refusedAt, r.refusedReserved = refusalsNow(r.filter, nil, ""), changes, reserved
	}
	return r.refused
}

// entry is an entry of a heap: a node with its score.
type entry struct {
	score float64 // without the terms of the group's own instances
	pos   int32
	stamp uint32
}

// before reports whether e is the better choice.
func (e entry) before(o entry) bool {
	if e.score != o.score {
		return e.score > o.score
	}
	return e.pos < o.pos
}

// entries is a binary heap, the best first.
type entries []entry

func (h entries) build() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h *entries) push(e entry) {
	*h = append(*h, e)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s[i].before(s[up]) {
			return
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
}

// replaceTop replaces the first entry by a newer entry of the same node, since the best
// node is often the best again. False if the first entry is of another node.
func (h entries) replaceTop(e entry) bool {
	if len(h) == 0 || h[0].pos != e.pos {
		return false
	}
	h[0] = e
	h.down(0)
	return true
}

func (h *entries) pop() entry {
	s := *h
	e := s[0]
	s[0] = s[len(s)-1]
	*h = s[:len(s)-1]
	(*h).down(0)
	return e
}

func (h entries) down(i int) {
	for {
		k := 2*i + 1
		if k >= len(h) {
			return
		}
		if k+1 < len(h) && h[k+1].before(h[k]) {
			k++
		}
		if !h[k].before(h[i]) {
			return
		}
		h[i], h[k] = h[k], h[i]
		i = k
	}
}
