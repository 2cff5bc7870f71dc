package topology

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// MaxPaths bounds PathOptions.K.
	MaxPaths = 16
	// DefaultRelays is how many relays a path may have unless asked otherwise:
	// on the Azure table one relay finds nearly all that is to be gained, and
	// up to two are an array scan.
	DefaultRelays = 2
	// NoRelays as PathOptions.MaxRelays asks for the direct way only.
	NoRelays = -1
	// MaxRelays bounds PathOptions.MaxRelays.
	MaxRelays = 6
)

// PathOptions say which paths are wanted. The zero value asks for the best one
// by pure latency over at most DefaultRelays relays.
type PathOptions struct {
	// K is how many paths, 1..MaxPaths; clamped.
	K int
	// MaxRelays is how many relays a path may have: 1..MaxRelays, NoRelays, or
	// 0 for DefaultRelays; clamped. Beyond DefaultRelays a search costs some
	// ten times more.
	MaxRelays int
	// Weights of load and links; the zero value is pure latency.
	Weights Weights
}

func (o PathOptions) k() int { return min(max(o.K, 1), MaxPaths) }

func (o PathOptions) relays() int {
	switch {
	case o.MaxRelays < 0:
		return 0
	case o.MaxRelays == 0:
		return DefaultRelays
	}
	return min(o.MaxRelays, MaxRelays)
}

// Path is a way through regions, both ends included.
type Path struct {
	Regions []string
	// RTT is the sum over the edges at the router's percentile. Percentiles do
	// not add up exactly: for relays read it as an upper estimate.
	RTT time.Duration
	// Upper is RTT with each guess at the upper end of its expected error; RTT
	// itself where everything was measured.
	Upper time.Duration
	// Cost by which the path was chosen, part by part. Its RTT is the path's.
	Cost Cost
	// UnknownLoad lists the regions whose load was asked for by the weights and is
	// not known: they count as idle.
	UnknownLoad []string
	// Source is the least trustworthy one along the way.
	Source Source
	// State is the worst one of the edges along the way: unknown if one is a
	// guess, stale if one is.
	State State
	// Doubts are the measurements along the way that are not believed, each with
	// why. The path counts with the longer one of what was measured and what is
	// expected instead.
	Doubts []Doubt
}

// Relays are the regions between the ends.
func (p Path) Relays() []string {
	if len(p.Regions) < 3 {
		return nil
	}
	return p.Regions[1 : len(p.Regions)-1]
}

// String prints "a → relay → b 42.0ms", with what should make one doubt it.
func (p Path) String() string {
	s := fmt.Sprintf("%s %.1fms", strings.Join(p.Regions, " → "), ms(p.RTT))
	switch {
	case p.Source != Measured:
		s += fmt.Sprintf(" (%s, up to %.1fms)", p.Source, ms(p.Upper))
	case p.State == Stale:
		s += " (stale)"
	}
	for _, d := range p.Doubts {
		s += ", " + d.String()
	}
	if p.Cost.Total() != p.RTT {
		s += ", " + p.Cost.String()
	}
	return s
}

// noWay is the cost of what cannot be gone; sums of a few of them, shifted by
// relayBits, do not overflow. maxHop bounds the cost of one edge: round trips
// beyond an hour are nonsense that must not overflow either.
const (
	noWay     = int64(1) << 50
	maxHop    = int64(time.Hour)
	relayBits = 3
)

// Router finds paths over one view at one percentile. It keeps the round trips
// as dense arrays: for n regions 8·n² bytes, and as much again where the view
// holds stale ones, and for each kind of guess. Building one costs n² steps, so
// callers keep it as long as its view. It is immutable and safe for concurrent
// use.
type Router struct {
	view *View
	p    Percentile
	n    int
	// levels of trust hold the round trips in ns, from*n+to, each with those
	// before it. One that adds nothing is nil, but for the first.
	levels [levels][]int64
}

// Levels of trust in an edge.
const (
	levelFresh = uint8(iota) // measured lately
	levelStale
	levelPredicted
	levelEstimated
	levels
)

// level of what is believed of an edge; levels if it is no way to go now.
func (e Edge) level() uint8 {
	switch {
	case e.Source == Measured && e.State == OK:
		return levelFresh
	case e.Source == Measured && e.State == Stale:
		return levelStale
	case e.Source == Predicted:
		return levelPredicted
	case e.Source == Estimated:
		return levelEstimated
	}
	return levels
}

// NewRouter builds a router. Percentile as for View.Distance.
func NewRouter(v *View, p Percentile) *Router {
	r := &Router{view: v, p: p, n: len(v.regions)}
	costs, trust := make([]int64, r.n*r.n), make([]uint8, r.n*r.n)
	var found [levels + 1]bool
	for k := range costs {
		i, j := k/r.n, k%r.n
		costs[k], trust[k] = noWay, levels
		switch c := v.cell(i, j); {
		case i == j:
		case c != nil && v.doubts[k] == "": // most of a large view, without an Edge
			trust[k] = Edge{Source: Measured, State: v.stateOf(c)}.level()
			costs[k] = hopCost(c.rtt(p))
		default:
			e := v.believed(i, j)
			trust[k], costs[k] = e.level(), hopCost(e.RTT(p))
		}
		if back := v.cell(j, i); trust[k] == levelStale && back != nil && back.state == Unreachable {
			trust[k] = levels
		}
		if found[trust[k]] = true; trust[k] == levels {
			costs[k] = noWay
		}
	}
	last := uint8(levels - 1)
	for last > levelFresh && !found[last] {
		last--
	}
	r.levels[last] = costs
	for l := range last {
		if l != levelFresh && !found[l] {
			continue
		}
		r.levels[l] = slices.Clone(costs)
		for k := range costs {
			if trust[k] > l {
				r.levels[l][k] = noWay
			}
		}
	}
	return r
}

// View is what the router was built from.
func (r *Router) View() *View { return r.view }

// Percentile is that of the router's round trips.
func (r *Router) Percentile() Percentile { return r.p }

// roundTrips are the measured ones that can be gone, in ns; noWay elsewhere,
// where a longer guess is believed instead, and from a region to itself.
func (v *View) roundTrips(p Percentile) []int64 {
	n := len(v.regions)
	m := make([]int64, n*n)
	for i := range n {
		for j := range n {
			m[i*n+j] = noWay
			if c := v.cell(i, j); c != nil && i != j && c.state != Unreachable {
				m[i*n+j] = hopCost(c.rtt(p))
			}
		}
	}
	for k := range v.doubts {
		if v.believed(k/n, k%n).Source != Measured {
			m[k] = noWay
		}
	}
	return m
}

func hopCost(d time.Duration) int64 { return min(max(int64(d), 0), maxHop) }

// Paths are the K best loopless ways from one region to another, the cheapest
// first, then the one with fewer relays, then by names; fewer if there are
// fewer. Edges that are unreachable or without a value are not used; stale ones
// only where there is no way without them, since nobody knows whether they can
// still be gone, and not if the opposite direction cannot; and then guesses: the most optimistic of many would else beat
// every measurement. The paths of one answer may use what its best one has to. A
// region is at no cost from itself. Errors are ErrUnknownRegion and ErrWeights.
func (r *Router) Paths(from, to string, o PathOptions) ([]Path, error) {
	i, ok := r.view.index[from]
	if !ok {
		return nil, fmt.Errorf("path from %q: %w", from, ErrUnknownRegion)
	}
	j, ok := r.view.index[to]
	if !ok {
		return nil, fmt.Errorf("path to %q: %w", to, ErrUnknownRegion)
	}
	w, err := o.Weights.compile(r.view)
	if err != nil {
		return nil, fmt.Errorf("path from %q to %q: %w", from, to, err)
	}
	if i == j {
		return []Path{r.path([]int{i}, nil, w)}, nil
	}
	for _, level := range r.levels {
		if level == nil {
			continue
		}
		s := search{n: r.n, from: i, to: j, cost: level, w: w}
		var ways []way
		if relays := o.relays(); relays <= 2 {
			ways = s.scan(o.k(), relays)
		} else {
			ways = s.kBest(o.k(), relays)
		}
		if len(ways) == 0 {
			continue
		}
		paths := make([]Path, len(ways))
		for x, way := range ways {
			paths[x] = r.path(way.nodes, level, w)
		}
		return paths, nil
	}
	return nil, nil
}

// path describes a way by the names of its regions.
func (r *Router) path(nodes []int, level []int64, w *compiledWeights) Path {
	p := Path{Regions: make([]string, len(nodes)), Source: Measured, State: OK}
	for x, node := range nodes {
		name := r.view.regions[node].Name
		p.Regions[x] = name
		if x == 0 {
			continue
		}
		before := nodes[x-1]
		rtt := level[before*r.n+node]
		e := r.view.believed(before, node)
		p.RTT += time.Duration(rtt)
		p.Cost.Links += time.Duration(w.linkExtra(before, node, rtt))
		if e.Source == Measured {
			p.Upper += time.Duration(rtt)
		} else {
			p.Upper += time.Duration(hopCost(e.P90)) // see guess
		}
		if e.Source.lessTrusted(p.Source) {
			p.Source = e.Source
		}
		if e.State != OK && p.State != Unknown {
			p.State = e.State
		}
		if e.Doubt != "" {
			p.Doubts = append(p.Doubts, Doubt{e.From, e.To, e.Doubt})
		}
		if w == nil || w.price == nil {
			continue
		}
		p.Cost.CPU += time.Duration(w.cpu[node])
		p.Cost.Queue += time.Duration(w.price[node] - w.cpu[node])
		if !w.known[node] {
			p.UnknownLoad = append(p.UnknownLoad, name)
		}
	}
	p.Cost.RTT = p.RTT
	return p
}

// search is one question for paths over one level of trust.
type search struct {
	n, from, to int
	cost        []int64
	w           *compiledWeights // nil: none
	buffer      []int64
}

// way is a path by indices of regions.
type way struct {
	cost  int64
	nodes []int
}

// row is what each region costs from a; valid until the next call.
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

// scan tries every way over at most two relays. Ways come in the order of
// relays and names, and only a cheaper one displaces another, so ties are
// settled by that order.
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

// column is what b costs from each region; noWay from both ends of the search,
// which are no relays.
func (s *search) column(b int) []int64 {
	column := make([]int64, s.n)
	for a := range column {
		cost := s.cost[a*s.n+b]
		column[a] = cost + s.w.linkExtra(a, b, cost) + s.w.priceOf(b)
	}
	column[s.from], column[s.to] = noWay, noWay
	return column
}

// kBest is for more relays than a scan can try: Yen's algorithm ("Finding the
// K Shortest Loopless Paths in a Network", Management Science 17, 1971) with
// Lawler's partition (Management Science 18, 1972), so that no way is found
// twice. A class is all ways that begin with a prefix and do not go on to
// certain regions; taking its best way splits the rest into smaller classes.
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
	way          // its best
	prefix int   // so many nodes of it are common
	banned []int // what may not follow them
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

// bestOf is the best way of a class: by cost, then relays, then names. It
// counts cost and hops in one number, so a loop is never worth while: without
// it the way would have fewer hops at no more cost.
func (s *search) bestOf(prefix, banned []int, relays int) (way, bool) {
	hops := relays + 1 - (len(prefix) - 1)
	if hops < 1 {
		return way{}, false
	}
	outside := make([]bool, s.n)
	for _, node := range prefix {
		outside[node] = true
	}
	// left[h][a]: from a to the end in at most h hops.
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

// step is the best next region, the first one of equals, and what going on
// there costs; -1 if there is none.
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
