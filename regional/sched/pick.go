package sched

import "slices"

// picker chooses nodes for the instances of one group.
type picker struct {
	ranking *ranking
	onNode  []int32 // the number of the group's instances on each node
	onValue []int32 // the number of the group's instances on each spread value
	// own holds entries for the nodes that already have instances of the group, by spread value.
	// These entries include the penalty for those instances. The entries of these nodes are
	// removed from the shared heaps.
	own   []entries
	aside []entry
	used  []int32 // positions with onNode > 0
	// last is the node that was chosen last, if it still has room. Its entry is pushed to
	// own when the next node is chosen.
	last *node
}

// begin starts with counts of zero. It keeps the memory of the previous group. onNode must
// be as long as the table, with all values 0. done sets them back to 0.
func (p *picker) begin(r *ranking, onNode []int32) {
	r.catchUp()
	buckets := len(r.feasible.nodes)
	p.ranking, p.onNode, p.last = r, onNode, nil
	p.aside, p.used = p.aside[:0], p.used[:0]
	p.onValue = append(p.onValue[:0], make([]int32, buckets)...)
	for i := range p.own {
		p.own[i] = p.own[i][:0]
	}
	for len(p.own) < buckets {
		p.own = append(p.own, nil)
	}
}

// count records an instance that a node already has.
func (p *picker) count(pos int32) {
	if p.onNode[pos] == 0 {
		p.used = append(p.used, pos)
	}
	p.onNode[pos]++
	if p.ranking.feasible.ok[pos] {
		p.onValue[p.ranking.feasible.bucket[pos]]++
	}
}

// choose returns the position of the best node for an instance, or -1 if no node fits. A
// node on which the instance failed is chosen only if no other node fits.
func (p *picker) choose(exclude []string, failed []nodeFailures) int32 {
	if len(failed) == 0 {
		return p.best(exclude)
	}
	avoid := slices.Clone(exclude)
	for _, f := range failed {
		avoid = append(avoid, f.node)
	}
	if pos := p.best(avoid); pos >= 0 {
		return pos
	}
	r := p.ranking
	t := r.filter.table
	best, bestScore := int32(-1), 0.0
	for _, f := range failed {
		pos, ok := t.position(f.node)
		if !ok || !r.room[pos] || slices.Contains(exclude, f.node) || t.reservedFor(pos) != nil {
			continue
		}
		s := r.filter.baseScore(&t.nodes[pos], r.feasible.affinity[pos]) + apartScore(p.onNode[pos]) +
			spreadScore(p.onValue[r.feasible.bucket[pos]]) + failureScore(f.times, p.mostOnValue())
		if best < 0 || s > bestScore || s == bestScore && pos < best {
			best, bestScore = pos, s
		}
	}
	return best
}

// best returns the position of the node with the greatest score among the nodes that fit
// and are not excluded. Of equal nodes it returns the first one by id. It returns -1 if
// there is none.
func (p *picker) best(exclude []string) int32 {
	if p.last != nil {
		p.pushOwn(p.last)
		p.last = nil
	}
	var skipped []entry
	pos, score := int32(-1), 0.0
	for b := range p.ranking.heaps {
		e, ok := p.bestOf(b, exclude, &skipped)
		if !ok {
			continue
		}
		s := e.score + spreadScore(p.onValue[b])
		if pos < 0 || s > score || s == score && e.pos < pos {
			pos, score = e.pos, s
		}
	}
	for _, e := range skipped {
		p.putBack(e)
	}
	return pos
}

func (p *picker) bestOf(b int, exclude []string, skipped *[]entry) (entry, bool) {
	shared, own := p.top(&p.ranking.heaps[b], b, exclude, skipped), p.top(&p.own[b], b, exclude, skipped)
	switch {
	case shared == nil && own == nil:
		return entry{}, false
	case own == nil, shared != nil && shared.before(*own):
		return *shared, true
	}
	return *own, true
}

// top returns the first entry of a heap that is valid and not excluded. It first removes
// the other entries before it.
func (p *picker) top(h *entries, b int, exclude []string, skipped *[]entry) *entry {
	r, t := p.ranking, p.ranking.filter.table
	isShared := h == &r.heaps[b]
	for len(*h) > 0 {
		e := &(*h)[0]
		n := &t.nodes[e.pos]
		switch {
		case e.stamp != n.stamp || !r.room[e.pos]:
			h.pop()
		case len(t.reserved) > 0 && t.reservedFor(e.pos) != nil:
			// This entry stays out for the rest of the group. If the node already has
			// instances of the group, its shared entry is out already. Otherwise done finds
			// that the node has changed.
			if e := h.pop(); isShared {
				p.aside = append(p.aside, e)
			}
		case isShared && p.onNode[e.pos] > 0:
			p.aside = append(p.aside, h.pop())
			p.pushOwn(n)
		case len(exclude) > 0 && slices.Contains(exclude, n.ID):
			*skipped = append(*skipped, h.pop())
		default:
			return e
		}
	}
	return nil
}

// putBack returns an entry that was removed for one instance only.
func (p *picker) putBack(e entry) {
	if p.onNode[e.pos] > 0 {
		p.own[p.ranking.feasible.bucket[e.pos]].push(e)
		return
	}
	p.ranking.push(e)
}

func (p *picker) pushOwn(n *node) {
	r := p.ranking
	score := r.filter.baseScore(n, r.feasible.affinity[n.pos]) + apartScore(p.onNode[n.pos])
	if h, e := &p.own[r.feasible.bucket[n.pos]], (entry{score, n.pos, n.stamp}); !h.replaceTop(e) {
		h.push(e)
	}
}

// placed records that an instance was placed on a node. The caller has charged the node
// (nodeTable.charge).
func (p *picker) placed(n *node) {
	p.count(n.pos)
	if p.ranking.check(n) {
		p.last = n
	}
}

// done returns the nodes to the shared heaps, and sets onNode back to zeroes.
func (p *picker) done() {
	r := p.ranking
	for _, e := range p.aside {
		if e.stamp == r.filter.table.nodes[e.pos].stamp && r.room[e.pos] {
			r.push(e)
		}
	}
	r.catchUp()
	for _, pos := range p.used {
		p.onNode[pos] = 0
	}
}

// terms appends to out the terms of a node's score for one more instance of the group.
// failed is how often that instance failed on the node.
func (p *picker) terms(out []Term, n *node, failed int) []Term {
	s := p.ranking.feasible
	bucket := s.bucket[n.pos]
	out = p.ranking.filter.scoreTerms(out, n, s.affinity[n.pos], placedCounts{p.onNode[n.pos], p.onValue[bucket]}, s.labels[bucket])
	if failed > 0 {
		out = append(out, failureTerm(failed, p.mostOnValue()))
	}
	return out
}

// mostOnValue returns the greatest number of the group's instances that share a spread
// value. It is 0 if the group has no spread.
func (p *picker) mostOnValue() int32 {
	if p.ranking.filter.ask.Spread == "" || len(p.onValue) == 0 {
		return 0
	}
	return slices.Max(p.onValue)
}

// candidates counts the nodes that fit and are not reserved.
func (p *picker) candidates() int {
	n := p.ranking.fitting
	reserved := p.ranking.filter.table.reserved
	for i := range reserved {
		if p.ranking.room[reserved[i].pos] {
			n--
		}
	}
	return n
}
