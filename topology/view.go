package topology

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"time"
)

// View is an immutable snapshot of regions and edges. It is safe for concurrent use. A
// look-up of an edge costs two map reads and at most one prediction.
type View struct {
	regions []Region // sorted by name
	index   map[string]int
	rows    []row // by the region from which the edges lead
	// now is the time of the view. stale is the age above which an OK measurement is
	// stale; 0 = no limit.
	now, stale time.Duration
	predictor  Predictor
	number     []int          // the number of each region in the predictor; -1 = unknown there
	doubts     map[int]string // the reason of a doubt, by from*n+to
}

// Predictor predicts the round trips of pairs without a measurement, from all
// measurements. It also doubts measurements that contradict others. A Predictor is
// immutable and safe for concurrent use. Package predict implements it.
type Predictor interface {
	// Number returns the number of a region; -1 if nothing can be predicted for the
	// region.
	Number(region string) int
	// RTT returns the round trip of two regions, given by their numbers, and its expected
	// relative error, ≥ 0. It returns false if nothing can be predicted.
	RTT(i, j int) (rtt time.Duration, relErr float64, ok bool)
	// Doubts lists the doubted measurements.
	Doubts() []Doubt
}

// Doubt is a measurement that is probably wrong, and the reason why.
type Doubt struct{ From, To, Why string }

// String prints for example "a → b as measured is faster than light in fibre".
func (d Doubt) String() string {
	return fmt.Sprintf("%s → %s as measured is %s", d.From, d.To, d.Why)
}

// NewView builds a view. If a region or an edge is given twice, the last one counts. Edges
// of other regions, edges of state Unknown and invalid coordinates are left out. NewView
// retains no reference to its arguments.
func NewView(regions []Region, edges []Edge) *View {
	m := NewMatrix()
	m.SetRegions(regions)
	for _, e := range edges {
		m.Set(e, 0)
	}
	return m.View(0, 0, nil)
}

// Regions returns the regions, sorted by name. The caller must not change the values
// behind their pointers and maps.
func (v *View) Regions() []Region { return slices.Clone(v.regions) }

// Names returns the names of the regions, sorted.
func (v *View) Names() []string {
	names := make([]string, len(v.regions))
	for i := range names {
		names[i] = v.regions[i].Name
	}
	return names
}

// Region returns the region with a name.
func (v *View) Region(name string) (Region, bool) {
	i, ok := v.index[name]
	if !ok {
		return Region{}, false
	}
	return v.regions[i], true
}

// Edge returns the most trusted edge from → to. In the order of trust, it is measured,
// predicted by the predictor, predicted from coordinates, estimated from locations, or of
// source None. A region has the distance 0 from itself, unless that was measured. A
// doubted measurement is returned as measured, with its doubt.
func (v *View) Edge(from, to string) Edge {
	i, okFrom := v.index[from]
	j, okTo := v.index[to]
	if !okFrom || !okTo {
		return Edge{From: from, To: to}
	}
	return v.edge(i, j)
}

// EdgeAt returns what Edge returns, for two regions that are given by their indexes in
// Names.
func (v *View) EdgeAt(i, j int) Edge { return v.edge(i, j) }

// MeasuredAt returns the median and the least round trip of an edge that was measured and
// is not unreachable; false for any other edge. It is much cheaper than EdgeAt. The regions
// are given by their indexes in Names.
func (v *View) MeasuredAt(i, j int) (p50, least time.Duration, ok bool) {
	c := v.cell(i, j)
	if c.state == Unknown || c.state == Unreachable {
		return 0, 0, false
	}
	return c.p50.Duration(), c.min.Duration(), true
}

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

// measured returns the edge as it was measured; false if it was not measured.
func (v *View) measured(i, j int) (Edge, bool) {
	c := v.cell(i, j)
	if c.state == Unknown {
		return Edge{}, false
	}
	e := c.edge(v.ageOf(i, j))
	e.From, e.To, e.State = v.regions[i].Name, v.regions[j].Name, v.stateOf(i, j)
	if len(v.doubts) > 0 {
		e.Doubt = v.doubts[i*len(v.regions)+j]
	}
	return e, true
}

// cell returns the stored measurement. Its state is Unknown if the edge was not measured.
func (v *View) cell(i, j int) cell {
	if row := &v.rows[i]; row.trips != nil {
		return row.cell(j)
	}
	return cell{}
}

// ageOf returns the time since the latest response on a measured edge.
func (v *View) ageOf(i, j int) time.Duration { return v.now - v.rows[i].times.get(j).seen }

// stateOf returns the state of a measured edge.
func (v *View) stateOf(i, j int) State {
	if v.stale > 0 && v.rows[i].isStale(j, v.now, v.stale) {
		return Stale
	}
	return v.rows[i].state(j)
}

// effective returns the edge that distances use. It is the measurement, unless the
// measurement is doubted and the prediction without it is longer. So a doubt never
// shortens a distance, because a value that seems too long may still be true.
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

// guessed returns the predicted or estimated edge, as if the edge had not been measured.
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

// guess sets the values of an edge without measurement. Only the median is predicted or
// estimated, so the higher percentiles are set to the upper end of the expected error. So
// an optimistic guess does not pass a limit at p99.
func (e Edge) guess(source Source, rtt time.Duration, relErr float64) Edge {
	e.Source, e.Error = source, relErr
	upper := time.Duration(float64(rtt) * (1 + relErr))
	e.P50, e.P90, e.P99 = rtt, upper, upper
	return e
}

// Distance returns the distance of two regions at a percentile, in the worse direction.
// Regions that are unreachable in one direction are unreachable. If only one direction was
// measured, its round trip is the distance, because a round trip uses both ways.
func (v *View) Distance(a, b string, p Percentile) Distance {
	i, okA := v.index[a]
	j, okB := v.index[b]
	if !okA || !okB {
		return Distance{}
	}
	return v.distance(i, j, p)
}

// DistanceAt returns what Distance returns, for two regions that are given by their
// indexes in Names.
func (v *View) DistanceAt(i, j int, p Percentile) Distance { return v.distance(i, j, p) }

// IndexOf returns the index of a region in Names; -1 if there is no such region.
func (v *View) IndexOf(name string) int {
	i, ok := v.index[name]
	if !ok {
		return -1
	}
	return i
}

// Len returns the number of regions.
func (v *View) Len() int { return len(v.regions) }

// NameAt returns the name of the region with an index.
func (v *View) NameAt(i int) string { return v.regions[i].Name }

// fewDoubts is the greatest number of doubts that SameTrips compares.
const fewDoubts = 64

// SameTrips reports whether LeastRTT returns the same in both views for each edge from region i. It
// may return false although that is so. Both views must be of one Matrix, with the same regions.
func (v *View) SameTrips(other *View, i int) bool {
	if len(v.rows) != len(other.rows) || len(v.doubts) != len(other.doubts) || len(v.doubts) > fewDoubts {
		return false
	}
	for at := range v.doubts {
		if _, same := other.doubts[at]; !same {
			return false
		}
	}
	a, b := &v.rows[i], &other.rows[i]
	if a.trips == nil || b.trips == nil {
		return a.trips == nil && b.trips == nil
	}
	return &a.trips[0] == &b.trips[0] // views share the row until an edge changes
}

// LeastRTT returns a lower bound of the RTT that DistanceAt returns, from one direction
// alone. It returns 0 if no bound is known. It is cheaper than DistanceAt.
func (v *View) LeastRTT(i, j int, p Percentile) time.Duration {
	r := &v.rows[i]
	if r.trips == nil || r.state(j) == Unknown || len(v.doubts) > 0 && v.doubts[i*len(v.regions)+j] != "" {
		return 0
	}
	return r.trips[j].rtt(p)
}

func (v *View) distance(i, j int, p Percentile) Distance {
	return worse(v.way(i, j, p), v.way(j, i, p))
}

// way returns the distance in one direction. It is fast for edges that are measured and
// not doubted, because most edges are.
func (v *View) way(i, j int, p Percentile) Distance {
	if c := v.cell(i, j); c.state != Unknown && (len(v.doubts) == 0 || v.doubts[i*len(v.regions)+j] == "") {
		return Distance{RTT: c.rtt(p), State: v.stateOf(i, j), Source: Measured, Age: v.ageOf(i, j), Method: c.methodName()}
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
	// If the round trips are equal, the less certain one counts, so that the result does
	// not depend on the order of the arguments.
	if cmp.Or(cmp.Compare(a.RTT, b.RTT), cmp.Compare(a.State, b.State),
		cmp.Compare(a.Age, b.Age), cmp.Compare(a.Error, b.Error)) < 0 {
		return b
	}
	return a
}

// DistanceToLocation estimates the round trip from a region to a location. The Source of
// the result is None if the region is unknown or has no location.
func (v *View) DistanceToLocation(region string, to Location, p Percentile) Distance {
	i, ok := v.index[region]
	if !ok || v.regions[i].Location == nil {
		return Distance{}
	}
	return Edge{}.guess(Estimated, EstimateRTT(*v.regions[i].Location, to), EstimateError).distance(p)
}

// Nearest returns the other regions, sorted by their distance from a region. Regions of
// unknown distance come after these, and unreachable regions last. Equal distances are
// sorted by name. With limit <= 0 all regions are returned. For an unknown region the
// result is nil.
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

// NearestToLocation returns the regions, sorted by their estimated distance from a
// location as Nearest does.
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

// Matrix returns the edge of every ordered pair of distinct regions, sorted by From and
// then by To.
func (v *View) Matrix() []Edge {
	n := len(v.regions)
	all := make([]Edge, 0, n*n)
	for e := range v.Edges() {
		all = append(all, e)
	}
	return all
}

// Edges iterates over the edges that Matrix returns. It saves memory: the edges of 1,000
// regions take 200 MB.
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
