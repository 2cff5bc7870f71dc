package nodes

import (
	"context"
	"errors"
	"fmt"

	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// noteStored notes which orders the agent has stored. raw is an encoded Position, empty for
// none. The outbox does not need the position: the agent's next hello says which orders it
// must send again.
func (ss *session) noteStored(raw []byte) error {
	if len(raw) == 0 || ss.agents.cfg.FSM.View().UnknownBindings() == 0 {
		return nil
	}
	p, err := wire.ReadPosition(raw)
	if err != nil {
		return err
	}
	if p.Epoch == ss.agents.cfg.Epoch {
		ss.informed.Stored(p.Sequence)
	}
	return nil
}

// confirmBindings handles a lease request. It commits which allocations of the node
// certainly end with the leases that bind them, if the log does not know that yet. raw is the
// encoded request.
func (ss *session) confirmBindings(ctx context.Context, raw []byte) error {
	if ss.agents.cfg.FSM.View().UnknownBindings() == 0 {
		return nil
	}
	id, confirmed, err := wire.ReadLeaseRequest(raw)
	if err != nil {
		return err
	}
	if ss.hello.GetFeatureLevel() < confirmsGrants {
		confirmed = id - 1 // an agent that does not confirm grants sends its next request after a grant, or much later
	}
	ss.mu.Lock()
	empty := ss.empty
	ss.mu.Unlock()
	upTo := ss.informed.Requested(id, confirmed, empty)
	if upTo == 0 || !ss.agents.cfg.FSM.View().BindingUnknownUpTo(ss.node.id, upTo) {
		return nil
	}
	cmd := state.Command{OrdersStored: &state.OrdersStored{NodeID: ss.node.id, Index: upTo}}
	err = onNewStack(func() error {
		_, err := ss.agents.cfg.Log.CommitQueued(ctx, cmd)
		return err
	})
	if err != nil && !errors.Is(err, state.ErrUnknownNode) {
		return fmt.Errorf("commit which leases bind the tasks of node %s: %w", ss.node.id, err)
	}
	return nil
}
