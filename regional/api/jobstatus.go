package api

import (
	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// groupStatus returns the status of a group in this region.
func (j jobs) groupStatus(m *Master, view *state.View, g *state.GroupView) *nusav1.GroupStatus {
	c := wire.InstanceCountsToProto(g.Counts)
	counts.MoveSurplusToStopping(c, g.Wanted)
	c.Stopped = 0 // stopped instances have moved away, or are not wanted any more
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

// setJobStatus sets the state and the message of a job from the status of its groups.
func setJobStatus(j *nusav1.Job) {
	facts := jobstatus.Facts{Stopped: j.GetStopped(), Version: j.GetVersion()}
	obstacles := map[string]string{}
	for name, g := range j.GetStatus().GetGroups() {
		facts.Desired += g.GetDesired()
		counts.Add(&facts.Counts, g.GetCounts())
		if p := g.GetPending(); len(p) > 0 {
			obstacles[name] = reason.WithMessage(p[0].GetReason(), p[0].GetMessage())
		}
	}
	c := &facts.Counts
	stopping := c.Stopping
	if facts.Stopped {
		stopping += c.Starting + c.Running
	}
	if stopping > 0 {
		facts.Stopping = jobstatus.StoppingInstances(stopping)
	}
	live := c.Pending + c.Starting + c.Running + c.Lost
	batch := j.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH
	facts.Complete = batch && live+c.Stopping == 0 && c.Complete > 0
	facts.NotBegun = live+c.Complete == 0 && facts.Desired > 0
	phase := jobstatus.PhaseOf(&facts)
	j.Status.State, j.Status.Message = phase.State(), phase.Summary
	switch phase.Kind {
	case jobstatus.Stopped, jobstatus.Stopping, jobstatus.Replacing:
	default:
		j.Status.Message = jobstatus.WithObstacle(phase.Summary, obstacles)
	}
}
