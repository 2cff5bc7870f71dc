package global

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/internal/counts"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Revertible says that a job's rollouts are judged: some group has
// update.auto_revert, or had it when a version was healthy.
func (j *Job) Revertible() bool {
	job := j.Record.GetJob()
	if job.GetStopped() || job.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH {
		return false
	}
	return j.Healthy != nil || asksRevert(job.GetSpec())
}

func asksRevert(spec *nusav1.JobSpec) bool {
	for _, g := range spec.GetGroups() {
		if g.GetUpdate().GetAutoRevert() {
			return true
		}
	}
	return false
}

// keepHealthy keeps what a version that asks for auto_revert can go back to, where
// the one before did not: nobody has judged that, and it may well run whole.
func (t *Tx) keepHealthy(k JobKey, old *nusav1.JobRecord, rev int64, next *nusav1.JobSpec) error {
	j := t.State.Jobs[k]
	if j == nil || j.Record != old || !asksRevert(next) || old.GetJob().GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH {
		return nil
	}
	if verdict, _ := j.Rollout().Decide(); verdict != place.RolloutSetHealthy {
		return nil
	}
	return t.PutHealthy(k, old, RunOf(old, rev))
}

// PutHealthy stores a version that ran whole.
func (t *Tx) PutHealthy(k JobKey, rec *nusav1.JobRecord, run int64) error {
	kept := proto.CloneOf(rec)
	kept.Job.Run = run
	return t.PutBlind(k.HealthyKey(), kept, 0)
}

// Rollout is what is known of the present version. A version that runs nothing,
// or nothing of a group with auto_revert, proves nothing: who scales to 0 and
// then submits what fails wants back what ran before. mu is held.
func (j *Job) Rollout() place.Rollout {
	status := j.Status()
	out := place.Rollout{
		Version:    j.Record.GetJob().GetVersion(),
		AllRunning: status.GetState() == nusav1.JobState_JOB_STATE_RUNNING,
		Failed:     status.GetState() == nusav1.JobState_JOB_STATE_FAILED,
		Why:        status.GetMessage(),
	}
	desired := int32(0)
	for name, g := range status.GetGroups() {
		asks := j.Record.GetJob().GetSpec().GetGroups()[name].GetUpdate().GetAutoRevert()
		out.AutoRevert = out.AutoRevert || asks && g.GetCounts().GetFailed() > 0
		out.AllRunning = out.AllRunning && (!asks || g.GetDesired() > 0)
		desired += g.GetDesired()
	}
	out.AllRunning = out.AllRunning && desired > 0
	// A run that has begun since is no rollout over what was before it.
	if h := j.Healthy; h != nil && h.GetJob().GetRun() == RunOf(j.Record, j.Revision) {
		spec, err := EncodeSpec(h)
		out.Healthy, out.SameSpec = h.GetJob().GetVersion(), err == nil && bytes.Equal(spec, j.EncodedSpec)
	}
	return out
}

// Reported is what regions said last of a job, where the version of a record that
// restarts groups has not reached all of it; nil elsewhere. mu is held.
func (j *Job) Reported(rec *nusav1.JobRecord) (out []place.Summary) {
	rolls := false
	for _, s := range j.Slots {
		rolls = rolls || obsolete(rec, s)
	}
	if !rolls {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(j.Summaries)) {
		sum := j.Summaries[name]
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

// stagesPlanned keeps which regions wait with a new version, and answers the
// jobs that have such. mu is held.
func (st *State) stagesPlanned(plan place.Plan, jobs map[JobKey]seen) map[JobKey]map[string]string {
	wait := stagesOf(plan)
	for k := range jobs {
		if j := st.Jobs[k]; j != nil && !maps.Equal(j.RolloutWaits, wait[k]) {
			j.RolloutWaits = wait[k]
			j.Stamp = st.Notify()
		}
	}
	return wait
}

// stagesOf are the regions of each job that wait with its version, and why.
func stagesOf(plan place.Plan) map[JobKey]map[string]string {
	wait := map[JobKey]map[string]string{}
	for _, s := range plan.RolloutStages {
		k := JobKey{s.Namespace, s.Job}
		if wait[k] == nil {
			wait[k] = map[string]string{}
		}
		wait[k][s.Region] = s.Why
	}
	return wait
}

// withRolloutWait adds to a summary of the job why its version has not reached the first
// region that it has not.
func (j *Job) withRolloutWait(summary string) string {
	why := ""
	for _, name := range slices.Sorted(maps.Keys(j.RolloutWaits)) {
		if why == "" {
			why = "region " + name + ": " + j.RolloutWaits[name]
		}
	}
	if why == "" {
		return summary
	}
	return summary + "; " + why
}

// pendingRollout is a rollout whose verdict is to be carried out.
type pendingRollout struct {
	key     JobKey
	rec     *nusav1.JobRecord
	rev     int64
	healthy *nusav1.JobRecord
	verdict place.RolloutDecision
	why     string
}

// rollouts judges the jobs of which regions have said something new.
func (a *active) rollouts(ctx context.Context) error {
	var decided []pendingRollout
	a.st.mu.Lock()
	for k := range a.st.Rollouts {
		delete(a.st.Rollouts, k)
		j := a.st.Jobs[k]
		if j == nil || j.Record == nil || !j.Revertible() {
			continue
		}
		if verdict, why := j.Rollout().Decide(); verdict != place.RolloutWait {
			decided = append(decided, pendingRollout{k, j.Record, j.Revision, j.Healthy, verdict, why})
		}
	}
	a.st.mu.Unlock()
	for i, r := range decided {
		if err := a.settle(ctx, r); err != nil {
			a.st.mu.Lock()
			for _, left := range decided[i:] {
				a.st.Rollouts[left.key] = struct{}{} // again with the next wake
			}
			a.st.mu.Unlock()
			return fmt.Errorf("rollout of %s: %w", r.key, err)
		}
	}
	return nil
}

// errChanged: the job was changed since a rollout of it was judged.
var errChanged = errors.New("overtaken by another change")

// settle carries a verdict out, unless the job has changed since.
func (a *active) settle(ctx context.Context, r pendingRollout) error {
	next := &nusav1.JobRecord{}
	_, err := a.commit.Do(ctx, func(t *Tx) error {
		if rec, rev := t.Job(r.key); rec == nil || rev != r.rev {
			return errChanged
		}
		switch run := RunOf(r.rec, r.rev); r.verdict {
		case place.RolloutSetHealthy:
			return t.PutHealthy(r.key, r.rec, run)
		case place.RolloutForgetHealthy:
			return t.DeleteBlind(r.key.HealthyKey())
		default:
			next = &nusav1.JobRecord{Job: &nusav1.Job{
				Spec: r.healthy.GetJob().GetSpec(), Version: r.rec.GetJob().GetVersion() + 1, Run: run, Submitted: timestamppb.Now(),
				Reverted: &nusav1.Reverted{Version: r.rec.GetJob().GetVersion(), To: r.healthy.GetJob().GetVersion(), Why: r.why},
			}}
			next.Since = Since(r.rec, next.GetJob())
			if err := t.PutJob(r.key, next); err != nil {
				return err
			}
			return t.Audit("job.reverted", r.key.String(), r.why)
		}
	})
	switch {
	case errors.Is(err, errChanged):
		return nil
	case err == nil && r.verdict == place.RolloutRevert:
		a.st.Events.Add("job.reverted", r.key.String(), "version %d is as version %d was, which was healthy; %s",
			next.GetJob().GetVersion(), r.healthy.GetJob().GetVersion(), r.why)
		a.log.Warn("job reverted", "job", r.key.String(), "version", next.GetJob().GetVersion(), "to", r.healthy.GetJob().GetVersion(), "why", r.why)
	}
	return err
}
