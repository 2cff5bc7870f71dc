package state

import "sync/atomic"

// list is a persistent list: a copy of the struct is a snapshot. Copies share an
// array, into which the one that goes on first may append.
type list[T any] struct {
	all   []T
	taken *atomic.Int64 // of the array, by whichever copy
	stale int           // of all, what means nothing any more
}

// with is the list with one more. keep says which of what it has means something
// still: the rest goes when there is something stale and the array is full.
func (l list[T]) with(v T, keep func(T) bool) list[T] {
	n := int64(len(l.all))
	if len(l.all) == cap(l.all) || !l.taken.CompareAndSwap(n, n+1) {
		l = l.moved(len(l.all)/2+4, keep)
		l.taken.Add(1)
	}
	l.all = append(l.all, v)
	return l
}

// without is the list where one more means nothing.
func (l list[T]) without(keep func(T) bool) list[T] {
	l.stale++
	if l.stale > len(l.all)/2 {
		return l.moved(0, keep)
	}
	return l
}

// moved is the list in an array of its own, with room for more.
func (l list[T]) moved(room int, keep func(T) bool) list[T] {
	to := list[T]{all: make([]T, 0, len(l.all)-l.stale+room), taken: new(atomic.Int64)}
	for _, v := range l.all {
		if l.stale == 0 || keep(v) {
			to.all = append(to.all, v)
		}
	}
	to.taken.Store(int64(len(to.all)))
	return to
}
