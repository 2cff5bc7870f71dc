package tasks

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxSteps bounds the index entries that one page reads. A record counts like recordSteps entries.
const (
	maxSteps    = 6_000
	recordSteps = 4
)

// list returns the newest records below a key that belong to an answer, at most limit. It reads at most
// steps entries. A nil key: from the newest one.
func (s *Store) list(q query, below *taskpage.Key, limit, steps int) (taskpage.Page[*nusav1.TaskRecord], error) {
	var out taskpage.Page[*nusav1.TaskRecord]
	err := s.view(func(tx *bolt.Tx) error {
		at := taskpage.Key{Placed: -1} // the greatest time
		for i := range at.ID {
			at.ID[i] = 0xff
		}
		if t := q.GetUntil(); t != nil {
			at = taskpage.Key{Placed: max(t.AsTime().UnixNano(), 0)}
		}
		if below != nil && below.Compare(at) < 0 {
			at = *below
		}
		least := taskpage.Key{}
		if t := q.GetSince(); t != nil {
			least.Placed = max(t.AsTime().UnixNano(), 0)
		}
		c := newCandidates(tx, q.terms())
		for {
			k, ok := c.below(at, &steps)
			if !ok || k.Compare(least) < 0 {
				return nil
			}
			if len(out.Items) == limit || steps <= 0 {
				next := k.Next() // everything from there on was read
				out.Next = &next
				return nil
			}
			at = k
			steps -= recordSteps
			stored := tx.Bucket(tasksBucket).Get(raw(k))
			if stored == nil {
				continue // an index entry without a record
			}
			rec, err := decode(stored)
			if err != nil {
				return err
			}
			if q.wants(rec.Task) {
				out.Items = append(out.Items, rec.Task)
			}
		}
	})
	return out, err
}

func raw(k taskpage.Key) []byte { return k.Append(nil) }

// candidates yields the keys that have all terms of a request, the greatest first. The entries of each
// term are sorted by key, so a cursor of one term lets the others skip.
type candidates struct {
	cursors []*bolt.Cursor
	terms   [][]byte
}

func newCandidates(tx *bolt.Tx, terms []term) *candidates {
	c := &candidates{}
	for _, t := range terms {
		c.cursors, c.terms = append(c.cursors, tx.Bucket(termsBucket).Cursor()), append(c.terms, t[:])
	}
	if len(terms) == 0 {
		c.cursors, c.terms = []*bolt.Cursor{tx.Bucket(tasksBucket).Cursor()}, [][]byte{nil}
	}
	return c
}

// below returns the greatest key below at that has all terms. It returns false if there is none. It takes
// one of steps for each entry that it reads. When none is left, it returns a key that has some of the
// terms: no key between it and at has all.
func (c *candidates) below(at taskpage.Key, steps *int) (k taskpage.Key, ok bool) {
	k, ok = c.before(0, raw(at), false)
	for i := 0; ok && i < len(c.cursors); i++ {
		*steps--
		if *steps < 0 {
			return k, true
		}
		has, found := c.before(i, raw(k), true)
		if !found {
			return k, false
		}
		if has != k {
			k, i = has, -1 // begin again with the lower key
		}
	}
	return k, ok
}

// before returns the greatest key of a term that is below at, or at itself if equal is set.
func (c *candidates) before(i int, at []byte, equal bool) (taskpage.Key, bool) {
	prefix := c.terms[i]
	want := append(bytes.Clone(prefix), at...)
	k, _ := c.cursors[i].Seek(want)
	if k == nil {
		k, _ = c.cursors[i].Last()
		if k != nil && bytes.Compare(k, want) >= 0 {
			k, _ = c.cursors[i].Prev()
		}
	} else if !equal || !bytes.Equal(k, want) {
		k, _ = c.cursors[i].Prev()
	}
	if k == nil || !bytes.HasPrefix(k, prefix) {
		return taskpage.Key{}, false
	}
	return taskpage.Decode(k[len(prefix):])
}

// errAmbiguous says that several records match.
type errAmbiguous struct{ a, b string }

func (e errAmbiguous) Error() string {
	return fmt.Sprintf("several ids begin with it (%s, %s): give more of the id", e.a, e.b)
}

// find returns the record whose id begins with a prefix. It returns nil if there is none.
func (s *Store) find(prefix string) (*nusav1.StoredTask, error) {
	prefix = strings.ToLower(prefix)
	digits := strings.ReplaceAll(prefix, "-", "")
	seek, err := hex.DecodeString(digits[:len(digits)&^1])
	if err != nil {
		return nil, nil // such an id does not exist
	}
	if len(digits)%2 == 1 { // half a byte
		half, err := hex.DecodeString(digits[len(digits)-1:] + "0")
		if err != nil {
			return nil, nil
		}
		seek = append(seek, half...)
	}
	var found *nusav1.StoredTask
	err = s.view(func(tx *bolt.Tx) error {
		c := tx.Bucket(idsBucket).Cursor()
		for k, at := c.Seek(seek); k != nil; k, at = c.Next() {
			if len(k) != taskpage.IDBytes || len(at) != 8 {
				return errDamaged
			}
			id := taskpage.FormatID(k)
			if !strings.HasPrefix(id, prefix) {
				return nil
			}
			if found != nil {
				first := found.Task.GetId()
				found = nil
				return errAmbiguous{first, id}
			}
			key := taskpage.Key{Placed: int64(binary.BigEndian.Uint64(at)), ID: [taskpage.IDBytes]byte(k)}
			if found, err = decode(tx.Bucket(tasksBucket).Get(raw(key))); err != nil {
				return err
			}
		}
		return nil
	})
	return found, err
}
