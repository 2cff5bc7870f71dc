package link

import "slices"

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

	state map[string]entry[V]
	live  int
	// log lists the keys in the order of their changes. An element with another order than
	// state[key] is outdated and is skipped. The log is rebuilt when most of it is
	// outdated.
	log   []change
	order uint64 // the number of the latest change, which counts all changes
	last  uint64 // the sequence of the latest change, a number from the caller
	// floor is the sequence, and floorOrder the order, of the latest removal that was
	// forgotten. No receiver can resume from an earlier position.
	floor, floorOrder uint64
}

type entry[V any] struct {
	order   uint64
	removed bool
	value   V
}

type change struct {
	order, sequence uint64
	key             string
}

// NewOutbox returns an empty set whose positions have the given epoch. The set remembers
// at most maxTombstones removals (at least 1). A receiver that missed a forgotten removal
// gets the full set.
func NewOutbox[V any](epoch string, maxTombstones int) *Outbox[V] {
	return &Outbox[V]{epoch: epoch, maxTombstones: max(1, maxTombstones), state: map[string]entry[V]{}}
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
	if old, held := o.state[key]; !held || old.removed {
		o.live++
	}
	o.append(sequence, key, entry[V]{value: v})
}

// DeleteAt is Delete with a sequence that the caller chooses, as in PutAt.
func (o *Outbox[V]) DeleteAt(sequence uint64, key string) {
	old, held := o.state[key]
	if !held || old.removed {
		return
	}
	o.live--
	o.append(sequence, key, entry[V]{removed: true})
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
	e, held := o.state[key]
	return e.value, held && !e.removed
}

// Keys returns the keys of the set in no order.
func (o *Outbox[V]) Keys() []string {
	out := make([]string, 0, o.live)
	for key, e := range o.state {
		if !e.removed {
			out = append(out, key)
		}
	}
	return out
}

// Len returns the number of keys in the set.
func (o *Outbox[V]) Len() int { return o.live }

// Position returns the position of the latest change. A receiver that acknowledged this
// position has the whole set.
func (o *Outbox[V]) Position() Position { return Position{Epoch: o.epoch, Sequence: o.last} }

func (o *Outbox[V]) append(sequence uint64, key string, e entry[V]) {
	o.order++
	o.last = max(o.last, sequence)
	e.order = o.order
	o.state[key] = e
	o.log = append(o.log, change{order: o.order, sequence: o.last, key: key})
	// Up to half of the log may be outdated, so that its rebuilding costs O(1) per change.
	if tombstones := len(o.state) - o.live; tombstones > o.maxTombstones || len(o.log) > 2*len(o.state)+16 {
		o.compact()
	}
}

// compact drops the outdated elements of the log. If there are too many removals, it also
// forgets the older half of them.
func (o *Outbox[V]) compact() {
	drop := 0
	if tombstones := len(o.state) - o.live; tombstones > o.maxTombstones {
		drop = tombstones - o.maxTombstones/2
	}
	alive := o.log[:0]
	for _, c := range o.log {
		e := o.state[c.key]
		switch {
		case e.order != c.order:
		case e.removed && drop > 0:
			drop--
			delete(o.state, c.key)
			o.floor, o.floorOrder = max(o.floor, c.sequence), max(o.floorOrder, c.order)
		default:
			alive = append(alive, c)
		}
	}
	clear(o.log[len(alive):])
	o.log = alive
}

// after returns the index in the log of the first change later than order.
func (o *Outbox[V]) after(order uint64) int {
	i, _ := slices.BinarySearchFunc(o.log, order+1, func(c change, order uint64) int {
		switch {
		case c.order < order:
			return -1
		case c.order > order:
			return 1
		}
		return 0
	})
	return i
}

// orderAt returns the order of the latest change whose sequence is not greater than
// sequence.
func (o *Outbox[V]) orderAt(sequence uint64) uint64 {
	if sequence >= o.last {
		return o.order
	}
	i, _ := slices.BinarySearchFunc(o.log, sequence+1, func(c change, sequence uint64) int {
		if c.sequence < sequence {
			return -1
		}
		return 1
	})
	if i == 0 {
		return 0
	}
	return o.log[i-1].order
}
