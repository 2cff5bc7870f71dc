package nodes

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// retainedEnded is how many ended allocations a node may keep with their logs. The node
	// forgets older ended allocations, and purged ones.
	retainedEnded = 64
	// maxTombstones is at most how many removals the outbox of a node remembers.
	maxTombstones = 256
)

// node holds what a master knows about a node beyond the committed state.
type node struct {
	id string

	mu sync.Mutex
	// contact knows when the node was last seen and when it got its last lease. Its times
	// are on Config.Clock.
	contact presence.Node
	// clockReadAt is the wall time at which Config.Clock was read for the latest message.
	clockReadAt time.Time
	// stats are the latest statistics, measured at statsAt. They are valid if hasStats is
	// true.
	hasStats bool
	stats    wire.NodeStats
	statsAt  time.Duration
	// session is nil while the node has no session.
	session *session
	// inFlight is the command with the node's latest reports, nil once its outcome is known.
	// It is set under mu by the session that the node has then.
	inFlight atomic.Pointer[raftlog.Proposal]

	// outbox holds the OrderIndex of each order. The rest of an order is read from the
	// state when the order is sent, because a copy in the outbox would be as large as the
	// allocation in the state.
	outbox *link.Outbox[uint64]
	// newest is the greatest index of an order that this master sent in this term.
	newest uint64
	// accepted is true when the node's agent was accepted in this term. The log then had
	// all orders of the agent.
	accepted bool
	// filled is the index of the state from which fill last filled the outbox.
	filled uint64
	// dirty is true when the outbox may hold orders that the committed state no longer has.
	dirty bool
}

// beginMessage records that a message of the node arrived and is being handled.
func (n *node) beginMessage(clock func() time.Duration) {
	now := time.Now()
	n.mu.Lock()
	n.clockReadAt = now
	n.contact.Arrived(clock())
	n.mu.Unlock()
}

// endMessage records that the message has been handled. Reading the clock is a system call,
// so after a message that was handled quickly endMessage does not read the clock again.
func (n *node) endMessage(clock func() time.Duration) {
	now := time.Now()
	n.mu.Lock()
	at := n.contact.Seen()
	if now.Sub(n.clockReadAt) > 10*time.Millisecond {
		at, n.clockReadAt = clock(), now
	}
	n.contact.Handled(at)
	n.mu.Unlock()
}

// isDeaf reports whether grants do not reach the node.
func (n *node) isDeaf() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.contact.Deaf()
}

// sessionState returns the state of the node's session. n.mu is held.
func (n *node) sessionState() presence.Session {
	switch {
	case n.session == nil:
		return presence.None
	case n.session.inPhase(resyncing):
		return presence.Resyncing
	}
	return presence.Current
}

// addOrders adds committed orders to an outbox that has all earlier orders. n.mu is held.
func (n *node) addOrders(orders []*state.Alloc) {
	if n.outbox == nil || n.dirty {
		return // the next fill adds them
	}
	for _, a := range orders {
		if a.OrderIndex > n.filled {
			n.outbox.PutAt(a.OrderIndex, a.ID, a.OrderIndex)
		}
	}
}

// fill makes the outbox equal to the committed state. The outbox then has one order for
// each allocation of wantedOrders. The number of an order is the Raft index of the last
// change that the agent must know. n.mu is held.
func (n *node) fill(view *state.View, epoch string) {
	fresh := n.outbox == nil
	if fresh {
		n.outbox = link.NewOutbox[uint64](epoch, maxTombstones)
	}
	n.dirty, n.filled = false, view.Index()
	var changed []*state.Alloc
	wanted := map[string]bool{}
	for _, a := range wantedOrders(view, n.id) {
		wanted[a.ID] = true
		if old, held := n.outbox.Get(a.ID); !held || old != a.OrderIndex {
			changed = append(changed, a)
		}
	}
	slices.SortStableFunc(changed, func(a, b *state.Alloc) int { return cmp.Compare(a.OrderIndex, b.OrderIndex) })
	for _, a := range changed {
		n.outbox.PutAt(a.OrderIndex, a.ID, a.OrderIndex)
	}
	if n.outbox.Len() > len(wanted) {
		gone := slices.DeleteFunc(n.outbox.Keys(), func(id string) bool { return wanted[id] })
		slices.Sort(gone)
		for _, id := range gone {
			n.outbox.DeleteAt(view.Index(), id)
		}
	}
	if fresh {
		// This master does not know which orders earlier masters removed.
		n.outbox.ForgetUpTo(view.Index())
	}
}

// wantedOrders returns the allocations that a node must know: the allocations that the node
// is charged for, and the latest ones that have ended.
func wantedOrders(view *state.View, nodeID string) []*state.Alloc {
	var charged, ended []*state.Alloc
	for a := range view.NodeAllocs(nodeID) { // in the order of their creation
		switch {
		case a.Charged:
			charged = append(charged, a)
		case !a.Declined: // a declined allocation never ran on the node
			ended = append(ended, a)
		}
	}
	return append(charged, ended[max(0, len(ended)-retainedEnded):]...)
}
