package tasks

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"slices"
	"sort"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// A segment is a file of records of allocations that have ended. It never changes. It has:
//
//	segmentMark
//	the records as frames, by key: see journal.go
//	for each record, by key: key (24), place of its frame (8)
//	for each record, by id: id (16), its number in the order of keys (4)
//	for each term, by term: term (8), where its numbers begin (4), how many there are (4)
//	the numbers of the records that have the terms (4 each)
//	bits that say which ids it has not: see filter
//	the position of the history when the segment was written
//	the summary, CRC-32C of everything after the records, segmentMark
//
// An operation reads only the pages that it needs. A server has at most about 100 segments.
const (
	segmentMark = "nusaTS1\n"
	keyRow      = taskpage.Size + 8
	idRow       = taskpage.IDBytes + 4
	termRow     = 16
	// rowsAtOnce is the number of keys that a reader reads together.
	rowsAtOnce = 128
)

// summary says where the parts of a segment are, and what it contains. All fields have a fixed size.
type summary struct {
	Records, Again, Terms, Numbers uint32 // Again: an earlier segment has a copy of so many of the records
	Keys, Filter, Position, End    int64  // places of the keys, the filter, the position and the end
	Least, Greatest                taskpage.Key
	FirstEvent, LastEvent          uint64
	FirstEnd, LastEnd              int64 // Unix time in nanoseconds
}

var summarySize = binary.Size(summary{})

// segment is an open segment.
type segment struct {
	summary
	f        *os.File
	path     string
	bytes    int64
	filter   filter
	position *nusav1.CopyTasksResponse
	damaged  atomic.Bool
}

// openSegment opens a segment, and reads all but its records.
func openSegment(path string) (*segment, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	g := &segment{f: f, path: path, position: &nusav1.CopyTasksResponse{}}
	if err := g.read(); err != nil {
		_ = f.Close()
		return nil, err
	}
	return g, nil
}

func (g *segment) read() error {
	info, err := g.f.Stat()
	if err != nil {
		return err
	}
	g.bytes = info.Size()
	tail := int64(summarySize + 4 + len(segmentMark))
	end, err := g.section(max(0, g.bytes-tail), int(tail))
	if err != nil {
		return err
	}
	if _, err := binary.Decode(end, binary.BigEndian, &g.summary); err != nil || string(end[summarySize+4:]) != segmentMark {
		return fmt.Errorf("%w: no end of a segment", errDamaged)
	}
	n := int64(g.Records)
	if g.Keys < int64(len(segmentMark)) || g.Records == 0 || g.Filter != g.numbersAt()+4*int64(g.Numbers) ||
		g.Position < g.Filter || g.End < g.Position || g.End != g.bytes-tail || g.numbersAt() < g.Keys+n*(keyRow+idRow) {
		return fmt.Errorf("%w: the parts of a segment are not in their places", errDamaged)
	}
	rest, err := g.section(g.Keys, int(g.End-g.Keys)+summarySize)
	if err != nil {
		return err
	}
	if crc32.Checksum(rest, castagnoli) != binary.BigEndian.Uint32(end[summarySize:]) {
		return fmt.Errorf("%w: the sum of a segment is wrong", errDamaged)
	}
	g.filter = filter(bytes.Clone(rest[g.Filter-g.Keys : g.Position-g.Keys]))
	if err := proto.Unmarshal(rest[g.Position-g.Keys:g.End-g.Keys], g.position); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

func (g *segment) idsAt() int64     { return g.Keys + int64(g.Records)*keyRow }
func (g *segment) termsAt() int64   { return g.idsAt() + int64(g.Records)*idRow }
func (g *segment) numbersAt() int64 { return g.termsAt() + int64(g.Terms)*termRow }

// section reads n bytes.
func (g *segment) section(at int64, n int) ([]byte, error) {
	if at < 0 || n < 0 || at+int64(n) > g.bytes {
		return nil, fmt.Errorf("%w: no bytes %d to %d", errDamaged, at, at+int64(n))
	}
	b, err := readSome(g.f, at, n)
	if err == nil && len(b) < n {
		err = fmt.Errorf("%w: a segment is cut off", errDamaged)
	}
	return b, err
}

// search returns the first of n rows that is not below want.
func (g *segment) search(from int64, n uint32, row int, want []byte) (i int, err error) {
	buf := make([]byte, len(want))
	i = sort.Search(int(n), func(i int) bool {
		if err == nil {
			_, err = g.f.ReadAt(buf, from+int64(i*row))
		}
		return err != nil || bytes.Compare(buf, want) >= 0
	})
	if err != nil {
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	return i, err
}

// with returns which records have a term.
func (g *segment) with(t term) (bits, error) {
	out := newBits(g.Records)
	i, err := g.search(g.termsAt(), g.Terms, termRow, t[:])
	if err != nil || i == int(g.Terms) {
		return out, err
	}
	row, err := g.section(g.termsAt()+int64(i)*termRow, termRow)
	if err != nil || term(row[:8]) != t {
		return out, err
	}
	first, n := binary.BigEndian.Uint32(row[8:]), binary.BigEndian.Uint32(row[12:])
	if uint64(first)+uint64(n) > uint64(g.Numbers) {
		return nil, fmt.Errorf("%w: a term has numbers that do not exist", errDamaged)
	}
	list, err := g.section(g.numbersAt()+4*int64(first), 4*int(n))
	for ; len(list) > 0; list = list[4:] {
		number := binary.BigEndian.Uint32(list)
		if number >= g.Records {
			return nil, fmt.Errorf("%w: a term has a record that does not exist", errDamaged)
		}
		out.set(number)
	}
	return out, err
}

// choose returns the records that may belong to an answer.
func (g *segment) choose(of *selection) (bits, error) {
	var out bits
	and := func(b bits) {
		if out == nil {
			out = b
		} else {
			out.and(b)
		}
	}
	for _, t := range of.terms {
		b, err := g.with(t)
		if err != nil {
			return nil, err
		}
		and(b)
	}
	if len(of.states) > 0 {
		any := newBits(g.Records)
		for _, s := range of.states {
			b, err := g.with(stateTerm(s))
			if err != nil {
				return nil, err
			}
			any.or(b)
		}
		and(any)
	}
	if out == nil {
		out = allBits(g.Records)
	}
	return out, nil
}

// record returns the record whose frame is at a place.
func (g *segment) record(at int64) (*nusav1.StoredTask, error) {
	b, err := readSome(g.f, at, readAhead)
	if err != nil {
		return nil, err
	}
	_, data, size, short, err := parseFrame(b)
	if short {
		if b, err = g.section(at, size); err == nil {
			_, data, _, short, err = parseFrame(b)
		}
	}
	if err != nil {
		return nil, err
	}
	if short {
		return nil, fmt.Errorf("%w: a record is cut off", errDamaged)
	}
	return decode(data)
}

// withID calls visit for the ids that are not below want, in their order, until it returns false.
func (g *segment) withID(want []byte, visit func(id [taskpage.IDBytes]byte) bool) error {
	i, err := g.search(g.idsAt(), g.Records, idRow, want)
	for ; err == nil && i < int(g.Records); i++ {
		var row []byte
		if row, err = g.section(g.idsAt()+int64(i)*idRow, idRow); err == nil && !visit([taskpage.IDBytes]byte(row)) {
			break
		}
	}
	return err
}

// find returns the record with an id. It returns nil if the segment has none.
func (g *segment) find(id [taskpage.IDBytes]byte) (*nusav1.StoredTask, error) {
	if !g.filter.may(id) {
		return nil, nil
	}
	i, err := g.search(g.idsAt(), g.Records, idRow, id[:])
	if err != nil || i == int(g.Records) {
		return nil, err
	}
	row, err := g.section(g.idsAt()+int64(i)*idRow, idRow)
	if err != nil || !bytes.HasPrefix(row, id[:]) {
		return nil, err
	}
	number := binary.BigEndian.Uint32(row[taskpage.IDBytes:])
	row, err = g.section(g.Keys+int64(number)*keyRow, keyRow)
	if err != nil {
		return nil, err
	}
	return g.record(int64(binary.BigEndian.Uint64(row[taskpage.Size:])))
}

// segmentCursor reads the records of a segment that may belong to an answer.
type segmentCursor struct {
	g    *segment
	of   *selection
	bits bits // nil: not read yet
	// next is the number of the record above the next one. rows are the keys from the number first on.
	next, first int
	rows        []byte
	at          int64
}

func (c *segmentCursor) seek(below taskpage.Key, _ *int) (k taskpage.Key, found, more bool, err error) {
	if c.bits == nil {
		if c.bits, err = c.g.choose(c.of); err != nil {
			return k, false, false, err
		}
		if c.next, err = c.g.search(c.g.Keys, c.g.Records, keyRow, below.Append(nil)); err != nil {
			return k, false, false, err
		}
		c.first = math.MaxInt
	}
	for {
		c.next = c.bits.before(c.next)
		if c.next < 0 {
			return k, false, false, nil
		}
		if c.next < c.first {
			c.first = max(0, c.next+1-rowsAtOnce)
			if c.rows, err = c.g.section(c.g.Keys+int64(c.first)*keyRow, (c.next+1-c.first)*keyRow); err != nil {
				return k, false, false, err
			}
		}
		row := c.rows[(c.next-c.first)*keyRow:]
		k, _ = taskpage.Decode(row[:taskpage.Size])
		c.at = int64(binary.BigEndian.Uint64(row[taskpage.Size:]))
		if k.Compare(below) < 0 {
			return k, true, true, nil
		}
	}
}

func (c *segmentCursor) record() (*nusav1.StoredTask, error) { return c.g.record(c.at) }

// sortTerms returns the rows of the terms and the numbers of their records.
func sortTerms(list []numberedTerm) (rows, numbers []byte, distinct uint32) {
	slices.SortFunc(list, func(a, b numberedTerm) int {
		if c := bytes.Compare(a.term[:], b.term[:]); c != 0 {
			return c
		}
		return int(a.number) - int(b.number)
	})
	list = slices.Compact(list)
	for i := 0; i < len(list); {
		n := i
		for ; n < len(list) && list[n].term == list[i].term; n++ {
			numbers = binary.BigEndian.AppendUint32(numbers, list[n].number)
		}
		rows = append(rows, list[i].term[:]...)
		rows = binary.BigEndian.AppendUint32(rows, uint32(i))
		rows = binary.BigEndian.AppendUint32(rows, uint32(n-i))
		distinct++
		i = n
	}
	return rows, numbers, distinct
}

// numberedTerm is a term of the record with a number.
type numberedTerm struct {
	term   term
	number uint32
}
