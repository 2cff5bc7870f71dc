package topology

import (
	"maps"
	"math"
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
	rows    []row
	// setTo holds, for each region, the latest time at which an edge to the region was
	// set.
	setTo []time.Duration
}

const (
	lossUnit   = 1.0 / 50_000
	reverseBit = 1 << 7
)

// Span is a duration of up to two hours in two bytes: a number below 1 << spanBits, and above that the
// position of its unit in units. So a duration has its first three digits, and mostly the fourth. Its error is
// at most 0.061 %, about as much as in the tables that regions send (package internal/sets).
type Span uint16

const (
	spanBits = 13
	// mostUnits is the number of units from which on the next unit is used. The least duration there is rounded
	// up, so a longer duration is never stored as a shorter one.
	mostUnits = 8185
)

var units = [...]time.Duration{
	100 * time.Nanosecond, time.Microsecond, 10 * time.Microsecond, 100 * time.Microsecond,
	time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second,
}

// SpanOf returns the span of a duration.
func SpanOf(d time.Duration) Span {
	if d <= 0 {
		return 0
	}
	for k, unit := range units {
		if d < mostUnits*unit {
			return Span(k<<spanBits) | Span((d+unit/2)/unit)
		}
	}
	return math.MaxUint16
}

// Duration returns the duration of a span.
func (s Span) Duration() time.Duration {
	return time.Duration(s&(1<<spanBits-1)) * units[s>>spanBits]
}

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
	rows := make([]row, len(now))
	for i, from := range was {
		if from < 0 || m.rows[from].trips == nil {
			continue
		}
		rows[i] = newRow(len(now))
		for j, to := range was {
			if to >= 0 {
				rows[i].setCell(j, m.rows[from].cell(to))
				rows[i].times.set(j, m.rows[from].times.get(to))
			}
		}
	}
	setTo := make([]time.Duration, len(now))
	for i, from := range was {
		if from >= 0 {
			setTo[i] = m.setTo[from]
		}
	}
	m.index, m.rows, m.setTo = index, rows, setTo
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
	r := m.rows[i].own(len(m.regions))
	r.setCell(j, cellOf(e))
	r.times.set(j, times{now - e.Age, now})
}

// Replace stores edges as the whole row of a region. An edge that differs from the stored
// one only in its age does not count as set. Otherwise Replace does what Set does.
func (m *Matrix) Replace(from string, edges []Edge, now time.Duration) {
	i, ok := m.index[from]
	if !ok {
		return
	}
	old := m.rows[i]
	m.rows[i] = row{}
	for _, e := range edges {
		j, known := m.index[e.To]
		if !known || e.From != from || e.State == Unknown || e.Source != Measured {
			continue
		}
		c, at := cellOf(e), times{now - e.Age, now}
		if old.trips != nil && old.cell(j) == c {
			at.set = old.times.get(j).set
		}
		r := m.rows[i].own(len(m.regions))
		r.setCell(j, c)
		r.times.set(j, at)
		m.setTo[j] = max(m.setTo[j], at.set)
	}
}

func cellOf(e Edge) cell {
	c := cell{trips{p50: SpanOf(e.P50), p90: SpanOf(e.P90), p99: SpanOf(e.P99), min: SpanOf(e.Min), jitter: SpanOf(e.Jitter)}, facts{
		loss: lossOf(e.Loss), out: lossOf(e.LossOut), back: lossOf(e.LossBack),
		samples: count(e.Samples), setAside: count(e.SetAside), state: e.State, method: uint8(max(0, slices.Index(methods, e.Method))),
	}}
	if e.ReverseReachable {
		c.method |= reverseBit
	}
	return c
}

// Confirm notes that the OK edges from a region were measured again at most age ago. It
// leaves out the edges to the regions in except. An edge that was older than stale counts
// as set. Confirm returns whether there was such an edge.
func (m *Matrix) Confirm(from string, except []string, age, now, stale time.Duration) (some bool) {
	i, ok := m.index[from]
	if !ok || m.rows[i].trips == nil {
		return false
	}
	skip := m.indexes(except)
	r := m.rows[i].ownTimes()
	for j := range r.trips {
		if r.state(j) != OK || skip[j] {
			continue
		}
		at := r.times.get(j)
		if now-at.seen > stale {
			at.set, m.setTo[j], some = now, now, true
		}
		at.seen = max(at.seen, now-age)
		r.times.set(j, at)
	}
	r.times.compact()
	return some
}

// ConfirmColumn does what Confirm does, for all edges that lead to a region, except the
// edges from the regions in except.
func (m *Matrix) ConfirmColumn(to string, except []string, age, now time.Duration) {
	j, ok := m.index[to]
	if !ok {
		return
	}
	skip := m.indexes(except)
	for i := range m.rows {
		r := &m.rows[i]
		if r.trips == nil || skip[i] || r.state(j) != OK {
			continue
		}
		if at := r.times.get(j); at.seen < now-age {
			at.seen = now - age
			r.ownTimes().times.set(j, at)
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
	for i := range m.rows {
		row := &m.rows[i]
		if row.trips == nil || i == j || row.state(j) != OK {
			continue
		}
		if old := now - row.times.get(j).seen; old > most {
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
		m.rows[i] = row{}
	}
}

// View returns the present state of the matrix. Ages are relative to now. OK measurements
// that are older than stale are Stale; with a stale of 0 none are. Edges without
// measurement are predicted by p; with a nil p they are predicted from coordinates only.
func (m *Matrix) View(now, stale time.Duration, p Predictor) *View {
	for i := range m.rows {
		m.rows[i].sharedCells, m.rows[i].sharedTimes = true, true
	}
	v := m.Present(now, stale, p)
	v.rows = slices.Clone(m.rows)
	return v
}

// Present returns what View returns, but valid only until the matrix changes. It costs little, and
// later changes of the matrix copy nothing.
func (m *Matrix) Present(now, stale time.Duration, p Predictor) *View {
	v := &View{regions: m.regions, index: m.index, rows: m.rows, now: now, stale: stale, predictor: p}
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

// AppendColumn appends to out the edges whose To is the region, sorted by From: the edges that were set
// after since, and the edges that became stale after since by the rule of View.
func (m *Matrix) AppendColumn(out []Edge, to string, since, now, stale time.Duration) []Edge {
	j, ok := m.index[to]
	if !ok {
		return out
	}
	// An edge takes a quarter of a kilobyte and a column may have each region, so the edges
	// are counted first.
	n := 0
	for i := range m.rows {
		if i != j && m.rows[i].isNew(j, since, now, stale) {
			n++
		}
	}
	if n == 0 {
		return out
	}
	out = slices.Grow(out, n)
	for i := range m.rows {
		row := &m.rows[i]
		if i == j || !row.isNew(j, since, now, stale) {
			continue
		}
		c := row.cell(j)
		e := c.edge(now - row.times.get(j).seen)
		e.From, e.To = m.regions[i].Name, to
		if row.isStale(j, now, stale) {
			e.State = Stale
		}
		out = append(out, e)
	}
	return out
}

// isNew says whether an edge was set, or became stale, after a time.
func (r *row) isNew(j int, since, now, stale time.Duration) bool {
	if r.trips == nil || r.state(j) == Unknown {
		return false
	}
	at := r.times.get(j)
	return at.set > since || r.isStale(j, now, stale) && since-at.seen <= stale
}

func (r *row) isStale(j int, now, stale time.Duration) bool {
	return r.state(j) == OK && now-r.times.get(j).seen > stale
}

// edge returns the cell as an edge with the given age. It sets neither the regions nor
// the doubt.
func (c *cell) edge(age time.Duration) Edge {
	return Edge{
		State: c.state, Source: Measured, P50: c.p50.Duration(), P90: c.p90.Duration(), P99: c.p99.Duration(), Min: c.min.Duration(),
		Jitter: c.jitter.Duration(), Loss: share(c.loss), LossOut: share(c.out), LossBack: share(c.back),
		Samples: int(c.samples), SetAside: int(c.setAside), Age: age, Method: c.methodName(), ReverseReachable: c.reverseReachable(),
	}
}

func (c *cell) methodName() string { return methods[c.method&^reverseBit] }

func (c *cell) reverseReachable() bool { return c.method&reverseBit != 0 }

func (c *trips) rtt(p Percentile) time.Duration {
	switch {
	case p <= 50:
		return c.p50.Duration()
	case p <= 90:
		return c.p90.Duration()
	}
	return c.p99.Duration()
}

func lossOf(share float64) uint16 {
	if !(share > 0) {
		return 0
	}
	return uint16(min(share, 1)/lossUnit + 0.5)
}

// share converts a stored loss back to 0..1. A division is exact for 0.1, unlike a
// product.
func share(loss uint16) float64 { return float64(loss) / (1 / lossUnit) }

func count(n int) uint16 { return uint16(min(max(n, 0), 1<<16-1)) }
