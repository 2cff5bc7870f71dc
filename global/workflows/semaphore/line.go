package semaphore

import "github.com/google/btree"

// entry is a waiter of a Queue.
type entry struct {
	Waiter
	// possible: each of its semaphores has as many units as it needs. Only such an entry stands in others' way.
	possible bool
	// beyond counts the semaphores whose free units do not reach to the entry. With 0 it gets its units.
	beyond int
}

func before(a, b *entry) bool { return compare(a.Waiter, b.Waiter) < 0 }

// degree is that of the trees: 32 entries in a node are searched in about the time of one cache miss.
const degree = 16

func newTree() *btree.BTreeG[*entry] { return btree.NewG(degree, before) }

// line has the waiters of one semaphore. Its free units go to the possible entries in their order, so they reach to some
// entry, and no later one can get any. A change moves that end by as many entries as it changes units, at most.
type line struct {
	// units is how many units the semaphore had at the last Grant. -1: there was none.
	units int
	// all has every waiter of the semaphore, also before it is admitted. possible has those that are possible.
	all, possible *btree.BTreeG[*entry]
	// last is the last entry to which the free units reach, nil if they reach to none. sum is what the possible
	// entries up to last need.
	last *entry
	sum  int
}

func newLine() *line { return &line{units: -1, all: newTree(), possible: newTree()} }

// next returns the possible entry after e. nil stands for the beginning, and for the end.
func (l *line) next(e *entry) (out *entry) {
	if e == nil {
		out, _ = l.possible.Min()
		return out
	}
	l.possible.AscendGreaterOrEqual(e, func(x *entry) bool {
		if x != e {
			out = x
		}
		return out == nil
	})
	return out
}

// previous returns the possible entry before e, or nil.
func (l *line) previous(e *entry) (out *entry) {
	l.possible.DescendLessOrEqual(e, func(x *entry) bool {
		if x != e {
			out = x
		}
		return out == nil
	})
	return out
}

// reaches reports whether the free units reach to a possible entry.
func (l *line) reaches(e *entry) bool { return l.last != nil && !before(l.last, e) }

// enter adds a possible entry that needs n units.
func (l *line) enter(e *entry, n int) {
	l.possible.ReplaceOrInsert(e)
	if l.reaches(e) {
		l.sum += n
	} else {
		e.beyond++
	}
}

// leave removes a possible entry that needs n units.
func (l *line) leave(e *entry, n int) {
	if l.reaches(e) {
		l.sum -= n
		if l.last == e {
			l.last = l.previous(e)
		}
	} else {
		e.beyond--
	}
	l.possible.Delete(e)
}

// reach moves the end to where that many free units reach. It calls found with each entry that they newly reach, and
// that no other semaphore keeps waiting.
func (l *line) reach(name string, free int, found func(*entry)) {
	for l.last != nil && l.sum > free {
		e := l.last
		e.beyond++
		l.sum -= e.need(name)
		l.last = l.previous(e)
	}
	for e := l.next(l.last); e != nil && l.sum+e.need(name) <= free; e = l.next(e) {
		e.beyond--
		l.sum += e.need(name)
		l.last = e
		if e.beyond == 0 {
			found(e)
		}
	}
}

// need returns how many units of a semaphore the entry needs.
func (e *entry) need(name string) int {
	for _, n := range e.Needs {
		if n.Name == name {
			return n.Units
		}
	}
	return 0
}
