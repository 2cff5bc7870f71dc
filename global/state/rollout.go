package state

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/progress"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Revertible reports whether a job's rollouts are evaluated: some group has update.auto_revert or canaries
// now, or had it in the stored healthy version.
func (j *Job) Revertible() bool {
	if j.Record.Stopped() || j.Record.Type() == place.Batch {
		return false
	}
	return j.Healthy != nil || j.Record.keepsHealthy()
}

// keepsHealthy reports whether a job with the spec needs its latest healthy version: auto_revert returns to
// that version, and instances below canaries keep it.
func keepsHealthy(spec *nusav1.JobSpec) bool {
	for _, g := range spec.GetGroups() {
		if job.AutoRevert(g) || g.GetUpdate().GetCanary() > 0 {
			return true
		}
	}
	return false
}

// stable returns the healthy version of the job's present run in the form of package place, or nil. The
// lock is held.
func (j *Job) stable() *place.Job {
	h := j.Healthy
	if h == nil || j.Record == nil || h.Run(0) != j.Record.Run(j.Revision) || h.Version() == j.Record.Version() {
		return nil
	}
	out := h.ToPlace(0)
	return &out
}

// Rollout returns the facts about the present version's rollout. A version that runs nothing, or
// nothing of a group with auto_revert, is not healthy. The reason: a user who scales to 0, and then
// submits a version that fails, expects the version from before the scaling. The lock is held.
func (j *Job) Rollout(see Sight) place.Rollout {
	status := j.Status(see)
	out := place.Rollout{
		Version:    j.Record.Version(),
		AllRunning: status.GetState() == nusav1.JobState_JOB_STATE_RUNNING,
		Failed:     status.GetState() == nusav1.JobState_JOB_STATE_FAILED,
		Why:        status.GetMessage(),
	}
	desired := int32(0)
	for name, g := range status.GetGroups() {
		asks := j.Record.rulesOf(name).autoRevert
		out.AutoRevert = out.AutoRevert || asks && g.GetCounts().GetFailed() > 0
		out.AllRunning = out.AllRunning && (!asks || g.GetDesired() > 0)
		desired += g.GetDesired()
	}
	out.AllRunning = out.AllRunning && desired > 0
	if rec := j.PresentRollout(); rec.GetFailed() != "" {
		out.Failed, out.Why, out.AutoRevert = true, rec.GetFailed(), j.Record.asksRevert()
	}
	// The first version of a new run has no version to revert to.
	if h := j.Healthy; h != nil && h.Run(0) == j.Record.Run(j.Revision) {
		out.Healthy, out.SameSpec = h.Version(), bytes.Equal(h.encoded(), j.Record.encoded())
	}
	return out
}

// HowItRan returns why the version of rec has failed, or else whether every instance ran it once. It knows
// neither unless rec is the present version. The lock is held.
func (j *Job) HowItRan(rec *Record, see Sight) (failed string, complete bool) {
	if j == nil || j.Record == nil || j.Record != rec || rec.Type() == place.Batch {
		return "", false
	}
	if now := j.Rollout(see); now.Failed {
		return cmp.Or(now.Why, "it failed"), false
	} else if now.AllRunning {
		return "", true
	}
	r := j.StoredRollout // also of a job that was stopped since
	return "", r.GetDone() && r.GetRun() == rec.Run(j.Revision) && r.GetVersion() == rec.Version()
}

// HealthyVersion returns the stored healthy version of a run of the job, if rec is its present version; 0: none.
// The lock is held.
func (j *Job) HealthyVersion(rec *Record) int64 {
	if j == nil || j.Record != rec || j.Healthy == nil || j.Healthy.Run(0) != rec.Run(j.Revision) {
		return 0
	}
	return j.Healthy.Version()
}

// RolledOut returns the latest version that changed the work of a group in the present run; 0: none
// did.
func (r *Record) RolledOut() (version int64) {
	for _, since := range r.since {
		version = max(version, since)
	}
	return version
}

// ChangedSince returns the version that last changed the work of a group; 0: none did in this run.
func (r *Record) ChangedSince(group string) int64 { return r.since[group] }

// PresentRollout returns the stored record of the rollout of the present version, or nil. The lock is
// held.
func (j *Job) PresentRollout() *nusav1.RolloutRecord {
	r := j.StoredRollout
	if r == nil || j.Record == nil || j.Record.Stopped() || r.GetRun() != j.Record.Run(j.Revision) || r.GetVersion() != j.Record.RolledOut() {
		return nil
	}
	return r
}

// firstVersion reports whether the job never had another version, and needs no healthy one. Then it has
// no rollout to evaluate. The lock is held.
func (j *Job) firstVersion() bool {
	return j.Record.Version() == 1 && j.Healthy == nil && j.StoredRollout == nil && !j.Record.keepsHealthy()
}

// InPlace returns what the present version changed in place: what was stored when its rollout was done, or else
// what the regions report now. The lock is held.
func (j *Job) InPlace() []*nusav1.InPlaceChange { return j.inPlace(j.Summaries.Decoded) }

func (j *Job) inPlace(sums func() map[string]*nusav1.JobSummary) []*nusav1.InPlaceChange {
	if j.Record == nil || j.Record.RolledOut() == 0 || j.Record.RolledOut() != j.Record.Version() {
		return nil
	}
	if rec := j.PresentRollout(); rec.GetDone() {
		return rec.GetInPlace()
	}
	return j.inPlaceNow(sums())
}

// inPlaceNow is InPlace according to the regions' summaries. Only groups count whose work the version changed:
// instances of the others may have changed in place before.
func (j *Job) inPlaceNow(sums map[string]*nusav1.JobSummary) (out []*nusav1.InPlaceChange) {
	version := j.Record.RolledOut()
	for i := range j.Place().Groups {
		name := j.Place().Groups[i].Name
		if version == 0 || j.Record.ChangedSince(name) != version {
			continue
		}
		change := &nusav1.InPlaceChange{Group: name}
		for _, sum := range sums {
			if n := sum.GetInPlace()[name]; sum.GetVersion() >= version {
				change.Instances += n
				change.Started += max(0, sum.GetGroups()[name].GetRunning()-sum.GetGroups()[name].GetOutdated()-n)
			}
		}
		if change.Instances > 0 {
			out = append(out, change)
		}
	}
	return out
}

// rollsOut reports whether a version that changed the work of a group may not run everywhere yet. The
// lock is held.
func (j *Job) rollsOut() bool {
	return j.Record.RolledOut() > 0 && !j.Record.Stopped() && !j.PresentRollout().GetDone()
}

// holdText says why a paused or failed rollout goes no further.
func holdText(rec *nusav1.RolloutRecord) string {
	switch {
	case rec.GetFailed() != "":
		return fmt.Sprintf("version %d failed: %s", rec.GetVersion(), rec.GetFailed())
	case rec.GetPausedBecause() != "":
		return fmt.Sprintf("the rollout of version %d is paused: %s", rec.GetVersion(), rec.GetPausedBecause())
	}
	return fmt.Sprintf("the rollout of version %d is paused", rec.GetVersion())
}

// addRollout adds the rollout of the present version to a status, unless it is done. A rollout that
// missed a deadline, or that an operator failed, makes the job failed. A status of the zero Sight has
// no rollout: how far a rollout is depends on the present time. The lock is held.
func (j *Job) addRollout(out *nusav1.JobStatus, see Sight) {
	rec := j.PresentRollout()
	if rec == nil || rec.GetDone() || see.st == nil {
		return
	}
	r := &nusav1.Rollout{Version: rec.GetVersion(), State: nusav1.RolloutState_ROLLOUT_STATE_RUNNING, Began: rec.GetBegan(), Regions: map[string]*nusav1.RegionRollout{}}
	waits := j.Notes().RolloutWaits
	for name, g := range out.GetGroups() {
		if j.Record.ChangedSince(name) == 0 {
			continue
		}
		for at, c := range g.GetRegions() {
			to := r.Regions[at]
			if to == nil {
				to = j.regionRollout(rec, at, waits[at])
				r.Regions[at] = to
			}
			to.Desired += counts.Live(c)
			to.Outdated += c.GetOutdated()
			to.Healthy += max(0, c.GetRunning()-c.GetOutdated())
		}
	}
	pause, after := j.PauseLeft(rec)
	if pause > 0 && !CanaryStage(rec) {
		r.PauseLeft = durationpb.New(pause)
	}
	j.continues(out, r, rec)
	switch due, held := j.Notes().RolloutDue, j.DeadlinesHeld(see); {
	case rec.GetFailed() != "":
		r.State, r.Message = nusav1.RolloutState_ROLLOUT_STATE_FAILED, holdText(rec)
		if out.GetState() == nusav1.JobState_JOB_STATE_STARTING || out.GetState() == nusav1.JobState_JOB_STATE_PENDING {
			out.State, out.Message = nusav1.JobState_JOB_STATE_FAILED, r.GetMessage()
		}
	case rec.GetPaused():
		r.State, r.Message = nusav1.RolloutState_ROLLOUT_STATE_PAUSED, holdText(rec)
	case CanaryStage(rec):
		j.addCanaries(r, rec, see)
	case held != "" && pause > 0: // the status shows the pause
	case held != "":
		r.Message = "its deadlines do not count now: " + held
	case due > 0:
		r.Deadline = durationpb.New(max(0, due-see.st.Clock()))
	case pause == 0 && after != "": // until the next plan
		r.Message = "the pause after region " + after + " is over, the next region follows"
	}
	out.Rollout = r
}

// DeadlinesHeld returns why no deadline of the job's rollout counts now, or "". The lock is held.
func (j *Job) DeadlinesHeld(see Sight) string {
	for _, name := range j.Regions() {
		if _, cut := see.CutOff(name); cut {
			return "region " + name + " is disconnected"
		}
		if _, awaited := see.Awaited(name); awaited {
			return "region " + name + " has not reconnected since the election"
		}
		if holdsCanary(j, name, see) {
			return "an override of region " + name + " may keep a canary stopped"
		}
	}
	return ""
}

// regionRollout returns what is stored about a region of a rollout.
func (j *Job) regionRollout(rec *nusav1.RolloutRecord, name, waits string) *nusav1.RegionRollout {
	out := &nusav1.RegionRollout{Waits: waits}
	if o := j.Place().RegionOrder; o != nil {
		out.Turn = int32(slices.Index(o.First, name) + 1)
	}
	if end := rec.GetRegions()[name]; end != nil {
		out.Ended, out.Failed = end.GetAt(), end.GetFailed()
	}
	return out
}

// continues corrects the state of a job whose version has failed in a region and goes on to the next ones:
// the job has not failed yet.
func (j *Job) continues(out *nusav1.JobStatus, r *nusav1.Rollout, rec *nusav1.RolloutRecord) {
	o := j.Place().RegionOrder
	if o == nil || !o.Continue || rec.GetFailed() != "" || out.GetState() != nusav1.JobState_JOB_STATE_FAILED {
		return
	}
	left := slices.ContainsFunc(slices.Collect(maps.Values(r.GetRegions())), func(at *nusav1.RegionRollout) bool {
		return at.GetWaits() != "" || at.GetEnded() == nil && at.GetHealthy() < at.GetDesired()
	})
	if left {
		out.State = nusav1.JobState_JOB_STATE_STARTING
		out.Message = joinText(out.GetMessage(), "the rollout continues with the next regions")
	}
}

// order returns the job's RegionOrder with what is stored about its rollout.
func (j *Job) order(rec *nusav1.RolloutRecord) *place.RegionOrder {
	of := j.Place().RegionOrder
	if of == nil || rec == nil {
		return of
	}
	out := withEnds(of, rec)
	out.PauseLeft, out.After = j.PauseLeft(rec)
	return out
}

// withEnds returns a RegionOrder with the regions in which a stored rollout has ended.
func withEnds(of *place.RegionOrder, rec *nusav1.RolloutRecord) *place.RegionOrder {
	out := *of
	out.Stored, out.Ended = !rec.GetDone(), map[string]string{}
	for name, end := range rec.GetRegions() {
		out.Ended[name] = end.GetFailed()
	}
	return &out
}

// PauseLeft returns how long a rollout waits before the next region gets the version, and after which
// region: update.regions.pause_between. It returns 0 if there is no pause. The lock is held.
func (j *Job) PauseLeft(rec *nusav1.RolloutRecord) (left time.Duration, after string) {
	o := j.Place().RegionOrder
	if o == nil || o.PauseBetween == 0 || rec.GetDone() {
		return 0, ""
	}
	ended, unpaused := map[string]time.Time{}, time.Time{}
	for name, end := range rec.GetRegions() {
		ended[name] = end.GetAt().AsTime()
	}
	if rec.GetUnpaused() != nil {
		unpaused = rec.GetUnpaused().AsTime()
	}
	return progress.PauseLeft(o.PauseBetween, ended, unpaused, time.Now())
}

// RegionsOfRollout returns the regions with instances of groups whose work the rolled-out version changed, by how
// far they are, and where the version has failed. Empty: nowhere. The lock is held.
func (j *Job) RegionsOfRollout(rec *nusav1.RolloutRecord) (out progress.Regions, failedIn string) {
	version, reach := j.Record.RolledOut(), progress.Reach{}
	for s := range j.Slots.All() {
		if s.Desired == region.DesiredRun {
			reach.Add(s.Region, j.Record.obsolete(s.JobVersion, s.Group), j.Record.ChangedSince(s.Group) == version)
		}
	}
	parts := make([]progress.Part, 0, len(reach))
	for name, reached := range reach {
		sum := j.Summaries.Get(name)
		p := progress.Part{Name: name, Reached: reached, Reported: sum.GetVersion() >= version, Complete: runsAll(sum), Failed: int(failures(sum))}
		if end := rec.GetRegions()[name]; end != nil {
			p.Ended, p.FailedBecause = end.GetAt().AsTime(), end.GetFailed()
		}
		parts = append(parts, p)
	}
	out = progress.Divide(parts)
	if len(out.Failed) > 0 {
		failedIn = fmt.Sprintf("in %d of %d regions: %s", len(out.Failed), len(parts), topo.ListNames(out.Failed))
	}
	return out, failedIn
}

// runsAll reports whether every instance in a region runs, by its summary.
func runsAll(sum *nusav1.JobSummary) bool {
	for _, c := range sum.GetGroups() {
		if c.GetPending()+c.GetStarting()+c.GetFailed()+c.GetOutdated()+c.GetLost() > 0 {
			return false
		}
	}
	return sum != nil
}

// Retrying returns how many instances of a group wait in the given regions for the next attempt of a version, after
// one that failed. Only regions count that have reported no earlier version. The lock is held.
func (j *Job) Retrying(group string, version int64, regions map[string]*nusav1.InstanceCounts) (n int32) {
	for name, c := range regions {
		if sum := j.Summaries.Get(name); sum.GetVersion() >= version && sum.GetRun() == j.Record.Run(j.Revision) {
			n += min(c.GetPending(), inBackoff(sum, group).GetCount())
		}
	}
	return n
}

// RetryingCanaries returns how many canaries of a group wait in a region for their next attempt, after one that
// failed. The empty name means all regions. The lock is held.
func (j *Job) RetryingCanaries(rec *nusav1.RolloutRecord, group, name string, see Sight) (n int32) {
	if !CanaryStage(rec) {
		return 0
	}
	for _, at := range canariesOf(j, rec, see) {
		if _, cut := see.CutOff(at.region); !cut && at.group == group && (name == "" || at.region == name) {
			n += at.retrying(j.Summaries.Get(at.region), rec)
		}
	}
	return n
}

// retrying returns how many of the canaries wait for their next attempt, at least. A region counts its back-offs
// without their versions, so as many as can be are those of other pending instances.
func (c canaries) retrying(sum *nusav1.JobSummary, rec *nusav1.RolloutRecord) int32 {
	if sum.GetRun() != rec.GetRun() {
		return 0
	}
	all, pending := sum.GetGroups()[c.group], c.owned
	if sum.GetVersion() < rec.GetVersion() {
		more := sum.GetNewer()[c.group]
		if more.GetVersion() < rec.GetVersion() { // the region does not know the version yet, or does not say
			return 0
		}
		pending -= more.GetRunning() + more.GetStarting() + all.GetFailed()
	}
	others := max(0, all.GetPending()-max(0, pending))
	return max(0, min(pending, inBackoff(sum, c.group).GetCount()-others))
}

// inBackoff returns what a region reports about the instances of a group that have failed and wait for their next
// attempt, or nil.
func inBackoff(sum *nusav1.JobSummary, group string) *nusav1.CountedReason {
	for _, c := range sum.GetReasons()[group].GetReasons() {
		if c.GetReason() == nusav1.Reason_REASON_BACKOFF {
			return c
		}
	}
	return nil
}

// failures returns how many instances have failed for good, by a region's summary.
func failures(sum *nusav1.JobSummary) (n int32) {
	for _, c := range sum.GetGroups() {
		n += c.GetFailed()
	}
	return n
}

// Reported returns the regions' latest summaries of a job. It returns nil unless the version of rec
// changes the work of groups and has not reached all instances, or some group has `parallel`. The lock is
// held.
func (j *Job) Reported(rec *Record) (out []place.Summary) {
	rolling := slices.ContainsFunc(rec.spec.job.Groups, func(g place.Group) bool { return g.Parallel > 0 })
	for s := range j.Slots.All() {
		rolling = rolling || rec.obsolete(s.JobVersion, s.Group)
	}
	if !rolling {
		return nil
	}
	for _, name := range j.Summaries.Regions() {
		sum := j.Summaries.Get(name)
		t := place.Summary{Region: name, Version: sum.GetVersion(), Run: sum.GetRun(), Groups: map[string]place.GroupCounts{}}
		for group, c := range sum.GetGroups() {
			t.Groups[group] = place.GroupCounts{
				Live: int(counts.Live(c) + c.GetHeld()), Pending: int(c.GetPending()), Failed: int(c.GetFailed()), Busy: int(c.GetStarting() + c.GetOutdated()),
				Ended: int(c.GetComplete() + c.GetFailed()), Open: int(c.GetPending() + c.GetStarting() + c.GetRunning() + c.GetLost()),
				Waiting: int(waitingForTurn(sum, group)),
			}
		}
		out = append(out, t)
	}
	return out
}

// ParallelLevel is the feature level of the global servers that divide `parallel` of groups among regions.
// Under an earlier server no instance of such a group would begin.
const ParallelLevel = 8

// CanaryLevel and OrderLevel are the feature levels of the global servers that know canaries, and an order
// of regions. A server of a lower level would stop canaries and replace all instances, or update all regions
// at once.
const (
	CanaryLevel = 5
	OrderLevel  = 6
)

// beginRollout stores the rollout of a version that has canaries, or an order of regions, and that changes
// the work of a group. So no plan and no election comes between the version and what bounds its rollout.
func beginRollout(t *Tx, k JobKey, old *Record, rev int64, s Submission, rec *nusav1.JobRecord) error {
	if old == nil || len(rec.GetSince()) == 0 || s.Spec.job.Type == place.Batch {
		return nil
	}
	changed := slices.ContainsFunc(slices.Collect(maps.Values(rec.GetSince())), func(v int64) bool { return v == rec.GetJob().GetVersion() })
	out := &nusav1.RolloutRecord{Run: rec.GetJob().GetRun(), Version: rec.GetJob().GetVersion(), Began: rec.GetJob().GetSubmitted(), Canaries: map[string]*nusav1.CanaryRecord{}}
	if s.Spec.job.Type == place.Service {
		addCanariesTo(t, out, k, old, rev, s, rec)
	}
	ordered := changed && s.Spec.job.RegionOrder != nil && slices.ContainsFunc(t.Slots(k, ""), func(slot region.Slot) bool {
		return slot.Desired == region.DesiredRun && slot.JobVersion < rec.GetSince()[slot.Group]
	})
	level, field := uint32(CanaryLevel), "canary"
	if ordered {
		level, field = OrderLevel, "regions"
	}
	switch {
	case len(out.GetCanaries()) == 0 && !ordered:
		return nil
	case t.State.GlobalLevel < level:
		return status.Errorf(codes.FailedPrecondition, "job %s: update.%s needs feature level %d of each global server: upgrade them first, or leave it out", k, field, level)
	}
	return t.PutRollout(k, out)
}

// addCanariesTo adds the canaries of a version to its rollout: those of each group with update.canary whose
// work it changes. The canaries come after the instances of the earlier version. A version that takes back
// a change whose canaries were not promoted has none.
func addCanariesTo(t *Tx, out *nusav1.RolloutRecord, k JobKey, old *Record, rev int64, s Submission, rec *nusav1.JobRecord) {
	before := t.Rollout(k)
	if before.GetRun() != old.Run(rev) || before.GetVersion() != old.RolledOut() || before.GetPromoted() || before.GetDone() {
		before = nil
	}
	was := old.Spec().GetGroups()
	for i := range s.Spec.job.Groups {
		g, rules := &s.Spec.job.Groups[i], &s.Spec.rules[i]
		if rules.canaries == 0 || rec.GetSince()[g.Name] != rec.GetJob().GetVersion() || was[g.Name] == nil {
			continue
		}
		c := &nusav1.CanaryRecord{From: was[g.Name].GetCount(), Count: int32(rules.canaries), Before: job.GroupHash(was[g.Name])}
		if b := before.GetCanaries()[g.Name]; b != nil {
			c.From, c.Before = b.GetFrom(), b.GetBefore()
		}
		for _, slot := range t.Slots(k, g.Name) {
			if int32(slot.From) < c.GetFrom() && slot.Desired == region.DesiredRun {
				c.From = max(c.GetFrom(), int32(slot.To))
			}
		}
		if c.GetFrom() > 0 && rules.work != c.GetBefore() {
			out.Canaries[g.Name] = c
		}
	}
}
