package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// confirmsGrants is the least feature level of agents that confirm their grants.
const confirmsGrants = 1

// maxGrants bounds the grants that wait to be sent to an agent.
const maxGrants = 16

// receive handles the messages of the agent one after the other, until the stream ends.
func (ss *session) receive(ctx context.Context) error {
	n, clock := ss.node, ss.agents.cfg.Clock
	for {
		m, err := ss.recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if ss.inPhase(superseded) {
			return errSuperseded
		}
		n.beginMessage(clock)
		sendNow := false
		err = ss.awaitReports(ctx)
		if err == nil {
			sendNow, err = ss.handle(ctx, m)
		}
		n.endMessage(clock)
		ss.incoming.Free() // handle has copied every part that is needed later
		if err != nil {
			return err
		}
		if sendNow && ss.startSend() {
			ss.agents.cfg.Streams.Go(ss.sendAll)
		}
	}
}

// recv returns the next message. The message points into ss.incoming, which receive frees
// afterwards. recv does not decode the whole message, because that would need a deep stack.
func (ss *session) recv() (wire.AgentMessage, error) {
	if err := ss.stream.RecvMsg(&ss.incoming); err != nil {
		return wire.AgentMessage{}, err
	}
	return wire.ReadAgentMessage(ss.incoming.Bytes())
}

// handle handles a message. It returns whether a message to the agent must be sent now.
func (ss *session) handle(ctx context.Context, m wire.AgentMessage) (sendNow bool, err error) {
	if m.Stats != nil {
		if err := ss.storeStats(m.Stats); err != nil {
			return false, err
		}
	}
	if err := ss.noteStored(m.OrdersAck); err != nil {
		return false, err
	}
	switch m.Kind {
	case wire.KindLease:
		if err := ss.confirmBindings(ctx, m.Body); err != nil {
			return false, err
		}
		if err := ss.finishResync(ctx); err != nil { // the agent sends the missing reports before its first lease request
			return false, err
		}
		// Only a server that certainly leads may grant a lease: see raftlog.Verifier.
		if err := ss.agents.cfg.Verifier.Wait(ctx); err != nil {
			return false, err
		}
		return true, ss.grant(ctx, m.Body)
	case wire.KindReports:
		return ss.handleReports(ctx, m.Body)
	case wire.KindInventory:
		return false, onNewStack(func() error { return ss.updateInventory(ctx, m.Body) })
	case wire.KindGoodbye:
		return false, onNewStack(func() error { return ss.handleGoodbye(ctx, m.Body) })
	case wire.KindHello:
		return false, status.Error(codes.FailedPrecondition, "a second hello on a stream")
	}
	return false, nil // the message has only statistics, or a kind of a newer protocol
}

// reinstate commits that a node is ready again. The node was declared lost while this
// session was silent. Instances that were replaced before this commit have their orders to
// stop, and these orders are sent before the lease. Other instances of the node are no
// longer replaced.
func (ss *session) reinstate(ctx context.Context) error {
	if ss.node.isDeaf() {
		return status.Error(codes.Unavailable, "the grants of leases do not reach this node")
	}
	ready := state.Command{SetNodeStatus: &state.SetNodeStatus{ID: ss.node.id, Status: state.NodeReady}}
	err := onNewStack(func() error {
		_, err := ss.agents.cfg.Log.CommitQueued(ctx, ready)
		return err
	})
	if err != nil && !errors.Is(err, state.ErrUnknownNode) {
		return fmt.Errorf("commit that node %s is back: %w", ss.node.id, err)
	}
	ss.mu.Lock()
	ss.ordersFirst = true
	ss.mu.Unlock()
	ss.returned()
	return nil
}

// grant queues the grant of a lease for sending.
func (ss *session) grant(ctx context.Context, raw []byte) error {
	id, confirmed, err := wire.ReadLeaseRequest(raw)
	if err != nil {
		return err
	}
	n := ss.node
	n.mu.Lock()
	if ss.hello.GetFeatureLevel() >= confirmsGrants {
		n.contact.Requested(confirmed, ss.agents.cfg.NodeLease)
	}
	granted := n.contact.Grant(id)
	n.mu.Unlock()
	for !granted {
		if err := ss.reinstate(ctx); err != nil {
			return err
		}
		n.mu.Lock()
		granted = n.contact.Grant(id)
		n.mu.Unlock()
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if len(ss.grants) >= maxGrants {
		return status.Error(codes.ResourceExhausted, "too many lease requests without reading the grants")
	}
	ss.grants, ss.granted = append(ss.grants, id), id
	return nil
}

func (ss *session) storeStats(raw []byte) error {
	n := ss.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.stats.Read(raw); err != nil {
		return err
	}
	n.hasStats, n.statsAt = true, n.contact.Seen()-n.stats.Age
	return nil
}

// updateInventory registers the node with a changed inventory.
func (ss *session) updateInventory(ctx context.Context, raw []byte) error {
	ss.hello.Inventory = &nusav1.NodeInventory{}
	if err := unmarshal(raw, ss.hello.Inventory); err != nil {
		return err
	}
	refused := ss.agents.refuse(ss.hello)
	if refused == nil {
		describe(&ss.agents.cfg, ss.hello)
		refused = refuseInventory(&ss.agents.cfg, ss.hello)
	}
	if refused != nil {
		return status.Error(codes.InvalidArgument, refused.GetMessage())
	}
	return ss.register(ctx)
}

// handleGoodbye commits that the node left on purpose, and then the end of allocations that
// never started on it.
func (ss *session) handleGoodbye(ctx context.Context, raw []byte) error {
	var g nusav1.Goodbye
	if err := unmarshal(raw, &g); err != nil {
		return err
	}
	ss.node.mu.Lock()
	ss.node.contact.Leave()
	ss.node.mu.Unlock()
	cfg := &ss.agents.cfg
	cfg.Logger.Info("node leaves", "node", ss.hello.GetName(), "id", ss.node.id, "message", g.GetMessage())
	if err := ss.propose(ctx, &state.Command{SetNodeStatus: &state.SetNodeStatus{ID: ss.node.id, Status: state.NodeLeft}}); err != nil {
		return err
	}
	if err := ss.awaitReports(ctx); err != nil {
		return err
	}
	return ss.failUnstarted(ctx)
}

// failUnstarted commits the end of allocations that were placed on the node while its agent
// left. An agent says goodbye when none of its allocations runs, so a pending allocation
// has never started: its order may never have arrived. Without this commit, the allocation
// would start when the node returns, beside its replacement.
func (ss *session) failUnstarted(ctx context.Context) error {
	view := ss.agents.cfg.FSM.View()
	cmd := &state.AgentReports{NodeID: ss.node.id, Position: view.Reports(ss.node.id)}
	for a := range view.NodeAllocs(ss.node.id) {
		if a.State == state.Pending {
			cmd.Reports = append(cmd.Reports, state.AllocReport{
				ID: a.ID, State: state.Failed, Declined: true, Reason: state.ReasonAgentLeaving, Message: "the agent left before the allocation started",
			})
		}
	}
	if len(cmd.Reports) == 0 {
		return nil
	}
	if err := ss.propose(ctx, &state.Command{AgentReports: cmd}); err != nil {
		return err
	}
	return ss.awaitReports(ctx)
}

// unmarshal is proto.Unmarshal with a gRPC status as its error.
func unmarshal(raw []byte, m proto.Message) error {
	if err := proto.Unmarshal(raw, m); err != nil {
		return wire.Malformed(err)
	}
	return nil
}
