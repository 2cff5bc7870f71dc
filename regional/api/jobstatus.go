package api

import (
	"sync"

	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/sched"
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
	if c.GetPending() > 0 {
		out.Queue = j.s.queue.place(view, g.Key)
	}
	return out
}

// queueCache has the places in the queue of one view, because a list asks for those of many jobs.
type queueCache struct {
	mu     sync.Mutex
	index  uint64 // of the view; 0: none yet
	places map[state.GroupKey]sched.QueuePlace
}

// place returns the place of a group in the queue, or nil if it has none.
func (q *queueCache) place(view *state.View, key state.GroupKey) *nusav1.QueuePlace {
	q.mu.Lock()
	if q.index != view.Index() || q.places == nil {
		q.index, q.places = view.Index(), sched.Queue(view)
	}
	places := q.places // never changed
	q.mu.Unlock()
	p, waits := places[key]
	if !waits {
		return nil
	}
	return &nusav1.QueuePlace{
		Position: p.Position, Groups: int32(len(places)), Higher: p.Higher, Earlier: p.Earlier, Asked: wire.ResourcesToProto(p.Asked),
	}
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
	if !facts.Stopped {
		j.Status.Message = jobstatus.WithOverrides(j.Status.Message, j.Status.GetOverrides())
	}
}
