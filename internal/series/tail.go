package series

import "slices"

// minute is a span of the finest level in memory: what was appended and not yet
// written. It is written to while it is the open one, and never after.
type minute struct {
	start  int64
	seq    uint64 // no two have the same, though their memory is used again
	ids    []uint32
	fields []int32
	at     []int32 // where the row of each begins in values
	values []ordinal
}

func (m *minute) reset(start int64, seq uint64) {
	m.start, m.seq = start, seq
	m.ids, m.fields, m.at, m.values = m.ids[:0], m.fields[:0], m.at[:0], m.values[:0]
}

// row adds a series and returns its number.
func (m *minute) row(id uint32, fields int) int {
	m.ids = append(m.ids, id)
	m.fields = append(m.fields, int32(fields))
	m.at = append(m.at, int32(len(m.values)))
	from := len(m.values)
	m.values = slices.Grow(m.values, fields*levels[0].points)[:from+fields*levels[0].points]
	for i := from; i < len(m.values); i++ {
		m.values[i] = none
	}
	return len(m.ids) - 1
}

func (m *minute) set(row, field, slot int, v ordinal) {
	m.values[int(m.at[row])+field*levels[0].points+slot] = v
}

// block is a row as a block of the finest level.
func (m *minute) block(row int) block {
	b := newBlock(int(m.fields[row]), levels[0].points)
	for i, v := range m.values[m.at[row]:][:len(b.cells)] {
		if v != none {
			b.cells[i] = cell{n: 1, min: v, mean: v, max: v}
		}
	}
	return b
}

// find returns the block of a series, if the minute has one.
func (m *minute) find(id uint32) (block, bool) {
	if i := slices.Index(m.ids, id); i >= 0 {
		return m.block(i), true
	}
	return block{}, false
}

// kind is a Kind together with the columns that its fields have in the file.
type kind struct {
	name    string
	stored  []string // all fields that the file ever had, by column
	columns []int    // of the fields in use, in their order
	fields  []string // those in use
	series  map[string]*entry
}

// entry is a series that is kept.
type entry struct {
	id   uint32
	seen int64  // the last slot with a sample
	in   uint64 // seq of the minute that it last had a row in
	row  int    // in it
}

// registry is the series that are kept, and what of them the file lacks.
type registry struct {
	kinds  map[string]*kind
	count  int
	nextID uint32
	// added and removed wait for the next transaction.
	added   map[uint32]string
	removed []uint32
}

// quietAfter is how long a series must have been silent before a new one may
// take its place: longer than any restart or repair, so that a limit does not
// make series chase each other out.
const quietAfter = 17_280

func (r *registry) add(k *kind, key string) *entry {
	e := &entry{id: r.nextID}
	r.nextID++
	r.count++
	k.series[key] = e
	r.added[e.id] = k.name + "\x00" + key
	return e
}

func (r *registry) remove(k *kind, key string) {
	e := k.series[key]
	if e == nil {
		return
	}
	delete(k.series, key)
	r.count--
	if _, unwritten := r.added[e.id]; unwritten {
		delete(r.added, e.id)
		return
	}
	r.removed = append(r.removed, e.id)
}

type quiet struct {
	kind *kind
	key  string
	seen int64
	id   uint32
}

// silentSince lists the series without a sample since a slot, quietest first.
func (r *registry) silentSince(slot int64) []quiet {
	var out []quiet
	for _, k := range r.kinds {
		for key, e := range k.series {
			if e.seen < slot {
				out = append(out, quiet{k, key, e.seen, e.id})
			}
		}
	}
	slices.SortFunc(out, func(a, b quiet) int {
		if a.seen != b.seen {
			return int(max(min(a.seen-b.seen, 1), -1))
		}
		return int(int64(a.id) - int64(b.id))
	})
	return out
}
