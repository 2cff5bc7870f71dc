package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// ToProto returns the job with its live status, as the API shows it. The lock
// is held.
func (j *Job) ToProto() *nusav1.Job {
	rec := j.Record.GetJob()
	return &nusav1.Job{
		Spec: rec.GetSpec(), Version: rec.GetVersion(), Revision: j.Revision, Stopped: rec.GetStopped(),
		Submitted: rec.GetSubmitted(), Status: j.Status(), Run: RunOf(j.Record, j.Revision), Reverted: rec.GetReverted(),
	}
}

// Status sums up slots and summaries. When a run has ended, its stored result
// replaces the counts of regions that no longer report them. The lock is held.
func (j *Job) Status() *nusav1.JobStatus {
	spec := j.Record.GetJob().GetSpec()
	out := &nusav1.JobStatus{Groups: make(map[string]*nusav1.GroupStatus, len(spec.GetGroups()))}
	obstacles := map[string]string{}
	behind := false
	add := func(name string, g *nusav1.Group) {
		s := j.groupStatus(name, g, spec.GetType())
		out.Groups[name] = s.status
		obstacles[name] = s.obstacle()
		behind = behind || s.behind
	}
	for name, g := range spec.GetGroups() {
		add(name, g)
	}
	presentBehind := behind
	for _, s := range j.Slots {
		if out.Groups[s.Group] == nil { // the job has no such group any more
			add(s.Group, &nusav1.Group{})
		}
	}
	out.State, out.Message = j.summarize(out.Groups, obstacles, presentBehind)
	if r := j.Result; j.standsIn(r) && !jobstatus.HasEnded(out.State) {
		stored := proto.CloneOf(r.GetStatus())
		for name, g := range stored.GetGroups() {
			g.Slots = out.Groups[name].GetSlots()
		}
		return stored
	}
	return out
}

// standsIn says that a result belongs to the present version and run.
func (j *Job) standsIn(r *nusav1.ResultRecord) bool {
	job := j.Record.GetJob()
	return r != nil && !job.GetStopped() && r.GetVersion() == job.GetVersion() &&
		(r.GetRun() == 0 || r.GetRun() == RunOf(j.Record, j.Revision))
}

// owned is the part of a group that one region owns.
type owned struct {
	instances int32
	// open says that some of the instances are not done: the region has to
	// report on the present version.
	open bool
	// again says that some of the instances are done and have to run again.
	again bool
}

// groupStatus is the status of a group that is being summed up.
type groupStatus struct {
	status *nusav1.GroupStatus
	// behind says that a region has not reported on the present version yet.
	behind bool
	// brief is the one-line message of the first pending reason, where the
	// reason's own message names several regions.
	brief string
}

// addPending adds the placer's reasons why instances have no region.
func (s *groupStatus) addPending(reasons []region.CountedReason) {
	if len(s.status.Pending) == 0 && len(reasons) > 0 {
		s.brief = reasons[0].Brief
	}
	s.status.Pending = append(s.status.Pending, CountsToProto(reasons)...)
}

// obstacle returns the first pending reason as one line, "" for none. Each group's
// list begins with the obstacle.
func (s *groupStatus) obstacle() string {
	if len(s.status.Pending) == 0 {
		return ""
	}
	first := s.status.Pending[0]
	return reason.WithMessage(first.GetReason(), cmp.Or(s.brief, first.GetMessage()))
}

// groupStatus counts the instances of a group.
func (j *Job) groupStatus(name string, g *nusav1.Group, kind nusav1.JobType) *groupStatus {
	out := &nusav1.GroupStatus{Counts: &nusav1.InstanceCounts{}, Regions: map[string]*nusav1.InstanceCounts{}}
	s := &groupStatus{status: out}
	owners := j.owners(name, out)
	system := kind == nusav1.JobType_JOB_TYPE_SYSTEM
	total := int32(0)
	for _, r := range slices.Sorted(maps.Keys(owners)) {
		o := owners[r]
		if o.instances == 0 {
			if left := remaining(j.Summaries[r].GetGroups()[name]); left > 0 {
				out.Regions[r] = &nusav1.InstanceCounts{Stopping: left}
				out.Counts.Stopping += left
			}
			continue
		}
		c, late := j.regionCounts(j.Summaries[r], name, o.open)
		s.behind = s.behind || late || o.again
		// Instances that the region does not count yet wait for it.
		if missing := o.instances - counts.Live(c); missing > 0 && (!system || counts.Live(c) == 0) {
			c.Pending += missing
		}
		if !system { // only the region knows how many instances a system job has
			counts.MoveSurplusToStopping(c, o.instances)
		}
		out.Regions[r] = c
		counts.Add(out.Counts, c)
		total += o.instances
		if system || c.GetPending()+c.GetStarting()+c.GetFailed()+c.GetLost()+c.GetOutdated() > 0 && !late {
			out.Pending = append(out.Pending, withRegion(r, j.Summaries[r].GetReasons()[name].GetReasons())...)
		}
	}
	if system {
		out.Desired = counts.Live(out.Counts)
		s.addPending(j.Decisions[name].Pending)
		return s
	}
	out.Desired = g.GetCount()
	if j.Record.GetJob().GetStopped() {
		return s
	}
	out.Unowned = max(0, out.Desired-total)
	out.Counts.Pending += out.Unowned
	if out.Unowned > 0 {
		s.addPending(j.Decisions[name].Pending)
	}
	return s
}

// owners returns, by region, the part of a group that the region owns, and adds the
// group's slots to its status.
func (j *Job) owners(name string, out *nusav1.GroupStatus) map[string]owned {
	owners := map[string]owned{}
	for _, s := range j.SortedSlots() {
		if s.Group != name {
			continue
		}
		out.Slots = append(out.Slots, SlotToProto(s))
		o := owners[s.Region]
		if s.Desired == region.DesiredRun {
			again := obsolete(j.Record, s.JobVersion, s.Group)
			o = owned{o.instances + int32(s.Count()), o.open || again || s.State != region.Done, o.again || again}
		}
		owners[s.Region] = o
	}
	return owners
}

// remaining counts the instances that are still live in a region that must run
// none.
func remaining(c *nusav1.InstanceCounts) int32 {
	return c.GetStarting() + c.GetRunning() + c.GetLost()
}

// regionCounts returns the counts of a region's latest summary for a group in
// the present version and run. Instances of an earlier run do not count;
// instances that start or run in an earlier version are outdated, and those
// that failed in one are tried again.
func (j *Job) regionCounts(sum *nusav1.JobSummary, group string, open bool) (c *nusav1.InstanceCounts, behind bool) {
	c = proto.CloneOf(sum.GetGroups()[group])
	if c == nil {
		c = &nusav1.InstanceCounts{}
	}
	job := j.Record.GetJob()
	switch versioned := sum.GetVersion() != 0 || sum.GetRun() != 0; {
	case job.GetStopped() || !versioned:
	case sum.GetRun() > 0 && sum.GetRun() != RunOf(j.Record, j.Revision), sum.GetVersion() < 0:
		return &nusav1.InstanceCounts{}, true
	case open && sum.GetVersion() < job.GetVersion():
		c.Outdated = c.GetStarting() + c.GetRunning()
		c.Pending, c.Failed = c.GetPending()+c.GetFailed(), 0
		return c, true
	}
	return c, false
}

// withRegion returns the reasons with the region that reported them, also at the
// beginning of their messages.
func withRegion(name string, reasons []*nusav1.CountedReason) []*nusav1.CountedReason {
	out := make([]*nusav1.CountedReason, len(reasons))
	for i, c := range reasons {
		out[i] = proto.CloneOf(c)
		out[i].Region, out[i].Message = name, name
		if c.GetMessage() != "" {
			out[i].Message += ": " + c.GetMessage()
		}
	}
	return out
}

// summarize returns the state of the job and one line about the obstacle.
// obstacles are the first pending reasons, by group.
func (j *Job) summarize(groups map[string]*nusav1.GroupStatus, obstacles map[string]string, behind bool) (nusav1.JobState, string) {
	rec := j.Record.GetJob()
	system := rec.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_SYSTEM
	facts := jobstatus.Facts{
		Stopped: rec.GetStopped(), Version: rec.GetVersion(), Stopping: j.stopping(groups), Behind: behind,
		NotBegun: system && len(j.Slots) == 0,
	}
	for _, g := range groups {
		counts.Add(&facts.Counts, g.GetCounts())
		facts.Desired += g.GetDesired()
	}
	batch := rec.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH
	facts.Complete = batch && facts.Counts.Complete >= facts.Desired && facts.Stopping == ""
	phase := jobstatus.PhaseOf(&facts)
	summary := phase.Summary
	switch phase.Kind {
	case jobstatus.Running:
		if system {
			return phase.State(), nodesWithout(groups)
		}
		return phase.State(), ""
	case jobstatus.Updating:
		summary = j.withRolloutWait(summary)
	case jobstatus.Pending:
		summary = fmt.Sprintf("%d of %d instances wait", facts.Counts.Pending+facts.Counts.Lost, facts.Desired)
	case jobstatus.Stopped, jobstatus.Stopping, jobstatus.Complete, jobstatus.Replacing:
		return phase.State(), summary
	}
	return phase.State(), jobstatus.WithObstacle(summary, obstacles)
}

// withRolloutWait adds the reason why the job's version has not reached the first
// of the regions that wait for it.
func (j *Job) withRolloutWait(summary string) string {
	names := slices.Sorted(maps.Keys(j.RolloutWaits))
	if len(names) == 0 {
		return summary
	}
	return summary + "; region " + names[0] + ": " + j.RolloutWaits[names[0]]
}

// nodesWithout says on how many nodes a system job runs and why it is not on
// the others: "web on 5 of 15 nodes; 10: not enough cpu". It returns "" when
// the job runs on all nodes that it is meant for.
func nodesWithout(groups map[string]*nusav1.GroupStatus) string {
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

// stopping returns the instances that still have to stop as text, "" for none.
func (j *Job) stopping(groups map[string]*nusav1.GroupStatus) string {
	left := int32(0)
	for _, g := range groups {
		left += g.GetCounts().GetStopping()
	}
	if left > 0 {
		return jobstatus.StoppingInstances(left)
	}
	for _, s := range j.SortedSlots() {
		if s.Desired != region.DesiredRun || j.Record.GetJob().GetStopped() {
			return "region " + s.Region + " has not confirmed yet that its instances have stopped"
		}
	}
	return ""
}
