package regional

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// receive handles what the agent says, one thing after the other, until the
// stream ends.
func (ss *agentSession) receive(ctx context.Context) error {
	for {
		m, err := ss.recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if ss.isSuperseded() {
			return errSuperseded
		}
		ss.heard(+1)
		if err = ss.landed(ctx); err == nil {
			err = ss.handle(ctx, m)
		}
		ss.heard(-1)
		ss.incoming.Free() // what is kept of it was copied
		if err != nil {
			return err
		}
		if ss.isDue() && ss.mayFlush() {
			ss.l.s.streams.Go(ss.flush)
		}
	}
}

// recv is the next message as it stands on the wire, until that is freed: to
// decode it would need a deep stack.
func (ss *agentSession) recv() (wire.AgentMessage, error) {
	if err := ss.stream.RecvMsg(&ss.incoming); err != nil {
		return wire.AgentMessage{}, err
	}
	return wire.ReadAgentMessage(ss.incoming.Bytes())
}

func (ss *agentSession) handle(ctx context.Context, m wire.AgentMessage) error {
	if m.Stats != nil {
		if err := ss.measured(m.Stats); err != nil {
			return err
		}
	}
	// Of orders_ack nothing follows: the outbox resends by what the next hello says.
	switch m.Kind {
	case wire.KindLease:
		if err := ss.caughtUp(ctx); err != nil { // what the master lacked comes before the first
			return err
		}
		// Granted only by who is sure to lead: see verifier.
		if err := ss.l.verify.Wait(ctx); err != nil {
			return err
		}
		return ss.grant(m.Body)
	case wire.KindReports:
		return ss.reports(ctx, m.Body)
	case wire.KindInventory:
		return aside(func() error { return ss.inventory(ctx, m.Body) })
	case wire.KindGoodbye:
		return aside(func() error { return ss.goodbye(ctx, m.Body) })
	case wire.KindHello:
		return status.Error(codes.FailedPrecondition, "a second hello on a stream")
	}
	return nil // nothing else, or of a newer protocol
}

// grant has a lease granted that was asked for.
func (ss *agentSession) grant(raw []byte) error {
	id, err := wire.ReadLeaseRequest(raw)
	if err != nil {
		return err
	}
	return ss.later(func() error {
		if len(ss.grants) >= maxGrants {
			return status.Error(codes.ResourceExhausted, "too many lease requests without reading the grants")
		}
		ss.grants = append(ss.grants, id)
		return nil
	})
}

// measured notes the node's statistics.
func (ss *agentSession) measured(raw []byte) error {
	n := ss.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.stats.Read(raw); err != nil {
		return err
	}
	n.measured, n.statsAt = true, n.heard-n.stats.Age
	return nil
}

// inventory registers the node as it is now.
func (ss *agentSession) inventory(ctx context.Context, raw []byte) error {
	ss.hello.Inventory = &nusav1.NodeInventory{}
	if err := decode(raw, ss.hello.Inventory); err != nil {
		return err
	}
	if refused := ss.l.refuse(ss.hello); refused != nil {
		return status.Error(codes.InvalidArgument, refused.GetMessage())
	}
	return ss.register(ctx)
}

// goodbye commits that the node left on purpose.
func (ss *agentSession) goodbye(ctx context.Context, raw []byte) error {
	var g nusav1.Goodbye
	if err := decode(raw, &g); err != nil {
		return err
	}
	ss.node.mu.Lock()
	ss.node.left = true
	ss.node.mu.Unlock()
	ss.l.log.Info("node leaves", "node", ss.hello.GetName(), "id", ss.node.id, "message", g.GetMessage())
	ss.l.events.Add("node.left", ss.hello.GetName(), "%s", g.GetMessage())
	if _, err := ss.l.do(ctx, state.Command{SetNodeStatus: &state.SetNodeStatus{ID: ss.node.id, Status: state.NodeLeft}}); err != nil {
		return err
	}
	return ss.neverBegun(ctx)
}

// decode is proto.Unmarshal with the error that gRPC has for it.
func decode(raw []byte, m proto.Message) error {
	if err := proto.Unmarshal(raw, m); err != nil {
		return wire.Malformed(err)
	}
	return nil
}
