package topology

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// MaxTableRegions and MaxTableRTT bound a round-trip table.
const (
	MaxTableRegions = 1024
	MaxTableRTT     = time.Minute
)

// ErrTable means that a round-trip table cannot be read. The text names the line.
var ErrTable = errors.New("invalid round-trip table")

// Table is a matrix of directed round trips. Some may be blank. A Table is immutable and
// safe for concurrent use.
type Table struct {
	regions []string
	index   map[string]int
	rtt     []time.Duration // from*n+to; negative = blank
}

// ParseTable reads a CSV matrix in milliseconds. The first row and the first column are
// the names of regions. A row has the round trips from one region. A blank or "-" is
// unknown. Rows may be in another order than columns, and may be missing. The table has at
// most MaxTableRegions regions, and a cell is at most MaxTableRTT. The error is ErrTable.
func ParseTable(r io.Reader) (*Table, error) {
	m, err := ParseMatrix(r)
	if err != nil {
		return nil, err
	}
	t, err := newTable(m.Regions)
	if err != nil {
		return nil, err
	}
	for _, c := range m.Cells {
		if math.IsNaN(c.RTT) || c.RTT < 0 || c.RTT > ms(MaxTableRTT) {
			return nil, fmt.Errorf("%w: line %d: %s to %s: \"%g\" is not a number of milliseconds within 0..%.0f",
				ErrTable, c.Line, m.Regions[c.From], m.Regions[c.To], c.RTT, ms(MaxTableRTT))
		}
		t.rtt[c.From*len(t.regions)+c.To] = time.Duration(c.RTT * float64(time.Millisecond))
	}
	return t, nil
}

func newTable(names []string) (*Table, error) {
	index, err := indexNames(names)
	if err != nil {
		return nil, err
	}
	t := &Table{regions: names, index: index, rtt: make([]time.Duration, len(names)*len(names))}
	for i := range t.rtt {
		t.rtt[i] = -1
	}
	return t, nil
}

// Regions returns the names of the regions in the order of the first row.
func (t *Table) Regions() []string { return slices.Clone(t.regions) }

// Has reports whether the table names the region.
func (t *Table) Has(region string) bool { _, ok := t.index[region]; return ok }

// RTT returns a directed round trip. It returns false if the table has a blank or no such
// region. A region has the distance 0 from itself, unless the table has another value.
func (t *Table) RTT(from, to string) (time.Duration, bool) {
	i, okFrom := t.index[from]
	j, okTo := t.index[to]
	if !okFrom || !okTo {
		return 0, false
	}
	d := t.rtt[i*len(t.regions)+j]
	if d < 0 && i == j {
		return 0, true
	}
	return max(d, 0), d >= 0
}

// Rename returns the table with other names of regions. name must not map two regions to
// the same name. The error is ErrTable.
func (t *Table) Rename(name func(string) string) (*Table, error) {
	names := make([]string, len(t.regions))
	for i, old := range t.regions {
		names[i] = name(old)
	}
	renamed, err := newTable(names)
	if err != nil {
		return nil, err
	}
	renamed.rtt = t.rtt
	return renamed, nil
}

// Fill returns the table with its blanks filled: by the value of the reverse direction, or
// else by an estimate from locations. A blank remains if a region has no location.
func (t *Table) Fill(locate func(region string) (Location, bool)) *Table {
	n := len(t.regions)
	filled := &Table{regions: t.regions, index: t.index, rtt: slices.Clone(t.rtt)}
	for i := range n {
		for j := range n {
			if i == j || t.rtt[i*n+j] >= 0 {
				continue
			}
			if back := t.rtt[j*n+i]; back >= 0 {
				filled.rtt[i*n+j] = back
				continue
			}
			a, okA := locate(t.regions[i])
			b, okB := locate(t.regions[j])
			if okA && okB {
				filled.rtt[i*n+j] = EstimateRTT(a, b)
			}
		}
	}
	return filled
}

// Edges returns the cells of the table as measured edges, with the same value for every
// percentile. It is for tests and experiments.
func (t *Table) Edges() []Edge {
	var edges []Edge
	for _, from := range t.regions {
		for _, to := range t.regions {
			if d, ok := t.RTT(from, to); ok && from != to {
				edges = append(edges, Edge{From: from, To: to, State: OK, Source: Measured,
					P50: d, P90: d, P99: d, Min: d, Samples: 1})
			}
		}
	}
	return edges
}
