package raftlog

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// pendingPlan is what was decided and is not proposed yet. It is carried out an entry at a
// time, so that who has something to say in between, such as the agents, need not
// wait for a job of a hundred thousand instances.
type pendingPlan struct {
	commands []state.Command
	// changes: one of those proposed has changed something.
	changed     bool
	retry       time.Duration
	onCommitted func()
}

// dropPending drops what was decided and is not proposed: the state is another one.
func (q *Sequencer) dropPending() {
	q.pending = pendingPlan{}
	q.decideAt(time.Now())
}

// invalidatesPending says that what was decided before a command may be wrong after it. Nodes
// are judged in deciding only, and so is what is stopped: see applyPending. What is no
// longer wanted, or has no room, the state refuses by itself.
func (q *Sequencer) invalidatesPending(cmd *state.Command) bool {
	switch {
	case cmd.AgentReports != nil:
		// Of a node that was away: what is to be replaced may have ended there.
		n, ok := q.spec.before.Node(cmd.AgentReports.NodeID)
		return !ok || n.Status != state.NodeReady
	case cmd.ApplyOrders != nil:
		// A job that was forgotten may come again as the same version.
		return slices.ContainsFunc(cmd.ApplyOrders.Orders, func(o state.SlotOrder) bool {
			return o.Job != nil && q.pending.placesJob(state.JobKey{Namespace: o.Slot.Namespace, Job: o.Slot.Job})
		})
	}
	return cmd.SubmitLocalJob == nil
}

// placesJob says that instances of a job are to be placed.
func (t *pendingPlan) placesJob(job state.JobKey) bool {
	for i := range t.commands {
		if p := t.commands[i].ApplyPlan; p != nil && slices.ContainsFunc(p.Places, func(g state.PlaceGroup) bool { return g.Key.JobKey() == job }) {
			return true
		}
	}
	return false
}

// applyPending adds of what was decided what fits the entry, in one of its own if
// none does. What stops something does not wait for the next entry: there its
// instance may be wanted again.
func (q *Sequencer) applyPending(e *entry, flying chan<- entry) {
	t := &q.pending
	for some := false; len(t.commands) > 0; some = true {
		cmd := &t.commands[0]
		cmd.NowUnixNano = time.Now().UnixNano()
		if !q.writer.add(cmd) {
			if some && (cmd.ApplyPlan == nil || len(cmd.ApplyPlan.Stops) == 0) {
				return
			}
			q.submit(e, flying)
			*e = entry{}
			q.writer.add(cmd)
		}
		for _, r := range q.spec.apply(t.commands[:1]) {
			t.changed = t.changed || r.Changed
		}
		if t.commands = t.commands[1:]; len(t.commands) > 0 {
			continue
		}
		if e.onCommitted = t.onCommitted; t.changed {
			q.decideAt(time.Now()) // until there is nothing left
		} else { // it must not become a busy loop
			q.decideAt(time.Now().Add(t.retry))
		}
	}
}
