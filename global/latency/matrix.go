package latency

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// rowStale is the age from which an edge is shown as stale, because its owner has sent nothing
	// since, although the owner reported another state.
	rowStale = 2 * time.Minute
	// confirmWithin is the greatest age of edges that one message confirms together.
	confirmWithin = time.Minute
	// MaxViewAge is how long a view of the topology is used. Ages in the view lag by at most this
	// time. With up to maxFreshRegions regions, a new view is made whenever a row changes. With
	// more regions that would cost too much, because routers and the changes for watches are
	// derived from each view.
	MaxViewAge      = time.Second
	maxFreshRegions = 128
)

// Matrix holds the latency rows that the regions reported. It is not safe for concurrent use: its
// owner's lock guards it.
type Matrix struct {
	regions func() []topology.Region
	rows    *topology.Matrix
	// stale: the set of regions has changed since the last update of rows.
	stale     bool
	count     int // number of regions in rows
	stamp     uint64
	cache     *Cache
	predictor topology.Predictor
}

// Cache is a view and the routers that are derived from it.
type Cache struct {
	View    *topology.View
	Routers *topology.RouterCache
	At      time.Duration
	stamp   uint64
}

// New returns an empty matrix. regions returns the present regions.
func New(regions func() []topology.Region) *Matrix {
	return &Matrix{regions: regions, rows: topology.NewMatrix(), stale: true, stamp: 1}
}

// Stamp returns a number that grows with each change of rows or regions.
func (m *Matrix) Stamp() uint64 { return m.stamp }

// RegionsChanged must be called when the set of regions, or a fact about a region, has changed.
func (m *Matrix) RegionsChanged() {
	m.stale = true
	m.stamp++
}

// DropRemovedRegions drops the rows of regions that no longer exist.
func (m *Matrix) DropRemovedRegions() { m.current() }

// current returns the rows for the present set of regions.
func (m *Matrix) current() *topology.Matrix {
	if m.stale {
		m.stale = false
		regions := m.regions()
		m.count = len(regions)
		m.rows.SetRegions(regions)
	}
	return m.rows
}

// SetEdges stores edges that a region reported at now. full: the edges are the region's whole row.
func (m *Matrix) SetEdges(from string, edges []topology.Edge, full bool, now time.Duration) {
	rows := m.current()
	if full {
		rows.Replace(from, edges, now)
	} else {
		for _, e := range edges {
			rows.Set(e, now)
		}
	}
	if full || len(edges) > 0 {
		m.stamp++
	}
}

// SetCoordinate stores the coordinate that a region reported.
func (m *Matrix) SetCoordinate(region string, c *nusav1.Coordinate) {
	m.current().SetCoordinate(region, topo.CoordinateFromProto(c))
	m.stamp++
}

// Confirm notes that a region's edges in state OK were measured again, at most age ago. Edges to
// the regions in except are not confirmed.
func (m *Matrix) Confirm(from string, except []string, age, now time.Duration) {
	if m.current().Confirm(from, except, age, now, rowStale) {
		m.stamp++
	}
}

// Confirmed summarises the unchanged edges to a region, for a message to that region. age is the
// greatest age of the edges that are not stale. except names the regions whose edges may be older.
func (m *Matrix) Confirmed(to string, now time.Duration) (age time.Duration, except []string, any bool) {
	return m.current().Confirmed(to, confirmWithin, now)
}

// SetSince reports whether an edge to a region was set after since.
func (m *Matrix) SetSince(to string, since time.Duration) bool {
	return m.current().SetSince(to, since)
}

// SetRow stores the row that a region reported at now.
func (m *Matrix) SetRow(from string, row *nusav1.LatencyRow, now time.Duration) {
	rows := m.current()
	if row.GetFull() {
		rows.Clear(from)
	}
	for _, e := range row.GetEdges() {
		if e.GetTo() == from {
			continue
		}
		edge := topo.EdgeFromProto(e)
		edge.From, edge.Source = from, topology.Measured
		rows.Set(edge, now)
	}
	if c := row.GetCoordinate(); c != nil {
		rows.SetCoordinate(from, topo.CoordinateFromProto(c))
	}
	m.stamp++
}

// Cache returns the present view with its routers. The view is at most MaxViewAge old.
func (m *Matrix) Cache(now time.Duration) *Cache {
	if c := m.cache; c != nil && !m.stale && now-c.At < MaxViewAge && (c.stamp == m.stamp || m.count > maxFreshRegions) {
		return c
	}
	view := m.current().View(now, rowStale, m.predictor)
	m.cache = &Cache{View: view, Routers: topology.NewRouterCache(view), stamp: m.stamp, At: now}
	return m.cache
}

// Present returns a view that is valid only as long as the lock is held. Other than the view of
// Cache it makes no later change copy a row, so it suits a look at few edges.
func (m *Matrix) Present(now time.Duration) *topology.View {
	return m.current().Present(now, rowStale, m.predictor)
}

// DropOldView drops the view if a request for the present view would make a new one anyway. An old
// view keeps the rows that have changed since, so it may take as much memory as the matrix.
func (m *Matrix) DropOldView(now time.Duration) {
	if m.cache != nil && now-m.cache.At >= MaxViewAge {
		m.cache = nil
	}
}

// SetPredictor sets the predictor for pairs that were not measured.
func (m *Matrix) SetPredictor(p topology.Predictor) {
	m.predictor, m.cache = p, nil
	m.stamp++
}

// AppendColumn appends the edges to a region that are newer than since.
func (m *Matrix) AppendColumn(out []topology.Edge, to string, since, now time.Duration) []topology.Edge {
	return m.current().AppendColumn(out, to, since, now, rowStale)
}

// Column returns the edges to a region that are newer than since, or nil if there are none.
func (m *Matrix) Column(to string, since, now time.Duration) *nusav1.LatencyColumn {
	out := &nusav1.LatencyColumn{}
	for _, e := range m.AppendColumn(nil, to, since, now) {
		out.Edges = append(out.Edges, topo.EdgeToProto(e))
	}
	if len(out.GetEdges()) == 0 {
		return nil
	}
	return out
}
