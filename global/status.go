package global

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// View is a job with its live status, as the API shows it. mu is held.
func (j *Job) View() *nusav1.Job {
	rec := j.Record.GetJob()
	return &nusav1.Job{
		Spec: rec.GetSpec(), Version: rec.GetVersion(), Revision: j.Revision, Stopped: rec.GetStopped(),
		Submitted: rec.GetSubmitted(), Status: j.Status(), Run: RunOf(j.Record, j.Revision), Reverted: rec.GetReverted(),
	}
}

// Status sums up slots and summaries. mu is held. The stored result of a run
// that has ended stands in for regions that no longer answer.
func (j *Job) Status() *nusav1.JobStatus {
	spec := j.Record.GetJob().GetSpec()
	out := &nusav1.JobStatus{Groups: make(map[string]*nusav1.GroupStatus, len(spec.GetGroups()))}
	behind := false
	for name, g := range spec.GetGroups() {
		group, late := j.groupStatus(name, g, spec.GetType())
		out.Groups[name] = group
		behind = behind || late
	}
	for _, s := range j.Slots {
		if out.Groups[s.Group] == nil { // the job has no such group any more
			out.Groups[s.Group], _ = j.groupStatus(s.Group, &nusav1.Group{}, spec.GetType())
		}
	}
	out.State, out.Message = j.stateOf(out.Groups, behind)
	if r := j.Result; j.standsIn(r) && !HasEnded(out.State) {
		kept := proto.CloneOf(r.GetStatus())
		for name, g := range kept.GetGroups() {
			g.Slots = out.Groups[name].GetSlots()
		}
		return kept
	}
	return out
}

// standsIn says that a result is that of the present version and run.
func (j *Job) standsIn(r *nusav1.ResultRecord) bool {
	job := j.Record.GetJob()
	return r != nil && !job.GetStopped() && r.GetVersion() == job.GetVersion() &&
		(r.GetRun() == 0 || r.GetRun() == RunOf(j.Record, j.Revision))
}

func HasEnded(s nusav1.JobState) bool {
	return s == nusav1.JobState_JOB_STATE_COMPLETE || s == nusav1.JobState_JOB_STATE_FAILED
}

// allEnded says that no instance is left that may change.
func allEnded(s *nusav1.JobStatus) bool {
	for _, g := range s.GetGroups() {
		if c := g.GetCounts(); c.GetPending()+c.GetStarting()+c.GetRunning()+c.GetLost() > 0 {
			return false
		}
	}
	return true
}

// owned is what a region owns of a group.
type owned struct {
	instances int32
	// open says that some of it is not done: the region has to speak of the
	// present version.
	open bool
	// again says that some of it is done, and to be done anew.
	again bool
}

// groupStatus counts a group. behind says that a region has not spoken of the
// present version yet.
func (j *Job) groupStatus(name string, g *nusav1.Group, kind nusav1.JobType) (out *nusav1.GroupStatus, behind bool) {
	out = &nusav1.GroupStatus{Counts: &nusav1.InstanceCounts{}, Regions: map[string]*nusav1.InstanceCounts{}}
	owners := map[string]owned{}
	for _, s := range j.SortedSlots() {
		if s.Group != name {
			continue
		}
		out.Slots = append(out.Slots, SlotToProto(s))
		o := owners[s.Region]
		if s.Desired == region.DesiredRun {
			again := obsolete(j.Record, s)
			o = owned{o.instances + int32(s.Count()), o.open || again || s.State != region.Done, o.again || again}
		}
		owners[s.Region] = o
	}
	system := kind == nusav1.JobType_JOB_TYPE_SYSTEM
	total := int32(0)
	for _, r := range slices.Sorted(maps.Keys(owners)) {
		o := owners[r]
		if o.instances == 0 {
			if left := leftAt(j.Summaries[r].GetGroups()[name]); left > 0 {
				out.Regions[r] = &nusav1.InstanceCounts{Stopping: left}
				out.Counts.Stopping += left
			}
			continue
		}
		c, late := j.regionCounts(j.Summaries[r], name, o.open)
		behind = behind || late || o.again
		// What the region does not count yet waits for it.
		if missing := o.instances - counts.Live(c); missing > 0 && (!system || counts.Live(c) == 0) {
			c.Pending += missing
		}
		if !system { // of a system job only the region knows how many
			counts.MoveSurplusToStopping(c, o.instances)
		}
		out.Regions[r] = c
		counts.Add(out.Counts, c)
		total += o.instances
		if system || c.GetPending()+c.GetStarting()+c.GetFailed()+c.GetLost()+c.GetOutdated() > 0 && !late {
			out.Pending = append(out.Pending, inRegion(r, j.Summaries[r].GetReasons()[name].GetReasons())...)
		}
	}
	if system {
		out.Desired = counts.Live(out.Counts)
		out.Pending = append(out.Pending, CountsToProto(j.Decisions[name].Pending)...)
		return out, behind
	}
	out.Desired = g.GetCount()
	if j.Record.GetJob().GetStopped() {
		return out, behind
	}
	out.Unowned = max(0, out.Desired-total)
	out.Counts.Pending += out.Unowned
	if out.Unowned > 0 {
		out.Pending = append(out.Pending, CountsToProto(j.Decisions[name].Pending)...)
	}
	return out, behind
}

// leftAt is how many instances still live in a region that is to run none.
func leftAt(c *nusav1.InstanceCounts) int32 {
	return c.GetStarting() + c.GetRunning() + c.GetLost()
}

// regionCounts is what a region's latest summary says about a group in the
// present version and run. What was in an earlier run counts no more; what
// starts or runs in an earlier version is outdated, and what failed in it is
// tried again.
func (j *Job) regionCounts(sum *nusav1.JobSummary, group string, open bool) (c *nusav1.InstanceCounts, behind bool) {
	c = proto.CloneOf(sum.GetGroups()[group])
	if c == nil {
		c = &nusav1.InstanceCounts{}
	}
	job := j.Record.GetJob()
	switch tells := sum.GetVersion() != 0 || sum.GetRun() != 0; {
	case job.GetStopped() || !tells:
	case sum.GetRun() > 0 && sum.GetRun() != RunOf(j.Record, j.Revision), sum.GetVersion() < 0:
		return &nusav1.InstanceCounts{}, true
	case open && sum.GetVersion() < job.GetVersion():
		c.Outdated = c.GetStarting() + c.GetRunning()
		c.Pending, c.Failed = c.GetPending()+c.GetFailed(), 0
		return c, true
	}
	return c, false
}

// inRegion puts the region's name before what it says.
func inRegion(name string, said []*nusav1.CountedReason) []*nusav1.CountedReason {
	out := make([]*nusav1.CountedReason, len(said))
	for i, c := range said {
		out[i] = proto.CloneOf(c)
		out[i].Message = name
		if c.GetMessage() != "" {
			out[i].Message += ": " + c.GetMessage()
		}
	}
	return out
}

// stateOf sums groups up as job.proto defines the states, with one line about
// what is in the way.
func (j *Job) stateOf(groups map[string]*nusav1.GroupStatus, behind bool) (nusav1.JobState, string) {
	job := j.Record.GetJob()
	if job.GetStopped() {
		if len(j.Slots) > 0 {
			return nusav1.JobState_JOB_STATE_STOPPING, j.stopping(groups)
		}
		return nusav1.JobState_JOB_STATE_STOPPED, ""
	}
	var sum nusav1.InstanceCounts
	desired := int32(0)
	for _, g := range groups {
		counts.Add(&sum, g.GetCounts())
		desired += g.GetDesired()
	}
	stopping := j.stopping(groups)
	batch := job.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH
	switch {
	case sum.Failed > 0:
		return nusav1.JobState_JOB_STATE_FAILED, firstReason(groups, fmt.Sprintf("%d of %d instances failed", sum.Failed, desired))
	case sum.Outdated > 0, behind && sum.Pending+sum.Lost == 0:
		summary := fmt.Sprintf("updating: %d of %d instances run version %d", max(0, sum.Running-sum.Outdated), desired, job.GetVersion())
		return nusav1.JobState_JOB_STATE_STARTING, firstReason(groups, j.withRolloutWait(summary))
	case batch && sum.Complete >= desired && stopping == "":
		return nusav1.JobState_JOB_STATE_COMPLETE, ""
	case sum.Pending+sum.Lost > 0, job.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_SYSTEM && len(j.Slots) == 0:
		return nusav1.JobState_JOB_STATE_PENDING, firstReason(groups, fmt.Sprintf("%d of %d instances wait", sum.Pending+sum.Lost, desired))
	case stopping != "":
		return nusav1.JobState_JOB_STATE_STARTING, stopping
	case sum.Starting > 0:
		return nusav1.JobState_JOB_STATE_STARTING, firstReason(groups, "")
	}
	if job.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_SYSTEM {
		return nusav1.JobState_JOB_STATE_RUNNING, withoutNodes(groups)
	}
	return nusav1.JobState_JOB_STATE_RUNNING, ""
}

// withoutNodes says of a system job how many nodes it does without, and why:
// "5 of 15 nodes; 10 nodes: not enough cpu". "" when it is on all that it is
// meant for.
func withoutNodes(groups map[string]*nusav1.GroupStatus) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g, nodes := groups[name], map[nusav1.Reason]int32{}
		total := g.GetDesired()
		for _, c := range g.GetPending() {
			if c.GetWhat() == "node" {
				nodes[c.GetReason()] += c.GetCount()
				total += c.GetCount()
			}
		}
		if len(nodes) == 0 {
			continue
		}
		text := fmt.Sprintf("%s on %d of %d nodes", name, g.GetDesired(), total)
		for _, r := range slices.Sorted(maps.Keys(nodes)) {
			text += fmt.Sprintf("; %d: %s", nodes[r], reason.Text(r))
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// stopping says what has still to stop, "" when nothing has.
func (j *Job) stopping(groups map[string]*nusav1.GroupStatus) string {
	left := int32(0)
	for _, g := range groups {
		left += g.GetCounts().GetStopping()
	}
	if left == 1 {
		return "1 instance is being stopped"
	}
	if left > 1 {
		return fmt.Sprintf("%d instances are being stopped", left)
	}
	for _, s := range j.SortedSlots() {
		if s.Desired != region.DesiredRun || j.Record.GetJob().GetStopped() {
			return "region " + s.Region + " has still to confirm that what it had has stopped"
		}
	}
	return ""
}

// firstReason adds the first reason, in order of the groups, to a summary: each
// group's list begins with what is in the way.
func firstReason(groups map[string]*nusav1.GroupStatus, summary string) string {
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		if pending := groups[name].GetPending(); len(pending) > 0 {
			said := fmt.Sprintf("%s: %s", name, reason.WithMessage(pending[0].GetReason(), oneRegion(pending[0].GetMessage())))
			if summary != "" {
				said = summary + ": " + said
			}
			return said
		}
	}
	return summary
}

// nextRegion is where the next region's words begin in what several say.
var nextRegion = regexp.MustCompile(`; [a-z][a-z0-9-]*(: |; |$)`)

// oneRegion is what the first of several regions says, whatever semicolons its
// own words have: that is enough for a line.
func oneRegion(said string) string {
	if at := nextRegion.FindStringIndex(said); at != nil {
		return said[:at[0]] + "; and more regions say so"
	}
	return said
}

// SortedSlots are in order of group, first index and region.
func (j *Job) SortedSlots() []region.Slot {
	out := make([]region.Slot, 0, len(j.Slots))
	for _, s := range j.Slots {
		out = append(out, s)
	}
	SortSlots(out)
	return out
}

// RegionView is a region as the API shows it. mu is held.
func (st *State) RegionView(r *Region) *nusav1.Region {
	out := &nusav1.Region{
		Definition: r.Record.GetDefinition(), Cordoned: r.Record.GetCordoned(), ClusterId: r.Record.GetClusterId(),
		DefinedByOperator: r.Record.GetDefinedByOperator(), Revision: r.Revision,
		Incarnation: r.Life.Incarnation, Term: r.Life.Term, Fence: r.Life.Fence,
		MasterAddress: r.MasterAddress, Master: r.Master, Servers: r.Servers,
	}
	switch {
	case r.Session != nil:
		out.State = nusav1.RegionState_REGION_STATE_CONNECTED
	case r.Record.GetClusterId() == "":
		out.State = nusav1.RegionState_REGION_STATE_DEFINED
	default:
		out.State = nusav1.RegionState_REGION_STATE_DISCONNECTED
	}
	if r.Report != nil {
		out.Report = r.Report
	}
	if r.Report != nil && !r.ReportStale {
		out.ReportAge = durationpb.New(st.Clock() - r.ReportAt)
	}
	if r.Session == nil {
		out.Servers = nil
		for _, s := range r.Servers {
			s = proto.CloneOf(s)
			s.Leader, s.Healthy = false, false // nobody knows
			out.Servers = append(out.Servers, s)
		}
	}
	return out
}
