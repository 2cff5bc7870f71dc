package tasks

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// A segment has at least one record in segmentShare of all that may be kept, at most segmentRecords. It
	// has the ends of at least one part in ageShare of the time for which records are kept, unless it is full.
	segmentShare   = 64
	segmentRecords = 131_072
	segmentLeast   = 16
	ageShare       = 32
	// mostSegments bounds the segments that age makes: files are open.
	mostSegments = 128
	// journalBytes bounds what a journal grows.
	journalBytes = 32 << 20
)

// full is the number of records of a segment.
func (l Limits) full() int {
	return int(min(max(l.Count/segmentShare, segmentLeast), segmentRecords))
}

// due reports whether the journal should become segments: when enough of its records have ended, when it is
// large, and when a part of the time for which records are kept has passed.
func (s *Store) due(now time.Time) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.usable() != nil {
		return false
	}
	r := s.recent
	return r.ended >= max(s.limits.full(), (len(r.order)-r.ended)/2) || s.old(now) ||
		s.journal.size > 2*s.carried+min(journalBytes, s.limits.Bytes/4)
}

// old reports whether a record of the journal ended so long ago that a segment is due.
func (s *Store) old(now time.Time) bool {
	part := s.limits.Age / ageShare
	return s.recent.ended > 0 && len(s.segments) < mostSegments && now.Sub(s.rotated) >= part && s.recent.oldest < now.Add(-part).UnixNano()
}

// rotate writes the records of allocations that have ended to segments, and the others to a new journal.
// It leaves out those that ended too long ago, and over others: those that ended first. Readers go on meanwhile.
func (s *Store) rotate(now time.Time, over int) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.view(func() error { return nil }); err != nil {
		return err
	}
	j := s.journal
	record := func(e *entry) ([]byte, error) {
		raw, err := j.record(e.at)
		return raw, s.blame(nil, err)
	}
	parts, rest := s.split(now, over)
	var added []*segment
	f, size, err := func() (*os.File, int64, error) {
		for i, part := range parts {
			path := s.segmentPath(nameOf(s.sequence+uint64(i+1), part))
			if err := writeFile(path, s.noSync, func(w *bufio.Writer) error { return writeSegment(w, part, record, s.at) }); err != nil {
				return nil, 0, err
			}
			g, err := openSegment(path)
			if err != nil {
				return nil, 0, err
			}
			added = append(added, g)
		}
		path := s.journalPath(s.sequence + uint64(len(parts)+1))
		if err := writeJournal(path, s.noSync, s.at, rest, record); err != nil {
			return nil, 0, err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return nil, 0, err
		}
		size, err := f.Seek(0, io.SeekEnd)
		return f, size, err
	}()
	if err != nil {
		for _, g := range added {
			_ = g.f.Close()
		}
		return err
	}
	fresh := newRecent()
	for _, e := range rest {
		fresh.add(e)
	}
	fresh.sort()
	former := s.journalPath(s.sequence)
	s.mu.Lock()
	s.journal, s.recent, s.carried, s.rotated = &journal{f: f, size: size}, fresh, size, now
	s.segments = append(slices.Clip(s.segments), added...)
	s.sequence += uint64(len(parts) + 1)
	s.mu.Unlock()
	return errors.Join(j.f.Close(), os.Remove(former))
}

func nameOf(sequence uint64, list []*entry) named {
	n := named{sequence, list[0].event, list[0].event}
	for _, e := range list {
		n.first, n.last = min(n.first, e.event), max(n.last, e.event)
	}
	return n
}

// split returns the entries of the new segments, and those for the next journal, each in the order of their keys.
// A journal with few ended allocations makes no segment.
func (s *Store) split(now time.Time, over int) (parts [][]*entry, rest []*entry) {
	var ended []*entry
	for _, e := range s.recent.order {
		switch {
		case e.ended == 0:
			c := *e // readers have the other one
			rest = append(rest, &c)
		case e.ended >= now.Add(-s.limits.Age).UnixNano():
			ended = append(ended, e)
		default:
			over--
		}
	}
	slices.SortStableFunc(ended, func(a, b *entry) int { return cmp.Compare(a.ended, b.ended) })
	full := s.limits.full()
	over = max(over, len(ended)-int(s.limits.Count))
	if over > 0 {
		rest = rest[min(max(over-len(ended), 0), len(rest)):]
		ended = ended[min(over, len(ended)):]
	}
	if len(ended) < full/2 && !s.old(now) {
		for _, e := range ended {
			c := *e
			rest = append(rest, &c)
		}
		slices.SortFunc(rest, func(a, b *entry) int { return a.key.Compare(b.key) })
		return nil, rest
	}
	n := (len(ended) + full/2) / full // segments of about the same size
	if len(ended) > 0 {
		n = max(n, 1)
	}
	for i := range n {
		part := slices.Clone(ended[i*len(ended)/n : (i+1)*len(ended)/n])
		slices.SortFunc(part, func(a, b *entry) int { return a.key.Compare(b.key) })
		parts = append(parts, part)
	}
	return parts, rest
}

// writeSegment writes a segment: see segment.go.
func writeSegment(w *bufio.Writer, list []*entry, record func(*entry) ([]byte, error), at *nusav1.CopyTasksResponse) error {
	sum := summary{
		Records: uint32(len(list)), Keys: int64(len(segmentMark)), Least: list[0].key, Greatest: list[len(list)-1].key,
		FirstEvent: list[0].event, FirstEnd: list[0].ended,
	}
	_, _ = w.WriteString(segmentMark) // w keeps the error for Flush
	ids, numbered := newFilter(len(list)), make([]numberedTerm, 0, 8*len(list))
	rows := make([]byte, 0, keyRow*len(list))
	var frame []byte
	var terms []term
	for i, e := range list {
		raw, err := record(e)
		if err != nil {
			return err
		}
		frame = appendFrame(frame[:0], firstPiece, raw)
		_, _ = w.Write(frame)
		rows = binary.BigEndian.AppendUint64(e.key.Append(rows), uint64(sum.Keys))
		sum.Keys += int64(len(frame))
		ids.add(e.key.ID)
		terms = e.terms(terms[:0])
		for _, t := range terms {
			numbered = append(numbered, numberedTerm{t, uint32(i)})
		}
		if e.again {
			sum.Again++
		}
		sum.FirstEvent, sum.LastEvent = min(sum.FirstEvent, e.event), max(sum.LastEvent, e.event)
		sum.FirstEnd, sum.LastEnd = min(sum.FirstEnd, e.ended), max(sum.LastEnd, e.ended)
	}
	termRows, numbers, distinct := sortTerms(numbered)
	sum.Terms, sum.Numbers = distinct, uint32(len(numbers)/4)
	raw, err := proto.Marshal(at)
	if err != nil {
		return err
	}
	sum.Filter = sum.Keys + int64(len(rows)+idRow*len(list)+len(termRows)+len(numbers))
	sum.Position = sum.Filter + int64(len(ids))
	sum.End = sum.Position + int64(len(raw))
	check := crc32.New(castagnoli)
	out := io.MultiWriter(w, check)
	for _, part := range [][]byte{rows, idRows(list), termRows, numbers, ids, raw} {
		_, _ = out.Write(part)
	}
	if err := binary.Write(out, binary.BigEndian, sum); err != nil {
		return err
	}
	_, _ = w.Write(binary.BigEndian.AppendUint32(nil, check.Sum32()))
	_, err = w.WriteString(segmentMark)
	return err
}

// idRows returns the ids with the numbers of their records, by id.
func idRows(list []*entry) (out []byte) {
	order := make([]uint32, len(list))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return bytes.Compare(list[a].key.ID[:], list[b].key.ID[:]) })
	for _, i := range order {
		out = binary.BigEndian.AppendUint32(append(out, list[i].key.ID[:]...), i)
	}
	return out
}

// trim writes a segment if that is due, and removes records beyond the limits. It removes segments also if the
// disk has no room for another one.
func (s *Store) trim(now time.Time) error {
	var failed error
	if s.due(now) {
		failed = s.rotate(now, 0)
	}
	passed := now.Add(-s.limits.Age).UnixNano()
	for {
		g, over := s.surplus(now)
		if g == nil && (over == 0 || failed != nil) {
			break
		}
		if g == nil { // only the journal is left
			if err := s.rotate(now, over); err != nil {
				return err
			}
			break
		}
		passed = max(passed, g.LastEnd)
		if err := s.remove(g); err != nil {
			return err
		}
	}
	if failed != nil {
		return failed
	}
	return s.passGaps(min(passed, s.oldestEnd()))
}

// oldestEnd returns when the first allocation ended whose record is left. Without records it is the greatest time.
func (s *Store) oldestEnd() int64 {
	oldest := int64(math.MaxInt64)
	_ = s.view(func() error {
		if s.recent.ended > 0 {
			oldest = s.recent.oldest
		}
		for _, g := range s.segments {
			oldest = min(oldest, g.FirstEnd)
		}
		return nil
	})
	return oldest
}

// surplus returns the next segment to remove, or how many records of the journal to remove.
func (s *Store) surplus(now time.Time) (first *segment, over int) {
	_ = s.view(func() error {
		for _, g := range s.segments {
			if first == nil || g.LastEnd < first.LastEnd {
				first = g
			}
		}
		many, large := s.count()-s.limits.Count, s.bytes() > s.limits.Bytes
		switch {
		case many <= 0 && !large && (first == nil || first.LastEnd >= now.Add(-s.limits.Age).UnixNano()):
			first = nil
		case first == nil:
			if large {
				many = max(many, s.count()/16)
			}
			over = int(max(many, 1))
		}
		return nil
	})
	return first, over
}

// remove removes a segment.
func (s *Store) remove(g *segment) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	s.segments = slices.DeleteFunc(slices.Clone(s.segments), func(x *segment) bool { return x == g })
	s.mu.Unlock()
	return errors.Join(g.f.Close(), os.Remove(g.path))
}

// passGaps forgets the gaps before a time: no record of an allocation that ended before it is left.
func (s *Store) passGaps(unixNano int64) error {
	passed := func(g *nusav1.TaskGap) bool {
		return g.GetTo() != nil && g.GetTo().AsTime().UnixNano() <= unixNano
	}
	if !slices.ContainsFunc(s.position().GetGaps(), passed) {
		return nil
	}
	return s.update(func(b *batch) error {
		b.at.Gaps = slices.DeleteFunc(b.at.Gaps, passed)
		return nil
	})
}
