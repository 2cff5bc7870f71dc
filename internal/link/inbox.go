package link

import (
	"errors"
	"fmt"
	"iter"
)

// Errors of an Inbox. After an error the receiver opens a new connection and resumes from
// the position that it stored last.
var (
	// ErrTooLarge means that a full set has more items than the receiver allows.
	ErrTooLarge = errors.New("full set too large")
	// ErrOutOfOrder means that a batch cannot follow the previous batch.
	ErrOutOfOrder = errors.New("batch out of order")
)

// Change holds changes that a receiver applies together and then acknowledges.
type Change[V any] struct {
	// Upserts holds the latest values of new and changed keys, each key once.
	Upserts []Item[V]
	// Removed holds the removed keys. They are sorted if they were computed from a full
	// set.
	Removed []string
	// Position is acknowledged when the change is stored.
	Position Position
	// Full: Upserts is the whole set.
	Full bool
}

// Inbox converts the batches of one connection to changes. Make a new inbox for each
// connection.
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

// Add adds a batch and returns the change that the batch completes. It returns false while
// a full set is incomplete. known yields the keys that the receiver has, including those
// that are not stored yet. Add reads known only at the end of a full set, to find the
// removed keys. Errors are ErrTooLarge and ErrOutOfOrder.
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
