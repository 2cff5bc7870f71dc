package raftlog

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// pendingPlan is the part of a decision that is not proposed yet. It is proposed
// one entry at a time, so that other commands, such as reports of agents, do not
// wait for a job of a hundred thousand instances.
type pendingPlan struct {
	commands []state.Command
	// changed: one of the proposed commands has changed the state.
	changed     bool
	retry       time.Duration
	onCommitted func()
}

// dropPending drops the pending plan, because the state has changed, and decides
// again.
func (q *Sequencer) dropPending() {
	q.pending = pendingPlan{}
	q.decideAt(time.Now())
}

// invalidatesPending says whether the pending plan may be wrong after a command.
// The state itself refuses placements that are no longer wanted or have no room;
// but only a decision evaluates nodes and chooses what to stop (see applyPending).
func (q *Sequencer) invalidatesPending(cmd *state.Command) bool {
	switch {
	case cmd.AgentReports != nil:
		// These reports are of a node that was disconnected: an instance that is to be
		// replaced may have ended there.
		n, ok := q.spec.before.Node(cmd.AgentReports.NodeID)
		return !ok || n.Status != state.NodeReady
	case cmd.ApplyOrders != nil:
		// A job that was purged may come back with the same version number.
		return slices.ContainsFunc(cmd.ApplyOrders.Orders, func(o state.SlotOrder) bool {
			return o.Job != nil && q.pending.placesJob(state.JobKey{Namespace: o.Slot.Namespace, Job: o.Slot.Job})
		})
	}
	return cmd.SubmitLocalJob == nil
}

// placesJob says whether the plan places instances of a job.
func (t *pendingPlan) placesJob(job state.JobKey) bool {
	for i := range t.commands {
		p := t.commands[i].ApplyPlan
		if p != nil && slices.ContainsFunc(p.Places, func(g state.PlaceGroup) bool { return g.Key.JobKey() == job }) {
			return true
		}
	}
	return false
}

// applyPending adds the commands of the pending plan that fit to the entry. If none
// fits, the entry is proposed and the first command begins another one. Commands that
// stop instances do not wait for a later call, because their instances may be wanted
// again before that call: they get entries of their own.
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
		q.decideAt(time.Now()) // decide again until a decision changes nothing
	} else {
		q.decideAt(time.Now().Add(t.retry)) // the pause prevents a busy loop
	}
}
