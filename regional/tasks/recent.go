package tasks

import (
	"cmp"
	"slices"
	"sort"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// entry is what memory has of a record in the journal: what a list needs to leave the record out.
type entry struct {
	key taskpage.Key
	// event is the number of the latest event about the allocation.
	event uint64
	// at is the place of the latest piece in the journal.
	at int64
	// last is the time of the latest change, and state the state since then.
	last     int64
	ended    int64 // Unix time in nanoseconds; 0: not
	common   *about
	node     term
	nodeID   term
	restarts int32
	pieces   uint16 // since the record was written as one
	state    nusav1.AllocState
	// again: a segment has an older copy of the record.
	again bool
}

// apply updates the entry for a change.
func (e *entry) apply(x *change) {
	e.restarts = max(e.restarts, x.restarts)
	if c := cmp.Or(cmp.Compare(x.time, e.last), cmp.Compare(x.state, e.state)); c < 0 {
		return
	}
	e.last, e.state, e.ended = x.time, x.state, 0
	if ends(x.state) {
		e.ended = max(1, x.time)
	}
}

// has reports whether the record has a term.
func (e *entry) has(t term) bool {
	return t == e.node || t == e.nodeID || slices.Contains(e.common.terms, t)
}

// terms appends the terms of the record.
func (e *entry) terms(to []term) []term {
	return append(append(to, e.common.terms...), e.node, e.nodeID, stateTerm(e.state))
}

// entryOf returns the entry of a stored record. It does not add it.
func (r *recent) entryOf(rec *nusav1.StoredTask) (*entry, bool) {
	t := rec.Task
	key, ok := keyOf(t)
	if !ok {
		return nil, false
	}
	e := &entry{
		key: key, event: rec.Event, ended: endOf(t), common: r.share(newAbout(t.GetNamespace(), t.GetJob(), t.GetLabels())),
		node: termOf('n', t.GetNode()), nodeID: termOf('n', t.GetNodeId()), restarts: t.GetRestarts(), state: t.GetState(),
	}
	if n := len(t.GetChanges()); n > 0 {
		e.last = t.Changes[n-1].GetTime().AsTime().UnixNano()
	}
	return e, true
}

// recent has the records in the journal.
type recent struct {
	byID map[[taskpage.IDBytes]byte]*entry
	// order has the entries in the order of their keys, except for those after sorted.
	order  []*entry
	sorted int
	ended  int // of the entries
	again  int
	// oldest is the earliest end. 0: no entry has one.
	oldest int64
	// abouts has what stored records have in common, by its content.
	abouts map[string]*about
}

func newRecent() *recent {
	return &recent{byID: map[[taskpage.IDBytes]byte]*entry{}, abouts: map[string]*about{}}
}

// maxAbouts bounds recent.abouts. Beyond it, records share less.
const maxAbouts = 1 << 14

// share returns an equal value that an earlier record has, or a.
func (r *recent) share(a *about) *about {
	content := make([]byte, 0, 256)
	for _, t := range a.terms {
		content = append(content, t[:]...)
	}
	content = append(content, a.labels...)
	if have := r.abouts[string(content)]; have != nil {
		return have
	}
	if len(r.abouts) >= maxAbouts {
		clear(r.abouts)
	}
	r.abouts[string(content)] = a
	return a
}

func (r *recent) add(e *entry) {
	r.byID[e.key.ID] = e
	r.order = append(r.order, e)
	if e.again {
		r.again++
	}
	r.changed(0, e)
}

// replace gives an entry the content of another one with the same id.
func (r *recent) replace(e, with *entry) {
	before := e.ended
	again := e.again
	*e = *with
	e.again = again
	r.changed(before, e)
}

// changed counts a change of an entry that had an end before.
func (r *recent) changed(before int64, e *entry) {
	if before == 0 && e.ended != 0 {
		r.ended++
	} else if before != 0 && e.ended == 0 {
		r.ended--
	}
	if e.ended != 0 && (r.oldest == 0 || e.ended < r.oldest) {
		r.oldest = e.ended
	}
}

// sort puts the new entries in their places. Most of them are at the end.
func (r *recent) sort() {
	added := r.order[r.sorted:]
	if len(added) == 0 {
		return
	}
	byKey := func(a, b *entry) int { return a.key.Compare(b.key) }
	slices.SortFunc(added, byKey)
	from := sort.Search(r.sorted, func(i int) bool { return r.order[i].key.Compare(added[0].key) > 0 })
	if from < r.sorted {
		slices.SortFunc(r.order[from:], byKey)
	}
	r.sorted = len(r.order)
}

// below returns how many entries have keys below at.
func (r *recent) below(at taskpage.Key) int {
	return sort.Search(len(r.order), func(i int) bool { return r.order[i].key.Compare(at) >= 0 })
}

// recentCursor reads the records of the journal.
type recentCursor struct {
	r      *recent
	j      *journal
	of     *selection
	at     *entry
	looked int
}

// looksPerStep is the number of entries in memory that count like one entry of an index.
const looksPerStep = 16

func (c *recentCursor) seek(below taskpage.Key, steps *int) (k taskpage.Key, found, more bool, err error) {
	for i := c.r.below(below) - 1; i >= 0; i-- {
		c.at = c.r.order[i]
		if c.of.wants(c.at) {
			return c.at.key, true, true, nil
		}
		if c.looked++; c.looked%looksPerStep == 0 {
			if *steps--; *steps <= 0 {
				return c.at.key, false, true, nil
			}
		}
	}
	return taskpage.Key{}, false, false, nil
}

func (c *recentCursor) record() (*nusav1.StoredTask, error) {
	raw, err := c.j.record(c.at.at)
	if err != nil {
		return nil, err
	}
	return decode(raw)
}

// selection is what records must have. A reader compares the records themselves, too.
type selection struct {
	terms  []term
	states []nusav1.AllocState // empty: any
	from   uint64              // least number of the latest event
}

func (s *selection) wants(e *entry) bool {
	if e.event < s.from || len(s.states) > 0 && !slices.Contains(s.states, e.state) {
		return false
	}
	for _, t := range s.terms {
		if !e.has(t) {
			return false
		}
	}
	return true
}
