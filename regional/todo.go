package regional

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// todo is what was decided and is not proposed yet. It is carried out an entry at a
// time, so that who has something to say in between, such as the agents, need not
// wait for a job of a hundred thousand instances.
type todo struct {
	commands []state.Command
	// changes: one of those proposed has changed something.
	changes bool
	retry   time.Duration
	settled func()
}

// anew drops what was decided and is not proposed: the state is another one.
func (q *sequencer) anew() {
	q.todo = todo{}
	q.decideAt(time.Now())
}

// voids says that what was decided before a command may be wrong after it. Nodes
// are judged in deciding only, and so is what is stopped: see carryOut. What is no
// longer wanted, or has no room, the state refuses by itself.
func (q *sequencer) voids(cmd *state.Command) bool {
	switch {
	case cmd.AgentReports != nil:
		// Of a node that was away: what is to be replaced may have ended there.
		n, ok := q.ahead.from.Node(cmd.AgentReports.NodeID)
		return !ok || n.Status != state.NodeReady
	case cmd.ApplyOrders != nil:
		// A job that was forgotten may come again as the same version.
		return slices.ContainsFunc(cmd.ApplyOrders.Orders, func(o state.SlotOrder) bool {
			return o.Job != nil && q.todo.places(state.JobKey{Namespace: o.Slot.Namespace, Job: o.Slot.Job})
		})
	}
	return cmd.SubmitLocalJob == nil
}

// places says that instances of a job are to be placed.
func (t *todo) places(job state.JobKey) bool {
	for i := range t.commands {
		if p := t.commands[i].ApplyPlan; p != nil && slices.ContainsFunc(p.Places, func(g state.PlaceGroup) bool { return g.Key.JobKey() == job }) {
			return true
		}
	}
	return false
}

// carryOut adds of what was decided what fits the entry, in one of its own if
// none does. What stops something does not wait for the next entry: there its
// instance may be wanted again.
func (q *sequencer) carryOut(e *entry, flying chan<- entry) {
	t := &q.todo
	for some := false; len(t.commands) > 0; some = true {
		cmd := &t.commands[0]
		cmd.NowUnixNano = time.Now().UnixNano()
		if !q.writer.add(cmd) {
			if some && (cmd.ApplyPlan == nil || len(cmd.ApplyPlan.Stops) == 0) {
				return
			}
			q.send(e, flying)
			*e = entry{}
			q.writer.add(cmd)
		}
		for _, r := range q.ahead.apply(t.commands[:1]) {
			t.changes = t.changes || r.Changed
		}
		if t.commands = t.commands[1:]; len(t.commands) > 0 {
			continue
		}
		if e.settled = t.settled; t.changes {
			q.decideAt(time.Now()) // until there is nothing left
		} else { // it must not become a busy loop
			q.decideAt(time.Now().Add(t.retry))
		}
	}
}
