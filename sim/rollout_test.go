package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// rolled is a job whose rollout a test follows.
type rolled struct {
	t    *testing.T
	f    *sim.Federation
	conn *grpc.ClientConn
	ref  *nusav1.JobRef
}

func (r *rolled) job() *nusav1.Job {
	r.t.Helper()
	j, err := r.f.Job(r.t.Context(), r.ref.GetName())
	if err != nil {
		r.t.Fatal(err)
	}
	return j
}

// until waits until the job has a version and a state, and returns it and how long that took.
func (r *rolled) until(most time.Duration, version int64, state nusav1.JobState) (*nusav1.Job, time.Duration) {
	r.t.Helper()
	began := time.Now()
	var out *nusav1.Job
	r.f.Eventually(most, fmt.Sprintf("version %d is %v", version, state), func(context.Context) error {
		out = r.job()
		if out.GetVersion() != version || out.GetStatus().GetState() != state {
			return fmt.Errorf("%v", out.GetStatus())
		}
		return nil
	})
	return out, time.Since(began)
}

func (r *rolled) rollouts() nusav1.RolloutsClient { return nusav1.NewRolloutsClient(r.conn) }

// refused checks the code and the text of an error.
func (r *rolled) refused(what string, err error, code codes.Code, text string) {
	r.t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		r.t.Errorf("%s: %v, want %v with %q", what, err, code, text)
	}
}

const (
	jobRuns     = nusav1.JobState_JOB_STATE_RUNNING
	jobFails    = nusav1.JobState_JOB_STATE_FAILED
	jobStarting = nusav1.JobState_JOB_STATE_STARTING
)

// plainService is a service without a check. Its version is the value of V.
func plainService(v string, more ...string) string {
	return fmt.Sprintf(`
name: web
groups:
  all:
    count: 2
    %s
    tasks:
      main: {driver: process, config: {command: serve}, env: {V: "%s"}, resources: {cpu: 500m, memory: 64MiB}, restart: {attempts: 0}}
`, strings.Join(more, "\n    "), v)
}

// TestRolloutTakesMinHealthy: without a check, too, each step of a rollout takes min_healthy, and the
// first version takes no such time. A version that misses healthy_deadline has failed, and the job is
// taken back. Versions are stored, tagged, compared, and submitted again.
func TestRolloutTakesMinHealthy(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		r := &rolled{t, f, f.Global(1), &nusav1.JobRef{Name: "web"}}
		mustSubmit(t, r.conn, plainService("1"), false)
		if _, took := r.until(time.Minute, 1, jobRuns); took > 5*time.Second {
			t.Errorf("the first version runs after %s", took)
		}
		mustSubmit(t, r.conn, plainService("2"), false)
		_, took := r.until(time.Minute, 2, jobRuns)
		if took < 20*time.Second || took > 30*time.Second {
			t.Errorf("two steps took %s, each takes 10s", took)
		}
		f.Eventually(10*time.Second, "the rollout is done", func(context.Context) error {
			if left := r.job().GetStatus().GetRollout(); left != nil {
				return fmt.Errorf("%v", left)
			}
			return nil
		})
		mustSubmit(t, r.conn, plainService("3", "update: {min_healthy: 2s}"), false)
		if _, took := r.until(time.Minute, 3, jobRuns); took < 4*time.Second || took > 12*time.Second {
			t.Errorf("two steps took %s, each takes 2s", took)
		}
		r.versions()

		// This version never becomes healthy: each attempt ends after 5 s.
		bad := strings.Replace(plainService("5", "update: {auto_revert: true, healthy_deadline: 1m}", "reschedule: {attempts: 1000, backoff: {from: 1s, to: 1s}}"),
			`V: "5"`, "SIM_RUN_TIME: 5s, SIM_EXIT_CODE: 3", 1)
		mustSubmit(t, r.conn, bad, false)
		time.Sleep(20 * time.Second)
		if got := r.job().GetStatus().GetRollout(); got.GetVersion() != 5 || got.GetState() != nusav1.RolloutState_ROLLOUT_STATE_RUNNING ||
			got.GetRegions()["alpha"].GetHealthy() != 0 || got.GetDeadline().AsDuration() <= 0 {
			t.Errorf("the rollout is %v", got)
		}
		back, took := r.until(12*time.Minute, 6, jobRuns)
		if why := back.GetReverted(); why.GetVersion() != 5 || why.GetTo() != 4 || !strings.Contains(why.GetWhy(), "became healthy within progress_deadline, 10m0s") &&
			!strings.Contains(why.GetWhy(), "was not healthy within healthy_deadline, 1m0s") {
			t.Errorf("after %s: %v", took, why)
		}
		if took > 11*time.Minute {
			t.Errorf("taken back after %s", took)
		}
	})
}

// versions checks what is stored about three versions.
func (r *rolled) versions() {
	t, ctx := r.t, r.t.Context()
	t.Helper()
	_, err := r.rollouts().Tag(ctx, &nusav1.TagVersionRequest{Job: r.ref, Version: 1, Tag: "first"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.rollouts().Tag(ctx, &nusav1.TagVersionRequest{Job: r.ref, Version: 2, Tag: "first"})
	r.refused("a tag that is taken", err, codes.AlreadyExists, `has the tag "first"`)
	_, err = r.rollouts().Tag(ctx, &nusav1.TagVersionRequest{Job: r.ref, Version: 2, Tag: "2"})
	r.refused("a number as a tag", err, codes.InvalidArgument, "not be a number")
	_, err = r.rollouts().Tag(ctx, &nusav1.TagVersionRequest{Job: r.ref, Version: 9, Tag: "ninth"})
	r.refused("a version that is not stored", err, codes.NotFound, "version 9")
	h, err := r.rollouts().History(ctx, &nusav1.JobHistoryRequest{Job: r.ref})
	if err != nil || len(h.GetVersions()) != 3 || h.GetVersions()[0].GetVersion() != 3 || h.GetVersions()[2].GetTag() != "first" ||
		h.GetVersions()[1].GetReplaced() == nil || h.GetVersions()[1].GetBytes() == 0 || h.GetVersions()[0].GetReplaced() != nil {
		t.Errorf("%v, %v", h, err)
	}
	d, err := r.rollouts().Diff(ctx, &nusav1.JobDiffRequest{Job: r.ref, From: "first", To: "2"})
	if err != nil || d.GetFrom() != 1 || d.GetTo() != 2 || len(d.GetLines()) != 1 || d.GetLines()[0].GetField() != "groups.all.tasks.main.env.V" ||
		d.GetLines()[0].GetOld() != `1` && d.GetLines()[0].GetOld() != `"1"` {
		t.Errorf("%v, %v", d, err)
	}
	d, err = r.rollouts().Diff(ctx, &nusav1.JobDiffRequest{Job: r.ref})
	if err != nil || d.GetFrom() != 2 || d.GetTo() != 3 || len(d.GetLines()) != 2 {
		t.Errorf("%v, %v", d, err)
	}
	_, err = r.rollouts().Diff(ctx, &nusav1.JobDiffRequest{Job: r.ref, From: "second"})
	r.refused("an unknown tag", err, codes.NotFound, "no stored version second")
	_, err = r.rollouts().History(ctx, &nusav1.JobHistoryRequest{Job: &nusav1.JobRef{Name: "web", Region: "alpha"}})
	r.refused("a region's own job that does not exist", err, codes.NotFound, "web@alpha is not known")

	out, err := r.rollouts().Revert(ctx, &nusav1.RevertJobRequest{Job: r.ref, To: "first"})
	if err != nil || out.GetVersion() != 4 || !out.GetChanged() {
		t.Fatalf("%v, %v", out, err)
	}
	j, _ := r.until(time.Minute, 4, jobRuns)
	if got := j.GetSpec().GetGroups()["all"].GetTasks()["main"].GetEnv()["V"]; got != "1" {
		t.Errorf("it runs V=%s", got)
	}
}

// TestRolloutIsPaused: a paused rollout goes to no further region, and does not miss a deadline, also
// over an election. It goes on after it is resumed. A failed one goes no further until it is resumed.
func TestRolloutIsPaused(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha", "beta"}, Globals: 2}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		r := &rolled{t, f, f.Global(1), &nusav1.JobRef{Name: "web"}}
		control := &nusav1.ControlRolloutRequest{Job: r.ref, Reason: "errors in alpha"}
		mustSubmit(t, r.conn, plainService("1", "regions: {spread: {min: 2}}"), false)
		r.until(time.Minute, 1, jobRuns)
		_, err := r.rollouts().Pause(t.Context(), control)
		r.refused("a job without a rollout", err, codes.FailedPrecondition, "no rollout of job default/web is in progress")

		mustSubmit(t, r.conn, plainService("2", "regions: {spread: {min: 2}}", "update: {progress_deadline: 1m, healthy_deadline: 30s}"), false)
		f.Eventually(10*time.Second, "it can be paused", func(ctx context.Context) error {
			_, err := r.rollouts().Pause(ctx, control)
			return err
		})
		f.Kill(fmt.Sprintf("global-%d", f.Active()))
		time.Sleep(2 * time.Minute)
		r.conn = f.Global(f.Active())
		s := r.job().GetStatus()
		if got := s.GetRollout(); got.GetState() != nusav1.RolloutState_ROLLOUT_STATE_PAUSED || got.GetDeadline() != nil || !strings.Contains(got.GetMessage(), "errors in alpha") {
			t.Errorf("after 2 minutes: %v", got)
		}
		if c := s.GetGroups()["all"].GetCounts(); s.GetState() != jobStarting || c.GetRunning() != 2 || c.GetOutdated() != 1 {
			t.Errorf("after 2 minutes: %v", s)
		}
		if _, err := r.rollouts().Resume(t.Context(), control); err != nil {
			t.Fatal(err)
		}
		r.until(time.Minute, 2, jobRuns)
		_, err = r.rollouts().Fail(t.Context(), control)
		r.refused("a rollout that is done", err, codes.FailedPrecondition, "is done")

		mustSubmit(t, r.conn, plainService("3", "regions: {spread: {min: 2}}"), false)
		f.Eventually(10*time.Second, "it can be failed", func(ctx context.Context) error {
			_, err := r.rollouts().Fail(ctx, control)
			return err
		})
		time.Sleep(time.Minute)
		if j, _ := r.until(time.Second, 3, jobFails); j.GetStatus().GetGroups()["all"].GetCounts().GetOutdated() != 1 ||
			!strings.Contains(j.GetStatus().GetMessage(), "version 3 failed: an operator failed it: errors in alpha") {
			t.Errorf("%v", j.GetStatus())
		}
		// The same file submitted again changes nothing. The rollout can be resumed, long after its
		// deadlines. An earlier version can be submitted again.
		if out := mustSubmit(t, r.conn, plainService("3", "regions: {spread: {min: 2}}"), false); out.GetChanged() {
			t.Errorf("%v", out)
		}
		time.Sleep(11 * time.Minute)
		if out, err := r.rollouts().Resume(t.Context(), control); err != nil || out.GetState() != nusav1.RolloutState_ROLLOUT_STATE_RUNNING {
			t.Fatalf("%v, %v", out, err)
		}
		r.until(time.Minute, 3, jobRuns)
		if _, err := r.rollouts().Revert(t.Context(), &nusav1.RevertJobRequest{Job: r.ref}); err != nil {
			t.Fatal(err)
		}
		r.until(time.Minute, 4, jobRuns)
	})
}
