package nodes

import (
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Outboxes are the outboxes of the agents, for comparisons with the log.
type Outboxes struct{ *Agents }

// Attached returns the nodes that have a session and their whole outbox was sent. Each value stands
// for the session: it differs from that of every other session.
func (a Outboxes) Attached() map[string]any {
	out := map[string]any{}
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, n := range a.nodes {
		n.mu.Lock()
		if n.session != nil && n.session.cursor != nil && !n.dirty && n.session.cursor.Done() {
			out[id] = n.session
		}
		n.mu.Unlock()
	}
	return out
}

// Outbox returns the order index of each allocation in a node's outbox. It returns false if the
// outbox is not complete.
func (a Outboxes) Outbox(id string) (orders map[string]uint64, complete bool) {
	n := a.find(id)
	if n == nil {
		return nil, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.outbox == nil || n.dirty {
		return nil, false
	}
	orders = make(map[string]uint64, n.outbox.Len())
	for _, key := range n.outbox.Keys() {
		orders[key], _ = n.outbox.Get(key)
	}
	return orders, true
}

// Wanted returns the order index of each allocation that an agent should know.
func Wanted(view *state.View, nodeID string) map[string]uint64 {
	out := map[string]uint64{}
	for _, x := range wantedOrders(view, nodeID) {
		out[x.ID] = x.OrderIndex
	}
	return out
}

// Refill makes the outbox of a node equal to the committed state again.
func (a Outboxes) Refill(id string) { a.MarkDirty([]string{id}) }

// Repeat sends the orders for some allocations of a node again, and the removal of others.
func (a Outboxes) Repeat(id string, orders, removals []string) {
	n := a.find(id)
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.outbox == nil {
		return
	}
	view := a.cfg.FSM.View() // not older than the outbox, so nothing that the outbox got meanwhile is removed
	wanted := Wanted(view, id)
	for _, key := range orders {
		if index, ok := wanted[key]; ok {
			n.outbox.PutAt(index, key, index)
		}
	}
	for _, key := range removals {
		if _, ok := wanted[key]; !ok { // the outbox sends the removal of what it had
			n.outbox.PutAt(view.Index(), key, view.Index())
			n.outbox.DeleteAt(view.Index(), key)
		}
	}
	if n.session != nil {
		n.session.requestSend()
	}
}
