package state

import (
	"maps"
	"slices"

	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Events is the event log of one leadership term. Most events are added under
// the state's lock; the log can be read without it.
type Events struct{ *eventlog.Log }

// AddLostNodes adds an event when the number of lost nodes in a region's report has changed since
// the last report.
func (e Events) AddLostNodes(name string, was, is *nusav1.RegionReport) {
	switch d := is.GetNodesLost() - was.GetNodesLost(); {
	case was == nil && is.GetNodesLost() == 0 || d == 0:
	case d > 0:
		e.Add("node.lost", name, "%d more lost, %d in all; %d ready", d, is.GetNodesLost(), is.GetNodesReady())
	default:
		e.Add("node.back", name, "%d back or forgotten, %d still lost; %d ready", -d, is.GetNodesLost(), is.GetNodesReady())
	}
}

// addFailedInstances adds events for the instances of a job that a region has lost, or will not try
// again, according to its summaries.
func (e Events) addFailedInstances(from, subject string, was, is *nusav1.JobSummary) {
	for _, group := range slices.Sorted(maps.Keys(is.GetGroups())) {
		old, now := was.GetGroups()[group], is.GetGroups()[group]
		if n := now.GetFailed() - old.GetFailed(); n > 0 {
			why := ""
			for _, c := range is.GetReasons()[group].GetReasons() {
				if c.GetWhat() == "instance" && c.GetReason() != nusav1.Reason_REASON_BACKOFF {
					why = ": " + reason.WithMessage(c.GetReason(), c.GetMessage())
				}
			}
			e.Add("instance.given_up", subject, "%s: %d at %s will not be tried again%s", group, n, from, why)
		}
		if n := now.GetLost() - old.GetLost(); n > 0 {
			e.Add("instance.lost", subject, "%s: %d at %s on lost nodes", group, n, from)
		}
	}
}
