package link

import (
	"slices"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// Cursor is the position of one receiver in an Outbox. It reads the present values, so a
// key that changes twice between two reads is sent once. Make a new cursor for each
// connection.
type Cursor[V any] struct {
	o *Outbox[V]
	// order is the order of the last change that was sent, and near is the node of that change.
	order uint64
	near  int32
	// sequence is the sequence of the last position that was returned.
	sequence uint64
	// items is memory for the next batch.
	items []Item[V]

	full bool
	// rest holds the keys of the full set that are still to be sent, in the order of their
	// last change when the full set was begun.
	rest []string
	// started and startedSequence are the order and the sequence of the outbox when the
	// full set was begun. Later changes follow as deltas.
	started, startedSequence uint64
}

// Cursor returns a cursor that resumes after from, if from is a position of this outbox
// and the outbox remembers all later removals. Otherwise the cursor starts with the full
// set.
func (o *Outbox[V]) Cursor(from Position) *Cursor[V] {
	c := &Cursor[V]{o: o}
	if from.Epoch != o.epoch || from.Sequence == 0 || from.Sequence < o.floor || from.Sequence > o.last {
		c.begin()
		return c
	}
	// orderAt does not find a removal that was forgotten, because the log has it no more.
	c.order, c.sequence = max(o.orderAt(from.Sequence), o.floorOrder), from.Sequence
	if plant.Is(plant.DeltaLate) {
		c.order = min(c.order+1, o.order)
	}
	return c
}

// begin starts a full set.
func (c *Cursor[V]) begin() {
	c.full = true
	c.started, c.startedSequence = c.o.order, c.o.last
	c.rest = c.o.Keys()
}

// Full reports whether the next batch is part of a full set.
func (c *Cursor[V]) Full() bool { return c.full || c.order < c.o.floorOrder }

// Done reports whether the receiver certainly has the whole set. It may return false for a moment
// although Next has nothing to return.
func (c *Cursor[V]) Done() bool { return !c.Full() && c.order == c.o.order }

// Reuse gives the cursor memory for the items of its next batch.
func (c *Cursor[V]) Reuse(items []Item[V]) { c.items = items[:0] }

// Next returns the next batch with at most maxItems items and removals; false if there is
// nothing to send.
func (c *Cursor[V]) Next(maxItems int) (Batch[V], bool) {
	return c.NextWithin(maxItems, 0, nil)
}

// NextWithin is like Next, and also bounds the sum of the items' sizes by maxSize. An item
// that is larger than maxSize is alone in a batch. A nil size sets no bound.
func (c *Cursor[V]) NextWithin(maxItems, maxSize int, size func(Item[V]) int) (Batch[V], bool) {
	limit := batchLimit[V]{items: max(1, maxItems), bytes: maxSize, size: size}
	if c.Full() {
		if !c.full {
			c.begin()
		}
		return c.nextFull(limit), true
	}
	return c.nextDelta(limit)
}

// nextFull returns keys that the set had when the full set was begun, with their present
// values. A key that was removed since then is left out. A key that was added since then
// follows in a delta. So a key that exists all the time is never missing.
func (c *Cursor[V]) nextFull(limit batchLimit[V]) Batch[V] {
	b := Batch[V]{Full: true, Items: c.items}
	c.items = nil
	for len(c.rest) > 0 {
		key := c.rest[0]
		if v, held := c.o.Get(key); held {
			item := Item[V]{Key: key, Value: v}
			if !limit.fits(&item) {
				return b
			}
			b.Items = append(b.Items, item)
		}
		c.rest = c.rest[1:]
	}
	b.Last = true
	c.full, c.rest = false, nil
	c.order, c.sequence = c.started, c.startedSequence
	b.Position = Position{Epoch: c.o.epoch, Sequence: c.sequence}
	return b
}

func (c *Cursor[V]) nextDelta(limit batchLimit[V]) (Batch[V], bool) {
	b := Batch[V]{Items: c.items}
	c.items = nil
	i := c.o.after(c.order, c.near)
	for ; i != 0; i = c.o.nodes[i].next {
		n := &c.o.nodes[i]
		if n.removed {
			if !limit.fits(nil) {
				break
			}
			b.Removed = append(b.Removed, n.key)
		} else {
			item := Item[V]{Key: n.key, Value: n.value}
			if !limit.fits(&item) {
				break
			}
			b.Items = append(b.Items, item)
		}
		c.order, c.near = n.order, i
	}
	if len(b.Items)+len(b.Removed) == 0 {
		return b, false
	}
	if i == 0 {
		c.sequence = c.o.last
	} else {
		// The next change may have the same sequence as the last change that was sent.
		// Then the batch does not have all changes of that sequence, so its position must
		// be lower.
		c.sequence = max(c.sequence, c.o.nodes[i].sequence-1)
	}
	b.Position = Position{Epoch: c.o.epoch, Sequence: c.sequence}
	return b, true
}

// batchLimit is the space that is left in a batch.
type batchLimit[V any] struct {
	items, bytes int
	size         func(Item[V]) int
	used         bool
}

// fits reports whether an item fits into the batch, and then reserves its space. A nil
// item stands for a removal.
func (r *batchLimit[V]) fits(item *Item[V]) bool {
	if r.items == 0 {
		return false
	}
	if r.size != nil && item != nil {
		n := r.size(*item)
		if r.used && n > r.bytes {
			return false
		}
		r.bytes -= n
	}
	r.items--
	r.used = true
	return true
}

// sorted sorts and returns the keys.
func sorted(keys []string) []string {
	slices.Sort(keys)
	return keys
}
