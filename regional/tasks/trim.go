package tasks

import (
	"encoding/binary"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
)

// trimAtOnce bounds the records that one transaction removes.
const trimAtOnce = 4096

// trim removes records beyond the limits, at most trimAtOnce. more says that there may be further ones.
func (s *Store) trim(now time.Time) (more bool, err error) {
	over := max(s.overCount(), s.overBytes())
	removed := int64(0)
	before := now.Add(-s.limits.Age).UnixNano()
	if over <= 0 && !s.endedBefore(before) {
		return false, nil
	}
	err = s.update(func(b *batch) error {
		ends := b.tx.Bucket(endsBucket).Cursor()
		for k, _ := ends.First(); k != nil && removed < trimAtOnce; k, _ = ends.First() {
			if len(k) != 8+taskpage.Size {
				return errDamaged
			}
			if removed >= over && int64(binary.BigEndian.Uint64(k)) >= before {
				return nil
			}
			key, _ := taskpage.Decode(k[8:])
			if err := b.remove(key); err != nil {
				return err
			}
			removed++
		}
		for removed < min(over, trimAtOnce) { // no record of an ended allocation is left
			key, ok := firstKey(b.tx)
			if !ok {
				break
			}
			if err := b.remove(key); err != nil {
				return err
			}
			removed++
		}
		return nil
	})
	return removed == trimAtOnce || removed > 0 && s.overBytes() > 0, err
}

// overCount returns how many records there are beyond the limit.
func (s *Store) overCount() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.count - s.limits.Count
}

// overBytes returns how many records to remove because the file is too large. It is about a hundredth
// of all: whole pages become free only now and then.
func (s *Store) overBytes() int64 {
	over := false
	if err := s.view(func(tx *bolt.Tx) error { over = used(s.db, tx) > s.limits.Bytes; return nil }); err != nil || !over {
		return 0 // a file that cannot be read is noticed by the next write
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return max(1, s.count/100)
}

// endedBefore reports whether an allocation ended before a time.
func (s *Store) endedBefore(unixNano int64) (old bool) {
	_ = s.view(func(tx *bolt.Tx) error {
		k, _ := tx.Bucket(endsBucket).Cursor().First()
		old = len(k) > 8 && int64(binary.BigEndian.Uint64(k)) < unixNano
		return nil
	})
	return old
}

// remove removes a record.
func (b *batch) remove(key taskpage.Key) error {
	e, err := b.entry(key.ID)
	if err != nil {
		return err
	}
	if e == nil {
		return errDamaged // an index entry without a record
	}
	raw := e.key.Append(nil)
	delete(b.entries, key.ID)
	b.count--
	if e.ended != 0 {
		if err := b.tx.Bucket(endsBucket).Delete(endKey(e.ended, raw)); err != nil {
			return err
		}
	}
	for _, t := range append(fixedTerms(e.rec.Task), stateTerm(e.state)) {
		if err := b.tx.Bucket(termsBucket).Delete(termKey(t, raw)); err != nil {
			return err
		}
	}
	if err := b.tx.Bucket(idsBucket).Delete(key.ID[:]); err != nil {
		return err
	}
	return b.tx.Bucket(tasksBucket).Delete(raw)
}
