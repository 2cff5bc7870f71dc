package state

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/history"
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
	if st.History.Unread() {
		st.Unlock()
		if err := Learn(ctx, st, s, k); err != nil {
			return nil, err
		}
		st.Lock()
	}
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

// A term may begin before the history is read. Until then, a request about a job asks the store
// whether the job is in the history (Recall). No job moves to the history, and nothing is removed
// from it except jobs that return.

const (
	// unreadAtOnce is how many entries are added while the lock is held.
	unreadAtOnce = 256
	// unreadPart is by how many times the weight of the unread jobs in Room may exceed the bytes that
	// the store has in use: a record takes more than half of historyOverhead there.
	unreadPart = 3
)

// ReadHistory reads the history of a state whose Load has left it out. The lock is not held.
func ReadHistory(ctx context.Context, st *State, s store.Store) error {
	st.Lock()
	unread := st.History.Unread()
	st.Unlock()
	if !unread {
		return nil
	}
	_, err := readHistory(ctx, s, func(part []readEntry) {
		st.Lock()
		defer st.Unlock()
		applyRead(st, part)
	})
	if err != nil {
		return err
	}
	st.Lock()
	read := st.History.Read()
	st.Unlock()
	read = append(history.Departures(nil), read...) // sorting takes long, so it is done without the lock
	read.Sort()
	st.Lock()
	defer st.Unlock()
	if later := st.History.Read()[len(read):]; len(later) > 0 { // read for a request meanwhile
		read = append(read, later...)
		read.Sort()
	}
	historyRead(st, read)
	return nil
}

// loadHistory reads the history while the lock is held. It returns the greatest revision of a record.
func loadHistory(ctx context.Context, st *State, s store.Store) (written int64, err error) {
	written, err = readHistory(ctx, s, func(part []readEntry) { applyRead(st, part) })
	if err == nil {
		read := st.History.Read()
		read.Sort()
		historyRead(st, read)
	}
	return written, err
}

// historyRead notes that the whole history was read. The lock is held.
func historyRead(st *State, read history.Departures) {
	st.History.Loaded(read)
	st.Room.Unread = 0
	st.Notify()
}

// readEntry is an entry of the history that was read.
type readEntry struct {
	job   string
	entry history.Entry
}

// readHistory passes all entries of the history to add, in parts. It returns the greatest revision
// of a record.
func readHistory(ctx context.Context, s store.Store, add func([]readEntry)) (written int64, err error) {
	part := make([]readEntry, 0, unreadAtOnce)
	_, err = s.List(ctx, historyPrefix, func(kv store.KV) error {
		e, err := entryOf(kv)
		if err != nil {
			return err
		}
		written = max(written, e.Revision)
		part = append(part, readEntry{strings.Clone(kv.Key[len(historyPrefix):]), e})
		if len(part) == unreadAtOnce {
			add(part)
			part = part[:0]
		}
		return nil
	})
	add(part)
	if err != nil {
		return 0, fmt.Errorf("read the history: %w", err)
	}
	return written, nil
}

// applyRead adds entries of the history that were read. The lock is held.
func applyRead(st *State, part []readEntry) {
	for _, r := range part {
		if !st.History.PutRead(r.job, r.entry) {
			continue
		}
		st.Names.Add(r.job)
		k := keyOfName(r.job)
		noteChanged(st, k)
		if j := st.Jobs[k]; j != nil && j.Record == nil {
			st.leftover[k] = struct{}{}
		}
		st.Room.Count(false, true)
		st.Room.Weigh(k.Namespace, 0, r.entry.Size+historyOverhead)
	}
}

// Learn asks the store whether a job is in the history, if that is not known. The lock is not held.
func Learn(ctx context.Context, st *State, s store.Store, k JobKey) error {
	name := k.String()
	st.Lock()
	certain := st.History.Certain(name)
	st.Unlock()
	if certain {
		return nil
	}
	kv, stored, _, err := s.Get(ctx, k.historyKey())
	if err != nil {
		return err
	}
	var e history.Entry
	if stored {
		if e, err = entryOf(kv); err != nil {
			return err
		}
	}
	st.Lock()
	defer st.Unlock()
	if stored {
		applyRead(st, []readEntry{{name, e}})
	} else {
		st.History.NoteAbsent(name)
	}
	return nil
}

// UnreadNote says that the history is still being read. It returns "" when all of it was read. The
// lock is held.
func UnreadNote(st *State) string {
	if !st.History.Unread() {
		return ""
	}
	return fmt.Sprintf("the history of ended jobs is still being read (%d so far): lists lack the others", st.History.Len())
}
