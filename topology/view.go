package topology

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"time"
)

// View is an immutable snapshot of regions and edges, safe for concurrent use.
// A lookup costs two map reads and at most one prediction.
type View struct {
	regions []Region // by name
	index   map[string]int
	rows    [][]cell // from → to; nil = nothing measured from there
	// now is the time of the view. stale is the age beyond which a measurement
	// is stale, whatever its state was; 0 = never.
	now, stale time.Duration
	predictor  Predictor
	number     []int          // number of each region in the predictor; -1 = unknown there
	doubts     map[int]string // from*n+to → why
}

// Predictor predicts the round trips of pairs without measurement from all
// measurements, and doubts measurements that contradict the others. It is
// immutable and safe for concurrent use. Package predict implements it.
type Predictor interface {
	// Number returns the number of a region; -1 if nothing can be predicted for
	// it.
	Number(region string) int
	// RTT returns the round trip of two regions by number, and its expected
	// relative error, ≥ 0; false if nothing can be predicted.
	RTT(i, j int) (rtt time.Duration, relErr float64, ok bool)
	// Doubts lists the doubted measurements.
	Doubts() []Doubt
}

// Doubt is a measurement that is probably wrong, and why.
type Doubt struct{ From, To, Why string }

// String prints "a → b as measured is faster than light in fibre".
func (d Doubt) String() string {
	return fmt.Sprintf("%s → %s as measured is %s", d.From, d.To, d.Why)
}

// NewView builds a view. If a region or an edge is given twice, the last one counts.
// Edges whose ends are not among the regions, edges of state Unknown and invalid
// coordinates are left out. NewView keeps no reference to its arguments.
func NewView(regions []Region, edges []Edge) *View {
	m := NewMatrix()
	m.SetRegions(regions)
	for _, e := range edges {
		m.Set(e, 0)
	}
	return m.View(0, 0, nil)
}

// Regions returns the regions by name. The caller must not change the values behind
// their pointers and maps.
func (v *View) Regions() []Region { return slices.Clone(v.regions) }

// Names returns the regions' names in order.
func (v *View) Names() []string {
	names := make([]string, len(v.regions))
	for i := range names {
		names[i] = v.regions[i].Name
	}
	return names
}

// Region finds a region by name.
func (v *View) Region(name string) (Region, bool) {
	i, ok := v.index[name]
	if !ok {
		return Region{}, false
	}
	return v.regions[i], true
}

// Edge returns the most trusted edge from → to: measured, otherwise predicted by the
// predictor, otherwise predicted from coordinates, otherwise estimated from locations,
// otherwise of source None. A region has the distance 0 from itself unless it was
// measured. A doubted measurement is returned as measured, with its doubt.
func (v *View) Edge(from, to string) Edge {
	i, okFrom := v.index[from]
	j, okTo := v.index[to]
	if !okFrom || !okTo {
		return Edge{From: from, To: to}
	}
	return v.edge(i, j)
}

// EdgeAt is Edge by the regions' indices in the order of names.
func (v *View) EdgeAt(i, j int) Edge { return v.edge(i, j) }

func (v *View) edge(i, j int) Edge {
	if e, ok := v.measured(i, j); ok {
		return e
	}
	if i == j {
		name := v.regions[i].Name
		return Edge{From: name, To: name, State: OK, Source: Measured}
	}
	return v.guessed(i, j)
}

// measured returns the edge as measured; false if it was not measured.
func (v *View) measured(i, j int) (Edge, bool) {
	c := v.cell(i, j)
	if c == nil {
		return Edge{}, false
	}
	e := c.edge(v.now)
	e.From, e.To, e.State = v.regions[i].Name, v.regions[j].Name, v.stateOf(c)
	if len(v.doubts) > 0 {
		e.Doubt = v.doubts[i*len(v.regions)+j]
	}
	return e, true
}

// cell returns the stored measurement; nil if the edge was not measured.
func (v *View) cell(i, j int) *cell {
	if row := v.rows[i]; row != nil && row[j].state != Unknown {
		return &row[j]
	}
	return nil
}

func (v *View) stateOf(c *cell) State {
	if c.state == OK && v.stale > 0 && v.now-c.seen > v.stale {
		return Stale
	}
	return c.state
}

// effective returns the edge that distances use: the measurement, unless it is
// doubted and the prediction made without it is longer. So a doubt never
// shortens a distance: a value that seems too long may still be true.
func (v *View) effective(i, j int) Edge {
	e := v.edge(i, j)
	if e.Doubt == "" || e.State == Unreachable {
		return e
	}
	if g := v.guessed(i, j); g.Source != None && g.P50 > e.P50 {
		g.Doubt = e.Doubt
		return g
	}
	return e
}

// guessed returns the edge as if it had not been measured.
func (v *View) guessed(i, j int) Edge {
	a, b := &v.regions[i], &v.regions[j]
	e := Edge{From: a.Name, To: b.Name}
	if v.predictor != nil && v.number[i] >= 0 && v.number[j] >= 0 {
		if rtt, relErr, ok := v.predictor.RTT(v.number[i], v.number[j]); ok {
			return e.guess(Predicted, rtt, relErr)
		}
	}
	if rtt, relErr, ok := predict(a.Coordinate, b.Coordinate); ok {
		return e.guess(Predicted, rtt, relErr)
	}
	if a.Location != nil && b.Location != nil {
		return e.guess(Estimated, EstimateRTT(*a.Location, *b.Location), EstimateError)
	}
	return e
}

// guess fills in an edge without measurement. Coordinates and locations predict
// only the median, so the higher percentiles are set to the upper end of the
// expected error: an optimistic guess does not pass a limit at p99.
func (e Edge) guess(source Source, rtt time.Duration, relErr float64) Edge {
	e.Source, e.Error = source, relErr
	upper := time.Duration(float64(rtt) * (1 + relErr))
	e.P50, e.P90, e.P99 = rtt, upper, upper
	return e
}

// Distance returns the distance of two regions at a percentile: that of the worse
// direction. Regions that are unreachable in one direction are unreachable. If only one
// direction was measured, its round trip is the distance, since a round trip uses both
// ways.
func (v *View) Distance(a, b string, p Percentile) Distance {
	i, okA := v.index[a]
	j, okB := v.index[b]
	if !okA || !okB {
		return Distance{}
	}
	return v.distance(i, j, p)
}

// DistanceAt is Distance by the regions' indices in the order of names.
func (v *View) DistanceAt(i, j int, p Percentile) Distance { return v.distance(i, j, p) }

// IndexOf returns the index of a region in the order of names; -1 if there is none.
func (v *View) IndexOf(name string) int {
	i, ok := v.index[name]
	if !ok {
		return -1
	}
	return i
}

// Len is the number of regions.
func (v *View) Len() int { return len(v.regions) }

// NameAt returns the name of a region by its index.
func (v *View) NameAt(i int) string { return v.regions[i].Name }

// LeastRTT returns a round trip that DistanceAt does not fall below, from one direction alone; 0
// if that is not known.
func (v *View) LeastRTT(i, j int, p Percentile) time.Duration {
	c := v.cell(i, j)
	if c == nil || len(v.doubts) > 0 && v.doubts[i*len(v.regions)+j] != "" {
		return 0
	}
	return c.rtt(p)
}

func (v *View) distance(i, j int, p Percentile) Distance {
	return worse(v.way(i, j, p), v.way(j, i, p))
}

// way returns the distance in one direction. Most edges are measured and not doubted.
func (v *View) way(i, j int, p Percentile) Distance {
	if c := v.cell(i, j); c != nil && (len(v.doubts) == 0 || v.doubts[i*len(v.regions)+j] == "") {
		return Distance{RTT: c.rtt(p), State: v.stateOf(c), Source: Measured, Age: v.now - c.seen, Method: methods[c.method]}
	}
	return v.effective(i, j).distance(p)
}

func (e Edge) distance(p Percentile) Distance {
	return Distance{RTT: e.RTT(p), State: e.State, Source: e.Source, Age: e.Age, Error: e.Error, Method: e.Method}
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
	// Of equal round trips the less certain one counts, so that the result does not depend
	// on the order.
	if cmp.Or(cmp.Compare(a.RTT, b.RTT), cmp.Compare(a.State, b.State),
		cmp.Compare(a.Age, b.Age), cmp.Compare(a.Error, b.Error)) < 0 {
		return b
	}
	return a
}

// DistanceToLocation estimates the round trip from a region to a point. Source
// is None if the region is unknown or has no location.
func (v *View) DistanceToLocation(region string, to Location, p Percentile) Distance {
	i, ok := v.index[region]
	if !ok || v.regions[i].Location == nil {
		return Distance{}
	}
	return Edge{}.guess(Estimated, EstimateRTT(*v.regions[i].Location, to), EstimateError).distance(p)
}

// Nearest returns the other regions by distance from one: the nearest first,
// unreachable and unknown ones last, equal ones by name. limit <= 0 is all. It
// returns nil for an unknown region.
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

// NearestToLocation returns regions by estimated distance from a point, sorted
// as Nearest does.
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

// Matrix returns the edge of every ordered pair of distinct regions, by From,
// then To.
func (v *View) Matrix() []Edge {
	n := len(v.regions)
	all := make([]Edge, 0, n*n)
	for e := range v.Edges() {
		all = append(all, e)
	}
	return all
}

// Edges iterates over the edges of Matrix. All edges of 1,000 regions are 200
// MB.
func (v *View) Edges() iter.Seq[Edge] {
	return func(yield func(Edge) bool) {
		for i := range v.regions {
			for j := range v.regions {
				if i != j && !yield(v.edge(i, j)) {
					return
				}
			}
		}
	}
}
