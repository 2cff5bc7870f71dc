package persist

import (
	"iter"
	"math/bits"
)

// blockBits is the size of the blocks: a block has 1<<blockBits slots. A write copies one
// block at each height, unless only the writer holds that block.
const blockBits = 4

// Array is a persistent sparse array. A copy of the struct is a snapshot. A write at a
// random index costs less than in a Tree, because a Tree's leaves are larger and hold keys
// too. The zero value is an empty array.
type Array[V any] struct {
	root *block[V]
	size int
}

// Len returns the number of values.
func (a *Array[V]) Len() int { return a.size }

// block has values (at height 0) or other blocks. A slot in use is not nil.
type block[V any] struct {
	own    *Owner
	height int32
	used   int32
	vals   *[1 << blockBits]*V
	kids   *[1 << blockBits]*block[V]
}

func newBlock[V any](own *Owner, height int32) *block[V] {
	if height == 0 { // one piece of memory for the block and its values
		b := new(struct {
			block[V]
			room [1 << blockBits]*V
		})
		b.block = block[V]{own: own, vals: &b.room}
		return &b.block
	}
	b := new(struct {
		block[V]
		room [1 << blockBits]*block[V]
	})
	b.block = block[V]{own: own, height: height, kids: &b.room}
	return &b.block
}

// slot returns the slot of b that leads to an index.
func (b *block[V]) slot(i uint32) int {
	return int(uint64(i)>>(b.height*blockBits)) & (1<<blockBits - 1)
}

// holds reports whether an array whose root is b has room for the index.
func (b *block[V]) holds(i uint32) bool { return bits.Len32(i) <= int(b.height+1)*blockBits }

// Get returns the value at an index.
func (a *Array[V]) Get(i uint32) (*V, bool) {
	b := a.root
	if b == nil || !b.holds(i) {
		return nil, false
	}
	for b.height > 0 {
		b = b.kids[b.slot(i)]
		if b == nil {
			return nil, false
		}
	}
	v := b.vals[b.slot(i)]
	return v, v != nil
}

// Set stores a value. The value must not be nil.
func (a *Array[V]) Set(own *Owner, i uint32, v *V) {
	if a.root == nil {
		a.root = newBlock[V](own, int32(max(0, bits.Len32(i)-1)/blockBits))
	}
	for !a.root.holds(i) {
		a.root = a.root.raised(own)
	}
	b := a.root.mutable(own)
	a.root = b
	for b.height > 0 {
		at := b.slot(i)
		kid := b.kids[at]
		if kid == nil {
			kid = newBlock[V](own, b.height-1)
			b.used++
		} else {
			kid = kid.mutable(own)
		}
		b.kids[at] = kid
		b = kid
	}
	at := b.slot(i)
	if b.vals[at] == nil {
		b.used++
		a.size++
	}
	b.vals[at] = v
}

// raised returns a new block that has b as its first block.
func (b *block[V]) raised(own *Owner) *block[V] {
	above := newBlock[V](own, b.height+1)
	above.kids[0], above.used = b, 1
	return above
}

// mutable returns b itself if own owns it, otherwise a copy.
func (b *block[V]) mutable(own *Owner) *block[V] {
	if b.own == own {
		return b
	}
	c := newBlock[V](own, b.height)
	c.used = b.used
	if b.height == 0 {
		*c.vals = *b.vals
	} else {
		*c.kids = *b.kids
	}
	return c
}

// Delete removes the value at an index, if there is one.
func (a *Array[V]) Delete(own *Owner, i uint32) {
	if _, ok := a.Get(i); ok {
		a.size--
		a.root = a.root.remove(own, i)
	}
}

// remove returns the block that replaces b, or nil if that block would be empty.
func (b *block[V]) remove(own *Owner, i uint32) *block[V] {
	b = b.mutable(own)
	at := b.slot(i)
	if b.height == 0 {
		b.vals[at] = nil
		b.used--
	} else {
		b.kids[at] = b.kids[at].remove(own, i)
		if b.kids[at] == nil {
			b.used--
		}
	}
	if b.used == 0 {
		return nil
	}
	return b
}

// All yields every value in the order of indices. The array must not be changed meanwhile.
func (a *Array[V]) All() iter.Seq2[uint32, *V] {
	return func(yield func(uint32, *V) bool) { a.root.each(0, yield) }
}

// each yields the values below b. base is the first index of b.
func (b *block[V]) each(base uint32, yield func(uint32, *V) bool) bool {
	for at := range uint32(1 << blockBits) {
		switch {
		case b == nil:
			return true
		case b.height > 0:
			if !b.kids[at].each(base+at<<(b.height*blockBits), yield) {
				return false
			}
		case b.vals[at] != nil && !yield(base+at, b.vals[at]):
			return false
		}
	}
	return true
}

// Since yields, in ascending order, the indices whose values differ from those in an older
// version of the array. It skips blocks that both versions share. So the cost grows with
// the number of changes, not with the size of the array.
func (a *Array[V]) Since(old *Array[V]) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		x, y := a.root, old.root
		for x != nil && y != nil && x.height != y.height {
			if x.height < y.height {
				x = x.raised(nil)
			} else {
				y = y.raised(nil)
			}
		}
		x.differ(y, 0, yield)
	}
}

// differ yields the indices whose values differ below two blocks of equal height. One of
// the blocks may be nil.
func (b *block[V]) differ(o *block[V], base uint32, yield func(uint32) bool) bool {
	if b == o {
		return true
	}
	if b == nil {
		b, o = o, b
	}
	for at := range uint32(1 << blockBits) {
		if b.height > 0 {
			var theirs *block[V]
			if o != nil {
				theirs = o.kids[at]
			}
			if !b.kids[at].differ(theirs, base+at<<(b.height*blockBits), yield) {
				return false
			}
			continue
		}
		var theirs *V
		if o != nil {
			theirs = o.vals[at]
		}
		if b.vals[at] != theirs && !yield(base+at) {
			return false
		}
	}
	return true
}
