package topology

import (
	"slices"
	"time"
)

// row has the edges from one region, by the number of the other region. All lists are nil if
// nothing was measured. A million edges are stored, copied and scanned, so an edge takes 10 bytes
// for its round trips, and mostly one for each value that it has in common with others. The lists
// have no pointers.
type row struct {
	trips []trips
	facts palette[facts]
	// times change often, so they are a list of their own.
	times palette[times]
	// sharedCells and sharedTimes: a view holds the trips and facts, or the times.
	sharedCells, sharedTimes bool
}

// cell is a measured edge without its times.
type cell struct {
	trips
	facts
}

// trips are the round trips of an edge.
type trips struct{ p50, p90, p99, min, jitter Span }

// facts are the other values of an edge. Most edges of a row have the same.
type facts struct {
	loss, out, back   uint16 // in lossUnit
	samples, setAside uint16
	state             State // Unknown = not measured
	// method is the number of the method, plus reverseBit if the reverse direction works.
	method uint8
}

// times holds when the latest response on an edge came, and when the edge was set. Both are
// on the clock of Set. Many edges are confirmed, or set, together.
type times struct{ seen, set time.Duration }

func newRow(n int) row {
	return row{trips: make([]trips, n), facts: newPalette[facts](n), times: newPalette[times](n)}
}

func (r *row) cell(j int) cell { return cell{r.trips[j], r.facts.get(j)} }

func (r *row) state(j int) State { return r.facts.get(j).state }

func (r *row) setCell(j int, c cell) {
	r.trips[j] = c.trips
	r.facts.set(j, c.facts)
}

// own makes a row one that may change. What a view shares is copied first.
func (r *row) own(n int) *row {
	switch {
	case r.trips == nil:
		*r = newRow(n)
	case r.sharedCells:
		r.trips, r.facts, r.sharedCells = slices.Clone(r.trips), r.facts.clone(), false
	}
	return r.ownTimes()
}

// ownTimes makes a row one whose times may change. The row must have edges.
func (r *row) ownTimes() *row {
	if r.sharedTimes {
		r.times, r.sharedTimes = r.times.clone(), false
	}
	return r
}

// palette is a list of elements. Many elements have the same value.
type palette[V comparable] struct {
	// at has the position in values of each element's value. A position takes one byte, or two if wide is true.
	at     []byte
	wide   bool
	values []V
	// most is the number of values from which on values without an element are dropped.
	most int
}

const (
	// leastMost is the least palette.most.
	leastMost = 16
	// recent is how many of the latest values are compared with a new one, which is cheaper than
	// compact.
	recent = 64
	// narrowMost is the number of positions that one byte can hold.
	narrowMost = 1 << 8
)

// newPalette returns a list of n zero values. n must be less than 1 << 15.
func newPalette[V comparable](n int) palette[V] {
	return palette[V]{at: make([]byte, n), values: make([]V, 1), most: leastMost}
}

func (p *palette[V]) get(i int) V { return p.values[p.position(i)] }

// position returns the position of an element's value.
func (p *palette[V]) position(i int) int {
	if p.wide {
		return int(p.at[2*i]) | int(p.at[2*i+1])<<8
	}
	return int(p.at[i])
}

func (p *palette[V]) setPosition(i, k int) {
	if p.wide {
		p.at[2*i], p.at[2*i+1] = byte(k), byte(k>>8)
		return
	}
	p.at[i] = byte(k)
}

// setWide changes the size of a position.
func (p *palette[V]) setWide(wide bool) {
	if p.wide == wide {
		return
	}
	n, size := p.size(), 1
	if wide {
		size = 2
	}
	to := palette[V]{at: make([]byte, n*size), wide: wide}
	for i := range n {
		to.setPosition(i, p.position(i))
	}
	p.at, p.wide = to.at, wide
}

// size returns the number of elements.
func (p *palette[V]) size() int {
	if p.wide {
		return len(p.at) / 2
	}
	return len(p.at)
}

func (p *palette[V]) set(i int, v V) {
	if p.values[p.position(i)] == v {
		return
	}
	for k := len(p.values) - 1; k >= max(0, len(p.values)-recent); k-- {
		if p.values[k] == v {
			p.setPosition(i, k)
			return
		}
	}
	if len(p.values) >= p.most {
		p.compact()
	}
	if len(p.values) == narrowMost {
		p.setWide(true)
	}
	p.setPosition(i, len(p.values))
	p.values = append(p.values, v)
}

// compact drops values without an element, and values that occur twice. With few values it allocates nothing.
func (p *palette[V]) compact() {
	var few [2 * recent]uint16
	to := few[:] // by value: 1 + its new position; 0 = no element has the value
	if len(p.values) > len(few) {
		to = make([]uint16, len(p.values))
	}
	for i := range p.size() {
		to[p.position(i)] = 1
	}
	kept := p.values[:0]
	position := func(v V) int { return slices.Index(kept, v) }
	if len(p.values) > len(few) {
		positions := make(map[V]int, min(len(p.values), len(p.at)))
		position = func(v V) int {
			k, known := positions[v]
			if !known {
				positions[v] = len(kept)
				return -1
			}
			return k
		}
	}
	for k, v := range p.values {
		if to[k] == 0 {
			continue
		}
		at := position(v)
		if at < 0 {
			at, kept = len(kept), append(kept, v)
		}
		to[k] = uint16(1 + at)
	}
	for i := range p.size() {
		p.setPosition(i, int(to[p.position(i)]-1))
	}
	p.most = max(leastMost, 2*len(kept))
	if p.most <= narrowMost {
		p.setWide(false)
	}
	if cap(kept) > p.most {
		kept = slices.Clone(kept)
	}
	p.values = kept
}

func (p *palette[V]) clone() palette[V] {
	return palette[V]{at: slices.Clone(p.at), wide: p.wide, values: slices.Clone(p.values), most: p.most}
}
