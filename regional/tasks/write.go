package tasks

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// batch is one transaction that changes records. It writes each record once.
type batch struct {
	tx      *bolt.Tx
	entries map[[taskpage.IDBytes]byte]*entry
	at      *nusav1.CopyTasksResponse
	count   int64
}

// entry is a record of the batch, and what is stored of it.
type entry struct {
	key    taskpage.Key
	rec    *nusav1.StoredTask
	stored bool
	state  nusav1.AllocState
	ended  int64 // Unix time in nanoseconds; 0: not
	// fixed are the fixed terms that are stored, if the record may have others now.
	fixed   []term
	changed bool
}

// update runs f in a transaction, and stores what it changed.
func (s *Store) update(f func(*batch) error) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.RLock()
	b := &batch{entries: map[[taskpage.IDBytes]byte]*entry{}, at: proto.CloneOf(s.at), count: s.count}
	var err error
	switch {
	case s.db == nil:
		err = fmt.Errorf("%w: %s", errClosed, s.why)
	case s.damaged.Load():
		err = fmt.Errorf("%w: a reader found it", errDamaged)
	default:
		err = s.db.write(func(tx *bolt.Tx) error {
			b.tx = tx
			if err := f(b); err != nil {
				return err
			}
			return b.flush()
		})
	}
	s.mu.RUnlock()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.at, s.count = b.at, b.count
	s.mu.Unlock()
	s.moved.Notify()
	return nil
}

// entry returns the record with an id. It returns nil if there is none.
func (b *batch) entry(id [taskpage.IDBytes]byte) (*entry, error) {
	if e := b.entries[id]; e != nil {
		return e, nil
	}
	at := b.tx.Bucket(idsBucket).Get(id[:])
	if at == nil {
		return nil, nil
	}
	key := taskpage.Key{Placed: int64(binary.BigEndian.Uint64(at)), ID: id}
	raw := b.tx.Bucket(tasksBucket).Get(key.Append(nil))
	if raw == nil {
		return nil, fmt.Errorf("%w: %x has no record", errDamaged, id)
	}
	rec, err := decode(raw)
	if err != nil {
		return nil, err
	}
	e := &entry{key: key, rec: rec, stored: true, state: rec.Task.GetState(), ended: endOf(rec.Task)}
	b.entries[id] = e
	return e, nil
}

// add makes a record part of the batch.
func (b *batch) add(rec *nusav1.StoredTask) (*entry, bool) {
	key, ok := keyOf(rec.Task)
	if !ok {
		return nil, false
	}
	e := &entry{key: key, rec: rec}
	b.entries[key.ID] = e
	return e, true
}

func decode(raw []byte) (*nusav1.StoredTask, error) {
	rec := &nusav1.StoredTask{}
	if err := proto.Unmarshal(raw, rec); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if rec.Task == nil {
		return nil, fmt.Errorf("%w: an empty record", errDamaged)
	}
	return rec, nil
}

func endOf(rec *nusav1.TaskRecord) int64 {
	if rec.GetEnded() == nil {
		return 0
	}
	return max(1, rec.GetEnded().AsTime().UnixNano())
}

// fold adds an event about an instance.
func (b *batch) fold(s source, number uint64, e *state.Event) error {
	id, ok := taskpage.ParseID(e.ID)
	if !ok {
		return nil // no allocation of a region has such an id
	}
	have, err := b.entry(id)
	if err != nil {
		return err
	}
	if have == nil {
		have, _ = b.add(s.begin(e))
	}
	s.fold(have.rec, number, e)
	have.changed = true
	return nil
}

// flush writes the changed records, their terms, and the position.
func (b *batch) flush() error {
	list := make([]*entry, 0, len(b.entries))
	for _, e := range b.entries {
		if e.changed {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(x, y *entry) int { return x.key.Compare(y.key) })
	var c changes
	for _, e := range list {
		if err := b.write(&c, e); err != nil {
			return err
		}
	}
	if err := c.apply(b.tx); err != nil {
		return err
	}
	raw, err := proto.Marshal(b.at)
	if err != nil {
		return err
	}
	meta := b.tx.Bucket(metaBucket)
	if err := meta.Put(metaAt, raw); err != nil {
		return err
	}
	return meta.Put(metaCount, binary.BigEndian.AppendUint64(nil, uint64(b.count)))
}

// write adds the changes of a record and its index entries.
func (b *batch) write(c *changes, e *entry) error {
	raw, err := proto.Marshal(e.rec)
	if err != nil {
		return err
	}
	key := e.key.Append(nil)
	c.tasks.put(key, raw)
	now := stateTerm(e.rec.Task.GetState())
	var add []term
	if !e.stored {
		b.count++
		c.ids.put(slices.Clone(e.key.ID[:]), key[:8])
		add = append(fixedTerms(e.rec.Task), now)
	} else if e.state != e.rec.Task.GetState() || e.fixed != nil {
		for _, t := range append(e.fixed, stateTerm(e.state)) {
			c.terms.delete(termKey(t, key))
		}
		add = append(add, now)
		if e.fixed != nil {
			add = append(add, fixedTerms(e.rec.Task)...)
		}
	}
	for _, t := range add {
		c.terms.put(termKey(t, key), nil)
	}
	if end := endOf(e.rec.Task); end != e.ended {
		if e.ended != 0 {
			c.ends.delete(endKey(e.ended, key))
		}
		c.ends.put(endKey(end, key), nil)
	}
	return nil
}

// changes are the changes of a transaction, by bucket.
type changes struct{ tasks, ids, terms, ends bucketChanges }

// bucketChanges are the changes of one bucket. A leaf of bbolt grows until the commit, and a change moves all
// entries of the leaf after its own. So the changes are made in an order in which few entries follow.
type bucketChanges struct {
	puts    []keyValue
	deletes [][]byte
}

type keyValue struct{ key, value []byte }

func (c *bucketChanges) put(key, value []byte) { c.puts = append(c.puts, keyValue{key, value}) }
func (c *bucketChanges) delete(key []byte)     { c.deletes = append(c.deletes, key) }

func (c *changes) apply(tx *bolt.Tx) error {
	for _, at := range []struct {
		name []byte
		of   *bucketChanges
	}{{tasksBucket, &c.tasks}, {idsBucket, &c.ids}, {termsBucket, &c.terms}, {endsBucket, &c.ends}} {
		if err := at.of.apply(tx.Bucket(at.name)); err != nil {
			return err
		}
	}
	return nil
}

func (c *bucketChanges) apply(to *bolt.Bucket) error {
	slices.SortFunc(c.deletes, func(x, y []byte) int { return bytes.Compare(y, x) })
	for _, key := range c.deletes {
		if err := to.Delete(key); err != nil {
			return err
		}
	}
	slices.SortFunc(c.puts, func(x, y keyValue) int { return bytes.Compare(x.key, y.key) })
	for _, p := range c.puts {
		if err := to.Put(p.key, p.value); err != nil {
			return err
		}
	}
	return nil
}

// termKey and endKey are the keys of index entries.
func termKey(t term, key []byte) []byte { return append(t[:len(t):len(t)], key...) }

func endKey(end int64, key []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(end)), key...)
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
		for _, e := range b.entries {
			if e.changed {
				from.complete(e.rec.Task)
			}
		}
		return nil
	})
}
