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
	// maxTunnelRequests bounds the tunnel requests that wait to be sent to an agent.
	maxTunnelRequests = 64
	// maxBatchItems and maxBatchBytes bound one message of orders.
	maxBatchItems = 512
	maxBatchBytes = 256 << 10
)

// requestSend puts the session into the turn queue, unless a goroutine already sends. While
// the session waits in the queue, the receiver can still send at once.
func (ss *session) requestSend() {
	ss.mu.Lock()
	enqueue := ss.sending.request()
	ss.mu.Unlock()
	if enqueue {
		ss.agents.enqueue(ss)
	}
}

// startSend returns whether the caller must run sendAll. If false, the goroutine that
// already sends will check again what is due.
func (ss *session) startSend() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.sending.start()
}

// takeTurn is called when the session has left the turn queue. It sends, unless a goroutine
// already sends.
func (ss *session) takeTurn() {
	ss.mu.Lock()
	start := ss.sending.takeTurn()
	ss.mu.Unlock()
	if start {
		ss.sendAll()
	}
}

// sendAll sends until nothing is due. The send state allows only one goroutine at a time to
// call sendAll.
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

// send sends everything that is due. After the end of the term it sends only the standby
// message, so that the agent looks for the new master.
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

// grantMessages returns the grants of leases. A grant lets the tasks of the node start
// again. So in two cases grantMessages sends all orders first, because the node must know
// which instances it lost: after the node was lost, and when the region has a lease again
// after it had none.
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
	if length == 0 || suspect {
		ss.mu.Lock()
		ss.empty = ids[len(ids)-1]
		ss.mu.Unlock()
	}
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

// grantMessage returns a grant of the node's lease, with the remaining time of the region's
// lease. With continueOnly, running tasks go on but no task starts.
func grantMessage(id uint64, length, region time.Duration, continueOnly bool) *nusav1.MasterMessage {
	grant := &nusav1.LeaseGrant{Id: id, Duration: durationpb.New(length), ContinueOnly: continueOnly}
	if region > 0 {
		grant.RegionLeft = durationpb.New(region)
	}
	return &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Lease{Lease: grant}}
}

// nextAck returns the position of the committed reports, or nil if that position was
// already acknowledged. ss.mu is held.
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

// nextOrders returns the next batch of orders, or nil when none is due.
func (ss *session) nextOrders(e *wire.OrderEncoder) *wire.EncodedMessage {
	cfg := &ss.agents.cfg
	n := ss.node
	n.mu.Lock()
	defer n.mu.Unlock()
	// The view is read under the lock, so that it includes every change that marked the
	// node dirty.
	view := cfg.FSM.View()
	if n.session != ss {
		return nil // the node's newer session uses the outbox
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

// requestTunnel sends the agent at once a request to open a tunnel.
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
