package regional

import (
	"fmt"

	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// addInstanceEvent adds the event of a state that an agent reported, unless the
// instance is only about to run.
func (l *leader) addInstanceEvent(r state.ReportedChange) {
	kind := r.State.String()
	switch {
	case r.Declined:
		kind = "declined"
	case r.State == state.Running && r.Restarts > 0:
		kind = "restarted"
	case !r.State.Terminal() && r.State != state.Running:
		return
	}
	l.events.Add("instance."+kind, r.Key().JobKey().In(l.s.cfg.Region.GetName()), "%s", instanceEvent{r})
}

// instanceEvent formats the text of an event when the event is read: most are
// never read.
type instanceEvent struct{ state.ReportedChange }

func (e instanceEvent) String() string {
	out := fmt.Sprintf("%s[%d] on %s, allocation %.8s, version %d", e.Group, e.Index, e.NodeName, e.ID, e.JobVersion)
	switch {
	case e.NewRestarts > 1:
		out += fmt.Sprintf(", restarts %d to %d", e.Restarts-e.NewRestarts+1, e.Restarts)
	case e.Restarts > 0:
		out += fmt.Sprintf(", restart %d", e.Restarts)
	}
	if why := reason.WithMessage(wire.ReasonToProto(e.Reason), e.Message); why != "" && (e.State.Terminal() || e.Restarts > 0) {
		out += ": " + why
	}
	return out
}
