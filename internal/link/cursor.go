package link

import (
	"slices"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// Cursor is one receiver's position in an Outbox. It reads the present values, so a key
// that changes twice between two reads is sent once. Make a new cursor for each
// connection.
type Cursor[V any] struct {
	o *Outbox[V]
	// order of the last change that was sent.
	order uint64
	// sequence is the sequence of the last position that was returned.
	sequence uint64

	full bool
	// rest has the keys of the full set that are still to be sent, in the order of
	// their last change when the set was begun.
	rest []string
	// started is the position of the outbox when the set was begun: later changes
	// follow as deltas.
	started, startedSequence uint64
}

// Cursor returns a cursor that resumes after from, if that is a position of this
// outbox and all removals since are known. Otherwise it starts with the full set.
func (o *Outbox[V]) Cursor(from Position) *Cursor[V] {
	c := &Cursor[V]{o: o}
	if from.Epoch != o.epoch || from.Sequence == 0 || from.Sequence < o.floor || from.Sequence > o.last {
		c.begin()
		return c
	}
	// A forgotten removal is not in the log that orderAt searches.
	c.order, c.sequence = max(o.orderAt(from.Sequence), o.floorOrder), from.Sequence
	if plant.Is(plant.DeltaLate) {
		c.order = min(c.order+1, o.order)
	}
	return c
}

// begin starts again with the full set.
func (c *Cursor[V]) begin() {
	c.full, c.rest = true, make([]string, 0, c.o.live)
	c.started, c.startedSequence = c.o.order, c.o.last
	for _, ch := range c.o.log {
		if e := c.o.state[ch.key]; e.order == ch.order && !e.removed {
			c.rest = append(c.rest, ch.key)
		}
	}
}

// Full reports whether the next batch is part of a full set.
func (c *Cursor[V]) Full() bool { return c.full || c.order < c.o.floorOrder }

// Next returns the next batch with at most maxItems items and removals; false when
// nothing is to be sent.
func (c *Cursor[V]) Next(maxItems int) (Batch[V], bool) {
	return c.NextWithin(maxItems, 0, nil)
}

// NextWithin is Next with a bound on the sum of the items' sizes. A single item
// larger than maxSize gets a batch of its own. A nil size sets no bound.
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

// nextFull returns keys of the set as it was at the beginning, with their present
// values. A key that was removed since is left out, and a key that was added since
// follows in a delta. So a key that exists all the time is never missing.
func (c *Cursor[V]) nextFull(limit batchLimit[V]) Batch[V] {
	b := Batch[V]{Full: true}
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
	var b Batch[V]
	log := c.o.log[c.o.after(c.order):]
	i := 0
	for ; i < len(log); i++ {
		e := c.o.state[log[i].key]
		if e.order != log[i].order {
			continue
		}
		if e.removed {
			if !limit.fits(nil) {
				break
			}
			b.Removed = append(b.Removed, log[i].key)
		} else {
			item := Item[V]{Key: log[i].key, Value: e.value}
			if !limit.fits(&item) {
				break
			}
			b.Items = append(b.Items, item)
		}
		c.order = log[i].order
	}
	if len(b.Items)+len(b.Removed) == 0 {
		return b, false
	}
	if i == len(log) {
		c.sequence = c.o.last
	} else {
		// The next change may share its number with the last one sent; then not all
		// changes of that number are in the batch.
		c.sequence = max(c.sequence, log[i].sequence-1)
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

// fits reports whether an item, or a removal when item is nil, fits into the batch,
// and reserves its space.
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

// sorted sorts keys, so that the result does not depend on the order of a map.
func sorted(keys []string) []string {
	slices.Sort(keys)
	return keys
}
