package filter

import (
	"cmp"
	"slices"
)

// First keeps the first objects by their keys. It sorts about as many as it keeps, because a list may hold a lock.
type First[T any] struct {
	most int
	// after is a key: no object up to it is among the first.
	after string
	some  []keyed[T]
	last  string // no object after it is among the first; "": not known
}

type keyed[T any] struct {
	key string
	of  T
}

// NewFirst returns an empty set that keeps the first objects after a key.
func NewFirst[T any](most int, after string) *First[T] { return &First[T]{most: most, after: after} }

// Wants reports whether an object with this key may be among the first.
func (f *First[T]) Wants(key string) bool { return key > f.after && (f.last == "" || key < f.last) }

// Add adds an object whose key the set wants.
func (f *First[T]) Add(key string, of T) {
	f.some = append(f.some, keyed[T]{key, of})
	if len(f.some) >= 4*f.most {
		f.sort()
		f.last = f.some[len(f.some)-1].key
	}
}

func (f *First[T]) sort() {
	slices.SortFunc(f.some, func(x, y keyed[T]) int { return cmp.Compare(x.key, y.key) })
	f.some = f.some[:min(len(f.some), f.most)]
}

// Page returns the first objects in order, one less than the set keeps, and the key of the last one if there are more.
func (f *First[T]) Page() (page []T, next string) {
	f.sort()
	more := len(f.some) == f.most
	if more {
		f.some = f.some[:f.most-1]
		next = f.some[f.most-2].key
	}
	for _, k := range f.some {
		page = append(page, k.of)
	}
	return page, next
}
