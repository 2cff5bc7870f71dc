package overview

import "slices"

// Values of a Cell.
const (
	// Unknown stands for a round trip or a loss that is not known.
	Unknown     = 0xffff
	UnknownLoss = 0xff
	// Longest stands for every longer round trip.
	Longest = 0xfffe
	// Unit is the unit of round trips in nanoseconds: 0.1 ms.
	Unit = 100_000
	// LossSteps is the number of steps of a loss of 100 %.
	LossSteps = 200
)

// Bits of Cell.State above those of the state and the source.
const (
	Doubted = 1 << 6
	Relayed = 1 << 7
)

// okMeasured are the lower bits of the state of an edge that was measured recently: state 1, source 1.
const okMeasured = 1 | 1<<3

// The least changes that are noticeable: a tenth of the median that is at least a
// millisecond, and a loss of five per cent.
const (
	leastChange     = 10
	leastLossChange = 10
)

// CellSize is the size of a cell in a message.
const CellSize = 8

// Cell is an edge of the matrix.
type Cell struct {
	P50, P90, P99 uint16
	Loss, State   uint8
}

// differs reports whether a cell has changed noticeably.
func (c Cell) differs(was Cell) bool {
	if c == was {
		return false
	}
	if c.State != was.State || (c.P50 == Unknown) != (was.P50 == Unknown) || (c.Loss == UnknownLoss) != (was.Loss == UnknownLoss) {
		return true
	}
	return apart(int(c.P50), int(was.P50)) >= max(int(was.P50)/10, leastChange) || apart(int(c.Loss), int(was.Loss)) >= leastLossChange
}

func apart(a, b int) int { return max(a-b, b-a) }

// Matrix is the latency matrix as readers see it. A Matrix is never changed.
type Matrix struct {
	// Names are the names of the regions, sorted. Cells are in their order.
	Names []string
	rows  [][]Cell
}

// KeepMatrix returns the matrix that readers see. row writes the present cells of a row. A row
// of the earlier matrix stays, except for cells that have changed noticeably. was may be
// nil.
func KeepMatrix(was *Matrix, names []string, row func(i int, into []Cell)) *Matrix {
	n := len(names)
	out := &Matrix{Names: names, rows: make([][]Cell, n)}
	alike := was != nil && slices.Equal(was.Names, names)
	if alike {
		out.Names = was.Names
	}
	same, present := alike, make([]Cell, n)
	for i := range n {
		row(i, present)
		if !alike {
			out.rows[i] = slices.Clone(present)
			continue
		}
		out.rows[i] = was.rows[i]
		copied := false
		for j := range present {
			if !present[j].differs(was.rows[i][j]) {
				continue
			}
			if !copied {
				out.rows[i], copied = slices.Clone(was.rows[i]), true
			}
			out.rows[i][j] = present[j]
		}
		same = same && !copied
	}
	if same {
		return was
	}
	return out
}

// Row returns a row of the matrix. The caller must not change the row.
func (m *Matrix) Row(i int) []Cell { return m.rows[i] }

// Row is a row of the matrix in a message, or the cells of the row that have changed.
type Row struct {
	From int
	// To are the columns of the cells. nil: every column.
	To    []int
	Cells []Cell
}

// size returns the approximate size of a row in a message.
func (r Row) size() int { return 16 + CellSize*len(r.Cells) + 2*len(r.To) }

// changes returns the rows that differ from an earlier matrix with the same regions. was
// may be nil: then every row differs.
func (m *Matrix) changes(was *Matrix) (out []Row) {
	for i, row := range m.rows {
		if was == nil {
			out = append(out, Row{From: i, Cells: row})
			continue
		}
		old := was.rows[i]
		if &old[0] == &row[0] {
			continue
		}
		r := Row{From: i}
		for j := range row {
			if row[j] != old[j] {
				r.To, r.Cells = append(r.To, j), append(r.Cells, row[j])
			}
		}
		if len(r.To) > len(row)/2 {
			r.To, r.Cells = nil, row
		}
		if len(r.Cells) > 0 {
			out = append(out, r)
		}
	}
	return out
}

// A relay is worth showing when it saves a tenth of the round trip. It stays until it saves
// less than a twentieth, so that it does not come and go.
const (
	relayGain = 10
	relayKeep = 20
)

// Relays knows for which edges a relay saves at least a tenth of the round trip. A look at
// one row costs the square of the number of regions, so only some rows are looked at each
// time.
type Relays struct {
	names  []string
	medium []uint16
	saves  []bool
	next   int
}

// relayWork bounds the pairs that one call of Look checks.
const relayWork = 4 << 20

// Look takes the present matrix, and looks at some of its rows.
func (r *Relays) Look(m *Matrix) {
	n := len(m.Names)
	if !slices.Equal(r.names, m.Names) {
		*r = Relays{names: m.Names, medium: make([]uint16, n*n), saves: make([]bool, n*n)}
	}
	if n < 3 {
		return
	}
	for i, row := range m.rows {
		for j, c := range row {
			r.medium[i*n+j] = Unknown
			if i != j && c.State&0x7f == okMeasured && c.P50 < Longest {
				r.medium[i*n+j] = c.P50
			}
		}
	}
	for range min(n, max(1, relayWork/(n*n))) {
		r.look(r.next)
		r.next = (r.next + 1) % n
	}
}

func (r *Relays) look(i int) {
	n := len(r.names)
	best, own := make([]int, n), r.medium[i*n:i*n+n]
	for j := range best {
		best[j] = 2 * Unknown
	}
	for k, first := range own {
		if first == Unknown {
			continue
		}
		for j, second := range r.medium[k*n : k*n+n] {
			if second != Unknown {
				best[j] = min(best[j], int(first)+int(second))
			}
		}
	}
	for j, direct := range own {
		gain := relayGain
		if r.saves[i*n+j] {
			gain = relayKeep
		}
		r.saves[i*n+j] = direct != Unknown && best[j] <= int(direct)-int(direct)/gain && best[j] < int(direct)
	}
}

// Saves reports whether a relay saves a part of the round trip from region i to region j.
func (r *Relays) Saves(i, j int) bool {
	n := len(r.names)
	return i < n && j < n && r.saves[i*n+j]
}
