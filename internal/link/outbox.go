package link

import (
	"hash/maphash"
	"iter"
	"slices"
)

// Position is a point in a stream of changes. The zero value is the beginning: a receiver
// that resumes from there gets the full set.
type Position struct {
	// Epoch identifies the numbering. A new epoch begins whenever the numbers start again.
	Epoch string
	// Sequence grows with every change. A receiver never resumes from 0.
	Sequence uint64
}

// Item is one member of the set.
type Item[V any] struct {
	Key   string
	Value V
}

// Batch is the content of one message.
type Batch[V any] struct {
	// Full: the batch is part of a full set. A full set starts with the first full
	// batch after a batch that was not full or was Last.
	Full bool
	// Last: the batch ends a full set.
	Last bool
	// Items holds the latest values. If the batch is not Full, they are in the order of
	// their last change.
	Items []Item[V]
	// Removed holds the removed keys. A full batch has none.
	Removed []string
	// Position is the position after this batch. The receiver acknowledges it when
	// everything up to this batch is stored. It is zero in a full batch that is not Last.
	Position Position
}

// Outbox is the sender's set: the latest value of each key in the order of the last
// changes, and a bounded number of removals. Memory is proportional to the number of keys
// plus maxTombstones.
type Outbox[V any] struct {
	epoch         string
	maxTombstones int

	// nodes[0] is the beginning and the end of a ring, which has the keys in the order of their
	// latest changes. With a map and a log instead, a key takes half as much again. free is the
	// first node that is not in use, and unused the number of such nodes.
	nodes        []node[V]
	free, unused int32
	live         int
	tombstones   int
	// buckets has the first node of each chain of nodes whose keys have like hashes.
	buckets []int32
	seed    maphash.Seed
	order   uint64 // the number of the latest change, which counts all changes
	last    uint64 // the sequence of the latest change, a number from the caller
	// floor is the sequence, and floorOrder the order, of the latest removal that was
	// forgotten. No receiver can resume from an earlier position.
	floor, floorOrder uint64
}

// node is a key that the outbox has, or had. A node with order 0 is not in use.
type node[V any] struct {
	order, sequence uint64
	key             string
	value           V
	removed         bool
	// prev and next are the neighbours in the ring, and chain is the next node in the bucket.
	prev, next, chain int32
}

// NewOutbox returns an empty set whose positions have the given epoch. The set remembers
// at most maxTombstones removals (at least 1). A receiver that missed a forgotten removal
// gets the full set.
func NewOutbox[V any](epoch string, maxTombstones int) *Outbox[V] {
	return &Outbox[V]{epoch: epoch, maxTombstones: max(1, maxTombstones), nodes: make([]node[V], 1), buckets: make([]int32, leastBuckets), seed: maphash.MakeSeed()}
}

// Put sets the value of a key. The change gets the next sequence.
func (o *Outbox[V]) Put(key string, v V) { o.PutAt(o.last+1, key, v) }

// Delete removes a key. The change gets the next sequence. To remove an absent key is no
// change.
func (o *Outbox[V]) Delete(key string) { o.DeleteAt(o.last+1, key) }

// PutAt is like Put, with a sequence that the caller chooses, for example a Raft index.
// Several changes may have the same sequence if no cursor is read between them. If an
// earlier change has a greater sequence, this change gets the same sequence as the earlier
// one.
func (o *Outbox[V]) PutAt(sequence uint64, key string, v V) {
	i := o.find(key)
	switch {
	case i == 0:
		i = o.insert(key)
		o.live++
	case o.nodes[i].removed:
		o.live++
		o.tombstones--
	}
	o.change(i, sequence, v, false)
}

// DeleteAt is Delete with a sequence that the caller chooses, as in PutAt.
func (o *Outbox[V]) DeleteAt(sequence uint64, key string) {
	i := o.find(key)
	if i == 0 || o.nodes[i].removed {
		return
	}
	o.live--
	o.tombstones++
	var none V
	o.change(i, sequence, none, true)
	if o.tombstones > o.maxTombstones {
		o.forget(o.tombstones - o.maxTombstones/2)
	}
}

// Grow allocates at once what n more keys will need.
func (o *Outbox[V]) Grow(n int) {
	o.nodes = slices.Grow(o.nodes, n)
	buckets := len(o.buckets)
	for buckets < len(o.nodes)+n {
		buckets *= 2
	}
	o.rehash(buckets)
}

// ForgetUpTo records that the outbox may not know all removals up to a sequence, for
// example because it was rebuilt from stored items. Receivers with a lower position get
// the full set.
func (o *Outbox[V]) ForgetUpTo(sequence uint64) {
	o.last = max(o.last, sequence)
	o.floor = max(o.floor, sequence)
	o.floorOrder = max(o.floorOrder, o.orderAt(sequence))
}

// Get returns the value of a key; false if the set does not have the key.
func (o *Outbox[V]) Get(key string) (V, bool) {
	n := &o.nodes[o.find(key)]
	return n.value, n.order > 0 && !n.removed
}

// Keys returns the keys of the set in the order of their last changes.
func (o *Outbox[V]) Keys() []string {
	out := make([]string, 0, o.live)
	for key := range o.All() {
		out = append(out, key)
	}
	return out
}

// All yields the keys of the set and their values in the order of their last changes. The set
// must not change meanwhile.
func (o *Outbox[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for i := o.nodes[0].next; i != 0; i = o.nodes[i].next {
			if n := &o.nodes[i]; !n.removed && !yield(n.key, n.value) {
				return
			}
		}
	}
}

// Len returns the number of keys in the set.
func (o *Outbox[V]) Len() int { return o.live }

// Position returns the position of the latest change. A receiver that acknowledged this
// position has the whole set.
func (o *Outbox[V]) Position() Position { return Position{Epoch: o.epoch, Sequence: o.last} }

// leastBuckets is the number of buckets of a small outbox. It is a power of two, as every number of
// buckets.
const leastBuckets = 8

func (o *Outbox[V]) bucket(key string) *int32 {
	return &o.buckets[maphash.String(o.seed, key)&uint64(len(o.buckets)-1)]
}

// find returns the node of a key; 0: there is none.
func (o *Outbox[V]) find(key string) int32 {
	i := *o.bucket(key)
	for i != 0 && o.nodes[i].key != key {
		i = o.nodes[i].chain
	}
	return i
}

// insert adds a node for a key that has none. The caller calls change next, which puts the node into
// the ring.
func (o *Outbox[V]) insert(key string) int32 {
	if len(o.nodes) >= len(o.buckets) {
		o.rehash(2 * len(o.buckets))
	}
	i := o.free
	if i != 0 {
		o.free, o.unused = o.nodes[i].chain, o.unused-1
	} else {
		i = int32(len(o.nodes))
		o.nodes = append(o.nodes, node[V]{})
	}
	first := o.bucket(key)
	o.nodes[i] = node[V]{key: key, chain: *first, prev: i, next: i}
	*first = i
	return i
}

// rehash divides the nodes among another number of buckets.
func (o *Outbox[V]) rehash(buckets int) {
	o.buckets = make([]int32, buckets)
	for i := int32(1); i < int32(len(o.nodes)); i++ {
		if n := &o.nodes[i]; n.order > 0 {
			first := o.bucket(n.key)
			n.chain, *first = *first, i
		}
	}
}

// unlink takes a node out of the ring.
func (o *Outbox[V]) unlink(i int32) {
	prev, next := o.nodes[i].prev, o.nodes[i].next
	o.nodes[prev].next, o.nodes[next].prev = next, prev
}

// change gives a node a new value, and makes it the last one in the ring.
func (o *Outbox[V]) change(i int32, sequence uint64, v V, removed bool) {
	o.order++
	o.last = max(o.last, sequence)
	o.unlink(i)
	n, end := &o.nodes[i], &o.nodes[0]
	n.order, n.sequence, n.value, n.removed = o.order, o.last, v, removed
	n.prev, n.next = end.prev, 0
	o.nodes[end.prev].next, end.prev = i, i
}

// forget drops the oldest removals, so many of them.
func (o *Outbox[V]) forget(drop int) {
	for i := o.nodes[0].next; i != 0 && drop > 0; {
		n, next := &o.nodes[i], o.nodes[i].next
		if n.removed {
			o.floor, o.floorOrder = max(o.floor, n.sequence), max(o.floorOrder, n.order)
			o.drop(i)
			drop--
		}
		i = next
	}
	if int(o.unused) > len(o.nodes)/2 {
		o.shrink()
	}
}

// drop frees the node of a removal.
func (o *Outbox[V]) drop(i int32) {
	at := o.bucket(o.nodes[i].key)
	for *at != i {
		at = &o.nodes[*at].chain
	}
	*at = o.nodes[i].chain
	o.unlink(i)
	o.nodes[i] = node[V]{chain: o.free}
	o.free, o.unused, o.tombstones = i, o.unused+1, o.tombstones-1
}

// shrink moves the nodes in use to the beginning of a smaller list, in the order of the ring.
func (o *Outbox[V]) shrink() {
	old := o.nodes
	o.nodes = append(make([]node[V], 0, len(old)-int(o.unused)), node[V]{})
	for i := old[0].next; i != 0; i = old[i].next {
		n, at := old[i], int32(len(o.nodes))
		n.prev, n.next = at-1, 0
		o.nodes = append(o.nodes, n)
		o.nodes[at-1].next, o.nodes[0].prev = at, at
	}
	o.free, o.unused = 0, 0
	buckets := leastBuckets
	for buckets < len(o.nodes) {
		buckets *= 2
	}
	o.rehash(buckets)
}

// after returns the first node whose change is later than order; 0: there is none. near is the node
// of that change, if it is still the one.
func (o *Outbox[V]) after(order uint64, near int32) int32 {
	if near > 0 && int(near) < len(o.nodes) && o.nodes[near].order == order {
		return o.nodes[near].next
	}
	i := o.nodes[0].prev
	for i != 0 && o.nodes[i].order > order {
		i = o.nodes[i].prev
	}
	return o.nodes[i].next
}

// orderAt returns the order of the latest change whose sequence is not greater than
// sequence.
func (o *Outbox[V]) orderAt(sequence uint64) uint64 {
	if sequence >= o.last {
		return o.order
	}
	i := o.nodes[0].prev
	for i != 0 && o.nodes[i].sequence > sequence {
		i = o.nodes[i].prev
	}
	return o.nodes[i].order
}
