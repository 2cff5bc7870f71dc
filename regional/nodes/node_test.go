package nodes

import (
	"runtime"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestOrdersOfOneEntryArriveTogether: a log entry has orders for node A, then many for node
// B, then again for A. A's session reads as soon as it is woken. If the connection breaks
// at that moment, the agent resumes from its stored position and misses no order.
func TestOrdersOfOneEntryArriveTogether(t *testing.T) {
	lost := 0
	const rounds = 300
	for range rounds {
		a := New(t.Context(), Config{})
		n := &node{id: "A", outbox: link.NewOutbox[uint64]("e", 16)}
		m := &node{id: "B", outbox: link.NewOutbox[uint64]("e", 16)}
		a.nodes["A"], a.nodes["B"] = n, m
		cursor := n.outbox.Cursor(link.Position{})
		for _, more := cursor.Next(1); more; _, more = cursor.Next(1) {
		}
		got := map[string]bool{}
		var stored link.Position
		done := make(chan struct{})
		go func() { // the sender: one batch, then the stream breaks
			defer close(done)
			for n.mu.Lock(); n.outbox.Len() == 0; n.mu.Lock() {
				n.mu.Unlock()
				runtime.Gosched()
			}
			defer n.mu.Unlock()
			for {
				b, more := cursor.NextWithin(512, 1<<20, func(link.Item[uint64]) int { return 1 })
				if !more {
					return
				}
				for _, i := range b.Items {
					got[i.Key] = true
				}
				stored = b.Position
			}
		}()
		orders := []*state.Alloc{{ID: "a1", NodeRef: &state.NodeRef{NodeID: "A"}, OrderIndex: 7}}
		for range 500 {
			orders = append(orders, &state.Alloc{ID: "b", NodeRef: &state.NodeRef{NodeID: "B"}, OrderIndex: 7})
		}
		orders = append(orders, &state.Alloc{ID: "a2", NodeRef: &state.NodeRef{NodeID: "A"}, OrderIndex: 7})
		a.AddOrders(orders)
		<-done
		c := n.outbox.Cursor(stored) // the agent connects again
		for {
			b, more := c.Next(512)
			if !more {
				break
			}
			for _, i := range b.Items {
				got[i.Key] = true
			}
		}
		if !got["a2"] {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("the order a2 was lost in %d of %d", lost, rounds)
	}
}

// TestSessionGetsTheKnownNode: the node of a hello may be dropped before it is registered.
// The session is then attached to the node that receives orders.
func TestSessionGetsTheKnownNode(t *testing.T) {
	a := New(t.Context(), Config{})
	ss := &session{node: a.ensure("n1")}
	delete(a.nodes, "n1") // like dropUnregistered
	for range 2 {
		n := a.lockNode(ss)
		n.mu.Unlock()
		if a.find("n1") != n || ss.node != n {
			t.Fatal("the session's node is not the known one")
		}
		ss = &session{node: &node{id: "n1"}} // a.nodes has another node of that id
	}
}
