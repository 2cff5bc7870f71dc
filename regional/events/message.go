package events

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// types are the types of the events of each kind.
var types = map[state.EventKind]string{
	state.EventInstancePlaced:    "instance.placed",
	state.EventInstanceStarting:  "instance.starting",
	state.EventInstanceRunning:   "instance.running",
	state.EventInstanceRestarted: "instance.restarted",
	state.EventInstanceComplete:  "instance.complete",
	state.EventInstanceFailed:    "instance.failed",
	state.EventInstanceDeclined:  "instance.declined",
	state.EventInstanceStopped:   "instance.stopped",
	state.EventInstanceLost:      "instance.lost",
	state.EventJobSubmitted:      "job.submitted",
	state.EventJobStopped:        "job.stopped",
	state.EventJobPurged:         "job.purged",
	state.EventNodeRegistered:    "node.registered",
	state.EventNodeReady:         "node.ready",
	state.EventNodeLost:          "node.lost",
	state.EventNodeLeft:          "node.left",
	state.EventNodeRemoved:       "node.removed",
	state.EventNodeCordoned:      "node.cordoned",
	state.EventNodeUncordoned:    "node.uncordoned",
	state.EventNodeDraining:      "node.drained",
	state.EventNodeUndrained:     "node.undrained",
	state.EventRegionJoined:      "region.joined",
	state.EventRegionRebound:     "region.rebound",
	state.EventRegionRecovered:   "region.recovered",
	state.EventJobOverridden:     "job.overridden",
	state.EventOverrideCleared:   "job.override_cleared",
	state.EventOverrideEnded:     "job.override_ended",
}

// message returns the message for an event of a cluster.
func message(c state.Cluster, number uint64, e *state.Event) *nusav1.Event {
	out := &nusav1.Event{
		Token: token(c.ID, number), Number: number, Log: c.ID, Time: timestamppb.New(time.Unix(0, e.UnixNano)),
		Type: types[e.Kind], Namespace: e.Namespace, Region: c.Region, Message: text(e),
	}
	switch {
	case e.Job != "":
		out.Subject = e.JobKey().In(c.Region)
	case e.Node != "":
		out.Subject = e.Node
	default:
		out.Subject = c.Region
	}
	return out
}

// text returns the text of an event for people.
func text(e *state.Event) string {
	switch e.Kind {
	case state.EventJobSubmitted:
		return fmt.Sprintf("version %d", e.Version)
	case state.EventJobStopped:
		return "its instances are being stopped"
	case state.EventJobOverridden:
		return "in this region by an operator: " + e.Message
	case state.EventOverrideCleared:
		return "this region runs all of its part again; it was " + e.Message
	case state.EventOverrideEnded:
		return "the job was run again; it was " + e.Message
	case state.EventJobPurged:
		return "forgotten"
	case state.EventNodeRegistered:
		return fmt.Sprintf("id %s, pool %s", e.ID, e.Message)
	case state.EventNodeReady:
		return "its agent is connected again"
	case state.EventNodeLost:
		return fmt.Sprintf("silent for %v", time.Duration(e.Nano).Round(time.Millisecond))
	case state.EventNodeLeft:
		return "its agent left"
	case state.EventRegionJoined:
		return "federation " + e.Message
	case state.EventRegionRebound:
		return "to federation " + e.Message
	case state.EventRegionRecovered:
		return fmt.Sprintf("its log was restored, incarnation %d begins: later events of the former log are lost", e.Version)
	case state.EventNodeRemoved:
		return "no longer a node of the region"
	case state.EventNodeCordoned:
		return "it takes no new work"
	case state.EventNodeUncordoned:
		return "it takes new work again"
	case state.EventNodeDraining:
		return "its work moves to other nodes"
	case state.EventNodeUndrained:
		return "its drain has ended"
	}
	return instanceText(e)
}

func instanceText(e *state.Event) string {
	out := fmt.Sprintf("%s[%d] on %s, allocation %.8s, version %d", e.Group, e.Index, e.Node, e.ID, e.Version)
	switch {
	case e.NewRestarts > 1:
		out += fmt.Sprintf(", restarts %d to %d", e.Restarts-e.NewRestarts+1, e.Restarts)
	case e.Restarts > 0:
		out += fmt.Sprintf(", restart %d", e.Restarts)
	}
	if why := reason.WithMessage(wire.ReasonToProto(e.Reason), e.Message); why != "" {
		out += ": " + why
	}
	return out
}
