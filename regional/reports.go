package regional

import (
	"context"
	"errors"
	"fmt"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// reports commits what the agent says about its allocations, then acknowledges
// the whole of it.
func (ss *agentSession) reports(ctx context.Context, r *nusav1.AllocReports) error {
	var cmds []*state.AgentReports
	var err error
	ss.l.desks.run(func() { cmds, err = ss.reported(r) })
	if err != nil || cmds == nil {
		return err
	}
	for _, cmd := range cmds {
		err := ss.l.commit(ctx, state.Command{AgentReports: cmd})
		if errors.Is(err, state.ErrStalePosition) {
			break // a later session of the node has said more
		}
		if err != nil {
			return fmt.Errorf("commit reports of node %s: %w", ss.node.id, err)
		}
	}
	return ss.later(func() error {
		ss.ack = positionToWire(ss.l.s.fsm.View().Reports(ss.node.id))
		return nil
	})
}

// reported takes a part of what the agent says, and answers the commands of the
// whole once it is; nil before.
func (ss *agentSession) reported(r *nusav1.AllocReports) ([]*state.AgentReports, error) {
	b := link.Batch[*nusav1.AllocReport]{Full: r.GetFull(), Last: r.GetLast(), Removed: r.GetRemoved(), Position: link.Position(positionFromWire(r.GetPosition()))}
	for _, w := range r.GetReports() {
		b.Items = append(b.Items, link.Item[*nusav1.AllocReport]{Key: w.GetId(), Value: w})
	}
	change, whole, err := ss.inbox.Add(b, func(func(string) bool) {})
	if err != nil || !whole {
		return nil, err
	}
	return agentReports(ss.l.s.fsm.View(), ss.node.id, change), nil
}

// agentReports is a change as commands that each fit an entry. What a full set
// does not mention has ended, and is released with the last of them.
func agentReports(view *state.View, node string, change link.Change[*nusav1.AllocReport]) []*state.AgentReports {
	const perReport = 192 // bytes besides what varies, roughly
	next := func() *state.AgentReports {
		return &state.AgentReports{NodeID: node, Position: state.Position(change.Position), More: true}
	}
	cmd, size := next(), 0
	var out []*state.AgentReports
	room := func(n int) {
		if size > 0 && size+n > maxEntry {
			out, cmd, size = append(out, cmd), next(), 0
		}
		size += n
	}
	mentioned := make(map[string]bool, len(change.Upserts))
	for _, item := range change.Upserts {
		w := item.Value
		restarts, down := unrest(w)
		r := state.AllocReport{
			ID: w.GetId(), State: state.AllocState(w.GetState()), Declined: w.GetDeclined(),
			Reason: reasonFromWire(w.GetReason()), Message: w.GetMessage(), Tasks: tasksToStore(w.GetTasks()),
			Restarts: restarts, Down: down,
		}
		room(perReport + len(r.ID) + len(r.Reason) + len(r.Message) + len(r.Tasks))
		cmd.Reports = append(cmd.Reports, r)
		mentioned[r.ID] = true
	}
	if change.Full {
		for _, id := range view.Unmentioned(node, func(id string) bool { return mentioned[id] }) {
			room(len(id) + 8)
			cmd.Released = append(cmd.Released, id)
		}
	}
	cmd.More = false
	return append(out, cmd)
}
