package topology

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// View is an immutable picture of regions and edges, safe for concurrent use.
// A lookup costs two map reads and at most one prediction.
type View struct {
	regions []Region // by name
	index   map[string]int
	edges   []Edge
	at      []int32 // from*n+to → 1 + index in edges, 0 = not measured
}

// NewView builds a view. Of regions or edges given twice the later counts;
// edges whose ends are not among the regions, edges of state Unknown and
// coordinates that are not finite are left out. It keeps no reference to its
// arguments.
func NewView(regions []Region, edges []Edge) *View {
	byName := make(map[string]Region, len(regions))
	for _, r := range regions {
		r.Labels = maps.Clone(r.Labels)
		if r.Location != nil {
			l := *r.Location
			r.Location = &l
		}
		r.Coordinate = r.Coordinate.clone()
		byName[r.Name] = r
	}
	v := &View{
		regions: make([]Region, 0, len(byName)),
		index:   make(map[string]int, len(byName)),
		at:      make([]int32, len(byName)*len(byName)),
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		v.index[name] = len(v.regions)
		v.regions = append(v.regions, byName[name])
	}
	v.edges = make([]Edge, 0, len(edges))
	for _, e := range edges {
		from, okFrom := v.index[e.From]
		to, okTo := v.index[e.To]
		if !okFrom || !okTo || e.State == Unknown || e.Source != Measured {
			continue
		}
		v.edges = append(v.edges, e)
		v.at[from*len(v.regions)+to] = int32(len(v.edges))
	}
	return v
}

// Regions lists the regions by name. The caller must not change what their
// pointers and maps refer to.
func (v *View) Regions() []Region { return slices.Clone(v.regions) }

// Region finds a region by name.
func (v *View) Region(name string) (Region, bool) {
	i, ok := v.index[name]
	if !ok {
		return Region{}, false
	}
	return v.regions[i], true
}

// Edge is the best knowledge of from → to: measured, else predicted from
// coordinates, else estimated from locations, else of source None. A region
// is at distance 0 from itself unless that was measured.
func (v *View) Edge(from, to string) Edge {
	i, okFrom := v.index[from]
	j, okTo := v.index[to]
	if !okFrom || !okTo {
		return Edge{From: from, To: to}
	}
	return v.edge(i, j)
}

func (v *View) edge(i, j int) Edge {
	if k := v.at[i*len(v.regions)+j]; k > 0 {
		return v.edges[k-1]
	}
	a, b := &v.regions[i], &v.regions[j]
	e := Edge{From: a.Name, To: b.Name}
	if i == j {
		e.State, e.Source = OK, Measured
		return e
	}
	if rtt, relErr, ok := predict(a.Coordinate, b.Coordinate); ok {
		return e.guess(Predicted, rtt, relErr)
	}
	if a.Location != nil && b.Location != nil {
		return e.guess(Estimated, EstimateRTT(*a.Location, *b.Location), EstimateError)
	}
	return e
}

// guess fills in an unmeasured edge. Coordinates and maps speak of the middle
// of the distribution only, so the higher percentiles are set to the upper
// end of the expected error: a limit at p99 is not passed by optimism.
func (e Edge) guess(source Source, rtt time.Duration, relErr float64) Edge {
	e.Source, e.Error = source, relErr
	upper := time.Duration(float64(rtt) * (1 + relErr))
	e.P50, e.P90, e.P99 = rtt, upper, upper
	return e
}

// Distance of two regions at a percentile: the worse direction. Unreachable in
// one direction is unreachable. Where only one direction was measured that
// one is the distance: a round trip has crossed both ways, and a guess about
// the other would not make it truer.
func (v *View) Distance(a, b string, p Percentile) Distance {
	i, okA := v.index[a]
	j, okB := v.index[b]
	if !okA || !okB {
		return Distance{}
	}
	return v.distance(i, j, p)
}

func (v *View) distance(i, j int, p Percentile) Distance {
	there, back := v.edge(i, j), v.edge(j, i)
	return worse(there.distance(p), back.distance(p))
}

func (e Edge) distance(p Percentile) Distance {
	return Distance{RTT: e.RTT(p), State: e.State, Source: e.Source, Age: e.Age, Error: e.Error}
}

func worse(a, b Distance) Distance {
	if (a.State == Unreachable) != (b.State == Unreachable) {
		if a.State == Unreachable {
			return a
		}
		return b
	}
	if a.Source != b.Source {
		if a.Source.lessTrusted(b.Source) {
			return b
		}
		return a
	}
	// Equal round trips: the less certain one, so that order does not matter.
	if cmp.Or(cmp.Compare(a.RTT, b.RTT), cmp.Compare(a.State, b.State),
		cmp.Compare(a.Age, b.Age), cmp.Compare(a.Error, b.Error)) < 0 {
		return b
	}
	return a
}

// DistanceToLocation estimates the round trip from a region to a point on the
// map. Source is None if the region is unknown or has no location.
func (v *View) DistanceToLocation(region string, to Location, p Percentile) Distance {
	i, ok := v.index[region]
	if !ok || v.regions[i].Location == nil {
		return Distance{}
	}
	return Edge{}.guess(Estimated, EstimateRTT(*v.regions[i].Location, to), EstimateError).distance(p)
}

// Nearest lists the other regions by distance from one, the nearest first,
// unreachable and unknown ones last, equal ones by name. limit <= 0 is all.
// It answers nil for an unknown region.
func (v *View) Nearest(region string, limit int, p Percentile) []Neighbour {
	i, ok := v.index[region]
	if !ok {
		return nil
	}
	all := make([]Neighbour, 0, len(v.regions))
	for j := range v.regions {
		if j != i {
			all = append(all, Neighbour{v.regions[j].Name, v.distance(i, j, p)})
		}
	}
	return rank(all, limit)
}

// NearestToLocation lists regions by estimated distance from a point, as
// Nearest does.
func (v *View) NearestToLocation(to Location, limit int, p Percentile) []Neighbour {
	all := make([]Neighbour, 0, len(v.regions))
	for j := range v.regions {
		name := v.regions[j].Name
		all = append(all, Neighbour{name, v.DistanceToLocation(name, to, p)})
	}
	return rank(all, limit)
}

func rank(all []Neighbour, limit int) []Neighbour {
	class := func(d Distance) int {
		switch {
		case d.Known():
			return 0
		case d.Source == None && d.State != Unreachable:
			return 1
		}
		return 2
	}
	slices.SortFunc(all, func(a, b Neighbour) int {
		return cmp.Or(
			cmp.Compare(class(a.Distance), class(b.Distance)),
			cmp.Compare(a.Distance.RTT, b.Distance.RTT),
			cmp.Compare(a.Region, b.Region))
	})
	if limit > 0 && limit < len(all) {
		all = all[:limit]
	}
	return all
}

// Matrix lists the edge of every ordered pair of distinct regions, by From,
// then To.
func (v *View) Matrix() []Edge {
	n := len(v.regions)
	all := make([]Edge, 0, n*n)
	for i := range n {
		for j := range n {
			if i != j {
				all = append(all, v.edge(i, j))
			}
		}
	}
	return all
}
