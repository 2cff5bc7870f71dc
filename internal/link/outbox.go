// Package link keeps a receiver's set of keyed items equal to a sender's over
// a connection that breaks: full set first, then only the latest value of each
// changed key, acknowledged by position, resumed where it broke. Both hops use
// it in both directions. It only computes: who sends, waits and locks is the
// caller's business; nothing here is safe for concurrent use.
package link

import "slices"

// Position names a point in a stream of changes. The zero value is the
// beginning: whoever resumes from it gets the full set.
type Position struct {
	// Epoch says who numbers; it changes whenever numbers start anew.
	Epoch string
	// Sequence grows with every change. 0 is never resumed from.
	Sequence uint64
}

// Item is one member of the set.
type Item[V any] struct {
	Key   string
	Value V
}

// Batch is what travels in one message.
type Batch[V any] struct {
	// Full: part of a full set, which starts with the first full batch after a
	// batch that was not full or was Last.
	Full bool
	// Last ends a full set.
	Last bool
	// Items are latest values, in order of their last change when not Full.
	Items []Item[V]
	// Removed keys; none when Full.
	Removed []string
	// Position after this batch: the receiver acknowledges it when it has
	// stored everything up to here. Zero in a full batch that is not Last.
	Position Position
}

// Outbox is the sender's set, with its history of changes: the latest value of
// each key ordered by its last change, and a bounded number of removals.
// Memory is proportional to keys held plus maxTombstones.
type Outbox[V any] struct {
	epoch         string
	maxTombstones int

	state map[string]entry[V]
	live  int
	// log orders state by last change; an element whose order is no longer
	// that of state[key] is dead and skipped. Rebuilt when most are dead.
	log   []change
	order uint64 // of the latest change: dense, internal
	last  uint64 // sequence of the latest change: the caller's number
	// floor is the sequence, and floorOrder the order, of the latest removal
	// that was forgotten: nobody resumes from before it.
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

// NewOutbox returns an empty set that numbers under epoch, and remembers at
// most maxTombstones removals (at least 1): a receiver that missed more starts
// over with the full set.
func NewOutbox[V any](epoch string, maxTombstones int) *Outbox[V] {
	return &Outbox[V]{epoch: epoch, maxTombstones: max(1, maxTombstones), state: map[string]entry[V]{}}
}

// Put sets the value of key as the next change.
func (o *Outbox[V]) Put(key string, v V) { o.PutAt(o.last+1, key, v) }

// Delete removes key as the next change; a key that is not held is no change.
func (o *Outbox[V]) Delete(key string) { o.DeleteAt(o.last+1, key) }

// PutAt is Put with a number of the caller, such as a Raft index. Several
// changes may share a number if no cursor is read between them. A number lower
// than an earlier one counts as that earlier one.
func (o *Outbox[V]) PutAt(sequence uint64, key string, v V) {
	if old, held := o.state[key]; !held || old.removed {
		o.live++
	}
	o.append(sequence, key, entry[V]{value: v})
}

// DeleteAt is Delete with a number of the caller, as PutAt.
func (o *Outbox[V]) DeleteAt(sequence uint64, key string) {
	old, held := o.state[key]
	if !held || old.removed {
		return
	}
	o.live--
	o.append(sequence, key, entry[V]{removed: true})
}

// ForgetUpTo says that removals numbered up to sequence may be missing here,
// as in an outbox rebuilt from stored items: receivers that have not come that
// far get the full set.
func (o *Outbox[V]) ForgetUpTo(sequence uint64) {
	o.last = max(o.last, sequence)
	o.floor = max(o.floor, sequence)
	o.floorOrder = max(o.floorOrder, o.orderAt(sequence))
}

// Get returns the value of key.
func (o *Outbox[V]) Get(key string) (V, bool) {
	e, held := o.state[key]
	return e.value, held && !e.removed
}

// Keys of the set, in no order.
func (o *Outbox[V]) Keys() []string {
	out := make([]string, 0, o.live)
	for key, e := range o.state {
		if !e.removed {
			out = append(out, key)
		}
	}
	return out
}

// Len is the number of keys in the set.
func (o *Outbox[V]) Len() int { return o.live }

// Position is where the set stands now: a receiver that acknowledged it lacks
// nothing.
func (o *Outbox[V]) Position() Position { return Position{Epoch: o.epoch, Sequence: o.last} }

func (o *Outbox[V]) append(sequence uint64, key string, e entry[V]) {
	o.order++
	o.last = max(o.last, sequence)
	e.order = o.order
	o.state[key] = e
	o.log = append(o.log, change{order: o.order, sequence: o.last, key: key})
	// Half of the log may be dead, so that rebuilding costs O(1) a change.
	if tombstones := len(o.state) - o.live; tombstones > o.maxTombstones || len(o.log) > 2*len(o.state)+16 {
		o.compact()
	}
}

// compact drops dead elements of the log, and if there are too many removals
// the older half of them.
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

// orderAt returns the order of the latest change numbered up to sequence.
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
