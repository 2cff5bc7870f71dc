package sched

import (
	"slices"
	"strconv"
)

// feasible says which nodes are feasible for an ask, however much is free on them. Asks
// that differ only in amounts share one feasible set.
type feasible struct {
	ok       []bool    // for each node: its status and kind allow the ask
	affinity []float64 // for each node: its affinity score
	bucket   []int32   // for each node: the number of its spread value
	labels   []string  // for each spread value: the value, quoted
	nodes    []int     // for each spread value: how many nodes are feasible
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

// ranking sorts the nodes for an ask by score, so that the best node is found without
// reading every node. It includes every node: nothing is sampled.
type ranking struct {
	filter   *filter
	feasible *feasible
	room     []bool   // for each node: it is feasible and has room now
	pushed   []uint32 // for each node: its stamp when it was last pushed, plus 1
	fitting  int      // the number of nodes with room
	// heaps has one heap of entries for each spread value. An entry is outdated if its
	// stamp differs from the stamp of its node. Outdated entries are skipped. If the node
	// still fits, the heap also has a newer entry for it.
	heaps []entries
	// seen is how many of the table's changes the ranking has processed.
	seen int
	used uint64 // the value of Planner.lookups when the ranking was last used
	// refused is valid while nothing has changed since refusedAt and the same nodes are
	// reserved. refusedReserved identifies the plan and its reserved nodes.
	refused         *refusals
	refusedAt       int
	refusedReserved uint64
	// fitsEmpty is true when some feasible node has room if nothing runs on it. It is valid
	// if checkedEmpty is true.
	checkedEmpty, fitsEmpty bool
	// never says why no node has room even if nothing runs on it. It is nil if some node
	// has room then. It is valid if checkedNever is true.
	checkedNever bool
	never        *refusals
}

// newRanking reads every node. old is an unused ranking, whose memory newRanking uses
// again, or nil.
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
	var like *node // the previous node: a node with equal resources uses its score again
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
		whole := score + s.affinity[i]
		if n.load.Weighs() {
			whole += loadScore(n)
		}
		*h = append(*h, entry{whole, n.pos, n.stamp})
	}
	for b := range r.heaps {
		r.heaps[b].build()
	}
	return r
}

// push adds a node to the heap of its spread value. When the heap is full, push first drops
// the outdated entries.
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

// catchUp updates the ranking with the changes of nodes since it was last used.
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

// everFits reports whether some feasible node has room for an instance if nothing runs on
// it.
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

// refusals returns why no node takes one more instance. The nodes in declined count as
// declined, with the message of the latest decline. reserved identifies the set of reserved
// nodes.
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

// entry is an entry in a heap: a node with its score.
type entry struct {
	score float64 // the score without the terms for the group's own instances
	pos   int32
	stamp uint32
}

// before reports whether e is a better choice than o.
func (e entry) before(o entry) bool {
	if e.score != o.score {
		return e.score > o.score
	}
	return e.pos < o.pos
}

// entries is a binary heap with the best entry first.
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

// replaceTop replaces the first entry by a newer entry of the same node, because the best
// node is often the best again. It returns false if the first entry is of another node.
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
