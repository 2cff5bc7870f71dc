package master

import (
	"fmt"

	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// instanceEvents is the prefix of the types of events about instances.
const instanceEvents = "instance."

// addInstanceEvent adds an event about an allocation's reported change.
func (m *Master) addInstanceEvent(c state.ReportedChange) {
	kind := c.State.String()
	switch {
	case c.Declined:
		kind = "declined"
	case c.State == state.Running && c.Restarts > 0:
		kind = "restarted"
	case !c.State.Terminal() && c.State != state.Running:
		return // the instance does not run yet
	}
	m.Events.Add(instanceEvents+kind, c.Key().JobKey().In(m.cfg.Region.GetName()), "%s", changeText{c})
}

// changeText is the message of an instance event. The message is formatted only when a
// client reads the event, because most events are never read.
type changeText struct{ state.ReportedChange }

func (t changeText) String() string {
	out := fmt.Sprintf("%s[%d] on %s, allocation %.8s, version %d", t.Group, t.Index, t.NodeName, t.ID, t.JobVersion)
	switch {
	case t.NewRestarts > 1:
		out += fmt.Sprintf(", restarts %d to %d", t.Restarts-t.NewRestarts+1, t.Restarts)
	case t.Restarts > 0:
		out += fmt.Sprintf(", restart %d", t.Restarts)
	}
	if why := reason.WithMessage(wire.ReasonToProto(t.Reason), t.Message); why != "" && (t.State.Terminal() || t.Restarts > 0) {
		out += ": " + why
	}
	return out
}

// addPurgeEvents adds events about purged jobs. When a job has no allocations, one command
// both stops and purges it. addPurgeEvents then first adds the event of the stop.
func (m *Master) addPurgeEvents(r *state.Result) {
	for _, k := range r.Purged {
		name := k.In(m.cfg.Region.GetName())
		if r.Revision > 0 {
			m.Events.Add("job.stopped", name, "none of its instances runs")
		}
		m.Events.Add("job.purged", name, "forgotten")
	}
}
