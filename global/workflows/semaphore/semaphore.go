package semaphore

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/google/btree"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// Need is what a step takes of a semaphore. Units is at least 1.
type Need struct {
	Name  string
	Units int
}

// Key names an item of a step of a run.
type Key struct {
	Run        string
	Step, Item int
}

// Waiter is an item that waits until all its needs have room. It takes all at once.
type Waiter struct {
	Key
	// Since is when it began to wait.
	Since time.Time
	// Needs names each semaphore once.
	Needs []Need
}

// Queue has the waiters of a namespace. The zero value is empty.
type Queue struct {
	entries map[Key]*entry
	lines   map[string]*line
	// added are the entries since the last Grant. found are those that may get their units in the next one.
	added, found []*entry
}

func compare(a, b Waiter) int {
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Run, b.Run), cmp.Compare(a.Step, b.Step), cmp.Compare(a.Item, b.Item))
}

// Len returns the number of waiters.
func (q *Queue) Len() int { return len(q.entries) }

// Waiting returns the number of waiters that need a semaphore.
func (q *Queue) Waiting(name string) int {
	if l := q.lines[name]; l != nil {
		return l.all.Len()
	}
	return 0
}

// Has reports whether an item waits.
func (q *Queue) Has(k Key) bool { return q.entries[k] != nil }

// Of returns the waiters that need a semaphore, the oldest first. The queue must not change meanwhile.
func (q *Queue) Of(name string) iter.Seq[Waiter] {
	return func(yield func(Waiter) bool) {
		if l := q.lines[name]; l != nil {
			l.all.Ascend(func(e *entry) bool { return yield(e.Waiter) })
		}
	}
}

// Add adds a waiter, unless the item waits already.
func (q *Queue) Add(w Waiter) {
	if q.Has(w.Key) {
		return
	}
	if q.entries == nil {
		q.entries, q.lines = map[Key]*entry{}, map[string]*line{}
	}
	e := &entry{Waiter: w}
	q.entries[w.Key], q.added = e, append(q.added, e)
	for _, n := range w.Needs {
		if q.lines[n.Name] == nil {
			q.lines[n.Name] = newLine()
		}
		q.lines[n.Name].all.ReplaceOrInsert(e)
	}
}

// Remove removes an item, if it waits.
func (q *Queue) Remove(k Key) {
	e := q.entries[k]
	if e == nil {
		return
	}
	delete(q.entries, k)
	q.setPossible(e, false)
	for _, n := range e.Needs {
		l := q.lines[n.Name]
		l.all.Delete(e)
		if l.all.Len() == 0 {
			delete(q.lines, n.Name)
		}
	}
}

// setPossible lets an entry stand in the lines of its semaphores, or takes it out of them.
func (q *Queue) setPossible(e *entry, is bool) {
	if e.possible == is {
		return
	}
	e.possible = is
	for _, n := range e.Needs {
		if is {
			q.lines[n.Name].enter(e, n.Units)
		} else {
			q.lines[n.Name].leave(e, n.Units)
		}
	}
	if is && e.beyond == 0 {
		q.found = append(q.found, e)
	}
}

// admit lets an entry stand in the lines of its semaphores if it is possible.
func (q *Queue) admit(e *entry) {
	q.setPossible(e, !slices.ContainsFunc(e.Needs, func(n Need) bool { return n.Units > q.lines[n.Name].units }))
}

// Grant removes the waiters that get their units now, and returns them, the oldest first. room returns the units of a
// semaphore, and how many of them are held. A waiter gets no units that an older one needs, so nobody waits for ever.
// But a waiter that needs more than a semaphore has, or a semaphore that does not exist, stands in nobody's way.
//
// The cost grows with the number of semaphores that have waiters, with what was added, and with the units that changed;
// a change of a semaphore's units looks at all its waiters. It does not depend on the length of the queue otherwise.
func (q *Queue) Grant(room func(name string) (units, held int)) (out []Waiter) {
	free, changed := make(map[string]int, len(q.lines)), []*btree.BTreeG[*entry](nil)
	for name, l := range q.lines {
		units, held := room(name)
		if plant.Is(plant.UnitsForgotten) {
			held = 0
		}
		free[name] = units - held
		if units != l.units {
			l.units, changed = units, append(changed, l.all)
		}
	}
	for _, all := range changed {
		all.Ascend(func(e *entry) bool { q.admit(e); return true })
	}
	for _, e := range q.added {
		if q.entries[e.Key] == e {
			q.admit(e)
		}
	}
	for name, l := range q.lines {
		l.reach(name, free[name], func(e *entry) { q.found = append(q.found, e) })
	}
	for _, e := range q.found { // an entry may be there twice, or its line may have become shorter again
		if q.entries[e.Key] == e && e.possible && e.beyond == 0 {
			q.Remove(e.Key)
			out = append(out, e.Waiter)
		}
	}
	clear(q.added)
	clear(q.found)
	q.added, q.found = q.added[:0], q.found[:0]
	slices.SortFunc(out, compare)
	return out
}
