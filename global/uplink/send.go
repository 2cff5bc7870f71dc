package uplink

import (
	"math"
	"slices"
	"sync"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// ordersBytes and ordersItems bound a SlotOrders message.
	ordersBytes = 256 * 1024
	ordersItems = 1024
)

// orderLists are lists for orders, which all sessions use again.
var orderLists = sync.Pool{New: func() any { return new(orderList) }}

type orderList struct {
	copies []state.OrderCopy
	items  []link.Item[state.Order]
	slot   []byte // memory for encode
}

// encode adds the orders to their message. Nearly all orders are encoded field by field, which takes a fraction of the
// time and of the memory: the message gets them as unknown fields, so the generated code copies their bytes.
func (l *orderList) encode(out *nusav1.SlotOrders) {
	size := 0
	for i := range l.copies {
		size += l.copies[i].Size()
	}
	encoded, ok := make([]byte, 0, size), true
	for i := 0; ok && i < len(l.copies); i++ {
		encoded, l.slot, ok = l.copies[i].Append(encoded, l.slot)
	}
	if ok {
		out.ProtoReflect().SetUnknown(encoded)
		return
	}
	out.Orders = make([]*nusav1.SlotOrder, 0, len(l.copies))
	for i := range l.copies {
		if o := l.copies[i].Message(); o != nil {
			out.Orders = append(out.Orders, o)
		}
	}
}

// next returns the next message for the region, or nil if the region has everything. Only the
// sender calls it.
func (c *session) next() *nusav1.GlobalMessage {
	list := orderLists.Get().(*orderList)
	c.list = list
	m := c.due()
	if c.edges != nil { // the edges are encoded without the lock, because that takes a millisecond
		m.GetColumnChanges().Edges = sets.PackColumn(*c.edges)
		columns.Put(c.edges)
		c.edges = nil
	}
	if len(list.copies) > 0 { // so are the orders: a region that connects may get thousands
		list.encode(m.GetOrders())
		clear(list.copies)
		clear(list.items)
		list.copies, list.items = list.copies[:0], list.items[:0]
	}
	c.list = nil
	orderLists.Put(list)
	return m
}

func (c *session) due() *nusav1.GlobalMessage {
	st := c.server.st
	st.Lock()
	defer st.Unlock()
	c.complete = false
	if c.lateDue {
		c.lateDue = false
		c.late.Stop()
	}
	switch {
	case !c.opened.Load() || c.server.liveRegion(c) == nil || !c.server.serving():
		return nil // a successor may have given other orders already
	case c.outbox.len() > 0:
		// The welcome and grants are sent before the sets. wake makes the sender call next again.
		c.wake()
		return nil
	}
	if m := c.ordersMessage(); m != nil {
		c.complete = c.summarised == nil && c.hasSets()
		return m
	}
	if at := c.summarised; at != nil {
		c.summarised = nil
		c.complete = c.hasSets()
		return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_SummariesAck{SummariesAck: at}}
	}
	for _, set := range []func() *nusav1.GlobalMessage{c.authMessage, c.keysMessage, c.asksMessage, c.originsMessage, c.peersMessage, c.columnMessage} {
		if m := set(); m != nil {
			return m
		}
	}
	m := c.matrix
	c.matrix = nil
	return m
}

// hasSets reports whether the region certainly has the present sets and orders. The lock is held.
func (c *session) hasSets() bool {
	return c.cursor.Done() && c.shared.Unsent == (state.Unsent{}) && c.confirmed == c.server.confirms &&
		c.peersVersion == c.server.peers.version && c.matrix == nil
}

// isLarge reports whether a session needs a turn to send a message.
func isLarge(m *nusav1.GlobalMessage) bool {
	return m.GetPeers() != nil || len(m.GetPeerChanges().GetBuckets()) == sets.Buckets
}

// asksMessage returns the changes of the subscribed asks, or nil. The lock is held.
func (c *session) asksMessage() *nusav1.GlobalMessage {
	if !c.shared.Unsent.Asks {
		return nil
	}
	c.shared.Unsent.Asks = false
	demand := &c.server.st.Demand
	if c.known == nil {
		return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Shapes{Shapes: demand.Subscriptions()}}
	}
	was, now := c.asks, demand.Subscribed()
	c.asks = now
	m := &nusav1.AskChanges{}
	switch {
	case c.asksSent:
		m.Added, m.Removed = demand.Asks(without(now, was)), without(was, now)
	case c.known.GetAsks() != 0 && c.known.GetAsks() == sets.HashAsks(demand.Asks(now)):
	default:
		m.Full, m.Added = true, demand.Asks(now)
	}
	c.asksSent = true
	if !m.GetFull() && len(m.GetAdded())+len(m.GetRemoved()) == 0 {
		return nil
	}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_AskChanges{AskChanges: m}}
}

// without returns the numbers of one sorted list that are not in another.
func without(of, other []uint64) (out []uint64) {
	for _, n := range of {
		if _, found := slices.BinarySearch(other, n); !found {
			out = append(out, n)
		}
	}
	return out
}

// originsMessage returns the origin records, or nil if the region has them. The lock is held.
func (c *session) originsMessage() *nusav1.GlobalMessage {
	if !c.shared.Unsent.Origins {
		return nil
	}
	c.shared.Unsent.Origins = false
	table := &nusav1.OriginTable{Records: c.server.st.Origins.Table.Records()}
	known := c.known.GetOrigins()
	if c.known != nil {
		c.known.Origins = 0 // each later table is a change
	}
	if known != 0 && known == sets.HashOrigins(table) {
		return nil
	}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Origins{Origins: table}}
}

// authMessage returns who may do what, or nil if the region has that or cannot store it. The lock is
// held.
func (c *session) authMessage() *nusav1.GlobalMessage {
	if !c.shared.Unsent.Auth {
		return nil
	}
	c.shared.Unsent.Auth = false
	set := c.server.st.Auth.Load()
	if set == nil || c.known.GetAuth() == 0 || c.known.GetAuth() == state.AuthHash(c.server.st) {
		return nil
	}
	c.known.Auth = 1 // each later set is a change
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Auth{Auth: set.Message()}}
}

// ordersMessage returns the message for the next orders, or nil if there are none. What the orders consist of is in
// c.list. The lock is held.
func (c *session) ordersMessage() *nusav1.GlobalMessage {
	if at := c.held; at != nil {
		c.held = nil
		return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Orders{Orders: &nusav1.SlotOrders{Position: at}}}
	}
	since := c.ordersAt
	if c.cursor.Full() {
		since = math.MaxUint64
	}
	list := c.list
	c.cursor.Reuse(list.items)
	b, ok := c.cursor.NextWithin(ordersItems, ordersBytes, func(i link.Item[state.Order]) int {
		list.copies = append(list.copies, state.OrderCopy{})
		order := &list.copies[len(list.copies)-1]
		state.CopyOrder(order, c.server.st, c.region, i.Key, i.Value, since)
		return order.Size()
	})
	clear(list.copies[len(b.Items):])
	list.copies, list.items = list.copies[:len(b.Items)], b.Items // the batch begins with the orders whose size was measured
	if !ok {
		return nil
	}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Orders{Orders: &nusav1.SlotOrders{
		Full: b.Full, Last: b.Last, Removed: b.Removed,
		Position: &nusav1.Position{Epoch: b.Position.Epoch, Sequence: b.Position.Sequence},
	}}}
}
