package sched

import (
	"slices"
	"strconv"
)

// suited is what nodes are to a class, whatever is free on them. Classes that
// differ only in what they need of a node share it.
type suited struct {
	suits  []bool    // status and kind allow it
	liking []float64 // its affinity
	bucket []int32   // of each node: its spread value
	quoted []string  // the value of each bucket
	nodes  []int     // how many suit, by bucket
}

func newSuited(c *class) *suited {
	n := len(c.table.nodes)
	s := &suited{suits: make([]bool, n), liking: make([]float64, n), bucket: make([]int32, n)}
	values := map[string]int32{}
	for i := range c.table.nodes {
		n := &c.table.nodes[i]
		if c.refuseStatus(n) != "" || c.refuseKind(n) != "" {
			continue
		}
		s.suits[i] = true
		s.liking[i] = c.affinity(n)
		v := c.value(n)
		b, ok := values[v]
		if !ok {
			b = int32(len(values))
			values[v] = b
			s.quoted, s.nodes = append(s.quoted, strconv.Quote(v)), append(s.nodes, 0)
		}
		s.bucket[i] = b
		s.nodes[b]++
	}
	return s
}

// ranking keeps a class's nodes by score, so that the best of all of them is
// found without looking at each. Every node is in it: nothing is sampled.
type ranking struct {
	*class
	*suited
	room    []bool // it suits and has room now
	pushed  []uint32
	fitting int
	// heaps of entries by bucket. An entry whose stamp is not its node's is
	// out of date and skipped: a newer one was pushed if the node still fits.
	heaps []entries
	// seen of table.changed.
	seen int
	used uint64 // see Planner.looked
	// refused is true while nothing was placed since refusedAt, and the same nodes
	// are kept; of which plan and how many says refusedKept.
	refused     *refusals
	refusedAt   int
	refusedKept uint64
	// takes says that a node takes an instance when it is empty, once asked.
	asked, takes bool
	// hopeless is why none that takes work does, once looked for.
	looked   bool
	hopeless *refusals
}

type entry struct {
	score float64 // without the group's own terms
	pos   int32
	stamp uint32
}

// newRanking looks at every node; old is one that is used no more, or nil, and
// gives its memory.
func newRanking(c *class, s *suited, old *ranking) *ranking {
	nodes := c.table.nodes
	r := &ranking{class: c, suited: s, seen: len(c.table.changed)}
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
	var like *node // the one before it
	var worth float64
	for i := range nodes {
		n := &nodes[i]
		if !s.suits[i] || c.refuseRoom(n) != "" {
			continue
		}
		if like == nil || n.free != like.free || n.Capacity != like.Capacity {
			like, worth = n, fit(n.Capacity, n.free, c.Resources)
		}
		r.room[i] = true
		r.fitting++
		r.pushed[i] = n.stamp + 1
		h := &r.heaps[s.bucket[i]]
		*h = append(*h, entry{worth + s.liking[i], n.pos, n.stamp})
	}
	for b := range r.heaps {
		r.heaps[b].build()
	}
	return r
}

// push puts a node among those of its bucket. Entries that went out of date
// below the top are dropped when they are as many as the others.
func (r *ranking) push(e entry) {
	h := &r.heaps[r.bucket[e.pos]]
	if h.renew(e) {
		return
	}
	if len(*h) == cap(*h) && len(*h) > 64 {
		fresh := slices.DeleteFunc(*h, func(e entry) bool { return e.stamp != r.table.nodes[e.pos].stamp || !r.room[e.pos] })
		fresh.build()
		*h = slices.Grow(fresh, len(fresh)+64)
	}
	h.push(e)
}

func (r *ranking) entry(n *node) entry {
	r.pushed[n.pos] = n.stamp + 1
	return entry{r.base(n, r.liking[n.pos]), n.pos, n.stamp}
}

// catchUp takes in what was placed since the ranking was used last.
func (r *ranking) catchUp() {
	for _, pos := range r.table.changed[r.seen:] {
		n := &r.table.nodes[pos]
		if r.check(n) && r.pushed[pos] != n.stamp+1 {
			r.push(r.entry(n))
		}
	}
	r.seen = len(r.table.changed)
}

// check finds out whether a changed node has room.
func (r *ranking) check(n *node) bool {
	had, has := r.room[n.pos], r.suits[n.pos] && r.refuseRoom(n) == ""
	switch {
	case had && !has:
		r.fitting--
	case has && !had:
		r.fitting++
	}
	r.room[n.pos] = has
	return has
}

// picker chooses nodes for the instances of one group.
type picker struct {
	*ranking
	here  []int32 // the group's instances on each node
	there []int32 // and on each spread value
	// local holds the nodes that have instances of the group, with their
	// penalty; they are aside from the shared heaps.
	local []entries
	aside []entry
	used  []int32 // positions with here > 0
	// last is the node that was taken last, if it has room: it comes among the
	// local ones when another is chosen.
	last *node
}

// begin starts with counts of zero, in the memory of the group before; here must
// be all zeroes and as long as the table, it is given back so by done.
func (p *picker) begin(r *ranking, here []int32) {
	r.catchUp()
	p.ranking, p.here, p.last = r, here, nil
	p.aside, p.used = p.aside[:0], p.used[:0]
	p.there = append(p.there[:0], make([]int32, len(r.nodes))...)
	for i := range p.local {
		p.local[i] = p.local[i][:0]
	}
	for len(p.local) < len(r.nodes) {
		p.local = append(p.local, nil)
	}
}

// count notes an instance that is on a node already.
func (p *picker) count(pos int32) {
	if p.here[pos] == 0 {
		p.used = append(p.used, pos)
	}
	p.here[pos]++
	if p.suits[pos] {
		p.there[p.bucket[pos]]++
	}
}

// best is the position of the node with the greatest score of all that fit and
// are not excluded, the first by id among equals; -1 if there is none.
func (p *picker) best(exclude []string) int32 {
	if p.last != nil {
		p.pushLocal(p.last)
		p.last = nil
	}
	var skipped []entry
	pos, score := int32(-1), 0.0
	for b := range p.heaps {
		e, ok := p.bestOf(b, exclude, &skipped)
		if !ok {
			continue
		}
		s := e.score + spread(p.there[b])
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
	shared, local := p.top(&p.heaps[b], b, exclude, skipped), p.top(&p.local[b], b, exclude, skipped)
	switch {
	case shared == nil && local == nil:
		return entry{}, false
	case local == nil, shared != nil && shared.before(*local):
		return *shared, true
	}
	return *local, true
}

// top is the first entry of a heap that counts, after those that do not were
// taken out.
func (p *picker) top(h *entries, b int, exclude []string, skipped *[]entry) *entry {
	isShared := h == &p.heaps[b]
	for len(*h) > 0 {
		e := &(*h)[0]
		n := &p.table.nodes[e.pos]
		switch {
		case e.stamp != n.stamp || !p.room[e.pos]:
			h.pop()
		case len(p.table.kept) > 0 && p.table.keeps(e.pos) != nil:
			// For the rest of the group: a local entry has its shared one aside, or
			// done finds that its node has changed.
			if e := h.pop(); isShared {
				p.aside = append(p.aside, e)
			}
		case isShared && p.here[e.pos] > 0:
			p.aside = append(p.aside, h.pop())
			p.pushLocal(n)
		case len(exclude) > 0 && slices.Contains(exclude, n.ID):
			*skipped = append(*skipped, h.pop())
		default:
			return e
		}
	}
	return nil
}

// putBack returns an entry that was taken out for one instance only.
func (p *picker) putBack(e entry) {
	if p.here[e.pos] > 0 {
		p.local[p.bucket[e.pos]].push(e)
		return
	}
	p.push(e)
}

func (p *picker) pushLocal(n *node) {
	score := p.base(n, p.liking[n.pos]) + apart(p.here[n.pos])
	if h, e := &p.local[p.bucket[n.pos]], (entry{score, n.pos, n.stamp}); !h.renew(e) {
		h.push(e)
	}
}

// took notes that an instance was placed on a node, after table.take.
func (p *picker) took(n *node) {
	p.count(n.pos)
	if p.check(n) {
		p.last = n
	}
}

// done gives the nodes back to the shared heaps, and here as zeroes.
func (p *picker) done() {
	for _, e := range p.aside {
		if e.stamp == p.table.nodes[e.pos].stamp && p.room[e.pos] {
			p.push(e)
		}
	}
	p.catchUp()
	for _, pos := range p.used {
		p.here[pos] = 0
	}
}

// before says that e is the better choice.
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

// renew replaces the first entry by a newer one of its node: the node that was
// best often is it again. False if it is another's.
func (h entries) renew(e entry) bool {
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
