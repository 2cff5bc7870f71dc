package series

import "slices"

// minute holds in memory the values of one segment of the finest level that were appended
// and are not written yet. Only the open minute changes.
type minute struct {
	start  int64
	seq    uint64 // identifies the minute, because its memory is reused
	ids    []uint32
	fields []int32
	at     []int32 // index in values at which each row begins
	values []ordinal
}

func (m *minute) reset(start int64, seq uint64) {
	m.start, m.seq = start, seq
	m.ids, m.fields, m.at, m.values = m.ids[:0], m.fields[:0], m.at[:0], m.values[:0]
}

// row adds a row for a series and returns its number.
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

// block returns the values of a row as a block of the finest level.
func (m *minute) block(row int) block {
	b := newBlock(int(m.fields[row]), levels[0].points)
	for i, v := range m.values[m.at[row]:][:len(b.cells)] {
		if v != none {
			b.cells[i] = cell{n: 1, min: v, mean: v, max: v}
		}
	}
	return b
}

// find returns the block of a series; false if the minute has none.
func (m *minute) find(id uint32) (block, bool) {
	if i := slices.Index(m.ids, id); i >= 0 {
		return m.block(i), true
	}
	return block{}, false
}

// kind is a Kind together with the columns of its fields in the file, and its series.
type kind struct {
	name    string
	stored  []string // every field that the file ever had, by column
	columns []int    // the columns of fields, in the order of fields
	fields  []string // the fields of the present version
	series  map[string]*entry
}

// entry is one series.
type entry struct {
	id   uint32
	seen int64  // the last slot with a sample
	in   uint64 // seq of the minute that has the series' last row
	row  int    // the number of that row
}

// registry holds all series, and the changes to them that the file does not have yet.
type registry struct {
	kinds  map[string]*kind
	count  int
	nextID uint32
	// added and removed are the changes that the next transaction writes.
	added   map[uint32]string
	removed []uint32
}

// silentAfter is the number of slots (one day) without a sample after which a series may
// be replaced by a new one. It is longer than a restart or a repair, so that series do not
// replace each other all the time when the limit is reached.
const silentAfter = 17_280

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

type silentSeries struct {
	kind *kind
	key  string
	seen int64
	id   uint32
}

// silentSince returns the series without a sample since a slot. The series that has been
// silent for the longest time is first.
func (r *registry) silentSince(slot int64) []silentSeries {
	var out []silentSeries
	for _, k := range r.kinds {
		for key, e := range k.series {
			if e.seen < slot {
				out = append(out, silentSeries{k, key, e.seen, e.id})
			}
		}
	}
	slices.SortFunc(out, func(a, b silentSeries) int {
		if a.seen != b.seen {
			return int(max(min(a.seen-b.seen, 1), -1))
		}
		return int(int64(a.id) - int64(b.id))
	})
	return out
}
