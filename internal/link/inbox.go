package link

import (
	"errors"
	"fmt"
	"iter"
)

// Errors of an Inbox. After one the connection is of no use: open a new one
// and resume from the position last stored.
var (
	// ErrTooLarge: a full set has more items than the receiver takes.
	ErrTooLarge = errors.New("full set too large")
	// ErrOutOfOrder: a batch that cannot follow the previous one.
	ErrOutOfOrder = errors.New("batch out of order")
)

// Change is what a receiver applies as a whole, then acknowledges.
type Change[V any] struct {
	// Upserts are latest values; no key twice.
	Upserts []Item[V]
	// Removed keys, sorted when they were computed from a full set.
	Removed []string
	// Position to acknowledge once the change is stored.
	Position Position
	// Full: the upserts are the whole set.
	Full bool
}

// Inbox turns the batches of one connection into changes. Make a new one for
// each connection.
type Inbox[V any] struct {
	maxItems int
	filling  bool
	items    []Item[V]
	at       map[string]int
}

// NewInbox returns an inbox that takes full sets of at most maxItems items.
func NewInbox[V any](maxItems int) *Inbox[V] {
	return &Inbox[V]{maxItems: maxItems}
}

// Add takes a batch. It returns false while a full set is incomplete. known
// yields the keys that the receiver holds, changes on their way to its store
// included; it is read only when a full set ends, to find what was removed.
func (in *Inbox[V]) Add(b Batch[V], known iter.Seq[string]) (Change[V], bool, error) {
	if !b.Full {
		if in.filling {
			return Change[V]{}, false, fmt.Errorf("%w: a delta inside a full set", ErrOutOfOrder)
		}
		return Change[V]{Upserts: b.Items, Removed: b.Removed, Position: b.Position}, true, nil
	}
	if !in.filling {
		in.filling, in.items, in.at = true, nil, map[string]int{}
	}
	for _, item := range b.Items {
		if i, twice := in.at[item.Key]; twice {
			in.items[i] = item
			continue
		}
		if len(in.items) >= in.maxItems {
			return Change[V]{}, false, fmt.Errorf("%w: more than %d items", ErrTooLarge, in.maxItems)
		}
		in.at[item.Key] = len(in.items)
		in.items = append(in.items, item)
	}
	if !b.Last {
		return Change[V]{}, false, nil
	}
	var removed []string
	for key := range known {
		if _, held := in.at[key]; !held {
			removed = append(removed, key)
		}
	}
	c := Change[V]{Upserts: in.items, Removed: sorted(removed), Position: b.Position, Full: true}
	in.filling, in.items, in.at = false, nil, nil
	return c, true, nil
}
