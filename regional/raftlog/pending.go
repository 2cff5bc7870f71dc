package raftlog

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// pendingPlan is the part of a decision that is not proposed yet. The sequencer proposes
// the plan one entry at a time. So other commands, such as reports of agents, do not wait
// until all of a job's hundred thousand instances are proposed.
type pendingPlan struct {
	commands []state.Command
	// changed is true when one of the proposed commands has changed the state.
	changed     bool
	retry       time.Duration
	onCommitted func()
}

// dropPending drops the pending plan and decides again, because the state has changed.
func (q *Sequencer) dropPending() {
	q.pending = pendingPlan{}
	q.decideAt(time.Now())
}

// invalidatesPending reports whether the pending plan may be wrong after a command. The
// state itself refuses placements that are no longer wanted or have no room. But only a new
// decision evaluates the nodes again and chooses again which instances to stop.
func (q *Sequencer) invalidatesPending(cmd *state.Command) bool {
	switch {
	case cmd.AgentReports != nil:
		// If the node is not ready, the reports come because it was disconnected. An
		// instance that the plan replaces may have ended on that node.
		n, ok := q.spec.before.Node(cmd.AgentReports.NodeID)
		return !ok || n.Status != state.NodeReady
	case cmd.ApplyOrders != nil:
		// A purged job may be submitted again with the same version number.
		return slices.ContainsFunc(cmd.ApplyOrders.Orders, func(o state.SlotOrder) bool {
			return o.Job != nil && q.pending.placesJob(state.JobKey{Namespace: o.Slot.Namespace, Job: o.Slot.Job})
		})
	}
	return cmd.SubmitLocalJob == nil && cmd.ChangeDocuments == nil
}

// placesJob reports whether the plan places instances of a job.
func (t *pendingPlan) placesJob(job state.JobKey) bool {
	for i := range t.commands {
		p := t.commands[i].ApplyPlan
		if p != nil && slices.ContainsFunc(p.Places, func(g state.PlaceGroup) bool { return g.Key.JobKey() == job }) {
			return true
		}
	}
	return false
}

// applyPending adds to the entry as many commands of the pending plan as fit. If none fits,
// applyPending proposes the entry and begins another with the first command. Commands that
// stop instances do not wait for a later call, because their instances may be wanted again
// before that call. Such commands get further entries at once.
func (q *Sequencer) applyPending(e *entry, inFlight chan<- entry) {
	t := &q.pending
	if len(t.commands) == 0 {
		return
	}
	for n := 0; len(t.commands) > 0; n++ {
		cmd := &t.commands[0]
		cmd.NowUnixNano = time.Now().UnixNano()
		if !q.writer.add(cmd) {
			stops := cmd.ApplyPlan != nil && len(cmd.ApplyPlan.Stops) > 0
			if n > 0 && !stops {
				return
			}
			q.submit(e, inFlight)
			*e = entry{}
			q.writer.add(cmd)
		}
		for _, r := range q.spec.apply(t.commands[:1]) {
			t.changed = t.changed || r.Changed
		}
		t.commands = t.commands[1:]
	}
	e.onCommitted = t.onCommitted
	if t.changed {
		q.decideAt(time.Now()) // until a decision changes nothing
	} else {
		q.decideAt(time.Now().Add(t.retry)) // without the pause the sequencer would loop
	}
}
