package regional

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// protocol is the wire protocol spoken; protocol-1 is understood too.
const protocol = 1

const (
	// maxTunnelRequests and maxGrants bound what waits to be sent to an agent.
	maxTunnelRequests = 64
	maxGrants         = 16
	// maxInventory bounds what is kept of a node, in bytes.
	maxInventory = 256 << 10
)

type agentStream = grpc.BidiStreamingServer[nusav1.AgentMessage, nusav1.MasterMessage]

// errSuperseded ends the stream of an agent that has opened another one.
var errSuperseded = status.Error(codes.Aborted, "a newer session of the same node has taken over")

// agentSession is one agent's stream on the master. The handler's goroutine
// receives and waits; there are thousands, so another one sends only while
// something is due, and what needs a deep stack is done on others' (shallow.go).
type agentSession struct {
	l      *leader
	node   *agentNode
	stream agentStream
	hello  *nusav1.AgentHello
	// Only the receiver's: the message it handles, the agent's set of reports, and
	// those on their way into the log.
	incoming wire.IncomingMessage
	inbox    *link.Inbox[state.AllocReport]
	flying   *raftlog.Proposal

	mu sync.Mutex
	// sending: somebody sends, or nobody may any more; again: and shall look once
	// more.
	sending, again bool
	// queued: it waits for a turn to send.
	queued bool
	// due: the receiver has something to send.
	due        bool
	superseded bool
	// unheard: its node was away, and what it has to say of that time has not all
	// come.
	unheard bool

	cursor *link.Cursor[uint64]
	// owed is up to where reports are, or soon will be, committed that the agent
	// was not told of; acked is what it was told.
	owed, acked state.Position
	grants      []uint64
	tunnels     []string
	servers     bool
	tunnel      *grpc.ClientConn
}

// serve is the master's end of an agent's stream, from its hello on.
func (a *agents) serve(stream agentStream, hello *nusav1.AgentHello) error {
	ctx := stream.Context()
	refused := a.l.refuse(hello)
	if refused == nil {
		if err := a.claim(hello); err != nil {
			refused = &nusav1.Refused{Message: err.Error()}
		}
	}
	if refused != nil {
		a.l.log.Warn("agent refused", "node", hello.GetName(), "id", hello.GetNodeId(), "reason", refused.Message)
		return stream.Send(&nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Refused{Refused: refused}})
	}
	ss := &agentSession{
		l: a.l, node: a.node(hello.GetNodeId()), stream: stream, hello: hello,
		inbox: link.NewInbox[state.AllocReport](wire.MaxReports), sending: true, // the welcome goes first
	}
	defer ss.detach()
	if err := aside(func() error { return ss.greet(ctx) }); err != nil {
		return err
	}
	return wireError(ss.receive(ctx))
}

// greet registers the node, attaches the session and sends the welcome, and what
// is due by then.
func (ss *agentSession) greet(ctx context.Context) error {
	ss.heard(+1)
	n, known := ss.l.s.fsm.View().Node(ss.node.id)
	ss.unheard = known && n.Status != state.NodeReady
	var err error
	if !ss.unheard {
		err = ss.register(ctx)
	}
	ss.heard(-1)
	if err != nil {
		return wireError(err)
	}
	ss.attach()
	if err := ss.stream.Send(&nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Welcome{Welcome: ss.l.welcome(ss.node.id)}}); err != nil {
		return err
	}
	ss.flush()
	return nil
}

// refuse answers why an agent may not come; nil if it may.
func (l *leader) refuse(h *nusav1.AgentHello) *nusav1.Refused {
	region := l.s.cfg.Region.GetName()
	switch {
	case h.GetNodeId() == "" || len(h.GetNodeId()) > 64 || len(h.GetName()) > 253:
		return &nusav1.Refused{Message: "node id and name must be set and at most 64 and 253 bytes", Permanent: true}
	case h.GetRegion() != "" && h.GetRegion() != region:
		return &nusav1.Refused{Message: fmt.Sprintf("this is region %q, the agent is configured for %q", region, h.GetRegion()), Permanent: true}
	case h.GetClusterId() != "" && h.GetClusterId() != l.cluster.ID:
		return &nusav1.Refused{Message: fmt.Sprintf("the agent's data directory belongs to another cluster of region %q: start it with an empty one", region), Permanent: true}
	case h.GetInventory() == nil:
		return &nusav1.Refused{Message: "the hello carries no inventory", Permanent: true}
	case proto.Size(h.GetInventory()) > maxInventory:
		return &nusav1.Refused{Message: fmt.Sprintf("the inventory has more than %d bytes", maxInventory), Permanent: true}
	case h.GetInventory().GetPortMin() < 0 || h.GetInventory().GetPortMax() > 65535:
		return &nusav1.Refused{Message: fmt.Sprintf("ports %d..%d: not a range within 1..65535", h.GetInventory().GetPortMin(), h.GetInventory().GetPortMax()), Permanent: true}
	case h.GetProtocol() < protocol-1 || h.GetProtocol() > protocol+1:
		return &nusav1.Refused{Message: fmt.Sprintf("protocol %d, this server speaks %d: upgrade the older one", h.GetProtocol(), protocol), Permanent: true}
	}
	return nil
}

func (l *leader) welcome(node string) *nusav1.MasterWelcome {
	return &nusav1.MasterWelcome{
		Session: newID(), ClusterId: l.cluster.ID, Incarnation: l.cluster.Incarnation, Term: l.term,
		Lease:         durationpb.New(l.s.cfg.NodeLease),
		StatsInterval: durationpb.New(l.s.cfg.StatsInterval),
		Reports:       wire.PositionToProto(l.s.fsm.View().Reports(node)),
		Servers:       l.s.serverList(),
		Protocol:      protocol,
	}
}

// register commits what the hello says if the state says otherwise. A node that
// comes back under another address is the same node.
func (ss *agentSession) register(ctx context.Context) error {
	if ss.hello.Inventory == nil {
		return nil // it is registered
	}
	n := wire.NodeFromProto(ss.hello)
	ss.hello.Inventory = nil // the state has it; here it would be twice the size
	old, known := ss.l.s.fsm.View().Node(n.ID)
	if known && old.Status == state.NodeReady && old.Name == n.Name && old.Address == n.Address && bytes.Equal(old.Inventory, n.Inventory) &&
		old.VolumesReported == n.VolumesReported { // an earlier version kept the bytes and did not read them
		return nil
	}
	if _, err := ss.l.do(ctx, state.Command{UpsertNode: &state.UpsertNode{Node: n}}); err != nil {
		return fmt.Errorf("register node %s: %w", n.ID, err)
	}
	if !known {
		ss.l.events.Add("node.registered", n.Name, "id %s, pool %s", n.ID, n.Pool)
		ss.l.log.Info("node registered", "node", n.Name, "id", n.ID, "pool", n.Pool)
	} else if old.Status != state.NodeReady {
		ss.l.events.Add("node.ready", n.Name, "it is heard again")
	}
	return nil
}

// caughtUp makes a node that was away ready, once all that happened to it
// meanwhile is committed: before, an attempt would be kept that has long ended,
// and its replacement stopped.
func (ss *agentSession) caughtUp(ctx context.Context) error {
	ss.mu.Lock()
	unheard := ss.unheard
	ss.unheard = false
	ss.mu.Unlock()
	if !unheard {
		return nil
	}
	return aside(func() error { return ss.register(ctx) })
}

// isUnheard says that the node is back and has not told everything yet.
func (ss *agentSession) isUnheard() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.unheard
}

// attach makes this the node's session; an earlier one ends.
func (ss *agentSession) attach() {
	n := ss.l.agents.hold(ss)
	defer n.mu.Unlock()
	n.heard = ss.l.s.cfg.Clock()
	if old := n.session; old != nil {
		old.supersede()
	}
	n.session, n.left = ss, false
	n.fill(ss.l.s.fsm.View(), ss.l.epoch)
	ss.cursor = n.outbox.Cursor(link.Position(wire.PositionFromProto(ss.hello.GetOrders())))
}

// supersede ends the session at its next message: mostly its connection is dead.
func (ss *agentSession) supersede() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.superseded = true
}

func (ss *agentSession) isSuperseded() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.superseded
}

func (ss *agentSession) detach() {
	n := ss.node
	n.mu.Lock()
	if n.session == ss {
		n.session = nil
	}
	n.mu.Unlock()
	ss.mu.Lock()
	conn := ss.tunnel
	ss.tunnel = nil
	ss.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
}

// heard notes that the node has said something, and that change more of its
// messages are under way. To ask for the time is a system call: it is not done
// again after what took no time.
func (ss *agentSession) heard(change int) {
	n, now := ss.node, time.Now()
	n.mu.Lock()
	if change > 0 || now.Sub(n.asked) > 10*time.Millisecond {
		n.heard, n.asked = ss.l.s.cfg.Clock(), now
	}
	n.busy += change
	n.mu.Unlock()
}

// later changes what is to be sent; the receiver sends it when it has handled
// its message.
func (ss *agentSession) later(change func() error) error {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.due = true
	return change()
}

// isDue says once that something is to be sent.
func (ss *agentSession) isDue() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	due := ss.due
	ss.due = false
	return due
}

// neverBegun ends what was put on a node while its agent left: an agent says
// goodbye when nothing of it runs. The order may never have come; else it would
// begin when the node is back, beside the attempt that has replaced it.
func (ss *agentSession) neverBegun(ctx context.Context) error {
	view := ss.l.s.fsm.View()
	cmd := &state.AgentReports{NodeID: ss.node.id, Position: view.Reports(ss.node.id)}
	for a := range view.NodeAllocs(ss.node.id) {
		if a.State == state.Pending {
			cmd.Reports = append(cmd.Reports, state.AllocReport{
				ID: a.ID, State: state.Failed, Declined: true, Reason: state.ReasonAgentLeaving, Message: "the agent left before it began",
			})
		}
	}
	if len(cmd.Reports) == 0 {
		return nil
	}
	_, err := ss.l.do(ctx, state.Command{AgentReports: cmd})
	return err
}

// send sends all that is due. When the office is over that is its last word: the
// agent looks for the new master by itself.
func (ss *agentSession) send() error {
	if ss.l.ctx.Err() != nil {
		if err := ss.stream.Send(ss.l.s.standbyMessage()); err != nil {
			return err
		}
		return errNoMaster
	}
	ss.mu.Lock()
	grants, ack, tunnels, servers := ss.grants, ss.ack(), ss.tunnels, ss.servers
	ss.grants, ss.tunnels, ss.servers = nil, nil, false
	ss.mu.Unlock()
	var out []*nusav1.MasterMessage
	for _, id := range grants {
		out = append(out, &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Lease{
			Lease: &nusav1.LeaseGrant{Id: id, Duration: durationpb.New(ss.l.s.cfg.NodeLease)}}})
	}
	if ack != nil {
		out = append(out, &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_ReportsAck{ReportsAck: ack}})
	}
	for _, id := range tunnels {
		out = append(out, &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Tunnel{Tunnel: &nusav1.TunnelRequest{Id: id}}})
	}
	if servers {
		out = append(out, &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Servers{Servers: ss.l.s.serverList()}})
	}
	for _, m := range out {
		if err := ss.stream.Send(m); err != nil {
			return err
		}
	}
	o := wire.GetOrderEncoder()
	defer o.Release()
	for {
		orders := ss.nextOrders(o)
		if orders == nil {
			return nil
		}
		if err := ss.stream.SendMsg(orders); err != nil {
			return err
		}
	}
}

// ack is how far the log has the agent's reports, if it was not told; else nil.
// ss.mu is held.
func (ss *agentSession) ack() *nusav1.Position {
	if ss.owed == (state.Position{}) {
		return nil
	}
	at := ss.l.s.fsm.View().Reports(ss.node.id)
	if at == ss.owed {
		ss.owed = state.Position{}
	}
	if at == ss.acked {
		return nil
	}
	ss.acked = at
	return wire.PositionToProto(at)
}

// nextOrders is the next batch of orders, nil when there is none.
func (ss *agentSession) nextOrders(o *wire.OrderEncoder) *wire.EncodedMessage {
	n := ss.node
	n.mu.Lock()
	defer n.mu.Unlock()
	// Read under the lock: a change noted as dirty before is in this view.
	view := ss.l.s.fsm.View()
	if n.session != ss {
		return nil // its successor has the outbox
	}
	if n.dirty {
		n.fill(view, ss.l.epoch)
	}
	o.Reset(ss.l.s.cfg.Region.GetName(), ss.l.log, view)
	batch, more := ss.cursor.NextWithin(maxBatchItems, maxBatchBytes, o.Size)
	if !more {
		return nil
	}
	return o.Batch(batch)
}

// conn is a client connection to the agent, through a tunnel that it opens when
// it is first used.
func (a *agents) conn(nodeID string) (*grpc.ClientConn, error) {
	name := nodeID
	if n, found := a.l.s.fsm.View().Node(nodeID); found {
		name = n.Name
	}
	away := status.Errorf(codes.Unavailable, "node %s has no session; `nusa node status %s` says whether it is back: retry", name, name)
	n := a.known(nodeID)
	if n == nil {
		return nil, away
	}
	n.mu.Lock()
	ss := n.session
	n.mu.Unlock()
	if ss == nil {
		return nil, away
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.tunnel != nil {
		return ss.tunnel, nil
	}
	conn, err := a.l.s.hub.Conn("node "+name, ss.requestTunnel)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "node %s: %v", name, err)
	}
	ss.tunnel = conn
	return conn, nil
}

func (ss *agentSession) requestTunnel(_ context.Context, id string) error {
	err := ss.later(func() error {
		if len(ss.tunnels) >= maxTunnelRequests {
			return status.Error(codes.ResourceExhausted, "too many tunnel requests wait for this agent")
		}
		ss.tunnels = append(ss.tunnels, id)
		return nil
	})
	if ss.mayFlush() { // somebody waits for it
		ss.l.s.streams.Go(ss.flush)
	}
	return err
}
