package series

import (
	"errors"
	"math"
)

// block holds the cells of one series over the span of a segment. Window i of a field is
// cells[field*points+i].
type block struct {
	fields, points int
	cells          []cell
}

func newBlock(fields, points int) block {
	return block{fields: fields, points: points, cells: make([]cell, fields*points)}
}

func (b block) field(f int) []cell { return b.cells[f*b.points : (f+1)*b.points] }

// widen returns the block with at least the given number of fields.
func (b block) widen(fields, points int) block {
	if b.fields >= fields {
		return b
	}
	cells := make([]cell, fields*points)
	copy(cells, b.cells)
	return block{fields: fields, points: points, cells: cells}
}

// has reports whether window i has a value of any field.
func (b block) has(i int) bool {
	for f := range b.fields {
		if b.cells[f*b.points+i].n > 0 {
			return true
		}
	}
	return false
}

// overlay replaces windows of b by those of a newer block of the same span. A window that
// has a value in the newer block is replaced as a whole, because the later measurement
// counts.
func (b block) overlay(newer block) block {
	b = b.widen(newer.fields, newer.points)
	for i := range newer.points {
		if !newer.has(i) {
			continue
		}
		for f := range b.fields {
			c := cell{}
			if f < newer.fields {
				c = newer.cells[f*newer.points+i]
			}
			b.cells[f*b.points+i] = c
		}
	}
	return b
}

// coarsen overlays b with a block of a finer level. From index first on, each window of b
// is made of ratio finer windows.
func (b block) coarsen(finer block, first, ratio int) block {
	folded := newBlock(finer.fields, b.points)
	for f := range finer.fields {
		from := finer.field(f)
		for i := 0; i*ratio < finer.points; i++ {
			folded.cells[f*b.points+first+i] = fold(from[i*ratio : (i+1)*ratio])
		}
	}
	return b.overlay(folded)
}

var errBlock = errors.New("damaged block")

// maxBlockFields bounds the fields of a kind, and so the memory that damaged bytes can
// request.
const maxBlockFields = 32

// codec encodes and decodes the blocks of one level. It has no state but buffers.
type codec struct {
	points int
	full   int32 // the number of values in a window without a gap; if 1, minimum, mean and maximum are equal
	a, b   []uint32
}

func newCodec(l level) *codec {
	return &codec{points: l.points, full: int32(l.step), a: make([]uint32, l.points), b: make([]uint32, l.points)}
}

// encode appends the block to dst. Each field has three parts: the number of missing
// values of each window, the means, each as the difference from the previous mean, and at
// coarser levels the distances of minimum and maximum from the mean.
func (c *codec) encode(dst []byte, b block) []byte {
	w := bitWriter{buf: append(dst, byte(b.fields))}
	for f := range b.fields {
		cells := b.field(f)
		present, last := c.a[:0], ordinal(0)
		for i, x := range cells {
			c.b[i] = uint32(c.full - x.n)
			if x.n > 0 {
				present = append(present, zigzag(x.mean-last))
				last = x.mean
			}
		}
		w.column(c.b[:len(cells)])
		if len(present) == 0 {
			continue
		}
		w.put(present[0], rawBits)
		w.column(present[1:])
		if c.full == 1 {
			continue
		}
		down, up := c.a[:0], c.b[:0]
		for _, x := range cells {
			if x.n > 0 {
				down, up = append(down, uint32(x.mean-x.min)), append(up, uint32(x.max-x.mean))
			}
		}
		w.column(down)
		w.column(up)
	}
	return w.finish()
}

// decode reads a block. The error is errBlock.
func (c *codec) decode(data []byte) (block, error) {
	if len(data) == 0 || data[0] > maxBlockFields {
		return block{}, errBlock
	}
	b := newBlock(int(data[0]), c.points)
	r := bitReader{buf: data[1:]}
	for f := range b.fields {
		cells := b.field(f)
		r.column(c.a)
		m := 0
		for i, lacks := range c.a {
			if lacks > uint32(c.full) {
				return block{}, errBlock
			}
			cells[i].n = c.full - int32(lacks)
			if cells[i].n > 0 {
				m++
			}
		}
		if m == 0 {
			continue
		}
		c.a[0] = r.get(rawBits)
		r.column(c.a[1:m])
		if err := c.means(cells, c.a[:m]); err != nil {
			return block{}, err
		}
		if c.full > 1 {
			down, up := c.a[:m], c.b[:m]
			r.column(down)
			r.column(up)
			c.spreads(cells, down, up)
		}
	}
	if r.short {
		return block{}, errBlock
	}
	return b, nil
}

func (c *codec) means(cells []cell, deltas []uint32) error {
	last, j := ordinal(0), 0
	for i := range cells {
		if cells[i].n == 0 {
			continue
		}
		last += unzigzag(deltas[j])
		j++
		if last > maxOrdinal || last < -maxOrdinal {
			return errBlock
		}
		cells[i].min, cells[i].mean, cells[i].max = last, last, last
	}
	return nil
}

func (c *codec) spreads(cells []cell, down, up []uint32) {
	j := 0
	for i := range cells {
		if cells[i].n > 0 {
			cells[i].min = max(cells[i].mean-ordinal(down[j]), -maxOrdinal)
			cells[i].max = min(cells[i].mean+ordinal(up[j]), maxOrdinal)
			j++
		}
	}
}

// point returns a cell as callers see it.
func (c cell) point() Point {
	if c.n == 0 {
		return Point{Mean: math.NaN(), Min: math.NaN(), Max: math.NaN()}
	}
	return Point{Count: int(c.n), Mean: toValue(c.mean), Min: toValue(c.min), Max: toValue(c.max)}
}
