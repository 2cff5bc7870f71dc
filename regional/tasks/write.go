package tasks

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// maxPieces bounds the pieces of a record. More are written as one.
const maxPieces = 48

// batch is a write of several pieces, which the disk gets together.
type batch struct {
	*Store
	at *nusav1.CopyTasksResponse
	// segmented is the latest event that segments may have. The log is read again after damage.
	segmented uint64
}

// update runs f, and writes what it added and the position to the journal.
func (s *Store) update(f func(*batch) error) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	j, err := s.apply(f)
	if err == nil && !s.noSync {
		err = j.f.Sync()
	}
	if err != nil {
		if !errors.Is(err, errClosed) {
			s.broken.Store(true) // memory may have what the disk has not
		}
		return err
	}
	s.moved.Notify()
	return nil
}

func (s *Store) apply(f func(*batch) error) (*journal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	b := &batch{Store: s, at: proto.CloneOf(s.at)}
	for _, g := range s.segments {
		b.segmented = max(b.segmented, g.LastEvent)
	}
	all, dropped := s.segments, b.dropDamaged()
	err := b.write(f)
	if err == nil && len(dropped) > 0 && !s.noSync {
		err = s.journal.f.Sync()
	}
	if err != nil {
		s.segments = all // close closes them, and a reader finds the damage again
		return nil, err
	}
	for _, g := range dropped { // the journal has their gaps on the disk
		err = errors.Join(err, g.f.Close(), s.setAside(g.path, errDamaged))
	}
	return s.journal, err
}

// write writes what f adds, and the position.
func (b *batch) write(f func(*batch) error) error {
	b.enc.task = b.enc.task[:0] // a write that failed may have left a part
	if err := f(b); err != nil {
		return err
	}
	raw, err := proto.Marshal(b.at)
	if err != nil {
		return err
	}
	b.journal.add(positionFrame, raw)
	b.recent.sort()
	b.Store.at = b.at
	return b.journal.flush()
}

// dropDamaged removes the segments in which readers found damage, and notes their gaps.
func (b *batch) dropDamaged() (dropped []*segment) {
	kept := make([]*segment, 0, len(b.segments))
	for _, g := range b.segments {
		if !g.damaged.Load() {
			kept = append(kept, g)
			continue
		}
		addGap(b.at, &nusav1.TaskGap{
			From: timestamp(g.FirstEnd), To: timestamp(g.LastEnd), First: g.FirstEvent, Next: g.LastEvent + 1, Why: damagedWhy,
		})
		dropped = append(dropped, g)
	}
	if len(dropped) > 0 {
		b.segments = kept
	}
	return dropped
}

// sealed returns the record with an id that a segment has. It returns nil if none has it.
func (s *Store) sealed(id [taskpage.IDBytes]byte) (*nusav1.StoredTask, error) {
	for _, g := range slices.Backward(s.segments) {
		if rec, err := g.find(id); rec != nil || err != nil {
			return rec, s.blame(g, err)
		}
	}
	return nil, nil
}

// entry returns the entry of a record, or nil if there is no record. rec is the record if only a segment has it:
// again must be called before the entry changes.
func (b *batch) entry(id [taskpage.IDBytes]byte) (e *entry, rec *nusav1.StoredTask, err error) {
	if e := b.recent.byID[id]; e != nil {
		return e, nil, nil
	}
	rec, err = b.sealed(id)
	if rec == nil || err != nil {
		return nil, nil, err
	}
	e, ok := b.recent.entryOf(rec)
	if !ok {
		return nil, nil, errDamaged
	}
	return e, rec, nil
}

// again stores a record of a segment again, because it changes. A nil record: the journal has it.
func (b *batch) again(e *entry, rec *nusav1.StoredTask) error {
	if rec == nil {
		return nil
	}
	e.again = true
	if err := b.whole(e, rec); err != nil {
		return err
	}
	b.recent.add(e)
	return nil
}

// load returns the record of an entry.
func (s *Store) load(e *entry) (*nusav1.StoredTask, error) {
	raw, err := s.journal.record(e.at)
	if err != nil {
		return nil, s.blame(nil, err)
	}
	rec, err := decode(raw)
	return rec, s.blame(nil, err)
}

// whole writes a record as one piece.
func (b *batch) whole(e *entry, rec *nusav1.StoredTask) error {
	raw, err := proto.Marshal(rec)
	if err == nil {
		e.at, e.pieces = b.journal.add(firstPiece, raw), 1
	}
	return err
}

// put stores a record as it is. again: a segment has an older copy.
func (b *batch) put(rec *nusav1.StoredTask, again bool) error {
	fresh, ok := b.recent.entryOf(rec)
	if !ok {
		return fmt.Errorf("a record has the id %q", rec.Task.GetId())
	}
	if err := b.whole(fresh, rec); err != nil {
		return err
	}
	fresh.again = again
	if e := b.recent.byID[fresh.key.ID]; e != nil {
		b.recent.replace(e, fresh)
	} else {
		b.recent.add(fresh)
	}
	return nil
}

// begin adds the first piece of a record. x may be nil.
func (b *batch) begin(s source, id [taskpage.IDBytes]byte, number uint64, e *state.Event, x *change) error {
	out := s.begin(&b.enc, id, e)
	if x != nil {
		b.enc.change(x)
		out.apply(x)
		if state.AllocState(x.state).Terminal() {
			if err := b.enc.extra(s.end(e.ID)); err != nil {
				return err
			}
		}
	}
	out.event, out.pieces = number, 1
	out.at = b.journal.add(firstPiece, b.enc.piece(number))
	b.recent.add(out)
	return nil
}

// add adds a change to a record. Event 0: no event of the log says it.
func (b *batch) add(s source, e *entry, number uint64, x *change) error {
	if e.pieces >= maxPieces {
		rec, err := b.load(e)
		if err != nil {
			return err
		}
		if err := b.whole(e, rec); err != nil {
			return err
		}
	}
	b.enc.change(x)
	if state.AllocState(x.state).Terminal() {
		if err := b.enc.extra(s.end(taskpage.FormatID(e.key.ID[:]))); err != nil {
			return err
		}
	}
	before := e.ended
	e.apply(x)
	b.recent.changed(before, e)
	e.event, e.pieces = max(e.event, number), e.pieces+1
	e.at = b.journal.add(e.at, b.enc.piece(number))
	return nil
}

// fold adds an event about an instance.
func (b *batch) fold(s source, number uint64, e *state.Event) error {
	id, ok := taskpage.ParseID(e.ID)
	if !ok {
		return nil // no allocation of a region has such an id
	}
	x := changeOf(e)
	have := b.recent.byID[id]
	var rec *nusav1.StoredTask
	if have == nil && (e.Kind != state.EventInstancePlaced || number <= b.segmented) {
		var err error
		if have, rec, err = b.entry(id); err != nil {
			return err
		}
	}
	if have == nil {
		return b.begin(s, id, number, e, &x)
	}
	if number <= have.event {
		return nil
	}
	if err := b.again(have, rec); err != nil {
		return err
	}
	if state.AllocState(x.state).Terminal() {
		x.time = max(x.time, have.last) // the clocks of two masters differ
	}
	return b.add(s, have, number, &x)
}

// follow adds events, whose numbers follow the position.
func (s *Store) follow(from source, events []numbered) error {
	return s.update(func(b *batch) error {
		for _, n := range events {
			b.at.Event = n.number
			if _, of := states[n.event.Kind]; of {
				if err := b.fold(from, n.number, n.event); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
