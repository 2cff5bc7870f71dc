package persist

import "sync/atomic"

// List is a persistent list: a copy of the struct is a snapshot. Copies share an
// array; the first copy that appends to it may write behind its end. The caller decides
// which entries are stale. The zero value is empty.
type List[T any] struct {
	all   []T
	taken *atomic.Int64 // length of the array that some copy uses
	stale int           // entries that no longer count
}

// All returns the entries, stale ones included, in the order in which they were
// added. Only the caller that holds the single copy may write to them.
func (l List[T]) All() []T { return l.all }

// With returns the list with one more entry. If the array is full, the list is copied
// without its stale entries, for which counts returns false.
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

// moved returns the list in an array of its own, with room for more entries.
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
