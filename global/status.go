package global

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// view is a job with its live status, as the API shows it. mu is held.
func (j *jobState) view() *nusav1.Job {
	rec := j.rec.GetJob()
	return &nusav1.Job{
		Spec: rec.GetSpec(), Version: rec.GetVersion(), Revision: j.rev, Stopped: rec.GetStopped(),
		Submitted: rec.GetSubmitted(), Status: j.status(),
	}
}

// status sums up slots and summaries. mu is held. The stored result of a job
// that has ended stands in for regions that no longer answer.
func (j *jobState) status() *nusav1.JobStatus {
	spec := j.rec.GetJob().GetSpec()
	out := &nusav1.JobStatus{Groups: make(map[string]*nusav1.GroupStatus, len(spec.GetGroups()))}
	for name, g := range spec.GetGroups() {
		out.Groups[name] = j.groupStatus(name, g, spec.GetType())
	}
	out.State, out.Message = j.stateOf(out.Groups)
	if r := j.result; r != nil && r.GetVersion() == j.rec.GetJob().GetVersion() && !j.rec.GetJob().GetStopped() && !ended(out.State) {
		kept := proto.CloneOf(r.GetStatus())
		for name, g := range kept.GetGroups() {
			g.Slots = out.Groups[name].GetSlots()
		}
		return kept
	}
	return out
}

func ended(s nusav1.JobState) bool {
	return s == nusav1.JobState_JOB_STATE_COMPLETE || s == nusav1.JobState_JOB_STATE_FAILED
}

func (j *jobState) groupStatus(name string, g *nusav1.Group, kind nusav1.JobType) *nusav1.GroupStatus {
	out := &nusav1.GroupStatus{Counts: &nusav1.InstanceCounts{}, Regions: map[string]*nusav1.InstanceCounts{}}
	owned := map[string]int32{}
	for _, s := range j.sortedSlots() {
		if s.Group != name {
			continue
		}
		out.Slots = append(out.Slots, slotToProto(s))
		if s.Desired == region.DesiredRun {
			owned[s.Region] += int32(s.Count())
		}
	}
	system := kind == nusav1.JobType_JOB_TYPE_SYSTEM
	total := int32(0)
	for _, r := range slices.Sorted(maps.Keys(owned)) {
		counts := proto.CloneOf(j.summaries[r].GetGroups()[name])
		if counts == nil {
			counts = &nusav1.InstanceCounts{}
		}
		// What the region does not count yet waits for it.
		if missing := owned[r] - live(counts); missing > 0 && (!system || live(counts) == 0) {
			counts.Pending += missing
		}
		out.Regions[r] = counts
		addCounts(out.Counts, counts)
		total += owned[r]
		if counts.GetPending()+counts.GetFailed()+counts.GetLost() > 0 {
			out.Pending = append(out.Pending, j.summaries[r].GetReasons()[name].GetReasons()...)
		}
	}
	if system {
		out.Desired = live(out.Counts)
		return out
	}
	out.Desired = g.GetCount()
	if j.rec.GetJob().GetStopped() {
		return out
	}
	out.Unowned = max(0, out.Desired-total)
	out.Counts.Pending += out.Unowned
	if out.Unowned > 0 {
		out.Pending = append(out.Pending, countsToProto(j.explained[name].Pending)...)
	}
	return out
}

// live is how many instances the counts speak of, those that somebody wanted
// stopped left out.
func live(c *nusav1.InstanceCounts) int32 {
	return c.GetPending() + c.GetStarting() + c.GetRunning() + c.GetComplete() + c.GetFailed() + c.GetLost()
}

func addCounts(to, c *nusav1.InstanceCounts) {
	to.Pending += c.GetPending()
	to.Starting += c.GetStarting()
	to.Running += c.GetRunning()
	to.Complete += c.GetComplete()
	to.Failed += c.GetFailed()
	to.Stopped += c.GetStopped()
	to.Lost += c.GetLost()
}

// stateOf sums groups up as job.proto defines the states, with one line about
// what is in the way.
func (j *jobState) stateOf(groups map[string]*nusav1.GroupStatus) (nusav1.JobState, string) {
	job := j.rec.GetJob()
	if job.GetStopped() {
		if len(j.slots) > 0 {
			return nusav1.JobState_JOB_STATE_STOPPING, fmt.Sprintf("%d slots are not confirmed stopped", len(j.slots))
		}
		return nusav1.JobState_JOB_STATE_STOPPED, ""
	}
	var sum nusav1.InstanceCounts
	desired := int32(0)
	for _, g := range groups {
		addCounts(&sum, g.GetCounts())
		desired += g.GetDesired()
	}
	batch := job.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH
	switch {
	case sum.Failed > 0:
		return nusav1.JobState_JOB_STATE_FAILED, firstReason(groups, fmt.Sprintf("%d of %d instances failed", sum.Failed, desired))
	case batch && sum.Complete >= desired:
		return nusav1.JobState_JOB_STATE_COMPLETE, ""
	case sum.Pending+sum.Lost > 0, job.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_SYSTEM && len(j.slots) == 0:
		return nusav1.JobState_JOB_STATE_PENDING, firstReason(groups, fmt.Sprintf("%d of %d instances wait", sum.Pending+sum.Lost, desired))
	case sum.Starting > 0:
		return nusav1.JobState_JOB_STATE_STARTING, ""
	}
	return nusav1.JobState_JOB_STATE_RUNNING, ""
}

// firstReason adds the first reason, in order of the groups, to a summary.
func firstReason(groups map[string]*nusav1.GroupStatus, summary string) string {
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		if pending := groups[name].GetPending(); len(pending) > 0 {
			text := pending[0].GetMessage()
			if text == "" {
				text = reasonWord(pending[0].GetReason())
			}
			return fmt.Sprintf("%s: %s: %s", summary, name, text)
		}
	}
	return summary
}

// sortedSlots are in order of group, first index and region.
func (j *jobState) sortedSlots() []region.Slot {
	out := make([]region.Slot, 0, len(j.slots))
	for _, s := range j.slots {
		out = append(out, s)
	}
	sortSlots(out)
	return out
}

// regionView is a region as the API shows it. mu is held.
func (st *state) regionView(r *regionState) *nusav1.Region {
	out := &nusav1.Region{
		Definition: r.rec.GetDefinition(), Cordoned: r.rec.GetCordoned(), ClusterId: r.rec.GetClusterId(),
		DefinedByOperator: r.rec.GetDefinedByOperator(), Revision: r.rev,
		Incarnation: r.life.Incarnation, Term: r.life.Term, Fence: r.life.Fence,
		MasterAddress: r.masterAddr, Master: r.master, Servers: r.servers,
	}
	switch {
	case r.session != nil:
		out.State = nusav1.RegionState_REGION_STATE_CONNECTED
	case r.rec.GetClusterId() == "":
		out.State = nusav1.RegionState_REGION_STATE_DEFINED
	default:
		out.State = nusav1.RegionState_REGION_STATE_DISCONNECTED
	}
	if r.report != nil {
		out.Report = r.report
		out.ReportAge = durationpb.New(st.clock() - r.reportAt)
	}
	return out
}
