package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// ToProto returns the job with its live status, in the form of the API. The lock is held.
func (j *Job) ToProto(see Sight) *nusav1.Job {
	out := j.WithoutSpec(see)
	out.Spec = j.Record.Spec()
	return out
}

// WithoutSpec returns the job like ToProto, but without the spec. The lock is held.
func (j *Job) WithoutSpec(see Sight) *nusav1.Job {
	rec := j.Record.decodedHead().GetJob()
	return &nusav1.Job{
		Version: rec.GetVersion(), Revision: j.Revision, Stopped: rec.GetStopped(),
		Submitted: rec.GetSubmitted(), Status: j.Status(see), Run: j.Record.Run(j.Revision), Reverted: rec.GetReverted(),
	}
}

// Status summarises slots and summaries. When a run has ended, its stored result replaces the
// counts of regions that no longer report them. Counts that a region reported before it was cut off
// are not included. The lock is held.
func (j *Job) Status(see Sight) *nusav1.JobStatus {
	groups, sums := j.Place().Groups, j.Summaries.Decoded()
	out := &nusav1.JobStatus{Groups: make(map[string]*nusav1.GroupStatus, len(groups))}
	obstacles := map[string]string{}
	behind := false
	add := func(name string, count int) {
		s := j.groupStatus(name, int32(count), sums, see)
		out.Groups[name] = s.status
		obstacles[name] = s.obstacle()
		behind = behind || s.behind
	}
	for i := range groups {
		add(groups[i].Name, groups[i].Count)
	}
	presentBehind := behind
	for s := range j.Slots.All() {
		if out.Groups[s.Group] == nil { // the job no longer has this group
			add(s.Group, 0)
		}
	}
	out.State, out.Message = j.summarize(out.Groups, obstacles, presentBehind, see)
	j.addOverrides(out, sums, see)
	j.addRollout(out, see)
	out.InPlace = j.inPlace(func() map[string]*nusav1.JobSummary { return sums })
	if r := j.Result; j.standsIn(r) && !jobstatus.HasEnded(out.State) {
		stored := proto.CloneOf(r.GetStatus())
		for name, g := range stored.GetGroups() {
			g.Slots = out.Groups[name].GetSlots()
		}
		return stored
	}
	return out
}

// addOverrides adds the overrides of regions to a status. The lock is held.
func (j *Job) addOverrides(out *nusav1.JobStatus, sums map[string]*nusav1.JobSummary, see Sight) {
	var present []*nusav1.Override
	for _, r := range slices.Sorted(maps.Keys(sums)) {
		o := sums[r].GetOverride()
		if o == nil {
			continue
		}
		out.Overrides = append(out.Overrides, o)
		if _, cut := see.CutOff(r); !cut {
			present = append(present, o)
		}
	}
	if !j.Record.Stopped() {
		out.Message = jobstatus.WithOverrides(out.Message, present)
	}
}

// standsIn reports whether a result belongs to the present version and run.
func (j *Job) standsIn(r *nusav1.ResultRecord) bool {
	return r != nil && !j.Record.Stopped() && r.GetVersion() == j.Record.Version() &&
		(r.GetRun() == 0 || r.GetRun() == j.Record.Run(j.Revision))
}

// owned is the part of a group that one region owns.
type owned struct {
	instances int32
	// unwanted is the number of instances that the region has to stop.
	unwanted int32
	// open: some of the instances are not done, so the region has to report on the present version.
	open bool
	// again: some of the instances are done and have to run again.
	again bool
	// failed is the number of instances without an owner that have failed.
	failed int32
}

// groupStatus is the status of a group while it is computed.
type groupStatus struct {
	status *nusav1.GroupStatus
	// behind: a region has not reported on the present version yet.
	behind bool
	// brief is the one-line message of the first pending reason. It is set if the reason's own
	// message names several regions.
	brief string
}

// addPending adds the placer's reasons why instances have no region.
func (s *groupStatus) addPending(reasons []region.CountedReason) {
	if len(s.status.Pending) == 0 && len(reasons) > 0 {
		s.brief = reasons[0].Brief
	}
	s.status.Pending = append(s.status.Pending, CountsToProto(reasons)...)
}

// obstacle returns the first pending reason in one line, or "" if there is none. Each group's list
// begins with the main obstacle.
func (s *groupStatus) obstacle() string {
	if len(s.status.Pending) == 0 {
		return ""
	}
	first := s.status.Pending[0]
	return reason.WithMessage(first.GetReason(), cmp.Or(s.brief, first.GetMessage()))
}

// groupStatus computes the status of a group that must have count instances. sums are the latest
// summaries by region.
func (j *Job) groupStatus(name string, count int32, sums map[string]*nusav1.JobSummary, see Sight) *groupStatus {
	out := &nusav1.GroupStatus{Counts: &nusav1.InstanceCounts{}, Regions: map[string]*nusav1.InstanceCounts{}}
	s := &groupStatus{status: out}
	owners := j.owners(name, out)
	system := j.isSystem()
	total := int32(0)
	for _, r := range slices.Sorted(maps.Keys(owners)) {
		o := owners[r]
		total += o.instances
		if r == "" { // the region is gone; only the slots say how the instances ended
			counts.Add(out.Counts, &nusav1.InstanceCounts{Complete: o.instances - o.failed, Failed: o.failed})
			continue
		}
		if silent, cut := see.CutOff(r); cut {
			j.addCutOff(out, name, r, o, sums[r], silent, see)
			continue
		}
		if o.instances == 0 {
			if left := jobstatus.Remaining(sums[r].GetGroups()[name]); left > 0 {
				out.Regions[r] = &nusav1.InstanceCounts{Stopping: left}
				out.Counts.Stopping += left
			}
			continue
		}
		c, late := j.regionCounts(sums[r], name, o.open)
		c.Stopped = 0 // stopped instances have moved away, or are not wanted any more
		c.Held = min(c.GetHeld(), o.instances)
		s.behind = s.behind || late || o.again
		// Instances that the region does not count yet are pending in that region. After an
		// election such instances may run, because the stored counts are some seconds old.
		if missing := o.instances - counts.Live(c) - c.GetHeld(); missing > 0 && (!system || counts.Live(c) == 0) {
			if _, awaited := see.Awaited(r); awaited {
				c.Unknown += missing
			} else {
				c.Pending += missing
			}
		}
		if !system { // only the region knows how many instances a system job has
			counts.MoveSurplusToStopping(c, o.instances-c.GetHeld())
		}
		out.Regions[r] = c
		counts.Add(out.Counts, c)
		if system || c.GetPending()+c.GetStarting()+c.GetFailed()+c.GetLost()+c.GetOutdated() > 0 && !late {
			out.Pending = append(out.Pending, withRegion(r, sums[r].GetReasons()[name].GetReasons())...)
		} else if n := j.RetryingCanaries(j.PresentRollout(), name, r, see); late && n > 0 { // canaries beside the earlier version
			why := withRegion(r, []*nusav1.CountedReason{inBackoff(sums[r], name)})
			why[0].Count = n
			out.Pending = append(out.Pending, why...)
		}
	}
	j.addFormer(out, name, sums, see)
	if system {
		out.Desired = counts.Live(out.Counts) + out.Counts.GetUnknown()
		s.addPending(j.Decisions.Of(name).Pending)
		return s
	}
	out.Desired = count
	if j.Record.Stopped() {
		return s
	}
	out.Unowned = max(0, out.Desired-total)
	out.Counts.Pending += out.Unowned
	if out.Unowned > 0 {
		s.addPending(j.Decisions.Of(name).Pending)
	}
	return s
}

func (j *Job) isSystem() bool {
	return j.Record.Type() == place.System
}

// addCutOff adds the instances of a group in a region that is cut off. They are unknown, except
// those that ended before.
func (j *Job) addCutOff(out *nusav1.GroupStatus, group, name string, o owned, sum *nusav1.JobSummary, silent time.Duration, see Sight) {
	part := jobstatus.Owned{
		Wanted: o.instances, Unwanted: o.unwanted, System: j.isSystem(),
		Batch: j.Record.Type() == place.Batch,
	}
	if sum != nil {
		part.Last, _ = j.regionCounts(sum, group, o.open)
	}
	c, wanted, unwanted := part.Split()
	c.Unknown = wanted + unwanted
	if proto.Size(c) == 0 {
		return
	}
	out.Regions[name] = c
	counts.Add(out.Counts, c)
	add := func(n int32, u *nusav1.UnknownInstances) {
		if n > 0 {
			u.Region, u.Count, u.Silent = name, n, durationpb.New(silent)
			out.Unknown = append(out.Unknown, u)
		}
	}
	if wanted > 0 {
		u := &nusav1.UnknownInstances{Last: part.Last}
		outlook := see.outlook(j.ownedSlots(group, name), name)
		u.Message = outlook.Text(name)
		if outlook.Moves {
			u.MoveDue = durationpb.New(outlook.Due)
		}
		add(wanted, u)
	}
	unreached := &nusav1.UnknownInstances{Message: jobstatus.WhenItReturns(name, unwanted)}
	if wanted == 0 {
		unreached.Last = part.Last
	}
	add(unwanted, unreached)
}

// ownedSlots returns the slots of a group that a region owns and must run.
func (j *Job) ownedSlots(group, name string) (out []region.Slot) {
	for _, s := range j.SortedSlots() {
		if s.Group == group && s.Region == name && s.Desired == region.DesiredRun {
			out = append(out, s)
		}
	}
	return out
}

// addFormer adds the instances that former owners of the group's slots may still run. The placer
// removes former owners where nothing runs, as an operator stated, a little after the statement.
func (j *Job) addFormer(out *nusav1.GroupStatus, group string, sums map[string]*nusav1.JobSummary, see Sight) {
	count := map[string]int32{}
	hold := map[string]bool{}
	for s := range j.Slots.All() {
		for _, f := range s.Former {
			if s.Group == group && f.MayRun && !see.nothingRuns(f.Region) {
				count[f.Region] += int32(s.Count())
				hold[f.Region] = hold[f.Region] || f.Hold
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(count)) {
		u := &nusav1.UnknownInstances{Region: name, Count: count[name], Former: true}
		if !slices.ContainsFunc(out.Unknown, func(owned *nusav1.UnknownInstances) bool { return owned.GetRegion() == name }) {
			u.Last = sums[name].GetGroups()[group]
		}
		silent, cut := see.CutOff(name)
		switch {
		case cut:
			u.Silent = durationpb.New(silent)
			u.Message = fmt.Sprintf("may still run at %s, cut off for %s", name, jobstatus.Span(silent))
		case hold[name]:
			u.Message = fmt.Sprintf("%s is back and holds them, until the others have stopped", name)
		default:
			u.Message = fmt.Sprintf("may still run at %s, which has not confirmed yet that they have stopped", name)
		}
		out.Unknown = append(out.Unknown, u)
	}
}

// owners returns, by region, the part of a group that each region owns. It adds the group's slots
// to the group's status.
func (j *Job) owners(name string, out *nusav1.GroupStatus) map[string]owned {
	owners := map[string]owned{}
	for _, s := range j.SortedSlots() {
		if s.Group != name {
			continue
		}
		out.Slots = append(out.Slots, SlotToProto(s))
		if s.Vacant {
			continue
		}
		o := owners[s.Region]
		if s.Desired == region.DesiredRun {
			again := j.Record.obsolete(s.JobVersion, s.Group)
			o.instances += int32(s.Count())
			o.open, o.again = o.open || again || s.State != region.Done, o.again || again
			if s.Reason != "" {
				o.failed += int32(s.Count())
			}
		} else {
			o.unwanted += int32(s.Count())
		}
		owners[s.Region] = o
	}
	return owners
}

// regionCounts returns the counts of a group in a region's latest summary, for the present version
// and run. Instances of an earlier run do not count. Instances of an earlier version that start or
// run are outdated. Instances of an earlier version that failed are pending, because they are tried
// again.
func (j *Job) regionCounts(sum *nusav1.JobSummary, group string, open bool) (c *nusav1.InstanceCounts, behind bool) {
	c = proto.CloneOf(sum.GetGroups()[group])
	if c == nil {
		c = &nusav1.InstanceCounts{}
	}
	switch versioned := sum.GetVersion() != 0 || sum.GetRun() != 0; {
	case j.Record.Stopped() || !versioned:
	case sum.GetRun() > 0 && sum.GetRun() != j.Record.Run(j.Revision), sum.GetVersion() < 0:
		return &nusav1.InstanceCounts{}, true
	case open && sum.GetVersion() < j.Record.Version():
		more := sum.GetNewer()[group]
		if more.GetVersion() < j.Record.Version() {
			more = nil
		}
		c.Outdated = max(0, c.GetStarting()+c.GetRunning()-more.GetStarting()-more.GetRunning())
		c.Pending, c.Failed = c.GetPending()+c.GetFailed(), 0
		return c, true
	}
	return c, false
}

// withRegion returns copies of the reasons that name the region which reported them, also at the
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

// summarize returns the state of the job, and one line about the obstacle. obstacles holds the
// first pending reason of each group.
func (j *Job) summarize(groups map[string]*nusav1.GroupStatus, obstacles map[string]string, behind bool, see Sight) (nusav1.JobState, string) {
	if j.Record.Template() && !j.Record.Stopped() {
		line := ""
		if see.st != nil {
			line = see.st.Templates.Lines[j.Key]
		}
		return nusav1.JobState_JOB_STATE_RUNNING, line
	}
	system := j.isSystem()
	facts := jobstatus.Facts{
		Stopped: j.Record.Stopped(), Version: j.Record.Version(), Stopping: j.stopping(groups, see), Behind: behind,
		NotBegun: system && j.Slots.Len() == 0,
	}
	for _, g := range groups {
		counts.Add(&facts.Counts, g.GetCounts())
		facts.Desired += g.GetDesired()
	}
	batch := j.Record.Type() == place.Batch
	facts.Complete = batch && facts.Counts.Complete >= facts.Desired && facts.Stopping == ""
	phase := jobstatus.PhaseOf(&facts)
	summary := phase.Summary
	switch phase.Kind {
	case jobstatus.Running:
		if system {
			summary = nodesWithout(groups)
		}
		return phase.State(), j.withUnknown(summary, groups, see)
	case jobstatus.Updating:
		summary = j.withRolloutWait(summary)
	case jobstatus.Pending:
		summary = jobstatus.Waiting(&facts.Counts, facts.Desired)
	case jobstatus.Stopped, jobstatus.Stopping, jobstatus.Complete:
		return phase.State(), summary
	case jobstatus.Unknown, jobstatus.Replacing:
		return phase.State(), j.withUnknown(summary, groups, see)
	}
	return phase.State(), j.withUnknown(jobstatus.WithObstacle(summary, obstacles), groups, see)
}

// withUnknown adds facts to a summary: which instances are unknown, which may still run in a region
// that does not own them any more, for which regions the counts are from before an election, and
// which instances could go back to a region.
func (j *Job) withUnknown(summary string, groups map[string]*nusav1.GroupStatus, see Sight) string {
	var all [][]*nusav1.UnknownInstances
	for _, g := range groups {
		all = append(all, g.GetUnknown())
	}
	for _, former := range []bool{false, true} {
		summary = joinText(summary, jobstatus.UnknownText(jobstatus.Cuts(former, all...)))
	}
	return joinText(joinText(summary, j.awaitedText(see)), j.reviewText(see))
}

// awaitedText names the regions of the job that have not reconnected after an election. It returns
// "" if all have.
func (j *Job) awaitedText(see Sight) string {
	var names []string
	var since time.Duration
	for _, name := range j.touches() {
		ago, awaited := see.Awaited(name)
		if _, cut := see.CutOff(name); awaited && !cut {
			names, since = append(names, name), ago
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("counts from before the election %s ago: %s", jobstatus.Span(since), topo.ListNames(names))
}

// joinText joins two texts that may be empty.
func joinText(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// withRolloutWait adds why the job's version has not reached the first region that waits for it.
func (j *Job) withRolloutWait(summary string) string {
	names := slices.Sorted(maps.Keys(j.Notes().RolloutWaits))
	if len(names) == 0 {
		return summary
	}
	return summary + "; region " + names[0] + ": " + j.Notes().RolloutWaits[names[0]]
}

// nodesWithout says on how many nodes a system job runs, and why it does not run on the others, for
// example "web on 5 of 15 nodes; 10: not enough cpu". It returns "" when the job runs on all of its
// nodes.
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

// stopping describes the instances that still have to stop. It returns "" if there are none.
func (j *Job) stopping(groups map[string]*nusav1.GroupStatus, see Sight) string {
	stopped := j.Record.Stopped()
	left := int32(0)
	var unknown [][]*nusav1.UnknownInstances
	for _, g := range groups {
		left += g.GetCounts().GetStopping()
		unknown = append(unknown, g.GetUnknown())
	}
	text := jobstatus.StoppingInstances(left)
	if stopped {
		text = joinText(text, jobstatus.UnreachableText(jobstatus.Cuts(false, unknown...)))
	}
	if text != "" {
		return text
	}
	for _, s := range j.SortedSlots() {
		if !s.Vacant && (s.Desired != region.DesiredRun || stopped) {
			is := ""
			if silent, cut := see.CutOff(s.Region); cut {
				is = ", cut off for " + jobstatus.Span(silent) + ","
			}
			return "region " + s.Region + is + " has not confirmed yet that its instances have stopped"
		}
	}
	return ""
}
