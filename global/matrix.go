package global

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// rowStale is how old a row's edge may be before it is shown as stale
	// although its owner said otherwise: the owner is silent.
	rowStale = 2 * time.Minute
	// viewAge is how long a view of the topology is used: ages in it are that
	// much behind.
	viewAge = time.Second
)

// matrix holds the latency rows as regions reported them.
type matrix struct {
	rows map[string]map[string]measured // from → to
	// stamp grows with each change of rows or regions.
	stamp     uint64
	view      *topology.View
	viewStamp uint64
	viewAt    time.Duration
}

// measured is an edge and when it arrived here.
type measured struct {
	edge *nusav1.Edge
	at   time.Duration
}

func newMatrix() matrix { return matrix{rows: map[string]map[string]measured{}, stamp: 1} }

// update takes a row. mu is held.
func (m *matrix) update(from string, row *nusav1.LatencyRow, now time.Duration) {
	if row.GetFull() || m.rows[from] == nil {
		m.rows[from] = map[string]measured{}
	}
	for _, e := range row.GetEdges() {
		if e.GetTo() != from && e.GetTo() != "" {
			m.rows[from][e.GetTo()] = measured{edge: e, at: now}
		}
	}
	m.stamp++
}

func (m *matrix) forget(name string) {
	delete(m.rows, name)
	for _, row := range m.rows {
		delete(row, name)
	}
	m.stamp++
}

// column are the edges that end in a region, aged, in order of their source.
func (m *matrix) column(to string, now time.Duration) []*nusav1.Edge {
	var out []*nusav1.Edge
	for _, from := range slices.Sorted(maps.Keys(m.rows)) {
		if e, ok := m.rows[from][to]; ok {
			out = append(out, edgeToProto(e.aged(from, now)))
		}
	}
	return out
}

func (e measured) aged(from string, now time.Duration) topology.Edge {
	p := e.edge
	out := topology.Edge{
		From: from, To: p.GetTo(), State: topology.State(p.GetState()), Source: topology.Measured,
		P50: p.GetP50().AsDuration(), P90: p.GetP90().AsDuration(), P99: p.GetP99().AsDuration(),
		Min: p.GetMin().AsDuration(), Jitter: p.GetJitter().AsDuration(), Loss: p.GetLoss(),
		Samples: int(p.GetSamples()), Age: p.GetAge().AsDuration() + now - e.at, Method: p.GetMethod(),
		LossOut: p.GetLossOut(), LossBack: p.GetLossBack(), SetAside: int(p.GetSetAside()), Heard: p.GetHeard(),
	}
	if out.State == topology.OK && out.Age > rowStale {
		out.State = topology.Stale
	}
	return out
}

// topologyView is the present view, at most viewAge old. mu is held.
func (st *state) topologyView() *topology.View {
	m, now := &st.matrix, st.clock()
	if m.view != nil && m.viewStamp == m.stamp && now-m.viewAt < viewAge {
		return m.view
	}
	regions := make([]topology.Region, 0, len(st.regions))
	for _, name := range st.regionNames() {
		r := st.regions[name]
		regions = append(regions, topology.Region{
			Name: name, Location: locationFromProto(r.rec.GetDefinition().GetLocation()),
			Labels: r.rec.GetDefinition().GetLabels(), Coordinate: coordinateFromProto(r.coordinate),
		})
	}
	var edges []topology.Edge
	for from, row := range m.rows {
		for _, e := range row {
			edges = append(edges, e.aged(from, now))
		}
	}
	m.view, m.viewStamp, m.viewAt = topology.NewView(regions, edges), m.stamp, now
	return m.view
}

func locationFromProto(l *nusav1.Location) *topology.Location {
	if l == nil {
		return nil
	}
	return &topology.Location{Latitude: l.GetLatitude(), Longitude: l.GetLongitude(), Name: l.GetName()}
}

func coordinateFromProto(c *nusav1.Coordinate) *topology.Coordinate {
	if c == nil {
		return nil
	}
	return &topology.Coordinate{Vector: c.GetVector(), Error: c.GetError(), Adjustment: c.GetAdjustment(), Height: c.GetHeight()}
}

func edgeToProto(e topology.Edge) *nusav1.Edge {
	out := &nusav1.Edge{
		From: e.From, To: e.To, State: nusav1.EdgeState(e.State), Source: nusav1.RTTSource(e.Source),
		Loss: e.Loss, Samples: int32(e.Samples), Method: e.Method, Error: e.Error,
		LossOut: e.LossOut, LossBack: e.LossBack, SetAside: int32(e.SetAside), Heard: e.Heard,
	}
	if e.Source == topology.None {
		return out
	}
	out.P50, out.P90, out.P99 = durationpb.New(e.P50), durationpb.New(e.P90), durationpb.New(e.P99)
	if e.Source == topology.Measured {
		out.Min, out.Jitter, out.Age = durationpb.New(e.Min), durationpb.New(e.Jitter), durationpb.New(e.Age)
	}
	return out
}
