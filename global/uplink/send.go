package uplink

import (
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// ordersBytes and ordersItems bound a SlotOrders message.
const (
	ordersBytes = 256 * 1024
	ordersItems = 1024
)

// next returns the next message with something that the region has to get, nil when
// the region has everything.
func (c *session) next() *nusav1.GlobalMessage {
	st := c.server.st
	st.Lock()
	defer st.Unlock()
	switch {
	case !c.opened.Load() || c.server.liveRegion(c) == nil || !c.server.serving():
		return nil // a successor may have ordered otherwise already
	case len(c.out) > 0:
		// The welcome and grants go before the sets. wake makes the sender call next again.
		c.wake()
		return nil
	}
	if b, ok := c.cursor.NextWithin(ordersItems, ordersBytes, orderSize); ok {
		return ordersMessage(b)
	}
	unsent := &c.shared.Unsent
	switch {
	case unsent.Peers:
		unsent.Peers = false
		return peersMessage(st, c.region)
	case unsent.Shapes:
		unsent.Shapes = false
		return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Shapes{Shapes: st.Demand.Subscriptions()}}
	case unsent.Origins:
		unsent.Origins = false
		return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Origins{
			Origins: &nusav1.OriginTable{Records: st.Origins.Table.Records()},
		}}
	case unsent.Column:
		unsent.Column = false
		if m := c.columnMessage(); m != nil {
			return m
		}
	}
	m := c.matrix
	c.matrix = nil
	return m
}

func orderSize(i link.Item[*nusav1.SlotOrder]) int { return proto.Size(i.Value) + 8 }

func ordersMessage(b link.Batch[*nusav1.SlotOrder]) *nusav1.GlobalMessage {
	out := &nusav1.SlotOrders{
		Full: b.Full, Last: b.Last, Removed: b.Removed,
		Position: &nusav1.Position{Epoch: b.Position.Epoch, Sequence: b.Position.Sequence},
	}
	for _, i := range b.Items {
		out.Orders = append(out.Orders, i.Value)
	}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Orders{Orders: out}}
}

// peersMessage returns every region but the given one, with the addresses at which
// the given region probes them. The lock is held.
func peersMessage(st *state.State, to string) *nusav1.GlobalMessage {
	out := &nusav1.PeerRegions{}
	for _, name := range st.RegionNames() {
		r := st.Regions[name]
		if name == to {
			continue
		}
		p := &nusav1.PeerRegion{
			Name: name, Location: r.Record.GetDefinition().GetLocation(), Labels: r.Record.GetDefinition().GetLabels(),
			Coordinate: r.Coordinate, ProbeDemand: st.ProbeDemand[to][name],
		}
		for _, srv := range r.Servers {
			if srv.GetProbeAddress() != "" {
				p.ProbeAddresses = append(p.ProbeAddresses, srv.GetProbeAddress())
			}
			if srv.GetAddress() != "" {
				p.GrpcAddresses = append(p.GrpcAddresses, srv.GetAddress())
			}
		}
		out.Regions = append(out.Regions, p)
	}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Peers{Peers: out}}
}
