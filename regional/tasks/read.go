package tasks

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxSteps bounds what one page reads. A record counts recordSteps, and so do 16 times as many entries in memory.
const (
	maxSteps    = 4_000
	recordSteps = 4
)

// list returns the newest records below a key that belong to an answer, at most limit. It reads at most
// steps. A nil key: from the newest one.
func (s *Store) list(q query, below *taskpage.Key, limit, steps int) (taskpage.Page[*nusav1.TaskRecord], error) {
	var out taskpage.Page[*nusav1.TaskRecord]
	at := latestKey()
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
	err := s.view(func() (err error) {
		of := &selection{terms: q.terms(), states: q.GetStates()}
		out.Next, err = s.scan(of, at, least, &steps, func(rec *nusav1.StoredTask) bool {
			if q.wants(rec.Task) {
				out.Items = append(out.Items, rec.Task)
			}
			return len(out.Items) < limit
		})
		return err
	})
	return out, err
}

// latestKey is above the keys of all records.
func latestKey() taskpage.Key {
	k := taskpage.Key{Placed: -1} // the greatest time
	for i := range k.ID {
		k.ID[i] = 0xff
	}
	return k
}

// cursor yields the records of a file that may belong to an answer.
type cursor interface {
	// seek moves to the greatest key below another one. If it has read enough, found is false, and k is a key
	// down to which there is none. more is false at the end.
	seek(below taskpage.Key, steps *int) (k taskpage.Key, found, more bool, err error)
	record() (*nusav1.StoredTask, error)
}

// place is where a cursor is.
type place struct {
	cursor
	of *segment // nil: the journal
	// below is above the keys of the records that are left. If found, the next one has the key.
	below, key taskpage.Key
	found      bool
}

// advance moves to the greatest key below another one. It returns false at the end.
func (p *place) advance(below taskpage.Key, steps *int) (bool, error) {
	k, found, more, err := p.seek(below, steps)
	p.key, p.found, p.below = k, found, k
	if found {
		p.below = k.Next()
	}
	return more, err
}

// places returns a place for each file that has records from least to below at.
func (s *Store) places(of *selection, at, least taskpage.Key) []*place {
	out := []*place{{cursor: &recentCursor{r: s.recent, j: s.journal, of: of}, below: at}}
	for _, g := range s.segments {
		if g.Least.Compare(at) >= 0 || g.Greatest.Compare(least) < 0 || g.LastEvent < of.from {
			continue
		}
		p := &place{cursor: &segmentCursor{g: g, of: of}, of: g, below: at}
		if above := g.Greatest.Next(); above.Compare(at) < 0 {
			p.below = above
		}
		out = append(out, p)
	}
	return out
}

// scan calls visit for the records below at, down to least, the greatest key first, until visit returns false
// or no steps are left. It returns the key to go on below, or nil at the end.
func (s *Store) scan(of *selection, at, least taskpage.Key, steps *int, visit func(*nusav1.StoredTask) bool) (*taskpage.Key, error) {
	places, more := s.places(of, at, least), true
	for len(places) > 0 {
		best := 0
		for i, p := range places {
			if p.below.Compare(places[best].below) > 0 {
				best = i
			}
		}
		p := places[best]
		if p.below.Compare(least) <= 0 {
			return nil, nil
		}
		if (!more || *steps <= 0) && p.below.Compare(at) < 0 {
			return &p.below, nil
		}
		from := p.below
		if p.found {
			*steps -= recordSteps
			from = p.key
			rec, err := s.latest(p)
			if err != nil {
				return nil, err
			}
			if rec != nil {
				more = visit(rec)
			}
		}
		left, err := p.advance(from, steps)
		if err != nil {
			return nil, s.blame(p.of, err)
		}
		if !left {
			places = slices.Delete(places, best, best+1)
		}
	}
	return nil, nil
}

// latest returns the record at a place. It returns nil if a newer file has a copy.
func (s *Store) latest(p *place) (*nusav1.StoredTask, error) {
	if p.of != nil && s.recent.again > 0 && s.recent.byID[p.key.ID] != nil {
		return nil, nil
	}
	for _, g := range slices.Backward(s.segments) {
		if p.of == nil || g == p.of {
			break
		}
		if g.Again > 0 && g.filter.may(p.key.ID) {
			if rec, err := g.find(p.key.ID); rec != nil || err != nil {
				return nil, s.blame(g, err)
			}
		}
	}
	rec, err := p.record()
	return rec, s.blame(p.of, err)
}

// errAmbiguous says that several records match.
type errAmbiguous struct{ a, b string }

func (e errAmbiguous) Error() string {
	return fmt.Sprintf("several ids begin with it (%s, %s): give more of the id", e.a, e.b)
}

// find returns the record whose id begins with a prefix. It returns nil if there is none.
func (s *Store) find(prefix string) (found *nusav1.StoredTask, err error) {
	prefix = strings.ToLower(prefix)
	err = s.view(func() error {
		if id, ok := taskpage.ParseID(prefix); ok {
			found, err = s.get(id)
			return err
		}
		ids, err := s.withPrefix(prefix)
		if err != nil || len(ids) == 0 {
			return err
		}
		if len(ids) > 1 {
			return errAmbiguous{taskpage.FormatID(ids[0][:]), taskpage.FormatID(ids[1][:])}
		}
		found, err = s.get(ids[0])
		return err
	})
	return found, err
}

// get returns the record with an id, or nil.
func (s *Store) get(id [taskpage.IDBytes]byte) (*nusav1.StoredTask, error) {
	if e := s.recent.byID[id]; e != nil {
		return s.load(e)
	}
	return s.sealed(id)
}

// withPrefix returns ids that begin with a prefix, at most two.
func (s *Store) withPrefix(prefix string) (ids [][taskpage.IDBytes]byte, err error) {
	digits := strings.ReplaceAll(prefix, "-", "")
	whole, err := hex.DecodeString(digits[:len(digits)&^1])
	if err != nil {
		return nil, nil // such an id does not exist
	}
	see := func(id [taskpage.IDBytes]byte) bool {
		if !bytes.HasPrefix(id[:], whole) {
			return false
		}
		if strings.HasPrefix(taskpage.FormatID(id[:]), prefix) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
		return len(ids) < 2
	}
	for _, e := range s.recent.order {
		if len(ids) < 2 {
			see(e.key.ID)
		}
	}
	for _, g := range s.segments {
		if len(ids) == 2 {
			break
		}
		if err := g.withID(whole, see); err != nil {
			return nil, s.blame(g, err)
		}
	}
	return ids, nil
}
