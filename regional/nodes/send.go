package nodes

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/regionlease"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// maxTunnelRequests bounds the tunnel requests that wait to be sent to an
	// agent.
	maxTunnelRequests = 64
	// maxBatchItems and maxBatchBytes bound a message of orders.
	maxBatchItems = 512
	maxBatchBytes = 256 << 10
)

// requestSend queues the session for its turn to send, unless a goroutine sends
// already. While the session waits for its turn the receiver can send at once.
func (ss *session) requestSend() {
	ss.mu.Lock()
	enqueue := ss.sending.request()
	ss.mu.Unlock()
	if enqueue {
		ss.agents.enqueue(ss)
	}
}

// startSend returns whether the caller must run sendAll. If not, the goroutine that
// sends checks again for something to send.
func (ss *session) startSend() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.sending.start()
}

// takeTurn sends, unless a goroutine sends already. The session has left the turn
// queue.
func (ss *session) takeTurn() {
	ss.mu.Lock()
	start := ss.sending.takeTurn()
	ss.mu.Unlock()
	if start {
		ss.sendAll()
	}
}

// sendAll sends until nothing is due. Only the goroutine that the send state
// allows calls it.
func (ss *session) sendAll() {
	for {
		err := ss.send()
		ss.mu.Lock()
		if err != nil {
			ss.sending = sendFailed
		}
		again := ss.sending.finish()
		ss.mu.Unlock()
		if !again {
			return
		}
	}
}

// send sends all that is due. After the end of the term it sends only the
// standby message: the agent then looks for the new master.
func (ss *session) send() error {
	cfg := &ss.agents.cfg
	if ss.agents.ctx.Err() != nil {
		if err := ss.stream.Send(cfg.Standby()); err != nil {
			return err
		}
		return raftlog.ErrNoMaster
	}
	ss.mu.Lock()
	grants, ack, tunnels, servers := ss.grants, ss.nextAck(), ss.tunnels, ss.servers
	ordersFirst := ss.ordersFirst && len(grants) > 0
	ss.grants, ss.tunnels, ss.servers = nil, nil, false
	ss.ordersFirst = ss.ordersFirst && !ordersFirst
	ss.mu.Unlock()
	out, err := ss.grantMessages(grants, ordersFirst)
	if err != nil {
		return err
	}
	if ack != nil {
		out = append(out, &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_ReportsAck{ReportsAck: ack}})
	}
	for _, id := range tunnels {
		out = append(out, &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Tunnel{Tunnel: &nusav1.TunnelRequest{Id: id}}})
	}
	if servers {
		out = append(out, &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Servers{Servers: ss.agents.serverList()}})
	}
	for _, m := range out {
		if err := ss.stream.Send(m); err != nil {
			return err
		}
	}
	return ss.sendOrders()
}

// grantMessages returns the grants of leases. The node must know what it lost before a lease
// lets its tasks start again: after the node was lost, and when the region's lease is the
// first one after none, all orders are sent before.
func (ss *session) grantMessages(ids []uint64, ordersFirst bool) (out []*nusav1.MasterMessage, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	cfg := &ss.agents.cfg
	length, region := regionlease.NodeLease(cfg.FSM.View().Cluster(), cfg.NodeLease), cfg.RegionLease()
	if length == 0 {
		region = 0
	}
	if ordersFirst || region > 0 && !ss.regionLease {
		if err := ss.sendOrders(); err != nil {
			return nil, err
		}
	}
	ss.regionLease = region > 0
	suspect := ss.agents.LogSuspect()
	for _, id := range ids {
		out = append(out, grantMessage(id, length, region, suspect))
	}
	return out, nil
}

// sendOrders sends all orders that are due.
func (ss *session) sendOrders() error {
	e := wire.GetOrderEncoder()
	defer e.Release()
	for {
		orders := ss.nextOrders(e)
		if orders == nil {
			return nil
		}
		if err := ss.stream.SendMsg(orders); err != nil {
			return err
		}
	}
}

// grantMessage returns a grant of the node's lease, with the remaining time of the
// region's lease. continueOnly: what runs goes on, and nothing starts.
func grantMessage(id uint64, length, region time.Duration, continueOnly bool) *nusav1.MasterMessage {
	grant := &nusav1.LeaseGrant{Id: id, Duration: durationpb.New(length), ContinueOnly: continueOnly}
	if region > 0 {
		grant.RegionLeft = durationpb.New(region)
	}
	return &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Lease{Lease: grant}}
}

// nextAck returns the position of the committed reports; nil if it was sent.
// ss.mu is held.
func (ss *session) nextAck() *nusav1.Position {
	if ss.ackDue == (state.Position{}) {
		return nil
	}
	at := ss.agents.cfg.FSM.View().Reports(ss.node.id)
	if at == ss.ackDue {
		ss.ackDue = state.Position{}
	}
	if at == ss.acknowledged {
		return nil
	}
	ss.acknowledged = at
	return wire.PositionToProto(at)
}

// nextOrders returns the next batch of orders; nil when there is none.
func (ss *session) nextOrders(e *wire.OrderEncoder) *wire.EncodedMessage {
	cfg := &ss.agents.cfg
	n := ss.node
	n.mu.Lock()
	defer n.mu.Unlock()
	// Read under the lock, so that this view has every change that marked the node
	// dirty.
	view := cfg.FSM.View()
	if n.session != ss {
		return nil // the newer session uses the outbox
	}
	if n.dirty {
		n.fill(view, cfg.Epoch)
	}
	e.Reset(cfg.Region, cfg.Logger, view)
	batch, more := ss.cursor.NextWithin(maxBatchItems, maxBatchBytes, e.Size)
	if !more {
		return nil
	}
	for i := range batch.Items {
		n.newest = max(n.newest, batch.Items[i].Value)
	}
	return e.Batch(batch)
}

// requestTunnel sends the agent a request to open a tunnel, at once.
func (ss *session) requestTunnel(_ context.Context, id string) error {
	ss.mu.Lock()
	if len(ss.tunnels) >= maxTunnelRequests {
		ss.mu.Unlock()
		return status.Error(codes.ResourceExhausted, "too many tunnel requests wait for this agent")
	}
	ss.tunnels = append(ss.tunnels, id)
	ss.mu.Unlock()
	if ss.startSend() {
		ss.agents.cfg.Streams.Go(ss.sendAll)
	}
	return nil
}
