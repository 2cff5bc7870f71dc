package series

import (
	"encoding/binary"
	"errors"
	"maps"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const (
	// When the used bytes exceed evictAt per cent of the bound, the oldest data is removed
	// until evictTo per cent are used. The rest of the file is for new copies of pages
	// whose old copies are not free yet.
	evictAt, evictTo = 80, 75
	// compactionsPerCycle bounds the time of a transaction. The finer level needs 16
	// compactions an hour and the coarser one 16 in six hours: less than 20 an hour.
	compactionsPerCycle = 1
)

// work holds the changes that one transaction writes, as they were in the store when the
// transaction began.
type work struct {
	minutes []*minute
	added   map[uint32]string
	removed []uint32
	nextID  uint32
	now     int64 // no value before this slot is added any more
	steady  bool
}

// outcome is the result of a transaction.
type outcome struct {
	evicted, damaged int
	file, used       int64
}

// cycle writes the waiting minutes and does a bounded part of the maintenance. Only
// one goroutine calls it.
func (s *Store) cycle() {
	w, ok := s.begin()
	if !ok {
		return
	}
	s.fileMu.RLock()
	f := s.file
	s.fileMu.RUnlock()
	if f == nil {
		s.end(w, outcome{}, s.Stats().Failing)
		return
	}
	var out outcome
	err := f.update(func(tx *bolt.Tx) error { return w.all(tx, s.limits.Bytes, &out) })
	if errors.Is(err, berrors.ErrMaxSizeReached) {
		// First make room in a separate transaction, then write without maintenance.
		err = f.update(func(tx *bolt.Tx) (err error) {
			out = outcome{}
			out.evicted, err = newPages(tx).evict(s.limits.Bytes / 20)
			return err
		})
		if err == nil {
			err = f.update(func(tx *bolt.Tx) error { return w.write(tx, newPages(tx)) })
		}
	}
	if err == nil {
		err = f.view(func(tx *bolt.Tx) error {
			out.used = usedBytes(tx)
			info, err := f.os.Stat()
			if err == nil {
				out.file = info.Size()
			}
			return err
		})
	}
	s.end(w, out, err)
	if errors.Is(err, errDamaged) {
		s.replace(err)
	}
}

func (f *file) update(do func(*bolt.Tx) error) error {
	return guard(func() error { return f.db.Update(do) })
}

func (f *file) view(do func(*bolt.Tx) error) error {
	return guard(func() error { return f.db.View(do) })
}

func (s *Store) begin() (work, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 && len(s.reg.added) == 0 && len(s.reg.removed) == 0 {
		return work{}, false
	}
	w := work{
		minutes: s.waiting[:len(s.waiting):len(s.waiting)],
		added:   s.reg.added, removed: s.reg.removed, nextID: s.reg.nextID,
		now: s.slot, steady: s.steady >= steadyFor,
	}
	if s.open != nil {
		w.now = s.open.start
	}
	w.minutes = append([]*minute(nil), w.minutes...)
	s.writing = len(w.minutes)
	s.reg.added, s.reg.removed = map[uint32]string{}, nil
	return w, true
}

// end records the result of a transaction. If the transaction failed, end returns its work
// to the store.
func (s *Store) end(w work, out outcome, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = 0
	if err != nil {
		maps.Copy(s.reg.added, w.added)
		s.reg.removed = append(w.removed, s.reg.removed...)
		if now := time.Now(); s.stats.Failing == nil || now.Sub(s.lastWarn) > warnAgain {
			s.lastWarn = now
			s.log.Warn("time series could not be written: history has a gap until they can", "path", s.path, "error", err)
		}
		s.stats.Failing = err
		return
	}
	if s.stats.Failing != nil {
		s.log.Info("time series are written again", "path", s.path)
	}
	s.waiting = append([]*minute(nil), s.waiting[len(w.minutes):]...)
	if len(w.minutes) > 0 {
		s.spare = w.minutes[0]
	}
	s.stats.Failing = nil
	s.stats.Evicted += uint64(out.evicted)
	s.stats.LostMinutes += uint64(out.damaged)
	s.stats.FileBytes, s.stats.UsedBytes = out.file, out.used
	s.stats.LastWrite = time.Now()
}

// all does the work of one transaction: it writes the waiting minutes, removes data that
// is too old or beyond the bound, and makes a few coarser segments.
func (w work) all(tx *bolt.Tx, limit int64, out *outcome) error {
	*out = outcome{}
	p := newPages(tx)
	used := usedBytes(tx)
	if err := w.write(tx, p); err != nil {
		return err
	}
	if w.steady {
		if err := p.expire(w.now); err != nil {
			return err
		}
	}
	if used > limit*evictAt/100 {
		var err error
		if out.evicted, err = p.evict(used - limit*evictTo/100); err != nil {
			return err
		}
	}
	for range compactionsPerCycle {
		k, ok := p.nextStale(w.now)
		if !ok {
			break
		}
		if err := p.compact(k); err != nil {
			return err
		}
	}
	out.damaged = p.damaged
	dropAside(tx.DB().Path(), time.Now())
	return nil
}

// write writes the changes of the registry and the waiting minutes.
func (w work) write(tx *bolt.Tx, p *pages) error {
	series := tx.Bucket(bucketSeries)
	for id, name := range w.added {
		if err := series.Put(binary.BigEndian.AppendUint32(nil, id), []byte(name)); err != nil {
			return err
		}
	}
	for _, id := range w.removed {
		if err := series.Delete(binary.BigEndian.AppendUint32(nil, id)); err != nil {
			return err
		}
	}
	if err := series.SetSequence(uint64(w.nextID)); err != nil {
		return err
	}
	for _, m := range w.minutes {
		if err := p.write(m); err != nil {
			return err
		}
	}
	return nil
}

// replace begins a new file in place of a damaged one.
func (s *Store) replace(cause error) {
	s.fileMu.Lock()
	defer s.fileMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file.release()
	s.file = nil
	s.warnDamaged(cause)
	if s.stats.SetAside >= maxSetAside {
		s.log.Error("the file of the time series was damaged three times: nothing is written until a restart", "path", s.path)
		return
	}
	if err := setAside(s.path, time.Now()); err != nil {
		s.stats.Failing = err
		return
	}
	f, fresh, _, err := openChecked(s.path, s.kinds, s.limits, s.noSync, time.Now(), s.warnDamaged)
	if err != nil {
		s.stats.Failing = err
		return
	}
	s.file = f
	// A new file has other column numbers and no series. The minutes in memory use the old
	// column numbers, so they are dropped.
	s.reg, s.open, s.waiting, s.spare = fresh, nil, nil, nil
	s.stats.LostMinutes++
}
