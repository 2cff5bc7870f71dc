package api

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// groupStatus returns the status of a group here.
func (j jobs) groupStatus(m *Master, view *state.View, g *state.GroupView) *nusav1.GroupStatus {
	c := wire.InstanceCountsToProto(g.Counts)
	counts.MoveSurplusToStopping(c, g.Wanted)
	region := j.s.region()
	out := &nusav1.GroupStatus{
		Desired: g.Wanted, Counts: c, Regions: map[string]*nusav1.InstanceCounts{region: c},
		Pending: m.Reporter.Reasons(view, g),
	}
	for _, s := range g.Slots {
		out.Slots = append(out.Slots, wire.SlotToProto(s, region))
	}
	return out
}

// setJobStatus sets state and message of a job from the status of its groups.
func setJobStatus(j *nusav1.Job) {
	var c nusav1.InstanceCounts
	desired, why := int32(0), ""
	for _, name := range slices.Sorted(maps.Keys(j.GetStatus().GetGroups())) {
		g := j.Status.Groups[name]
		desired += g.GetDesired()
		counts.Add(&c, g.GetCounts())
		if len(g.GetPending()) > 0 && why == "" {
			why = name + ": " + reason.WithMessage(g.Pending[0].GetReason(), g.Pending[0].GetMessage())
		}
	}
	live := c.Pending + c.Starting + c.Running + c.Lost
	batch := j.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH
	message := ""
	switch {
	case j.GetStopped() && c.Starting+c.Running+c.Stopping == 0:
		j.Status.State, why = nusav1.JobState_JOB_STATE_STOPPED, ""
	case j.GetStopped():
		j.Status.State, why = nusav1.JobState_JOB_STATE_STOPPING, stoppingMessage(c.Starting+c.Running+c.Stopping)
	case c.Failed > 0:
		j.Status.State, message = nusav1.JobState_JOB_STATE_FAILED, fmt.Sprintf("%d of %d instances failed", c.Failed, desired)
	case c.Outdated > 0:
		j.Status.State, message = nusav1.JobState_JOB_STATE_STARTING, fmt.Sprintf("updating: %d of %d instances run version %d",
			max(0, c.Running-c.Outdated), desired, j.GetVersion())
	case batch && live+c.Stopping == 0 && c.Complete > 0:
		j.Status.State = nusav1.JobState_JOB_STATE_COMPLETE
	case c.Pending+c.Lost > 0 || live+c.Complete == 0 && desired > 0:
		j.Status.State = nusav1.JobState_JOB_STATE_PENDING
	case c.Stopping > 0:
		j.Status.State, why = nusav1.JobState_JOB_STATE_STARTING, stoppingMessage(c.Stopping)
	case c.Starting > 0:
		j.Status.State = nusav1.JobState_JOB_STATE_STARTING
	default:
		j.Status.State = nusav1.JobState_JOB_STATE_RUNNING
	}
	if message != "" && why != "" {
		message += ": "
	}
	j.Status.Message = message + why
}

func stoppingMessage(n int32) string {
	if n == 1 {
		return "1 instance is being stopped"
	}
	return fmt.Sprintf("%d instances are being stopped", n)
}
