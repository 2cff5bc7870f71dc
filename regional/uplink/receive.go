package uplink

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// receive commits the content of the welcome, and then handles the messages of the global
// tier one after the other. Calls through tunnels run in the group calls, until the context
// tunnels ends.
func (ss *session) receive(ctx, tunnels context.Context, calls *errgroup.Group) error {
	if err := ss.join(); err != nil {
		return err
	}
	for {
		m, err := ss.stream.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("the global server ended the session")
		}
		if err != nil {
			return err
		}
		if err := ss.handle(ctx, tunnels, calls, m); err != nil {
			return err
		}
	}
}

func (ss *session) handle(ctx, tunnels context.Context, calls *errgroup.Group, m *nusav1.GlobalMessage) error {
	cfg := &ss.u.cfg
	switch m := m.GetKind().(type) {
	case *nusav1.GlobalMessage_Lease:
		ss.leaseGranted(m.Lease)
	case *nusav1.GlobalMessage_Orders:
		return ss.commitOrders(ctx, m.Orders)
	case *nusav1.GlobalMessage_Peers:
		cfg.Federation.SetPeers(m.Peers)
		cfg.Prober.SetPeers(m.Peers.GetRegions())
	case *nusav1.GlobalMessage_PeerChanges:
		all, err := cfg.Federation.MergePeers(cfg.Definition.GetName(), m.PeerChanges)
		if err != nil {
			return fmt.Errorf("changes of the other regions: %w", err)
		}
		cfg.Prober.SetPeers(all.GetRegions())
	case *nusav1.GlobalMessage_Shapes:
		ss.u.subscribe(m.Shapes.GetAsks())
		ss.update(func() { ss.reportNow = true })
	case *nusav1.GlobalMessage_AskChanges:
		added := ss.u.changeAsks(m.AskChanges)
		if m.AskChanges.GetFull() {
			ss.update(func() { ss.reportNow = true })
		} else if len(added) > 0 {
			ss.update(func() { ss.newAsks = append(ss.newAsks, added...) })
		}
	case *nusav1.GlobalMessage_Column:
		cfg.Prober.SetColumn(m.Column.GetEdges())
	case *nusav1.GlobalMessage_ColumnChanges:
		if err := cfg.Prober.ChangeColumn(m.ColumnChanges); err != nil {
			return fmt.Errorf("changes of the column: %w", err)
		}
		ss.u.mu.Lock()
		ss.u.column = m.ColumnChanges.GetPosition()
		ss.u.mu.Unlock()
	case *nusav1.GlobalMessage_Origins:
		if err := cfg.Federation.SetOrigins(m.Origins); err != nil {
			cfg.Logger.Warn("received origin records are not used", "error", err)
		}
	case *nusav1.GlobalMessage_Auth:
		return storeAuth(ctx, ss, m.Auth)
	case *nusav1.GlobalMessage_Keys:
		return storeKeys(ctx, ss, m.Keys)
	case *nusav1.GlobalMessage_Matrix:
		if err := cfg.Prober.SetMatrix(m.Matrix); err != nil {
			cfg.Logger.Warn("a received matrix is not used", "error", err)
		} else {
			cfg.Federation.SetMatrix(m.Matrix)
		}
	case *nusav1.GlobalMessage_MatrixChanges:
		next, err := cfg.Federation.MergeMatrix(m.MatrixChanges)
		if err == nil {
			err = cfg.Prober.SetMatrix(next)
		}
		if err != nil {
			cfg.Logger.Warn("the matrix is forgotten because its changes cannot be used; the next session gets another one", "error", err)
			next = nil
		}
		cfg.Federation.SetMatrix(next)
	case *nusav1.GlobalMessage_Tunnel:
		ss.openTunnel(tunnels, calls, m.Tunnel.GetId())
	case *nusav1.GlobalMessage_Refused:
		return fmt.Errorf("the global tier ended the session: %s", m.Refused.GetMessage())
	}
	return nil
}

// openTunnel opens a tunnel that the global tier has requested, and serves the calls that
// come through it.
func (ss *session) openTunnel(ctx context.Context, calls *errgroup.Group, id string) {
	log := ss.u.cfg.Logger
	open := func(ctx context.Context) (tunnel.ClientStream, error) { return ss.client.Tunnel(ctx) }
	if !calls.TryGo(func() error {
		if err := tunnel.Answer(ctx, open, id, ss.u.cfg.Tunnels); err != nil && ctx.Err() == nil {
			log.Debug("tunnel ended", "id", id, "error", err)
		}
		return nil
	}) {
		log.Warn("too many tunnels, a request is ignored", "max", maxTunnels)
	}
}

// commitOrders commits slot orders and then acknowledges them.
func (ss *session) commitOrders(ctx context.Context, o *nusav1.SlotOrders) error {
	b := link.Batch[*nusav1.SlotOrder]{Full: o.GetFull(), Last: o.GetLast(), Removed: o.GetRemoved(), Position: link.Position(wire.PositionFromProto(o.GetPosition()))}
	for _, w := range o.GetOrders() {
		s := w.GetSlot()
		b.Items = append(b.Items, link.Item[*nusav1.SlotOrder]{Key: state.SlotID(s.GetNamespace(), s.GetJob(), s.GetGroup(), s.GetFrom()), Value: w})
	}
	cfg := &ss.u.cfg
	change, complete, err := ss.inbox.Add(b, slotIDs(cfg.FSM))
	if err != nil || !complete {
		return err
	}
	for _, cmd := range orderCommands(cfg.FSM.View(), change) {
		r, err := cfg.Log.CommitQueued(ctx, state.Command{ApplyOrders: cmd})
		if err != nil && !errors.Is(err, state.ErrStalePosition) {
			return fmt.Errorf("commit slot orders: %w", err)
		}
		for _, skip := range r.Skipped {
			cfg.Logger.Warn("a slot order was not applied", "slot", skip.ID, "reason", skip.Reason, "message", skip.Message)
		}
	}
	if change.Full {
		ss.u.mu.Lock()
		ss.u.whole = wholeOrders{known: true, level: ss.level, global: ss.global}
		ss.u.mu.Unlock()
	}
	ss.update(func() { ss.ack = wire.PositionToProto(cfg.FSM.View().Cluster().Orders) })
	ss.u.leaseState() // a grant may have waited for these orders
	return nil
}
