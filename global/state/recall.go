package state

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/notify"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// recalledMost bounds the number of recalled jobs. It is more than the submits that may wait at
	// a time, so that a job is still recalled at the turn of its submit. recalledBytes bounds the
	// size of their specs, approximately.
	recalledMost, recalledBytes = 4096, 16 << 20
	// pastWatchedMost bounds the jobs in the history whose watches wait.
	pastWatchedMost = 4096
)

// ErrRecall says that the record of a job must be read first: see Recall.
var ErrRecall = errors.New("the job is in the history, and its record was not read yet")

// recalled is a job whose record in the history was read.
type recalled struct {
	key JobKey
	// revision is the revision of the record in the history. The revision of the job is
	// job.revision.
	revision int64
	record   *Record
	job      *nusav1.Job // without its spec
}

// recalls holds the jobs in the history whose records were read recently.
type recalls struct {
	by map[JobKey]*recalled
	// order has the records in the order in which they were read. It may also have records that
	// were read again since.
	order []*recalled
	bytes int
}

// put keeps a record, and drops the oldest records beyond the bounds.
func (c *recalls) put(r *recalled) {
	if c.by == nil {
		c.by = map[JobKey]*recalled{}
	}
	c.by[r.key], c.order, c.bytes = r, append(c.order, r), c.bytes+r.record.specSize()
	for len(c.order) > recalledMost || c.bytes > recalledBytes && len(c.order) > 1 {
		old := c.order[0]
		c.order[0], c.order, c.bytes = nil, c.order[1:], c.bytes-old.record.specSize()
		if c.by[old.key] == old {
			delete(c.by, old.key)
		}
	}
}

// recalledOf returns a job in the history if its record was read, or else nil. The lock is held.
func recalledOf(st *State, k JobKey) *recalled {
	e, there := inHistory(st, k)
	if r := st.recalled.by[k]; there && r != nil && r.revision == e.Revision {
		return r
	}
	return nil
}

// Recall reads the record of a job that is in the history. For other jobs it does nothing. If a job
// leaves memory after Recall, a request that needs its record gets ErrRecall.
func Recall(ctx context.Context, st *State, s store.Store, k JobKey) error {
	_, err := recall(ctx, st, s, k)
	return err
}

// recall does what Recall does, and returns the job, or nil if the job is not in the history.
func recall(ctx context.Context, st *State, s store.Store, k JobKey) (*recalled, error) {
	st.Lock()
	e, there := inHistory(st, k)
	known := recalledOf(st, k)
	st.Unlock()
	if !there || known != nil {
		return known, nil
	}
	kv, ok, _, err := s.Get(ctx, k.historyKey())
	if err != nil || !ok || kv.ModRevision != e.Revision {
		return nil, err // the job has returned meanwhile
	}
	r, err := decodeHistory(k, kv)
	if err != nil {
		return nil, err
	}
	st.Lock()
	defer st.Unlock()
	st.recalled.put(r)
	return r, nil
}

// Past returns a job that is in the history in the form of the API, or nil for another job.
func Past(ctx context.Context, st *State, s store.Store, k JobKey) (*nusav1.Job, error) {
	r, err := recall(ctx, st, s, k)
	if r == nil || err != nil {
		return nil, err
	}
	out := proto.CloneOf(r.job)
	out.Spec = r.record.Spec()
	markHistory(out)
	return out, nil
}

// PastWatched returns a channel that is closed when a job in the history returns or is forgotten.
// It may be closed earlier. The lock is held.
func PastWatched(st *State, k JobKey) <-chan struct{} {
	name := k.String()
	s := st.pastWatched[name]
	if s == nil {
		if st.pastWatched == nil || len(st.pastWatched) >= pastWatchedMost {
			for _, old := range st.pastWatched { // their watches look again, and wait again
				old.Notify()
			}
			st.pastWatched = map[string]*notify.Signal{}
		}
		s = &notify.Signal{}
		st.pastWatched[name] = s
	}
	return s.C()
}

// pastChanged wakes the watches of a job in the history. The lock is held.
func pastChanged(st *State, name string) {
	if s := st.pastWatched[name]; s != nil {
		s.Notify()
		delete(st.pastWatched, name)
	}
}
