package state

import (
	"bytes"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/internal/counts"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Revertible reports whether a job's rollouts are evaluated: some group has update.auto_revert now,
// or had it in the stored healthy version.
func (j *Job) Revertible() bool {
	if j.Record.Stopped() || j.Record.Type() == place.Batch {
		return false
	}
	return j.Healthy != nil || j.Record.asksRevert()
}

func asksRevert(spec *nusav1.JobSpec) bool {
	for _, g := range spec.GetGroups() {
		if g.GetUpdate().GetAutoRevert() {
			return true
		}
	}
	return false
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
	// The first version of a new run has no version to revert to.
	if h := j.Healthy; h != nil && h.Run(0) == j.Record.Run(j.Revision) {
		out.Healthy, out.SameSpec = h.Version(), bytes.Equal(h.spec, j.Record.encoded())
	}
	return out
}

// Reported returns the regions' latest summaries of a job. It returns nil unless the version of rec
// changes the work of groups and has not reached all instances. The lock is held.
func (j *Job) Reported(rec *Record) (out []place.Summary) {
	rolling := false
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
				Live: int(counts.Live(c)), Pending: int(c.GetPending()), Failed: int(c.GetFailed()), Busy: int(c.GetStarting() + c.GetOutdated()),
			}
		}
		out = append(out, t)
	}
	return out
}
