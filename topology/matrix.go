package topology

import (
	"maps"
	"slices"
	"time"
)

// Matrix collects the measurements of the regions. A row has the edges from one region.
// Views share unchanged rows with the matrix, so a view costs one step per region, and a
// row is copied once before it changes. A Matrix is for one goroutine at a time. Its views
// are safe for concurrent use.
type Matrix struct {
	regions []Region // sorted by name; the slice is replaced, never changed
	index   map[string]int
	rows    [][]cell
	shared  []bool // by row: a view holds the row
	// setTo holds, for each region, the latest time at which an edge to the region was
	// set.
	setTo []time.Duration
}

// cell is a measured edge. It takes 80 bytes and has no pointers, because a million cells
// are stored, copied and scanned.
type cell struct {
	p50, p90, p99, min, jitter time.Duration
	// seen is the time of the latest response, and set the time at which the edge was set.
	// Both are on the clock of Set.
	seen, set         time.Duration
	loss, out, back   uint32 // in lossUnit
	samples, setAside uint16
	state             State // Unknown = not measured
	method            uint8
	reverseReachable  bool
}

const lossUnit = 1e-9

// methods lists the methods of probing by number.
var methods = []string{"", "udp", "tcp", "connect"}

// NewMatrix returns a matrix without regions.
func NewMatrix() *Matrix { return &Matrix{} }

// SetRegions replaces the regions. If several have the same name, the last of these
// counts. Measurements between regions that remain are retained. Invalid coordinates are
// dropped. SetRegions retains no reference to its argument.
func (m *Matrix) SetRegions(regions []Region) {
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
	now := make([]Region, 0, len(byName))
	index := make(map[string]int, len(byName))
	was := make([]int, 0, len(byName)) // -1 = new
	same := len(byName) == len(m.regions)
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		old, known := m.index[name]
		if !known {
			old = -1
		}
		same = same && old == len(now)
		index[name] = len(now)
		now, was = append(now, byName[name]), append(was, old)
	}
	m.regions = now
	if same {
		return
	}
	rows := make([][]cell, len(now))
	for i, from := range was {
		if from < 0 || m.rows[from] == nil {
			continue
		}
		rows[i] = make([]cell, len(now))
		for j, to := range was {
			if to >= 0 {
				rows[i][j] = m.rows[from][to]
			}
		}
	}
	setTo := make([]time.Duration, len(now))
	for i, from := range was {
		if from >= 0 {
			setTo[i] = m.setTo[from]
		}
	}
	m.index, m.rows, m.shared, m.setTo = index, rows, make([]bool, len(now)), setTo
}

// SetCoordinate sets the coordinate of a region. A nil or invalid coordinate removes it.
func (m *Matrix) SetCoordinate(region string, c *Coordinate) {
	if i, ok := m.index[region]; ok {
		m.regions = slices.Clone(m.regions)
		m.regions[i].Coordinate = c.clone()
	}
}

// Set stores a measured edge. The Age of the edge is relative to now, a time on a clock
// that all calls share. Edges that were not measured, and edges of unknown regions, are
// ignored.
func (m *Matrix) Set(e Edge, now time.Duration) {
	i, okFrom := m.index[e.From]
	j, okTo := m.index[e.To]
	if !okFrom || !okTo || e.State == Unknown || e.Source != Measured {
		return
	}
	m.setTo[j] = now
	m.row(i)[j] = cellOf(e, now)
}

// Replace stores edges as the whole row of a region. An edge that differs from the stored
// one only in its age does not count as set. Otherwise Replace does what Set does.
func (m *Matrix) Replace(from string, edges []Edge, now time.Duration) {
	i, ok := m.index[from]
	if !ok {
		return
	}
	old := m.rows[i]
	m.rows[i], m.shared[i] = nil, false
	for _, e := range edges {
		j, known := m.index[e.To]
		if !known || e.From != from || e.State == Unknown || e.Source != Measured {
			continue
		}
		c := cellOf(e, now)
		if old != nil {
			same := old[j]
			same.seen, same.set = c.seen, c.set
			if same == c {
				c.set = old[j].set
			}
		}
		m.row(i)[j] = c
		m.setTo[j] = max(m.setTo[j], c.set)
	}
}

func cellOf(e Edge, now time.Duration) cell {
	return cell{
		p50: e.P50, p90: e.P90, p99: e.P99, min: e.Min, jitter: e.Jitter, seen: now - e.Age, set: now,
		loss: lossOf(e.Loss), out: lossOf(e.LossOut), back: lossOf(e.LossBack),
		samples: count(e.Samples), setAside: count(e.SetAside), state: e.State,
		method: uint8(max(0, slices.Index(methods, e.Method))), reverseReachable: e.ReverseReachable,
	}
}

// Confirm notes that the OK edges from a region were measured again at most age ago. It
// leaves out the edges to the regions in except. An edge that was older than stale counts
// as set. Confirm returns whether there was such an edge.
func (m *Matrix) Confirm(from string, except []string, age, now, stale time.Duration) (some bool) {
	i, ok := m.index[from]
	if !ok || m.rows[i] == nil {
		return false
	}
	skip := m.indexes(except)
	row := m.row(i)
	for j := range row {
		c := &row[j]
		if c.state != OK || skip[j] {
			continue
		}
		if now-c.seen > stale {
			c.set, m.setTo[j], some = now, now, true
		}
		c.seen = max(c.seen, now-age)
	}
	return some
}

// ConfirmColumn is Confirm for the edges to a region. It leaves out the edges from the
// regions in except.
func (m *Matrix) ConfirmColumn(to string, except []string, age, now time.Duration) {
	j, ok := m.index[to]
	if !ok {
		return
	}
	skip := m.indexes(except)
	for i := range m.rows {
		if m.rows[i] != nil && m.rows[i][j].state == OK && m.rows[i][j].seen < now-age && !skip[i] {
			m.row(i)[j].seen = now - age
		}
	}
}

func (m *Matrix) indexes(names []string) map[int]bool {
	out := make(map[int]bool, len(names))
	for _, name := range names {
		if i, ok := m.index[name]; ok {
			out[i] = true
		}
	}
	return out
}

// Confirmed returns the greatest age of the OK edges to a region that are not older than
// most. except lists the regions whose OK edges are older. any is false if all OK edges
// are older.
func (m *Matrix) Confirmed(to string, most, now time.Duration) (age time.Duration, except []string, any bool) {
	j, ok := m.index[to]
	if !ok {
		return 0, nil, false
	}
	for i, row := range m.rows {
		if row == nil || i == j || row[j].state != OK {
			continue
		}
		if old := now - row[j].seen; old > most {
			except = append(except, m.regions[i].Name)
		} else {
			age, any = max(age, old), true
		}
	}
	return age, except, any
}

// SetSince reports whether an edge to a region was set after the time since.
func (m *Matrix) SetSince(to string, since time.Duration) bool {
	j, ok := m.index[to]
	return ok && m.setTo[j] > since
}

// Clear removes all measurements from a region.
func (m *Matrix) Clear(region string) {
	if i, ok := m.index[region]; ok {
		m.rows[i], m.shared[i] = nil, false
	}
}

// row returns a row that the matrix may change. A row that a view shares is copied first.
func (m *Matrix) row(i int) []cell {
	switch {
	case m.rows[i] == nil:
		m.rows[i] = make([]cell, len(m.regions))
	case m.shared[i]:
		m.rows[i] = slices.Clone(m.rows[i])
	}
	m.shared[i] = false
	return m.rows[i]
}

// View returns the present state of the matrix. Ages are relative to now. OK measurements
// that are older than stale are Stale; with a stale of 0 none are. Edges without
// measurement are predicted by p; with a nil p they are predicted from coordinates only.
func (m *Matrix) View(now, stale time.Duration, p Predictor) *View {
	v := &View{regions: m.regions, index: m.index, rows: slices.Clone(m.rows), now: now, stale: stale, predictor: p}
	for i := range m.shared {
		m.shared[i] = true
	}
	if p == nil {
		return v
	}
	v.number = make([]int, len(v.regions))
	for i := range v.number {
		v.number[i] = p.Number(v.regions[i].Name)
	}
	for _, d := range p.Doubts() {
		from, okFrom := v.index[d.From]
		to, okTo := v.index[d.To]
		if okFrom && okTo {
			if v.doubts == nil {
				v.doubts = map[int]string{}
			}
			v.doubts[from*len(v.regions)+to] = d.Why
		}
	}
	return v
}

// Column returns measurements to a region, sorted by From: the edges that were set after
// since, and the edges that became stale after since by the rule of View.
func (m *Matrix) Column(to string, since, now, stale time.Duration) []Edge {
	j, ok := m.index[to]
	if !ok {
		return nil
	}
	// An edge takes a quarter of a kilobyte and a column may have each region, so the edges
	// are counted first.
	n := 0
	for i, row := range m.rows {
		if row != nil && i != j && row[j].isNew(since, now, stale) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out := make([]Edge, 0, n)
	for i, row := range m.rows {
		if row == nil || i == j || !row[j].isNew(since, now, stale) {
			continue
		}
		e := row[j].edge(now)
		e.From, e.To = m.regions[i].Name, to
		if row[j].isStale(now, stale) {
			e.State = Stale
		}
		out = append(out, e)
	}
	return out
}

// isNew says whether a cell was set, or became stale, after a time.
func (c *cell) isNew(since, now, stale time.Duration) bool {
	if c.state == Unknown {
		return false
	}
	return c.set > since || c.isStale(now, stale) && since-c.seen <= stale
}

func (c *cell) isStale(now, stale time.Duration) bool { return c.state == OK && now-c.seen > stale }

// edge returns the cell as an edge, without the regions and the doubt.
func (c *cell) edge(now time.Duration) Edge {
	return Edge{
		State: c.state, Source: Measured, P50: c.p50, P90: c.p90, P99: c.p99, Min: c.min, Jitter: c.jitter,
		Loss: share(c.loss), LossOut: share(c.out), LossBack: share(c.back), Samples: int(c.samples), SetAside: int(c.setAside),
		Age: now - c.seen, Method: methods[c.method], ReverseReachable: c.reverseReachable,
	}
}

func (c *cell) rtt(p Percentile) time.Duration {
	switch {
	case p <= 50:
		return c.p50
	case p <= 90:
		return c.p90
	}
	return c.p99
}

func lossOf(share float64) uint32 {
	if !(share > 0) {
		return 0
	}
	return uint32(min(share, 1)/lossUnit + 0.5)
}

// share converts a stored loss back to 0..1. A division is exact for 0.1, unlike a
// product.
func share(loss uint32) float64 { return float64(loss) / (1 / lossUnit) }

func count(n int) uint16 { return uint16(min(max(n, 0), 1<<16-1)) }
