package series

import (
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Query returns the windows of a series. The first window contains from, and the last one
// contains the last moment before to.
//
// Query uses the finest resolution that is still stored at from. A window is a multiple of
// that resolution. It is as short as possible, but at least step long, and long enough
// that there are at most MaxPoints windows, or 300 with a step of 0. So Step and Start of
// the result may differ from the arguments. Times before the oldest stored value and after
// the last Append are cut off. If nothing remains, the rows have no points.
//
// Errors are ErrUnknown and ErrClosed.
func (s *Store) Query(kind, key string, from, to time.Time, step time.Duration) (Series, error) {
	if s == nil {
		return Series{}, fmt.Errorf("%w: this server stores no history", ErrUnknown)
	}
	s.mu.Lock()
	k := s.reg.kinds[kind]
	if k == nil || k.series[key] == nil {
		s.mu.Unlock()
		return Series{}, fmt.Errorf("%w: %s %q", ErrUnknown, kind, key)
	}
	id := k.series[key].id
	columns := slices.Clone(k.columns)
	out := Series{Kind: kind, Key: key, Fields: slices.Clone(k.fields)}
	tail := s.tail(id)
	now := s.slot
	s.mu.Unlock()

	wanted := int64((max(step, 0) + Base - 1) / Base)
	p := planQuery(now, clampedSlot(from), clampedSlot(to.Add(Base-1)), wanted, defaultPoints, MaxPoints)
	out.Start, out.Step = timeOf(p.from), time.Duration(p.step)*Base
	out.Resolution = time.Duration(levels[p.level].step) * Base
	rows := make([][]cell, len(columns))
	s.fileMu.RLock()
	defer s.fileMu.RUnlock()
	read := func(pg *pages) error { return readRows(pg, p, id, tail, columns, rows) }
	var err error
	switch {
	case s.file != nil:
		err = s.file.view(func(tx *bolt.Tx) error { return read(newPages(tx)) })
	case s.isClosed():
		err = ErrClosed
	default:
		err = fmt.Errorf("%w: its file was damaged", ErrUnknown)
	}
	if err != nil {
		return Series{}, err
	}
	ratio := int(p.step / levels[p.level].step)
	for _, row := range rows {
		points := make([]Point, 0, p.points())
		for i := 0; i < len(row); i += ratio {
			points = append(points, fold(row[i:i+ratio]).point())
		}
		out.Points = append(out.Points, points)
	}
	return out, nil
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// clampedSlot returns the slot of a time. The time may be beyond the range of nanoseconds
// since 1970.
func clampedSlot(t time.Time) int64 {
	return floorTo(min(max(t.Unix(), 0), 1<<40), int64(Base/time.Second)) / int64(Base/time.Second)
}

// tail returns the blocks of a series in memory, oldest first. The caller holds s.mu.
func (s *Store) tail(id uint32) []tailBlock {
	var out []tailBlock
	for _, m := range s.waiting {
		if b, ok := m.find(id); ok {
			out = append(out, tailBlock{m.start, b})
		}
	}
	if s.open != nil {
		if b, ok := s.open.find(id); ok {
			out = append(out, tailBlock{s.open.start, b})
		}
	}
	return out
}

// readRows fills rows with the cells of the plan's range and level.
func readRows(pg *pages, p plan, id uint32, tail []tailBlock, columns []int, rows [][]cell) error {
	l := levels[p.level]
	for i := range rows {
		rows[i] = make([]cell, (p.to-p.from)/l.step)
	}
	for start := floorTo(p.from, l.span()); start < p.to; start += l.span() {
		b := pg.assemble(segmentKey{p.level, start, id % shards}, id, tail)
		low, high := max(p.from, start), min(p.to, start+l.span())
		for i, c := range columns {
			if c < b.fields {
				copy(rows[i][(low-p.from)/l.step:], b.field(c)[(low-start)/l.step:(high-start)/l.step])
			}
		}
	}
	return nil
}
