package regional

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// reports has the log take what the agent says about its allocations. What it
// says next waits for that, it does not: an acknowledgement travels with what is
// sent anyway, such as the grant of the next lease. Only an agent that leaves
// waits for one, and by then all that it runs has ended.
func (ss *agentSession) reports(ctx context.Context, raw []byte) error {
	b, err := wire.ReadReports(raw)
	if err != nil {
		return err
	}
	change, whole, err := ss.inbox.Add(b, func(func(string) bool) {})
	if err != nil || !whole {
		return err
	}
	for _, cmd := range agentReports(ss.l.s.fsm.View(), ss.node.id, change) {
		if err := ss.landed(ctx); err != nil {
			return err
		}
		if ss.flying, err = ss.l.begin(ctx, state.Command{AgentReports: cmd}); err != nil {
			return ss.reportError(err)
		}
	}
	ss.mu.Lock()
	ss.owed = state.Position(change.Position)
	ss.mu.Unlock()
	if !ackAwaited(change) {
		return nil
	}
	if err := ss.landed(ctx); err != nil {
		return err
	}
	return ss.later(func() error { return nil })
}

// landed waits until the agent's last reports are committed.
func (ss *agentSession) landed(ctx context.Context) error {
	p := ss.flying
	if p == nil {
		return nil
	}
	ss.flying = nil
	_, err := p.Wait(ctx)
	return ss.reportError(err)
}

func (ss *agentSession) reportError(err error) error {
	if err == nil || errors.Is(err, state.ErrStalePosition) { // a later session of the node has said more
		return nil
	}
	return fmt.Errorf("commit reports of node %s: %w", ss.node.id, err)
}

// ackAwaited says that the agent may be waiting for the acknowledgement.
func ackAwaited(c link.Change[state.AllocReport]) bool {
	return c.Full || len(c.Removed) > 0 || slices.ContainsFunc(c.Upserts, func(i link.Item[state.AllocReport]) bool { return i.Value.State.Terminal() })
}

// agentReports is a change as commands that each fit an entry. What a full set
// does not mention has ended, and is released with the last of them.
func agentReports(view *state.View, node string, change link.Change[state.AllocReport]) []*state.AgentReports {
	const perReport = 192 // bytes besides what varies, roughly
	next := func() *state.AgentReports {
		return &state.AgentReports{NodeID: node, Position: state.Position(change.Position), More: true}
	}
	cmd, size := next(), 0
	var out []*state.AgentReports
	room := func(n int) {
		if size > 0 && size+n > raftlog.MaxEntryBytes {
			out, cmd, size = append(out, cmd), next(), 0
		}
		size += n
	}
	cmd.Reports = make([]state.AllocReport, 0, min(len(change.Upserts), raftlog.MaxEntryBytes/perReport))
	for _, item := range change.Upserts {
		r := item.Value
		room(perReport + len(r.ID) + len(r.Reason) + len(r.Message) + len(r.Tasks))
		cmd.Reports = append(cmd.Reports, r)
	}
	if change.Full {
		mentioned := make(map[string]bool, len(change.Upserts))
		for _, item := range change.Upserts {
			mentioned[item.Key] = true
		}
		for _, id := range view.Unmentioned(node, func(id string) bool { return mentioned[id] }) {
			room(len(id) + 8)
			cmd.Released = append(cmd.Released, id)
		}
	}
	cmd.More = false
	return append(out, cmd)
}
