package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// handleReports proposes the agent's reports. It does not wait for the commit: the handling
// of the agent's next message waits for it. The acknowledgement is sent together with the
// next message to the agent, such as the grant of a lease. Only an agent that leaves waits
// for an acknowledgement, after all its allocations have ended. For such reports
// handleReports waits for the commit and returns sendNow.
func (ss *session) handleReports(ctx context.Context, raw []byte) (sendNow bool, err error) {
	b, err := wire.ReadReports(raw)
	if err != nil {
		return false, err
	}
	change, complete, err := ss.inbox.Add(b, func(func(string) bool) {})
	if err != nil || !complete {
		return false, err
	}
	for _, cmd := range reportCommands(ss.agents.cfg.FSM.View(), ss.node.id, change) {
		if err := ss.awaitReports(ctx); err != nil {
			return false, err
		}
		if err := ss.propose(ctx, &state.Command{AgentReports: cmd}); err != nil {
			return false, err
		}
	}
	ss.mu.Lock()
	ss.ackDue = state.Position(change.Position)
	ss.mu.Unlock()
	if !needsAck(change) {
		return false, nil
	}
	return true, ss.awaitReports(ctx)
}

// propose proposes what the agent reported, unless a newer session has replaced this one.
// The newer session waits for everything that was proposed before it was attached.
func (ss *session) propose(ctx context.Context, cmd *state.Command) error {
	n := ss.node
	return raftlog.WhileFull(ctx, func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.session != ss {
			return errSuperseded
		}
		p, err := ss.agents.cfg.Log.Propose(*cmd)
		if err != nil {
			return ss.reportError(err)
		}
		n.inFlight.Store(p)
		return nil
	})
}

// awaitReports waits until the latest reports of the node are committed. An earlier session
// may have proposed them.
func (ss *session) awaitReports(ctx context.Context) error {
	n := ss.node
	p := n.inFlight.Load()
	if p == nil {
		return nil
	}
	_, err := p.Wait(ctx)
	if ctx.Err() == nil { // otherwise p may still have no outcome
		n.inFlight.CompareAndSwap(p, nil)
	}
	return ss.reportError(err)
}

// awaitEarlierReports waits until the reports of earlier sessions of the node are committed.
// Orders depend on them. For example, the agent has declined an allocation, was killed and
// has forgotten that. If it got the order again, it would start the allocation, and the
// commit of the earlier report would place a second one. If such a report says that the
// agent leaves, the agent must connect again, because this session does not make the node
// ready.
func (ss *session) awaitEarlierReports(ctx context.Context) error {
	n := ss.node
	if n.inFlight.Load() != nil {
		n.beginMessage(ss.agents.cfg.Clock)
		err := ss.awaitReports(ctx)
		n.endMessage(ss.agents.cfg.Clock)
		if err != nil {
			return err
		}
		n.mu.Lock()
		n.dirty = true // attach has filled the outbox before the commit
		n.mu.Unlock()
	}
	if now, known := ss.agents.cfg.FSM.View().Node(n.id); known && now.Status == state.NodeLeft && ss.inPhase(current) {
		return status.Error(codes.Unavailable, "an earlier session of this node said goodbye: connect again")
	}
	return nil
}

func (ss *session) reportError(err error) error {
	if err == nil || errors.Is(err, state.ErrStalePosition) { // a later session of the node has already reported more
		return nil
	}
	return fmt.Errorf("commit reports of node %s: %w", ss.node.id, err)
}

// needsAck reports whether the agent may wait for the acknowledgement.
func needsAck(c link.Change[state.AllocReport]) bool {
	return c.Full || len(c.Removed) > 0 || slices.ContainsFunc(c.Upserts, func(i link.Item[state.AllocReport]) bool { return i.Value.State.Terminal() })
}

// reportCommands turns a change of the agent's reports into commands that each fit a log
// entry. If the change is a full set, an allocation of the node that the set omits has
// ended. The commands release these allocations last.
func reportCommands(view *state.View, nodeID string, change link.Change[state.AllocReport]) []*state.AgentReports {
	const perReport = 192 // about the bytes of a report besides its strings
	next := func() *state.AgentReports {
		return &state.AgentReports{NodeID: nodeID, Position: state.Position(change.Position), More: true}
	}
	cmd, size := next(), 0
	var out []*state.AgentReports
	makeRoom := func(n int) {
		if size > 0 && size+n > raftlog.MaxEntryBytes {
			out, cmd, size = append(out, cmd), next(), 0
		}
		size += n
	}
	cmd.Reports = make([]state.AllocReport, 0, min(len(change.Upserts), raftlog.MaxEntryBytes/perReport))
	for _, item := range change.Upserts {
		r := item.Value
		makeRoom(perReport + len(r.ID) + len(r.Reason) + len(r.Message) + len(r.Tasks))
		cmd.Reports = append(cmd.Reports, r)
	}
	if change.Full {
		mentioned := make(map[string]bool, len(change.Upserts))
		for _, item := range change.Upserts {
			mentioned[item.Key] = true
		}
		for _, id := range view.Unmentioned(nodeID, func(id string) bool { return mentioned[id] }) {
			makeRoom(len(id) + 8)
			cmd.Released = append(cmd.Released, id)
		}
	}
	cmd.More = false
	return append(out, cmd)
}
