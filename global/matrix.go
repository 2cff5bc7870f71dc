package global

import (
	"cmp"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// rowStale is how old a row's edge may be before it is shown as stale
	// although its owner said otherwise: the owner is silent.
	rowStale = 2 * time.Minute
	// viewAge is how long a view of the topology is used: ages in it are that
	// much behind. Of up to fewRegions it is taken anew whenever a row changes; of
	// more, what is made of it (routers, what watchers are told) costs too much.
	viewAge    = time.Second
	fewRegions = 128
	// compactEvery is how often a region gets the whole matrix in short, and
	// compactAge how old that may be when it is sent.
	compactEvery = 5 * time.Minute
	compactAge   = time.Minute
	// compactAfter report intervals of a session it gets the first: by then those
	// who came with it have sent their rows.
	compactAfter = 3
	// compactLeast may be sent in one tick, so that the few regions of a small
	// federation need not wait; of many, as many as come round in compactEvery:
	// each is 2 MB for 1,000 regions.
	compactLeast = 4
)

// matrix holds the latency rows as regions reported them. It belongs to the
// state, and its fields are guarded by the state's lock.
type matrix struct {
	rows *topology.Matrix
	// stale: the regions have changed since rows was told of them.
	stale bool
	// stamp grows with each change of rows or regions.
	stamp     uint64
	picture   *picture
	predictor topology.Predictor
}

// picture is a view and what is derived from it, for as long as it is used.
type picture struct {
	view    *topology.View
	routers *topology.RouterCache
	stamp   uint64
	at      time.Duration
}

func newMatrix() matrix { return matrix{rows: topology.NewMatrix(), stale: true, stamp: 1} }

// latencyRow takes a region's row. mu is held.
func (st *State) latencyRow(from string, row *nusav1.LatencyRow) {
	m, now := st.latencyRows(), st.Clock()
	if row.GetFull() {
		m.Clear(from)
	}
	for _, e := range row.GetEdges() {
		if e.GetTo() == from {
			continue
		}
		edge := topo.EdgeFromProto(e)
		edge.From, edge.Source = from, topology.Measured
		m.Set(edge, now)
	}
	if c := row.GetCoordinate(); c != nil {
		st.Regions[from].Coordinate = c
		m.SetCoordinate(from, topo.CoordinateFromProto(c))
	}
	st.matrix.stamp++
}

// latencyRows are the rows, of the present regions. mu is held.
func (st *State) latencyRows() *topology.Matrix {
	if st.matrix.stale {
		st.matrix.stale = false
		regions := make([]topology.Region, 0, len(st.Regions))
		for name, r := range st.Regions {
			regions = append(regions, topology.Region{
				Name: name, Location: topo.LocationFromProto(r.Record.GetDefinition().GetLocation()),
				Labels: r.Record.GetDefinition().GetLabels(), Coordinate: topo.CoordinateFromProto(r.Coordinate),
			})
		}
		st.matrix.rows.SetRegions(regions)
	}
	return st.matrix.rows
}

// topologyView is the present view, at most viewAge old. mu is held.
func (st *State) topologyView() *topology.View { return st.topologyPicture().view }

// topologyPicture is the present view with its routers. mu is held.
func (st *State) topologyPicture() *picture {
	m, now := &st.matrix, st.Clock()
	if p := m.picture; p != nil && !m.stale && now-p.at < viewAge && (p.stamp == m.stamp || len(st.Regions) > fewRegions) {
		return p
	}
	view := st.latencyRows().View(now, rowStale, m.predictor)
	m.picture = &picture{view: view, routers: topology.NewRouterCache(view), stamp: m.stamp, at: now}
	return m.picture
}

// predict takes what is to be said of pairs that nobody measured.
func (st *State) predict(p topology.Predictor) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.matrix.predictor, st.matrix.picture = p, nil
	st.matrix.stamp++
	st.Notify()
}

// columnMessage are the edges to the session's region that are new since the
// latest column, all for the first; nil if there are none. mu is held.
func (s *session) columnMessage() *nusav1.GlobalMessage {
	st := s.a.st
	now := st.Clock()
	out := &nusav1.LatencyColumn{}
	for _, e := range st.latencyRows().Column(s.region, s.columnAt, now, rowStale) {
		out.Edges = append(out.Edges, topo.EdgeToProto(e))
	}
	s.columnAt = now
	if len(out.GetEdges()) == 0 {
		return nil
	}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Column{Column: out}}
}

// sendCompact has some of the regions that have waited longest sent the whole
// matrix in short. Only the tick calls it.
func (a *active) sendCompact() {
	st := a.st
	st.mu.Lock()
	now := st.Clock()
	var due []*session
	for _, r := range st.Regions {
		if s := r.Session; s != nil && (now-s.compactAt >= compactEvery || !s.compactSent && now-s.compactAt >= compactAfter*a.cfg.ReportInterval) {
			due = append(due, s)
		}
	}
	most := max(compactLeast, 1+int(int64(len(st.Regions))*int64(a.cfg.ReportInterval)/int64(compactEvery)))
	view := st.topologyView()
	st.mu.Unlock()
	if len(due) == 0 {
		return
	}
	slices.SortFunc(due, func(x, y *session) int {
		if x.compactSent != y.compactSent {
			return cmp.Compare(rank(x.compactSent), rank(y.compactSent))
		}
		return cmp.Or(cmp.Compare(x.compactAt, y.compactAt), cmp.Compare(x.region, y.region))
	})
	if a.compact == nil || now-a.compactAt >= compactAge {
		a.compact, a.compactAt = topo.Compact(view), now
	}
	message := &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Matrix{Matrix: a.compact}}
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, s := range due[:min(len(due), most)] {
		s.compact, s.compactSent, s.compactAt = message, true, now
		s.wake()
	}
}

func rank(b bool) int {
	if b {
		return 1
	}
	return 0
}
