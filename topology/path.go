package topology

import (
	"fmt"
	"math"
	"time"

	"gonum.org/v1/gonum/graph"
	"gonum.org/v1/gonum/graph/iterator"
	"gonum.org/v1/gonum/graph/path"
	"gonum.org/v1/gonum/graph/simple"
)

// MaxPaths bounds k of Paths.
const MaxPaths = 16

// Paths are the k (1..MaxPaths, clamped) best loopless ways from one region to
// another, the best first, relays included; fewer if there are fewer. Edges
// that are unreachable or without a value are not used, and guesses only where
// there is no way without them: the most optimistic of many guesses would else
// beat every measurement. The error is ErrUnknownRegion.
func (v *View) Paths(from, to string, k int, p Percentile) ([]Path, error) {
	i, ok := v.index[from]
	if !ok {
		return nil, fmt.Errorf("path from %q: %w", from, ErrUnknownRegion)
	}
	j, ok := v.index[to]
	if !ok {
		return nil, fmt.Errorf("path to %q: %w", to, ErrUnknownRegion)
	}
	if i == j {
		return []Path{{Regions: []string{from}, Source: Measured, State: OK}}, nil
	}
	k = min(max(k, 1), MaxPaths)
	var paths []Path
	for _, trusted := range []Source{Measured, Predicted, Estimated} {
		g := newPathGraph(v, p, trusted)
		for _, nodes := range path.YenKShortestPaths(g, k, math.Inf(1), simple.Node(i), simple.Node(j)) {
			paths = append(paths, v.path(nodes, p))
		}
		if len(paths) > 0 {
			break
		}
	}
	return paths, nil
}

func (v *View) path(nodes []graph.Node, p Percentile) Path {
	result := Path{Regions: make([]string, len(nodes)), Source: Measured, State: OK}
	for x, n := range nodes {
		result.Regions[x] = v.regions[n.ID()].Name
		if x == 0 {
			continue
		}
		e := v.edge(int(nodes[x-1].ID()), int(n.ID()))
		result.RTT += e.RTT(p)
		if e.Source.lessTrusted(result.Source) {
			result.Source = e.Source
		}
		if e.State != OK && result.State != Unknown {
			result.State = e.State
		}
	}
	return result
}

// pathGraph is the view as gonum wants it. Nodes come in index order, so equal
// paths are found in the same order each time (gonum's own graphs are maps).
type pathGraph struct {
	n      int
	weight []float64 // from*n+to, in ns; +Inf = no edge
}

var (
	_ graph.Directed = pathGraph{}
	_ path.Weighted  = pathGraph{}
)

// newPathGraph holds the edges whose source is at least as trusted.
func newPathGraph(v *View, p Percentile, trusted Source) pathGraph {
	g := pathGraph{n: len(v.regions)}
	g.weight = make([]float64, g.n*g.n)
	for i := range g.n {
		for j := range g.n {
			g.weight[i*g.n+j] = math.Inf(1)
			if i == j {
				continue
			}
			if e := v.edge(i, j); e.distance(p).Known() && !e.Source.lessTrusted(trusted) {
				g.weight[i*g.n+j] = float64(max(e.RTT(p), time.Nanosecond))
			}
		}
	}
	return g
}

func (g pathGraph) at(x, y int64) float64 { return g.weight[int(x)*g.n+int(y)] }

// nodes lists the nodes for which keep holds, by index.
func (g pathGraph) nodes(keep func(id int64) bool) graph.Nodes {
	var found []graph.Node
	for id := range int64(g.n) {
		if keep(id) {
			found = append(found, simple.Node(id))
		}
	}
	if len(found) == 0 {
		return graph.Empty
	}
	return iterator.NewOrderedNodes(found)
}

func (g pathGraph) Node(id int64) graph.Node {
	if id < 0 || id >= int64(g.n) {
		return nil
	}
	return simple.Node(id)
}

func (g pathGraph) Nodes() graph.Nodes {
	return g.nodes(func(int64) bool { return true })
}

func (g pathGraph) From(x int64) graph.Nodes {
	return g.nodes(func(y int64) bool { return g.HasEdgeFromTo(x, y) })
}

func (g pathGraph) To(y int64) graph.Nodes {
	return g.nodes(func(x int64) bool { return g.HasEdgeFromTo(x, y) })
}

func (g pathGraph) HasEdgeFromTo(x, y int64) bool { return !math.IsInf(g.at(x, y), 1) }

func (g pathGraph) HasEdgeBetween(x, y int64) bool {
	return g.HasEdgeFromTo(x, y) || g.HasEdgeFromTo(y, x)
}

func (g pathGraph) Edge(x, y int64) graph.Edge {
	if !g.HasEdgeFromTo(x, y) {
		return nil
	}
	return simple.Edge{F: simple.Node(x), T: simple.Node(y)}
}

func (g pathGraph) Weight(x, y int64) (float64, bool) {
	if x == y {
		return 0, true
	}
	w := g.at(x, y)
	return w, !math.IsInf(w, 1)
}
