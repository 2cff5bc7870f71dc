package regional

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// maxBatchItems and maxBatchBytes bound a message of orders or summaries.
	maxBatchItems = 512
	maxBatchBytes = 256 << 10
	// keptEnded is how many allocations that have ended a node keeps, the latest,
	// with their logs. Older ones, and those that are purged, it forgets.
	keptEnded = 64
	// forgottenOrders is how many removals an outbox remembers for a node that
	// is away.
	forgottenOrders = 256
)

// agentNode is what a master holds of a node beyond the committed state: its
// orders, when it was last heard, its statistics.
type agentNode struct {
	id string

	mu sync.Mutex
	// heard is when the node last said anything, on Config.Clock; busy counts
	// its messages under way here, of which there is one a session.
	heard time.Duration
	asked time.Time // when the clock was asked for that
	busy  int
	// said goodbye: silent on purpose until its next hello.
	left bool
	// stats are of statsAt, once it has measured. The next ones are written over
	// them.
	measured bool
	stats    wire.NodeStats
	statsAt  time.Duration
	session  *agentSession

	// outbox has the OrderIndex of each order. What the order says is read from
	// the state when it is sent: a copy kept here would be as large as all that
	// the state holds of the allocation.
	outbox *link.Outbox[uint64]
	// filled is the index of the state that the outbox was filled from last.
	filled uint64
	// dirty: the outbox may hold what the committed state no longer has.
	dirty bool
}

// order adds orders to an outbox that is in line with the state before them.
// n.mu is held.
func (n *agentNode) order(orders []*state.Alloc) {
	if n.outbox == nil || n.dirty {
		return // fill is due, and finds them
	}
	for _, a := range orders {
		if a.OrderIndex > n.filled {
			n.outbox.PutAt(a.OrderIndex, a.ID, a.OrderIndex)
		}
	}
}

// fill brings the outbox in line with the committed state: an order for the
// allocations that the node is charged for, and for the latest that have ended,
// numbered by the Raft index of the last change an agent must know. n.mu is
// held.
func (n *agentNode) fill(view *state.View, epoch string) {
	fresh := n.outbox == nil
	if fresh {
		n.outbox = link.NewOutbox[uint64](epoch, forgottenOrders)
	}
	n.dirty, n.filled = false, view.Index()
	var changed []*state.Alloc
	kept := map[string]bool{}
	for _, a := range keeps(view, n.id) {
		kept[a.ID] = true
		if old, held := n.outbox.Get(a.ID); !held || old != a.OrderIndex {
			changed = append(changed, a)
		}
	}
	slices.SortStableFunc(changed, func(a, b *state.Alloc) int { return cmp.Compare(a.OrderIndex, b.OrderIndex) })
	for _, a := range changed {
		n.outbox.PutAt(a.OrderIndex, a.ID, a.OrderIndex)
	}
	if n.outbox.Len() > len(kept) {
		gone := slices.DeleteFunc(n.outbox.Keys(), func(id string) bool { return kept[id] })
		slices.Sort(gone)
		for _, id := range gone {
			n.outbox.DeleteAt(view.Index(), id)
		}
	}
	if fresh {
		// What an earlier master removed is not known here.
		n.outbox.ForgetUpTo(view.Index())
	}
}

// keeps are the allocations that a node shall hold.
func keeps(view *state.View, node string) []*state.Alloc {
	var held, ended []*state.Alloc
	for a := range view.NodeAllocs(node) { // the oldest first
		switch {
		case a.Charged:
			held = append(held, a)
		case !a.Declined: // that never ran there
			ended = append(ended, a)
		}
	}
	return append(held, ended[max(0, len(ended)-keptEnded):]...)
}
