package link

import "slices"

// Cursor is one receiver's place in an Outbox. It reads the outbox as it then
// is, so a key that changes twice between two reads is sent once. Make a new
// one for each connection.
type Cursor[V any] struct {
	o *Outbox[V]
	// order up to which changes were sent.
	order uint64
	// sequence is the position last given out.
	sequence uint64

	full bool
	// rest are the keys of the full set still to send. Their order is that of
	// their last change when the set was begun.
	rest []string
	// started is where the set stood then: changes after it follow as deltas.
	started, startedSequence uint64
}

// Cursor resumes after from if that is a position of this outbox and the
// removals since then are still known; otherwise it starts with the full set.
func (o *Outbox[V]) Cursor(from Position) *Cursor[V] {
	c := &Cursor[V]{o: o}
	if from.Epoch != o.epoch || from.Sequence == 0 || from.Sequence < o.floor || from.Sequence > o.last {
		c.begin()
		return c
	}
	// A forgotten removal is no longer in the log that orderAt searches.
	c.order, c.sequence = max(o.orderAt(from.Sequence), o.floorOrder), from.Sequence
	return c
}

// begin starts over with the full set.
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

// Next returns the next batch with at most maxItems items and removals, or
// false when there is nothing to send.
func (c *Cursor[V]) Next(maxItems int) (Batch[V], bool) {
	return c.NextWithin(maxItems, 0, nil)
}

// NextWithin is Next with a bound on the sum of size over the items too; a
// single item larger than maxSize travels alone. A nil size is no bound.
func (c *Cursor[V]) NextWithin(maxItems, maxSize int, size func(Item[V]) int) (Batch[V], bool) {
	room := batchLimit[V]{items: max(1, maxItems), bytes: maxSize, size: size}
	if c.Full() {
		if !c.full {
			c.begin()
		}
		return c.nextFull(room), true
	}
	return c.nextDelta(room)
}

// nextFull sends keys of the set as it was at the beginning with their present
// values. One that is gone by now is left out, one that came since follows in
// a delta: so a key that is held all the time is never missing from the set.
func (c *Cursor[V]) nextFull(room batchLimit[V]) Batch[V] {
	b := Batch[V]{Full: true}
	for len(c.rest) > 0 {
		key := c.rest[0]
		if v, held := c.o.Get(key); held {
			item := Item[V]{Key: key, Value: v}
			if !room.fits(&item) {
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

func (c *Cursor[V]) nextDelta(room batchLimit[V]) (Batch[V], bool) {
	var b Batch[V]
	log := c.o.log[c.o.after(c.order):]
	i := 0
	for ; i < len(log); i++ {
		e := c.o.state[log[i].key]
		if e.order != log[i].order {
			continue
		}
		if e.removed {
			if !room.fits(nil) {
				break
			}
			b.Removed = append(b.Removed, log[i].key)
		} else {
			item := Item[V]{Key: log[i].key, Value: e.value}
			if !room.fits(&item) {
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
		// What comes next may share its number with what was just sent; then
		// that number is not complete.
		c.sequence = max(c.sequence, log[i].sequence-1)
	}
	b.Position = Position{Epoch: c.o.epoch, Sequence: c.sequence}
	return b, true
}

// batchLimit is what still fits into a batch.
type batchLimit[V any] struct {
	items, bytes int
	size         func(Item[V]) int
	used         bool
}

// fits charges for an item, or for a removal when item is nil.
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

// sorted returns keys in order, for a result that does not depend on a map.
func sorted(keys []string) []string {
	slices.Sort(keys)
	return keys
}
