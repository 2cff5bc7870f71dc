package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// canaryOf waits until the rollout of a version has canaries and ok holds, and returns the job.
func (r *rolled) canaryOf(most time.Duration, version int64, what string, ok func(*nusav1.Rollout) bool) (out *nusav1.Job) {
	r.t.Helper()
	r.f.Eventually(most, fmt.Sprintf("version %d: %s", version, what), func(context.Context) error {
		out = r.job()
		got := out.GetStatus().GetRollout()
		if got.GetVersion() != version || got.GetState() != nusav1.RolloutState_ROLLOUT_STATE_CANARY || !ok(got) {
			return fmt.Errorf("%v", out.GetStatus())
		}
		return nil
	})
	return out
}

// watchShows fails unless a watch of the job shows a rollout like this.
func (r *rolled) watchShows(most time.Duration, what string, ok func(*nusav1.Rollout) bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), most)
	defer cancel()
	stream, err := nusav1.NewJobsClient(r.conn).Watch(ctx, &nusav1.GetJobRequest{Job: r.ref})
	for err == nil {
		var j *nusav1.Job
		if j, err = stream.Recv(); ok(j.GetStatus().GetRollout()) {
			return
		}
	}
	r.t.Fatalf("%s: the watch ended with %v", what, err)
}

func awaitsPromotion(r *nusav1.Rollout) bool { return r.GetAwaitsPromotion() }

// counts checks how many instances run, and how many of them run an earlier version.
func (r *rolled) counts(what string, running, outdated int32) {
	r.t.Helper()
	c := r.job().GetStatus().GetGroups()["all"].GetCounts()
	if c.GetRunning() != running || c.GetOutdated() != outdated || c.GetPending()+c.GetStarting()+c.GetFailed() != 0 {
		r.t.Errorf("%s: %v, want %d running, %d of them outdated", what, c, running, outdated)
	}
}

// completed waits until a job runs a version, without a rollout and with n instances.
func (r *rolled) completed(most time.Duration, version int64, n int32) {
	r.t.Helper()
	r.f.Eventually(most, fmt.Sprintf("version %d runs, and the rollout is done", version), func(context.Context) error {
		j := r.job()
		c := j.GetStatus().GetGroups()["all"].GetCounts()
		if j.GetVersion() != version || j.GetStatus().GetState() != jobRuns || j.GetStatus().GetRollout() != nil || c.GetRunning() != n || c.GetStopping() != 0 {
			return fmt.Errorf("version %d: %v", j.GetVersion(), j.GetStatus())
		}
		return nil
	})
}

// allocations returns the ids of the running allocations in a region, sorted.
func (r *rolled) allocations(region string) (ids []string) {
	r.t.Helper()
	all, err := r.f.Allocations(r.t.Context(), region)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, a := range all {
		if a.GetState() == nusav1.AllocState_ALLOC_STATE_RUNNING {
			ids = append(ids, a.GetId())
		}
	}
	slices.Sort(ids)
	return ids
}

const withCanary = "update: {canary: 1}"

// TestCanaryIsPromoted: a canary runs beside the earlier version for as long as an operator waits. The
// first version has none, the same file again changes nothing, and a scale waits for the promotion.
func TestCanaryIsPromoted(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha", "beta"}, Globals: 2}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		r := &rolled{t, f, f.Global(1), &nusav1.JobRef{Name: "web"}}
		control := &nusav1.ControlRolloutRequest{Job: r.ref, Reason: "looks good"}
		mustSubmit(t, r.conn, plainService("1", withCanary), false)
		r.completed(time.Minute, 1, 2)
		mustSubmit(t, r.conn, plainService("2", withCanary), false)
		_, err := r.rollouts().Promote(t.Context(), control)
		r.refused("a canary that is not healthy", err, codes.FailedPrecondition, "0 of 1 canaries of all are healthy")
		r.watchShows(time.Minute, "it waits", awaitsPromotion)
		if out := mustSubmit(t, r.conn, plainService("2", withCanary), false); out.GetChanged() {
			t.Errorf("the same file again: %v", out)
		}
		f.Kill(fmt.Sprintf("global-%d", f.Active()))
		time.Sleep(30 * time.Minute) // longer than any deadline
		r.conn = f.Global(f.Active())
		r.canaryOf(time.Minute, 2, "it still waits", awaitsPromotion)
		r.counts("before the promotion", 3, 2)

		// A scale is a new version without other work.
		scaled := strings.Replace(plainService("2", withCanary), "count: 2", "count: 4", 1)
		mustSubmit(t, r.conn, scaled, false)
		time.Sleep(30 * time.Second)
		r.canaryOf(time.Minute, 2, "it still waits", awaitsPromotion)
		r.counts("after the scale", 3, 2)
		out, err := r.rollouts().Promote(t.Context(), control)
		if err != nil || out.GetState() != nusav1.RolloutState_ROLLOUT_STATE_RUNNING {
			t.Fatalf("%v, %v", out, err)
		}
		r.completed(2*time.Minute, 3, 4)
		_, err = r.rollouts().Promote(t.Context(), control)
		r.refused("a rollout that is done", err, codes.FailedPrecondition, "is done")
	})
}

// TestCanaryFails: an operator, or a deadline, ends a rollout with canaries. They are removed, and no
// other instance was touched. A resume tries again. A version that takes the change back has none.
func TestCanaryFails(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		r := &rolled{t, f, f.Global(1), &nusav1.JobRef{Name: "web"}}
		control := &nusav1.ControlRolloutRequest{Job: r.ref}
		mustSubmit(t, r.conn, plainService("1", withCanary), false)
		r.completed(time.Minute, 1, 2)
		before := r.allocations("alpha")
		mustSubmit(t, r.conn, plainService("2", withCanary), false)
		r.canaryOf(time.Minute, 2, "it waits", awaitsPromotion)
		if _, err := r.rollouts().Fail(t.Context(), control); err != nil {
			t.Fatal(err)
		}
		r.until(time.Minute, 2, jobFails)
		time.Sleep(10 * time.Second)
		r.counts("after the failure", 2, 2)
		if ids := r.allocations("alpha"); !slices.Equal(ids, before) {
			t.Errorf("allocations %v, then %v", before, ids)
		}
		if _, err := r.rollouts().Resume(t.Context(), control); err != nil {
			t.Fatal(err)
		}
		r.canaryOf(time.Minute, 2, "it tries again", awaitsPromotion)

		// A canary that ends again and again is never shown as healthy for long enough.
		mustSubmit(t, r.conn, strings.Replace(plainService("bad", withCanary), `V: "bad"`, `SIM_RUN_TIME: 3s, SIM_EXIT_CODE: "3"`, 1), false)
		for range 40 {
			time.Sleep(time.Second)
			if got := r.job().GetStatus().GetRollout(); got.GetVersion() != 3 || got.GetAwaitsPromotion() {
				t.Fatalf("%v", got)
			}
		}

		// Another change replaces the canary, and its index is the same.
		mustSubmit(t, r.conn, plainService("3", withCanary), false)
		j := r.canaryOf(time.Minute, 4, "the next version waits", awaitsPromotion)
		if n := j.GetStatus().GetRollout().GetCanaries(); n != 1 {
			t.Errorf("%d canaries", n)
		}
		r.counts("the next version", 3, 2)

		// The first version again: every instance but the canary runs that work.
		mustSubmit(t, r.conn, plainService("1", withCanary), false)
		r.completed(2*time.Minute, 5, 2)
		after := r.allocations("alpha")
		if len(before) != 2 || !slices.Equal(before, after) {
			t.Errorf("allocations %v, then %v", before, after)
		}
	})
}

// twoGroups is a job with a group that has canaries, and one that has none.
func twoGroups(v, update, task string) string {
	return fmt.Sprintf(`
name: web
regions: {spread: {min: 2}}
groups:
  all:
    count: 4
    update: {canary: 2, %[2]s}
    tasks:
      main: {driver: process, config: {command: serve}, env: {V: "%[1]s"%[3]s, resources: {cpu: 500m, memory: 64MiB}, restart: {attempts: 0}}
  plain:
    count: 1
    tasks:
      main: {driver: process, config: {command: serve}, env: {V: "%[1]s"}, resources: {cpu: 500m, memory: 64MiB}}
`, v, update, task)
}

// TestCanariesOfOneGroup: a group without canaries waits for the promotion of those of another one, and
// does not keep them from being promoted. A canary that ends again and again is not promoted, nor is one
// that finds no room: the version fails, and the job is taken back.
func TestCanariesOfOneGroup(t *testing.T) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		r := &rolled{t, f, f.Global(1), &nusav1.JobRef{Name: "web"}}
		mustSubmit(t, r.conn, twoGroups("1", "auto_promote: true", "}"), false)
		r.completed(time.Minute, 1, 4)
		mustSubmit(t, r.conn, twoGroups("2", "auto_promote: true", "}"), false)
		r.canaryOf(30*time.Second, 2, "both are healthy", func(r *nusav1.Rollout) bool {
			return r.GetHealthyCanaries() == 2 && r.GetCanaries() == 2 && !r.GetAwaitsPromotion()
		})
		if c := r.job().GetStatus().GetGroups()["plain"].GetCounts(); c.GetOutdated() != 1 {
			t.Errorf("the group without canaries: %v", c)
		}
		r.completed(5*time.Minute, 2, 4)

		for i, bad := range []struct{ update, task, why string }{
			{"healthy_deadline: 30s", `, SIM_RUN_TIME: 5s, SIM_EXIT_CODE: "3"}`, "deadline"},
			{"progress_deadline: 40s, healthy_deadline: 30s", "}, resources: {memory: 900GiB}", "deadline"},
		} {
			text := twoGroups(fmt.Sprint("bad ", i), "auto_promote: true, auto_revert: true, "+bad.update, bad.task)
			if strings.Contains(bad.task, "resources") {
				text = strings.Replace(text, ", resources: {cpu: 500m, memory: 64MiB}, restart: {attempts: 0}}", ", restart: {attempts: 0}}", 1)
			}
			mustSubmit(t, r.conn, text, false)
			version := int64(3 + 2*i)
			r.f.Eventually(15*time.Minute, "it is taken back", func(context.Context) error {
				j := r.job()
				if c := j.GetStatus().GetGroups()["all"].GetCounts(); j.GetVersion() == version && c.GetRunning()+c.GetUnknown() < 4 {
					t.Fatalf("an instance that is no canary was replaced: %v", c)
				}
				if back := j.GetReverted(); j.GetVersion() != version+1 || back.GetTo() != 2 && back.GetTo() != 4 {
					return fmt.Errorf("version %d: %v", j.GetVersion(), j.GetStatus())
				}
				return nil
			})
			r.completed(5*time.Minute, version+1, 4)
		}
	})
}

// TestCanaryMoves: a canary whose node is drained, and one whose region is lost, is replaced and counts
// again. It is promoted afterwards.
func TestCanaryMoves(t *testing.T) {
	inBubble(t, sim.Options{Agents: 3}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		r := &rolled{t, f, f.Global(1), &nusav1.JobRef{Name: "web"}}
		spec := func(v string) string {
			return plainService(v, withCanary, "disconnect: {region: {after: 30s}}")
		}
		mustSubmit(t, r.conn, spec("1"), false)
		r.completed(time.Minute, 1, 2)
		mustSubmit(t, r.conn, spec("2"), false)
		r.canaryOf(time.Minute, 2, "it waits", awaitsPromotion)
		owners, err := f.Owners(t.Context(), "web", "all")
		if err != nil {
			t.Fatal(err)
		}
		home := owners[2]
		all, err := f.Allocations(t.Context(), home)
		if err != nil {
			t.Fatal(err)
		}
		node := ""
		for _, a := range all {
			if a.GetIndex() == 2 && a.GetState() == nusav1.AllocState_ALLOC_STATE_RUNNING {
				node = a.GetNodeId()
			}
		}
		if _, err := nusav1.NewNodesClient(f.Global(1)).Drain(t.Context(), &nusav1.DrainNodeRequest{Id: node, Region: home, Drain: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		r.canaryOf(2*time.Minute, 2, "it waits on another node", awaitsPromotion)

		for _, p := range f.Running() {
			if strings.HasPrefix(p, home+"-") {
				f.Kill(p)
			}
		}
		time.Sleep(time.Minute)
		r.canaryOf(5*time.Minute, 2, "it waits in another region", awaitsPromotion)
		if _, err := r.rollouts().Promote(t.Context(), &nusav1.ControlRolloutRequest{Job: r.ref}); err != nil {
			t.Fatal(err)
		}
		r.completed(5*time.Minute, 2, 2)
	})
}
