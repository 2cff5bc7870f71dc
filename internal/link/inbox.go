package link

import (
	"errors"
	"fmt"
	"iter"
)

// Errors of an Inbox. After an error, open a new connection and resume from the
// position that was stored last.
var (
	// ErrTooLarge: a full set has more items than the receiver allows.
	ErrTooLarge = errors.New("full set too large")
	// ErrOutOfOrder: a batch cannot follow the previous one.
	ErrOutOfOrder = errors.New("batch out of order")
)

// Change is a set of changes that a receiver applies as a whole and then acknowledges.
type Change[V any] struct {
	// Upserts are latest values, each key once.
	Upserts []Item[V]
	// Removed has the removed keys, sorted when they were computed from a full set.
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

// NewInbox returns an inbox for full sets of at most maxItems items.
func NewInbox[V any](maxItems int) *Inbox[V] {
	return &Inbox[V]{maxItems: maxItems}
}

// Add adds a batch and returns the change that it completes; false while a full set
// is incomplete. known yields the keys that the receiver has, including those on
// their way to its store. Add reads it only at the end of a full set, to find the
// removed keys. Errors: ErrTooLarge, ErrOutOfOrder.
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
