package regional

import (
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

// harmless says that what was decided before a command is as right after it:
// the state refuses by itself what is no longer wanted, or has no room. Nodes are
// judged in deciding only, and so is what is stopped: see carryOut.
func harmless(cmd *state.Command) bool {
	return cmd.AgentReports != nil || cmd.SubmitLocalJob != nil || cmd.ApplyOrders != nil
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
