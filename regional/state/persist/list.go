package persist

import "sync/atomic"

// List is a persistent list. A copy of the struct is a snapshot. Copies share an array. The
// first copy that appends to the array writes after the array's end, other copies must
// move. The caller decides which entries are stale. The zero value is an empty list.
type List[T any] struct {
	all   []T
	taken *atomic.Int64 // the length of the array that some copy uses
	stale int           // how many entries no longer count
}

// All returns the entries, including stale ones, in the order in which they were added.
// Only the caller that holds the single copy may change them.
func (l List[T]) All() []T { return l.all }

// With returns the list with one more entry. If the array is full, the list is copied
// without its stale entries. counts returns false for a stale entry.
func (l List[T]) With(v T, counts func(T) bool) List[T] {
	n := int64(len(l.all))
	if len(l.all) == cap(l.all) || !l.taken.CompareAndSwap(n, n+1) {
		l = l.moved(len(l.all)/2+4, counts)
		l.taken.Add(1)
	}
	l.all = append(l.all, v)
	return l
}

// Without returns the list after one more entry became stale. When more than half of the
// entries are stale, the list is copied without them.
func (l List[T]) Without(counts func(T) bool) List[T] {
	l.stale++
	if l.stale > len(l.all)/2 {
		return l.moved(0, counts)
	}
	return l
}

// moved returns the list in a new array, without its stale entries and with room for more
// entries.
func (l List[T]) moved(room int, counts func(T) bool) List[T] {
	to := List[T]{all: make([]T, 0, len(l.all)-l.stale+room), taken: new(atomic.Int64)}
	for _, v := range l.all {
		if l.stale == 0 || counts(v) {
			to.all = append(to.all, v)
		}
	}
	to.taken.Store(int64(len(to.all)))
	return to
}
