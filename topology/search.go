package topology

import "slices"

// search is one search for paths over one level of trust.
type search struct {
	n, from, to int
	cost        []int64
	w           *compiledWeights // nil: pure latency
	buffer      []int64
}

// way is a path, given by the indexes of its regions.
type way struct {
	cost  int64
	nodes []int
}

// row returns the cost from region a to each region. The result is valid until the next
// call.
func (s *search) row(a int) []int64 {
	row := s.cost[a*s.n : (a+1)*s.n]
	if s.w == nil {
		return row
	}
	if s.buffer == nil {
		s.buffer = make([]int64, s.n)
	}
	copy(s.buffer, row)
	for b, price := range s.w.price {
		s.buffer[b] += price
	}
	for _, l := range s.w.links[a] {
		if row[l.to] < noWay {
			s.buffer[l.to] += l.extra(row[l.to])
		}
	}
	return s.buffer
}

// scan tries every way over at most two relays, in the order of the number of relays and
// of names. Only a cheaper way replaces another way, so that this order decides between
// equal costs.
func (s *search) scan(k, relays int) []way {
	type short struct {
		cost int64
		via  [2]int32
		n    int8
	}
	best := make([]short, 0, k+1)
	worst := noWay
	take := func(w short) {
		at := len(best)
		for at > 0 && best[at-1].cost > w.cost {
			at--
		}
		best = slices.Insert(best, at, w)
		best = best[:min(len(best), k)]
		if len(best) == k {
			worst = best[k-1].cost
		}
	}
	head := slices.Clone(s.row(s.from))
	if head[s.to] < worst {
		take(short{cost: head[s.to]})
	}
	if relays == 0 {
		head = nil
	}
	tail, least := s.column(s.to), noWay
	for a, cost := range head {
		if sum := cost + tail[a]; sum < worst {
			take(short{cost: sum, via: [2]int32{int32(a)}, n: 1})
		}
		least = min(least, tail[a])
	}
	for a, start := range head {
		if relays < 2 || a == s.to || start+least >= worst {
			continue
		}
		row := s.row(a)
		rest := tail[:len(row)]
		limit := worst - start
		for b, cost := range row {
			if cost+rest[b] < limit {
				take(short{cost: start + cost + rest[b], via: [2]int32{int32(a), int32(b)}, n: 2})
				limit = worst - start
			}
		}
	}
	ways := make([]way, len(best))
	for x, w := range best {
		nodes := []int{s.from}
		for _, via := range w.via[:w.n] {
			nodes = append(nodes, int(via))
		}
		ways[x] = way{w.cost, append(nodes, s.to)}
	}
	return ways
}

// column returns the cost from each region to b. The cost is noWay for both ends of the
// search, because these cannot be relays.
func (s *search) column(b int) []int64 {
	column := make([]int64, s.n)
	for a := range column {
		cost := s.cost[a*s.n+b]
		column[a] = cost + s.w.linkExtra(a, b, cost) + s.w.priceOf(b)
	}
	column[s.from], column[s.to] = noWay, noWay
	return column
}

// kBest finds ways with more relays than scan can try. It uses Yen's algorithm ("Finding
// the K Shortest Loopless Paths in a Network", Management Science 17, 1971) with Lawler's
// partition (Management Science 18, 1972), so that no way is found twice. A class is the
// set of ways that begin with a prefix and do not continue to certain regions. When the
// best way of a class is found, the other ways of the class are divided into smaller
// classes.
func (s *search) kBest(k, relays int) []way {
	var open []class
	add := func(prefix []int, banned []int) {
		if w, ok := s.bestOf(prefix, banned, relays); ok {
			c := class{way: w, prefix: len(prefix), banned: banned}
			at, _ := slices.BinarySearchFunc(open, c, class.compare)
			open = slices.Insert(open, at, c)
		}
	}
	var found []way
	add([]int{s.from}, nil)
	for len(open) > 0 && len(found) < k {
		c := open[0]
		open = open[1:]
		found = append(found, c.way)
		for i := c.prefix; i < len(c.nodes); i++ {
			banned := []int{c.nodes[i]}
			if i == c.prefix {
				banned = append(banned, c.banned...)
			}
			add(c.nodes[:i:i], banned)
		}
	}
	return found
}

type class struct {
	way          // the best way of the class
	prefix int   // the number of nodes that all ways of the class begin with
	banned []int // the nodes that must not follow the prefix
}

func (c class) compare(d class) int {
	if c.cost != d.cost {
		return int(min(max(c.cost-d.cost, -1), 1))
	}
	if len(c.nodes) != len(d.nodes) {
		return len(c.nodes) - len(d.nodes)
	}
	return slices.Compare(c.nodes, d.nodes)
}

// bestOf returns the best way of a class, by cost, then by relays, then by names. Cost and
// hops are compared as one number. So a way with a loop never wins, because it would have
// fewer hops without the loop at no higher cost.
func (s *search) bestOf(prefix, banned []int, relays int) (way, bool) {
	hops := relays + 1 - (len(prefix) - 1)
	if hops < 1 {
		return way{}, false
	}
	outside := make([]bool, s.n)
	for _, node := range prefix {
		outside[node] = true
	}
	// left[h][a] is the cost from region a to the end in at most h hops.
	left := make([][]int64, hops)
	for h := range left {
		left[h] = make([]int64, s.n)
		for a := range left[h] {
			switch {
			case a == s.to:
			case h == 0 || outside[a]:
				left[h][a] = noWay << relayBits
			default:
				left[h][a], _ = step(s.row(a), left[h-1], nil)
			}
		}
	}
	w := way{nodes: slices.Clone(prefix)}
	for x := 1; x < len(prefix); x++ {
		w.cost += s.row(prefix[x-1])[prefix[x]]
	}
	for h := hops - 1; ; h-- {
		row := s.row(w.nodes[len(w.nodes)-1])
		_, next := step(row, left[h], banned)
		if next < 0 {
			return way{}, false
		}
		w.nodes, w.cost, banned = append(w.nodes, next), w.cost+row[next], nil
		if next == s.to {
			return w, true
		}
	}
}

// step returns the best next region, and the cost to the end over that region. Of equally
// good regions it returns the first, and −1 if there is none.
func step(row, left []int64, banned []int) (int64, int) {
	best, next := noWay<<relayBits, -1
	left = left[:len(row)]
	for b, cost := range row {
		if sum := cost<<relayBits + 1 + left[b]; sum < best && !slices.Contains(banned, b) {
			best, next = sum, b
		}
	}
	return best, next
}
