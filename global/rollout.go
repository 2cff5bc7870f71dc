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

// mayRevert says that a job's rollouts are judged: some group has
// update.auto_revert, or had it when a version was healthy.
func (j *jobState) mayRevert() bool {
	job := j.rec.GetJob()
	if job.GetStopped() || job.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH {
		return false
	}
	return j.healthy != nil || asksRevert(job.GetSpec())
}

func asksRevert(spec *nusav1.JobSpec) bool {
	for _, g := range spec.GetGroups() {
		if g.GetUpdate().GetAutoRevert() {
			return true
		}
	}
	return false
}

// remember keeps what a version that asks for auto_revert can go back to, where
// the one before did not: nobody has judged that, and it may well run whole.
func (t *tx) remember(k jobKey, old *nusav1.JobRecord, rev int64, next *nusav1.JobSpec) error {
	j := t.st.jobs[k]
	if j == nil || j.rec != old || !asksRevert(next) || old.GetJob().GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH {
		return nil
	}
	if verdict, _ := j.rollout().Decide(); verdict != place.RolloutSetHealthy {
		return nil
	}
	return t.putHealthy(k, old, runOf(old, rev))
}

// putHealthy stores a version that ran whole.
func (t *tx) putHealthy(k jobKey, rec *nusav1.JobRecord, run int64) error {
	kept := proto.CloneOf(rec)
	kept.Job.Run = run
	return t.putBlind(k.healthy(), kept, 0)
}

// rollout is what is known of the present version. A version that runs nothing,
// or nothing of a group with auto_revert, proves nothing: who scales to 0 and
// then submits what fails wants back what ran before. mu is held.
func (j *jobState) rollout() place.Rollout {
	status := j.status()
	out := place.Rollout{
		Version:    j.rec.GetJob().GetVersion(),
		AllRunning: status.GetState() == nusav1.JobState_JOB_STATE_RUNNING,
		Failed:     status.GetState() == nusav1.JobState_JOB_STATE_FAILED,
		Why:        status.GetMessage(),
	}
	desired := int32(0)
	for name, g := range status.GetGroups() {
		asks := j.rec.GetJob().GetSpec().GetGroups()[name].GetUpdate().GetAutoRevert()
		out.AutoRevert = out.AutoRevert || asks && g.GetCounts().GetFailed() > 0
		out.AllRunning = out.AllRunning && (!asks || g.GetDesired() > 0)
		desired += g.GetDesired()
	}
	out.AllRunning = out.AllRunning && desired > 0
	// A run that has begun since is no rollout over what was before it.
	if h := j.healthy; h != nil && h.GetJob().GetRun() == runOf(j.rec, j.rev) {
		spec, err := encodeSpec(h)
		out.Healthy, out.SameSpec = h.GetJob().GetVersion(), err == nil && bytes.Equal(spec, j.spec)
	}
	return out
}

// told is what regions said last of a job, where the version of a record that
// restarts groups has not reached all of it; nil elsewhere. mu is held.
func (j *jobState) told(rec *nusav1.JobRecord) (out []place.Summary) {
	rolls := false
	for _, s := range j.slots {
		rolls = rolls || obsolete(rec, s)
	}
	if !rolls {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(j.summaries)) {
		sum := j.summaries[name]
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
func (st *state) stagesPlanned(plan place.Plan, jobs map[jobKey]lookedAt) map[jobKey]map[string]string {
	wait := stagesOf(plan)
	for k := range jobs {
		if j := st.jobs[k]; j != nil && !maps.Equal(j.stages, wait[k]) {
			j.stages = wait[k]
			j.stamp = st.notify()
		}
	}
	return wait
}

// stagesOf are the regions of each job that wait with its version, and why.
func stagesOf(plan place.Plan) map[jobKey]map[string]string {
	wait := map[jobKey]map[string]string{}
	for _, s := range plan.RolloutStages {
		k := jobKey{s.Namespace, s.Job}
		if wait[k] == nil {
			wait[k] = map[string]string{}
		}
		wait[k][s.Region] = s.Why
	}
	return wait
}

// staged adds to a summary of the job why its version has not reached the first
// region that it has not.
func (j *jobState) staged(summary string) string {
	why := ""
	for _, name := range slices.Sorted(maps.Keys(j.stages)) {
		if why == "" {
			why = "region " + name + ": " + j.stages[name]
		}
	}
	if why == "" {
		return summary
	}
	return summary + "; " + why
}

// judged is a rollout whose verdict is to be carried out.
type judged struct {
	key     jobKey
	rec     *nusav1.JobRecord
	rev     int64
	healthy *nusav1.JobRecord
	verdict place.RolloutDecision
	why     string
}

// rollouts judges the jobs of which regions have said something new.
func (a *active) rollouts(ctx context.Context) error {
	var todo []judged
	a.st.mu.Lock()
	for k := range a.st.rollouts {
		delete(a.st.rollouts, k)
		j := a.st.jobs[k]
		if j == nil || j.rec == nil || !j.mayRevert() {
			continue
		}
		if verdict, why := j.rollout().Decide(); verdict != place.RolloutWait {
			todo = append(todo, judged{k, j.rec, j.rev, j.healthy, verdict, why})
		}
	}
	a.st.mu.Unlock()
	for i, r := range todo {
		if err := a.settle(ctx, r); err != nil {
			a.st.mu.Lock()
			for _, left := range todo[i:] {
				a.st.rollouts[left.key] = struct{}{} // again with the next wake
			}
			a.st.mu.Unlock()
			return fmt.Errorf("rollout of %s: %w", r.key, err)
		}
	}
	return nil
}

// errOvertaken: the job was changed since a rollout of it was judged.
var errOvertaken = errors.New("overtaken by another change")

// settle carries a verdict out, unless the job has changed since.
func (a *active) settle(ctx context.Context, r judged) error {
	next := &nusav1.JobRecord{}
	_, err := a.commit.do(ctx, func(t *tx) error {
		if rec, rev := t.job(r.key); rec == nil || rev != r.rev {
			return errOvertaken
		}
		switch run := runOf(r.rec, r.rev); r.verdict {
		case place.RolloutSetHealthy:
			return t.putHealthy(r.key, r.rec, run)
		case place.RolloutForgetHealthy:
			return t.deleteBlind(r.key.healthy())
		default:
			next = &nusav1.JobRecord{Job: &nusav1.Job{
				Spec: r.healthy.GetJob().GetSpec(), Version: r.rec.GetJob().GetVersion() + 1, Run: run, Submitted: timestamppb.Now(),
				Reverted: &nusav1.Reverted{Version: r.rec.GetJob().GetVersion(), To: r.healthy.GetJob().GetVersion(), Why: r.why},
			}}
			next.Since = since(r.rec, next.GetJob())
			if err := t.putJob(r.key, next); err != nil {
				return err
			}
			return t.audit("job.reverted", r.key.String(), r.why)
		}
	})
	switch {
	case errors.Is(err, errOvertaken):
		return nil
	case err == nil && r.verdict == place.RolloutRevert:
		a.st.events.Add("job.reverted", r.key.String(), "version %d is as version %d was, which was healthy; %s",
			next.GetJob().GetVersion(), r.healthy.GetJob().GetVersion(), r.why)
		a.log.Warn("job reverted", "job", r.key.String(), "version", next.GetJob().GetVersion(), "to", r.healthy.GetJob().GetVersion(), "why", r.why)
	}
	return err
}
