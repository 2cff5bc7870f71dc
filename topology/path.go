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
	// DefaultRelays is the default of PathOptions.MaxRelays. On the Azure table one relay
	// gives nearly all of the gain, and up to two relays can be found by a fast scan of
	// arrays.
	DefaultRelays = 2
	// NoRelays is the value of PathOptions.MaxRelays that allows only the direct edge.
	NoRelays = -1
	// MaxRelays bounds PathOptions.MaxRelays.
	MaxRelays = 6
)

// PathOptions say which paths are wanted. The zero value means the best path by latency
// alone, over at most DefaultRelays relays.
type PathOptions struct {
	// K is the number of paths. It is clamped to 1..MaxPaths.
	K int
	// MaxRelays bounds the relays of a path: 1..MaxRelays, NoRelays, or 0 for
	// DefaultRelays. It is clamped to MaxRelays. With more than DefaultRelays a search
	// takes about ten times longer.
	MaxRelays int
	// Weights are the weights of load and links. The zero value means latency alone.
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

// Path is a path through regions. Regions includes both ends.
type Path struct {
	Regions []string
	// RTT is the sum of the edges' round trips at the router's percentile. Percentiles do
	// not add up exactly, so for a path with relays the sum is an upper estimate.
	RTT time.Duration
	// Upper is the round trip if each predicted or estimated edge is as long as its
	// expected error allows. It equals RTT if all edges were measured.
	Upper time.Duration
	// Cost is the cost by which the path was chosen, in parts. Cost.RTT is RTT.
	Cost Cost
	// UnknownLoad lists the regions whose load matters but is not known. They count as
	// idle.
	UnknownLoad []string
	// Source is the least trusted source along the path.
	Source Source
	// State is the worst state along the path: Unknown if an edge was not measured,
	// otherwise Stale if an edge is stale.
	State State
	// Doubts are the doubted measurements along the path. For a doubted edge the longer
	// one of measurement and prediction counts.
	Doubts []Doubt
}

// Relays returns the regions between the ends.
func (p Path) Relays() []string {
	if len(p.Regions) < 3 {
		return nil
	}
	return p.Regions[1 : len(p.Regions)-1]
}

// String prints for example "a → relay → b 42.0ms", and the doubts.
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

// noWay is the cost of an edge that cannot be used. The sum of a few such costs, shifted
// by relayBits, does not overflow. maxHop bounds the cost of one edge, so that nonsensical
// round trips of more than an hour do not overflow either.
const (
	noWay     = int64(1) << 50
	maxHop    = int64(time.Hour)
	relayBits = 3
)

// Router finds paths over one view at one percentile. It stores the round trips in arrays
// of 8·n² bytes for n regions: one array, and one more each for stale edges, predictions
// and estimates if the view has such edges. To build a router takes n² steps, so callers
// retain a router as long as its view. A Router is immutable and safe for concurrent use.
type Router struct {
	view *View
	p    Percentile
	n    int
	// levels hold the round trips in ns, at index from*n+to, for each level of trust. A
	// level includes the edges of the levels before it. A level that adds no edge is nil,
	// except the first level.
	levels [levels][]int64
}

// Levels of trust in an edge.
const (
	levelFresh = uint8(iota) // measured recently
	levelStale
	levelPredicted
	levelEstimated
	levels
)

// level returns the level of trust of the edge. It returns levels if the edge cannot be
// used.
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

// NewRouter builds a router for a view at a percentile.
func NewRouter(v *View, p Percentile) *Router {
	r := &Router{view: v, p: p, n: len(v.regions)}
	costs, trust := make([]int64, r.n*r.n), make([]uint8, r.n*r.n)
	var found [levels + 1]bool
	for k := range costs {
		i, j := k/r.n, k%r.n
		costs[k], trust[k] = noWay, levels
		switch c := v.cell(i, j); {
		case i == j:
		case c.state != Unknown && v.doubts[k] == "": // the common case in a large view, handled without making an Edge
			trust[k] = Edge{Source: Measured, State: v.stateOf(i, j)}.level()
			costs[k] = hopCost(c.rtt(p))
		default:
			e := v.effective(i, j)
			trust[k], costs[k] = e.level(), hopCost(e.RTT(p))
		}
		if trust[k] == levelStale && v.cell(j, i).state == Unreachable {
			trust[k] = levels
		}
		found[trust[k]] = true
		if trust[k] == levels {
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

// View returns the view that the router was built from.
func (r *Router) View() *View { return r.view }

// Percentile returns the percentile of the router's round trips.
func (r *Router) Percentile() Percentile { return r.p }

// roundTrips returns the usable measurements in ns, at index from*n+to. The value is noWay
// for other edges, for doubted edges with a longer prediction, and from a region to
// itself.
func (v *View) roundTrips(p Percentile) []int64 {
	n := len(v.regions)
	m := make([]int64, n*n)
	for i := range n {
		for j := range n {
			m[i*n+j] = noWay
			if c := v.cell(i, j); c.state != Unknown && i != j && c.state != Unreachable {
				m[i*n+j] = hopCost(c.rtt(p))
			}
		}
	}
	for k := range v.doubts {
		if v.effective(k/n, k%n).Source != Measured {
			m[k] = noWay
		}
	}
	return m
}

func hopCost(d time.Duration) int64 { return min(max(int64(d), 0), maxHop) }

// Paths returns the K best paths without loops from one region to another, or fewer if
// there are fewer. The paths are sorted by cost, then by the number of relays, then by
// names. Unreachable edges and edges without a value are not used. Stale edges may be
// broken, so they are used only if there is no path without them, and never if the reverse
// direction is unreachable. Predictions and estimates are used only if there is no
// measured path. Otherwise the most optimistic of many guesses would beat every
// measurement. All paths of a result may use the level of trust that the best path needs.
// A region has cost 0 from itself. Errors are ErrUnknownRegion and ErrWeights.
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

// path converts a way, given by the indexes of its regions, to a Path.
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
		e := r.view.effective(before, node)
		p.RTT += time.Duration(rtt)
		p.Cost.Links += time.Duration(w.linkExtra(before, node, rtt))
		if e.Source == Measured {
			p.Upper += time.Duration(rtt)
		} else {
			p.Upper += time.Duration(hopCost(e.P90)) // the upper end of the error, see guess
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
