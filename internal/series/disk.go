package series

import (
	"encoding/binary"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// Buckets of the file.
var (
	bucketMeta   = []byte("meta")     // format; fields/<kind> → names, by column
	bucketSeries = []byte("series")   // id → kind, 0, key; the sequence is the next id
	bucketData   = []byte("segments") // level, start, shard → segment
	// bucketStale names the coarser segments that do not include the latest writes to
	// finer segments: level, start, shard → nothing.
	bucketStale = []byte("stale")

	keyFormat = []byte("format")
)

// format is the only format that this version writes and reads.
const format = "1"

// shards is the number of groups into which the series are divided. With this number a
// segment has more than a few bytes and less than one or two megabytes, and a compaction
// takes about 50 ms.
const shards = 16

// segmentKey identifies a segment. In the file, segments are ordered by level, then time,
// then shard.
type segmentKey struct {
	level int
	start int64
	shard uint32
}

const segmentKeyLen = 10

func (k segmentKey) bytes() []byte {
	b := make([]byte, 0, segmentKeyLen)
	b = append(b, byte(k.level))
	b = binary.BigEndian.AppendUint64(b, uint64(k.start))
	return append(b, byte(k.shard))
}

func (k segmentKey) end() int64 { return k.start + levels[k.level].span() }

// parent returns the segment of the next coarser level that covers k; false for the
// coarsest level.
func (k segmentKey) parent() (segmentKey, bool) {
	if k.level == coarsest {
		return segmentKey{}, false
	}
	return segmentKey{k.level + 1, floorTo(k.start, levels[k.level+1].span()), k.shard}, true
}

func parseSegmentKey(b []byte) (segmentKey, bool) {
	if len(b) != segmentKeyLen || int(b[0]) > coarsest || b[9] >= shards {
		return segmentKey{}, false
	}
	k := segmentKey{int(b[0]), int64(binary.BigEndian.Uint64(b[1:])), uint32(b[9])}
	return k, k.start >= 0 && k.start%levels[k.level].span() == 0
}

// pages reads and writes segments in a transaction.
type pages struct {
	data, stale *bolt.Bucket
	codecs      [len(levels)]*codec
	opened      map[segmentKey]segment // segments read by one compaction or query
	damaged     int                    // number of unreadable blocks and segments
}

func newPages(tx *bolt.Tx) *pages {
	p := &pages{data: tx.Bucket(bucketData), stale: tx.Bucket(bucketStale), opened: map[segmentKey]segment{}}
	for i, l := range levels {
		p.codecs[i] = newCodec(l)
	}
	return p
}

func (p *pages) open(k segmentKey) segment {
	s, ok := p.opened[k]
	if !ok {
		var err error
		if s, err = openSegment(p.data.Get(k.bytes())); err != nil {
			p.damaged++
		}
		p.opened[k] = s
	}
	return s
}

// load returns the block of a series; an empty block if the stored one is damaged.
func (p *pages) load(k segmentKey, id uint32) block {
	data, err := p.open(k).find(id)
	if err == nil && data == nil {
		return block{points: levels[k.level].points}
	}
	if err == nil {
		var b block
		if b, err = p.codecs[k.level].decode(data); err == nil {
			return b
		}
	}
	p.damaged++
	return block{points: levels[k.level].points}
}

func (p *pages) isStale(k segmentKey) bool { return p.stale.Get(k.bytes()) != nil }

// tailBlock is the block of a series in a minute that is in memory only.
type tailBlock struct {
	start int64
	block block
}

// assemble returns a block that includes all finer data and the tail, although these may
// not have been compacted yet.
func (p *pages) assemble(k segmentKey, id uint32, tail []tailBlock) block {
	b := p.load(k, id)
	if k.level == 0 {
		for _, t := range tail {
			if t.start == k.start {
				b = b.overlay(t.block)
			}
		}
		return b
	}
	inTail := func(t tailBlock) bool { return t.start >= k.start && t.start < k.end() }
	if !p.isStale(k) && !slices.ContainsFunc(tail, inTail) {
		return b
	}
	finer, step := levels[k.level-1], levels[k.level].step
	for start := k.start; start < k.end(); start += finer.span() {
		child := p.assemble(segmentKey{k.level - 1, start, k.shard}, id, tail)
		if child.fields > 0 {
			b = b.coarsen(child, int((start-k.start)/step), int(step/finer.step))
		}
	}
	return b
}

// write stores a minute. Its values replace stored values of the same time.
func (p *pages) write(m *minute) error {
	rows := make([]int, len(m.ids))
	for i := range rows {
		rows[i] = i
	}
	slices.SortFunc(rows, func(a, b int) int {
		if d := int(m.ids[a]%shards) - int(m.ids[b]%shards); d != 0 {
			return d
		}
		return int(int64(m.ids[a]) - int64(m.ids[b]))
	})
	for len(rows) > 0 {
		k := segmentKey{0, m.start, m.ids[rows[0]] % shards}
		n := slices.IndexFunc(rows, func(r int) bool { return m.ids[r]%shards != k.shard })
		if n < 0 {
			n = len(rows)
		}
		if err := p.writeShard(k, m, rows[:n]); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// writeShard writes the rows of one shard. The ids of the rows ascend.
func (p *pages) writeShard(k segmentKey, m *minute, rows []int) error {
	delete(p.opened, k)
	old := p.open(k)
	delete(p.opened, k)
	var w segmentWriter
	c, i := p.codecs[0], 0
	for _, row := range rows {
		id := m.ids[row]
		b := m.block(row)
		for ; i < old.n && old.id(i) < id; i++ {
			w.add(old.id(i), c, p.load(k, old.id(i)))
		}
		if i < old.n && old.id(i) == id {
			b = p.load(k, id).overlay(b)
			i++
		}
		w.add(id, c, b)
	}
	for ; i < old.n; i++ {
		w.add(old.id(i), c, p.load(k, old.id(i)))
	}
	delete(p.opened, k)
	if err := p.data.Put(k.bytes(), w.bytes()); err != nil {
		return err
	}
	for up, ok := k.parent(); ok; up, ok = up.parent() {
		if p.isStale(up) {
			continue
		}
		if err := p.stale.Put(up.bytes(), []byte{}); err != nil {
			return err
		}
	}
	return nil
}

// nextStale returns the first stale segment whose span has ended. Finer levels come first,
// so that coarser segments are made from complete data.
func (p *pages) nextStale(now int64) (segmentKey, bool) {
	c := p.stale.Cursor()
	for level := 1; level <= coarsest; level++ {
		b, _ := c.Seek(segmentKey{level: level}.bytes())
		if k, ok := parseSegmentKey(b); ok && k.level == level && k.end() <= now {
			return k, true
		}
	}
	return segmentKey{}, false
}

// compact makes a stale segment again from the finer segments.
func (p *pages) compact(k segmentKey) error {
	clear(p.opened)
	ids := map[uint32]bool{}
	note := func(k segmentKey) {
		s := p.open(k)
		for i := range s.n {
			ids[s.id(i)] = true
		}
	}
	note(k)
	for start := k.start; start < k.end(); start += levels[k.level-1].span() {
		note(segmentKey{k.level - 1, start, k.shard})
	}
	var w segmentWriter
	sorted := make([]uint32, 0, len(ids))
	for id := range ids {
		sorted = append(sorted, id)
	}
	slices.Sort(sorted)
	for _, id := range sorted {
		if b := p.assemble(k, id, nil); b.fields > 0 {
			w.add(id, p.codecs[k.level], b)
		}
	}
	clear(p.opened)
	if err := p.stale.Delete(k.bytes()); err != nil || len(w.index) == 0 {
		return err
	}
	return p.data.Put(k.bytes(), w.bytes())
}

// maxExpired bounds the expired segments that one transaction removes. It suffices for the
// segments of a few minutes.
const maxExpired = 8 * shards

// expire removes segments that are older than their level retains, unless a coarser
// segment still needs them. It also removes segments that are ahead of the clock.
func (p *pages) expire(now int64) error {
	var gone []segmentKey
	c := p.data.Cursor()
	for level, l := range levels {
		for b, _ := c.Seek(segmentKey{level: level}.bytes()); len(gone) < maxExpired; b, _ = c.Next() {
			k, ok := parseSegmentKey(b)
			if !ok || k.level != level || k.end() > l.covered(now) {
				break
			}
			if up, ok := k.parent(); ok && p.isStale(up) {
				continue
			}
			gone = append(gone, k)
		}
		ahead := segmentKey{level: level, start: ceilTo(now+1, l.span()) + l.span()}
		for b, _ := c.Seek(ahead.bytes()); len(gone) < maxExpired; b, _ = c.Next() {
			k, ok := parseSegmentKey(b)
			if !ok || k.level != level {
				break
			}
			gone = append(gone, k)
		}
	}
	for _, k := range gone {
		if err := p.remove(k); err != nil {
			return err
		}
	}
	return p.forgetAhead(now)
}

// forgetAhead removes the marks of stale segments that are ahead of the clock, because
// expire removes the finer segments from which they would be made.
func (p *pages) forgetAhead(now int64) error {
	c := p.stale.Cursor()
	for level := 1; level <= coarsest; level++ {
		span := levels[level].span()
		from := segmentKey{level: level, start: ceilTo(now+1, span) + span}
		for b, _ := c.Seek(from.bytes()); b != nil && int(b[0]) == level; b, _ = c.Seek(from.bytes()) {
			if err := c.Delete(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pages) remove(k segmentKey) error {
	delete(p.opened, k)
	return p.data.Delete(k.bytes())
}

// evict removes at least size bytes of data. It begins with the oldest segments of the
// coarsest level. It returns the number of removed segments.
func (p *pages) evict(size int64) (int, error) {
	var gone []segmentKey
	c := p.data.Cursor()
	for level := coarsest; level >= 0; level-- {
		for b, v := c.Seek(segmentKey{level: level}.bytes()); b != nil && size > 0; b, v = c.Next() {
			k, ok := parseSegmentKey(b)
			if !ok || k.level != level {
				break
			}
			gone = append(gone, k)
			size -= int64(len(v) + segmentKeyLen)
		}
	}
	for _, k := range gone {
		if err := p.remove(k); err != nil {
			return 0, err
		}
	}
	return len(gone), nil
}
