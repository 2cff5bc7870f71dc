package persist

import "iter"

// maxKeys is the greatest number of keys in a tree node. A write copies the nodes on its
// path that a snapshot may still hold. A smaller node is copied faster, a larger node makes
// the path shorter.
const maxKeys = 32

// Key orders the keys of a Tree. Compare returns a negative number, zero or a positive
// number, like cmp.Compare.
type Key[K any] interface{ Compare(K) int }

// Tree is a persistent B+ tree. A copy of the struct is a snapshot. Delete does not
// rebalance the tree, but removes empty leaves. The zero value is an empty tree.
type Tree[K Key[K], V any] struct {
	root *branch[K, V]
	size int
}

// Len returns the number of entries.
func (t *Tree[K, V]) Len() int { return t.size }

// Same reports whether nothing was set or deleted between two versions of one tree. It may
// also return false although nothing was.
func (t *Tree[K, V]) Same(o *Tree[K, V]) bool { return t.root == o.root }

// branch is a leaf with vals or an inner node with kids. In an inner node, keys[i] is a
// lower bound of the keys in kids[i].
type branch[K Key[K], V any] struct {
	own  *Owner
	keys []K
	vals []V
	kids []*branch[K, V]
}

func (b *branch[K, V]) leaf() bool { return b.kids == nil }

// find returns the first position whose key is ≥ k, and whether that key equals k.
func (b *branch[K, V]) find(k K) (int, bool) {
	lo, hi := 0, len(b.keys)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		c := b.keys[mid].Compare(k)
		if c == 0 {
			return mid, true
		}
		if c < 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, false
}

// child returns the position of the kid to which k belongs.
func (b *branch[K, V]) child(k K) int {
	i, exact := b.find(k)
	if exact || i == 0 {
		return i
	}
	return i - 1
}

// Get returns the value of a key.
func (t *Tree[K, V]) Get(k K) (v V, ok bool) {
	b := t.root
	if b == nil {
		return v, false
	}
	for !b.leaf() {
		b = b.kids[b.child(k)]
	}
	if i, exact := b.find(k); exact {
		return b.vals[i], true
	}
	return v, false
}

// mutable returns b itself if own owns it, otherwise a copy.
func (b *branch[K, V]) mutable(own *Owner) *branch[K, V] {
	if b.own == own {
		return b
	}
	c := &branch[K, V]{own: own, keys: append(make([]K, 0, maxKeys+1), b.keys...)}
	if b.leaf() {
		c.vals = append(make([]V, 0, maxKeys+1), b.vals...)
	} else {
		c.kids = append(make([]*branch[K, V], 0, maxKeys+1), b.kids...)
	}
	return c
}

// Set stores a value.
func (t *Tree[K, V]) Set(own *Owner, k K, v V) {
	if t.root == nil {
		t.root = &branch[K, V]{own: own}
	}
	root, right, added := t.root.insert(own, k, v)
	if right != nil {
		root = &branch[K, V]{
			own:  own,
			keys: append(make([]K, 0, maxKeys+1), root.keys[0], right.keys[0]),
			kids: append(make([]*branch[K, V], 0, maxKeys+1), root, right),
		}
	}
	t.root = root
	if added {
		t.size++
	}
}

// insert returns the node that replaces b, the new right sibling if the node was split, and
// whether k is new.
func (b *branch[K, V]) insert(own *Owner, k K, v V) (_, right *branch[K, V], added bool) {
	b = b.mutable(own)
	if b.leaf() {
		i, exact := b.find(k)
		if exact {
			b.vals[i] = v
			return b, nil, false
		}
		b.keys = insertAt(b.keys, i, k)
		b.vals = insertAt(b.vals, i, v)
		return b, b.split(i), true
	}
	i := b.child(k)
	kid, sibling, added := b.kids[i].insert(own, k, v)
	b.kids[i] = kid
	if k.Compare(b.keys[i]) < 0 {
		b.keys[i] = k
	}
	if sibling != nil {
		b.keys = insertAt(b.keys, i+1, sibling.keys[0])
		b.kids = insertAt(b.kids, i+1, sibling)
	}
	return b, b.split(i), added
}

// split moves the right part of an overfull node into a new sibling. When keys are inserted
// in ascending order, the nodes that it leaves behind are full.
func (b *branch[K, V]) split(inserted int) *branch[K, V] {
	n := len(b.keys)
	if n <= maxKeys {
		return nil
	}
	at := n / 2
	if inserted >= n-2 {
		at = n - 2
	}
	r := &branch[K, V]{own: b.own, keys: append(make([]K, 0, maxKeys+1), b.keys[at:]...)}
	clear(b.keys[at:])
	b.keys = b.keys[:at]
	if b.leaf() {
		r.vals = append(make([]V, 0, maxKeys+1), b.vals[at:]...)
		clear(b.vals[at:])
		b.vals = b.vals[:at]
	} else {
		r.kids = append(make([]*branch[K, V], 0, maxKeys+1), b.kids[at:]...)
		clear(b.kids[at:])
		b.kids = b.kids[:at]
	}
	return r
}

func insertAt[T any](s []T, i int, v T) []T {
	var zero T
	s = append(s, zero)
	copy(s[i+1:], s[i:])
	s[i] = v
	return s
}

// Delete removes a key, if the tree has it.
func (t *Tree[K, V]) Delete(own *Owner, k K) {
	if _, ok := t.Get(k); !ok {
		return
	}
	t.size--
	t.root = t.root.remove(own, k)
	for t.root != nil && !t.root.leaf() && len(t.root.kids) == 1 {
		t.root = t.root.kids[0]
	}
}

// remove returns the node that replaces b, or nil if that node would be empty.
func (b *branch[K, V]) remove(own *Owner, k K) *branch[K, V] {
	b = b.mutable(own)
	if b.leaf() {
		i, _ := b.find(k)
		b.keys = removeAt(b.keys, i)
		b.vals = removeAt(b.vals, i)
	} else {
		i := b.child(k)
		if kid := b.kids[i].remove(own, k); kid != nil {
			b.kids[i] = kid
		} else {
			b.keys = removeAt(b.keys, i)
			b.kids = removeAt(b.kids, i)
		}
	}
	if len(b.keys) == 0 {
		return nil
	}
	return b
}

func removeAt[T any](s []T, i int) []T {
	var zero T
	copy(s[i:], s[i+1:])
	s[len(s)-1] = zero
	return s[:len(s)-1]
}

// All yields every entry in the order of keys. The tree must not be changed meanwhile.
func (t *Tree[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if t.root != nil {
			t.root.each(yield)
		}
	}
}

func (b *branch[K, V]) each(yield func(K, V) bool) bool {
	for i := range b.keys {
		if b.leaf() {
			if !yield(b.keys[i], b.vals[i]) {
				return false
			}
		} else if !b.kids[i].each(yield) {
			return false
		}
	}
	return true
}
