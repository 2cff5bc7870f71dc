package tasks

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The names of the files begin with a number and end so. The name of a segment also has the events of its records,
// for the gap that a damaged one leaves. A journal becomes segments and the next journal, all with greater numbers.
// While the next journal does not exist, these segments do not count.
const (
	journalName = ".journal"
	segmentName = ".segment"
	damagedName = ".damaged"
	// formerName is the end of the name of the bbolt file that a history was.
	formerName = ".db"
)

// folder is where the files are.
type folder struct {
	path   string
	noSync bool // for tests
	log    *slog.Logger
}

// named is the name of a file.
type named struct {
	sequence    uint64
	first, last uint64 // events of a segment
}

func (s folder) journalPath(sequence uint64) string {
	return filepath.Join(s.path, fmt.Sprintf("%08d%s", sequence, journalName))
}

func (s folder) segmentPath(n named) string {
	return filepath.Join(s.path, fmt.Sprintf("%08d-%d-%d%s", n.sequence, n.first, n.last, segmentName))
}

// names returns the names of the files, the least number first. It removes files that a crash left. It leaves
// out files whose names this package does not give.
func (s folder) names() (journals, segments []named, err error) {
	list, err := os.ReadDir(s.path) // sorted by name
	for _, e := range list {
		var n named
		name := e.Name()
		if strings.HasSuffix(name, ".tmp") {
			_ = os.Remove(filepath.Join(s.path, name))
		} else if _, err := fmt.Sscanf(name, "%d-%d-%d"+segmentName, &n.sequence, &n.first, &n.last); err == nil && name == filepath.Base(s.segmentPath(n)) {
			segments = append(segments, n)
		} else if _, err := fmt.Sscanf(name, "%d"+journalName, &n.sequence); err == nil && name == filepath.Base(s.journalPath(n.sequence)) {
			journals = append(journals, n)
		}
	}
	bySequence := func(a, b named) int { return cmp.Compare(a.sequence, b.sequence) }
	slices.SortFunc(journals, bySequence)
	slices.SortFunc(segments, bySequence)
	return journals, segments, err
}

// opened is what open builds.
type opened struct {
	journal  *journal
	recent   *recent
	sequence uint64
	segments []*segment
	at       *nusav1.CopyTasksResponse
	damaged  []damagedSegment
}

// damagedSegment is a segment that is set aside as soon as the history has its gap.
type damagedSegment struct {
	path string
	gap  *nusav1.TaskGap
	why  error
}

func (o *opened) close() {
	if o.journal != nil {
		_ = o.journal.f.Close()
	}
	for _, g := range o.segments {
		_ = g.f.Close()
	}
}

func (s folder) openFiles(o *opened) error {
	if err := os.MkdirAll(s.path, 0o700); err != nil {
		return err
	}
	if former := s.path + formerName; os.Remove(former) == nil {
		s.log.Warn("the history of tasks in the former file is dropped: another server or the region's log fills the new one", "file", former, "folder", s.path)
		_ = os.Remove(former + damagedName)
	}
	journals, segments, err := s.names()
	if err != nil {
		return err
	}
	if n := len(journals); n > 0 {
		o.sequence = journals[n-1].sequence
		for _, old := range journals[:n-1] {
			_ = os.Remove(s.journalPath(old.sequence))
		}
	} else if n := len(segments); n > 0 {
		o.sequence = segments[n-1].sequence + 1
	}
	o.at = &nusav1.CopyTasksResponse{}
	for _, n := range segments {
		if n.sequence > o.sequence {
			_ = os.Remove(s.segmentPath(n)) // the journal still has its records
			continue
		}
		if err := s.openOne(o, n); err != nil {
			return err
		}
	}
	return s.openJournal(o, len(journals) > 0)
}

// openOne opens a segment, or notes that it is damaged.
func (s folder) openOne(o *opened, n named) error {
	path := s.segmentPath(n)
	g, err := openSegment(path)
	if err == nil {
		o.segments, o.at = append(o.segments, g), g.position
		return nil
	}
	if !errors.Is(err, errDamaged) {
		return err
	}
	gap := &nusav1.TaskGap{First: n.first, Next: n.last + 1, To: timestamppb.Now(), Why: damagedWhy}
	if n := len(o.segments); n > 0 {
		gap.From = timestamp(o.segments[n-1].FirstEnd)
	}
	o.damaged = append(o.damaged, damagedSegment{path, gap, err})
	return nil
}

const damagedWhy = "a file of this server's history was damaged"

// setAside renames a damaged file. It replaces a file that was set aside earlier.
func (s folder) setAside(path string, why error) error {
	s.log.Error("a file of the history of tasks is damaged and set aside", "file", path, "aside", s.path+damagedName, "error", why)
	if err := os.Rename(path, s.path+damagedName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// openJournal opens or creates the journal. A damaged one is set aside when the next one exists.
func (s folder) openJournal(o *opened, exists bool) error {
	path := s.journalPath(o.sequence)
	var damaged error
	if exists {
		damaged = s.replay(o, path)
		if damaged == nil || !errors.Is(damaged, errDamaged) {
			return damaged
		}
		o.sequence++
	}
	// The records of live allocations are lost, so the history reads the log again.
	o.at = &nusav1.CopyTasksResponse{Gaps: o.at.GetGaps()}
	next := s.journalPath(o.sequence)
	if err := writeJournal(next, s.noSync, o.at, nil, nil); err != nil {
		return err
	}
	if damaged != nil {
		if err := s.setAside(path, damaged); err != nil {
			return err
		}
	}
	return s.replay(o, next)
}

// replay reads the journal.
func (s folder) replay(o *opened, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	o.journal, o.recent = &journal{f: f}, newRecent()
	latest := map[int64]*entry{} // by the place of the latest piece
	before := o.at
	end, err := readJournal(f, func(at, earlier int64, data []byte) error {
		return o.read(latest, at, earlier, data)
	})
	if err == nil && o.at == before {
		err = fmt.Errorf("%w: no position", errDamaged)
	}
	var info os.FileInfo
	if err == nil {
		info, err = f.Stat()
	}
	if err == nil && info.Size() > end {
		s.log.Warn("the journal of the history of tasks ends in a part that was not written completely", "file", path, "at", end, "bytes", info.Size()-end)
		err = f.Truncate(end)
	}
	if err != nil {
		_ = f.Close()
		o.journal = nil
		return err
	}
	o.journal.size = end
	o.recent.sort()
	for _, e := range o.recent.order {
		e.again = slices.ContainsFunc(o.segments, func(g *segment) bool {
			have, err := g.find(e.key.ID)
			return have != nil && err == nil
		})
		if e.again {
			o.recent.again++
		}
	}
	return nil
}

// read reads one frame of a journal.
func (o *opened) read(latest map[int64]*entry, at, earlier int64, data []byte) error {
	if earlier == positionFrame {
		position := &nusav1.CopyTasksResponse{}
		if err := proto.Unmarshal(data, position); err != nil {
			return err
		}
		o.at = position
		return nil
	}
	rec, err := decode(data)
	if err != nil {
		return err
	}
	e := latest[earlier]
	if earlier == firstPiece {
		fresh, ok := o.recent.entryOf(rec)
		if !ok {
			return errDamaged
		}
		e = o.recent.byID[fresh.key.ID]
		if e != nil { // its pieces were written as one
			delete(latest, e.at)
			o.recent.replace(e, fresh)
		} else {
			e = fresh
			o.recent.add(e)
		}
		e.pieces = uint16(max(0, len(rec.Task.GetChanges())-1)) // the pieces of a former journal are one frame
	} else if e != nil {
		delete(latest, earlier)
		before := e.ended
		for _, c := range rec.Task.GetChanges() {
			e.apply(&change{time: c.GetTime().AsTime().UnixNano(), state: c.GetState(), restarts: c.GetRestarts()})
		}
		e.event = max(e.event, rec.Event)
		o.recent.changed(before, e)
	} else {
		return errDamaged
	}
	e.at = at
	e.pieces++
	latest[at] = e
	return nil
}

// writeJournal creates a journal that begins with records and a position: without the position, it is damaged.
func writeJournal(path string, noSync bool, at *nusav1.CopyTasksResponse, list []*entry, record func(*entry) ([]byte, error)) error {
	return writeFile(path, noSync, func(w *bufio.Writer) error {
		_, _ = w.WriteString(journalMark) // w keeps the error for Flush
		place := int64(len(journalMark))
		var b []byte
		for _, e := range list {
			raw, err := record(e)
			if err != nil {
				return err
			}
			b = appendFrame(b[:0], firstPiece, raw)
			e.at = place
			place += int64(len(b))
			_, _ = w.Write(b)
		}
		raw, err := proto.Marshal(at)
		_, _ = w.Write(appendFrame(b[:0], positionFrame, raw))
		return err
	})
}
