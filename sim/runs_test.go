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

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// batch returns a job file of three instances that run for a second each.
func batch(name string, more ...string) string {
	return fmt.Sprintf(`
name: %s
type: batch
groups:
  all:
    count: 3
    tasks:
      main: {driver: process, config: {command: sum}, env: {SIM_RUN_TIME: 1s%s}, resources: {cpu: 500m, memory: 64MiB}}
`, name, strings.Join(more, ""))
}

// submit sends a job file to the service of a global server or of a region.
func submit(t *testing.T, conn *grpc.ClientConn, file string, again bool) (*nusav1.SubmitResponse, error) {
	t.Helper()
	spec, err := job.Parse([]byte(file), "job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return nusav1.NewJobsClient(conn).Submit(ctx, &nusav1.SubmitRequest{Spec: spec, Again: again})
}

func mustSubmit(t *testing.T, conn *grpc.ClientConn, file string, again bool) *nusav1.SubmitResponse {
	t.Helper()
	out, err := submit(t, conn, file, again)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// completes waits until a batch job is complete. At that moment every instance must have run the
// given number of times.
func completes(t *testing.T, f *sim.Federation, conn *grpc.ClientConn, ref *nusav1.JobRef, times int) {
	t.Helper()
	f.Eventually(time.Minute, ref.GetName()+" complete", func(ctx context.Context) error {
		j, err := nusav1.NewJobsClient(conn).Get(ctx, &nusav1.GetJobRequest{Job: ref})
		if err != nil {
			return err
		}
		if s := j.GetStatus(); s.GetState() != nusav1.JobState_JOB_STATE_COMPLETE {
			return fmt.Errorf("version %d run %d is %v (%s): %v", j.GetVersion(), j.GetRun(), s.GetState(), s.GetMessage(), s.GetGroups()["all"])
		}
		return nil
	})
	name := ref.GetName()
	if ref.GetRegion() != "" {
		name += "@" + ref.GetRegion()
	}
	begun := f.Begun()
	for i := range int32(3) {
		if n := begun[sim.Instance{Job: name, Group: "all", Index: i}]; n != times {
			t.Fatalf("%s is complete and index %d ran %d times, want %d: %v", name, i, n, times, begun)
		}
	}
}

// TestBatchRunsAgain: a batch job that was stopped, changed, purged, or submitted with `again` runs
// again. Any other submit does not start it.
func TestBatchRunsAgain(t *testing.T) {
	for _, region := range []string{"", "alpha"} {
		t.Run("owner="+region, func(t *testing.T) {
			inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
				conn := f.Global(1)
				if region != "" {
					conn = f.Server(region, 1)
				}
				ref := &nusav1.JobRef{Namespace: "default", Name: "sum", Region: region}
				stop := func(purge bool) {
					t.Helper()
					if _, err := nusav1.NewJobsClient(conn).Stop(t.Context(), &nusav1.StopJobRequest{Job: ref, Purge: purge}); err != nil {
						t.Fatal(err)
					}
				}
				mustSubmit(t, conn, batch("sum"), false)
				if _, err := submit(t, conn, batch("sum"), true); status.Code(err) != codes.FailedPrecondition {
					t.Errorf("again while it runs: %v", err)
				}
				completes(t, f, conn, ref, 1)

				// The same file changes nothing, and the response says how to run it again.
				out := mustSubmit(t, conn, batch("sum"), false)
				if out.GetChanged() || len(out.GetWarnings()) == 0 || !strings.Contains(out.GetWarnings()[0], "--again") {
					t.Errorf("submitted once more: %v", out)
				}
				time.Sleep(5 * time.Second)
				completes(t, f, conn, ref, 1)

				if out := mustSubmit(t, conn, batch("sum"), true); !out.GetChanged() {
					t.Errorf("again: %v", out)
				}
				completes(t, f, conn, ref, 2)
				mustSubmit(t, conn, batch("sum", ", STEP: two"), false)
				completes(t, f, conn, ref, 3)
				stop(false)
				mustSubmit(t, conn, batch("sum", ", STEP: two"), false)
				completes(t, f, conn, ref, 4)

				// The same submit still changes nothing long after a stop.
				stop(false)
				time.Sleep(10 * time.Second)
				mustSubmit(t, conn, batch("sum", ", STEP: two"), false)
				completes(t, f, conn, ref, 5)
				stop(true)
				f.Eventually(10*time.Second, "purged", func(ctx context.Context) error {
					_, err := nusav1.NewJobsClient(conn).Get(ctx, &nusav1.GetJobRequest{Job: ref})
					if status.Code(err) != codes.NotFound {
						return fmt.Errorf("get: %v", err)
					}
					return nil
				})
				mustSubmit(t, conn, batch("sum", ", STEP: two"), false)
				completes(t, f, conn, ref, 6)

				// A change in the middle of a run starts the work from the beginning.
				mustSubmit(t, conn, batch("sum", ", STEP: three"), false)
				time.Sleep(500 * time.Millisecond)
				mustSubmit(t, conn, batch("sum", ", STEP: four"), false)
				completes(t, f, conn, ref, 8)
				if _, err := submit(t, conn, service("web", 1), true); status.Code(err) != codes.FailedPrecondition {
					t.Errorf("again of a service: %v", err)
				}
			})
		})
	}
}

// TestUpdateSaysWhenItHasEnded: while a job's version changes, its status becomes running only when
// the last instance of the old version is gone.
func TestUpdateSaysWhenItHasEnded(t *testing.T) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		file := func(env string) string {
			return strings.ReplaceAll(service("web", 4), "config: {command: serve}", "config: {command: serve}, env: {"+env+"}")
		}
		if !strings.Contains(file("A: b"), "A: b") {
			t.Fatalf("the sample has changed: %s", file("A: b"))
		}
		versions := func(ctx context.Context) (old, present int) {
			for _, region := range []string{"alpha", "beta"} {
				all, err := f.Allocations(ctx, region)
				if err != nil {
					t.Fatal(err)
				}
				for _, a := range all {
					switch {
					case a.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING:
					case a.GetJobVersion() == 1:
						old++
					default:
						present++
					}
				}
			}
			return old, present
		}
		running := func(ctx context.Context) error {
			j, err := f.Job(ctx, "web")
			if err == nil && j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING {
				err = fmt.Errorf("%v: %s", j.GetStatus().GetState(), j.GetStatus().GetMessage())
			}
			return err
		}
		mustSubmit(t, f.Global(1), file("STEP: one"), false)
		f.Eventually(10*time.Second, "running", running)
		mustSubmit(t, f.Global(1), file("STEP: two"), false)
		said := map[string]bool{}
		f.Eventually(time.Minute, "updated", func(ctx context.Context) error {
			err := running(ctx)
			old, present := versions(ctx)
			switch {
			case err == nil && (old > 0 || present != 4):
				t.Fatalf("running with %d instances of the old version and %d of the new", old, present)
			case err != nil:
				said[err.Error()] = true
			}
			return err
		})
		if !said["JOB_STATE_STARTING: updating: 2 of 4 instances run version 2"] {
			t.Errorf("it never said how far the update is: %v", said)
		}

		// A version that ends at once never runs: the rollout fails and leaves the other instances.
		mustSubmit(t, f.Global(1), file("SIM_RUN_TIME: 1ms, SIM_EXIT_CODE: '1'"), false)
		f.Eventually(10*time.Minute, "failed", func(ctx context.Context) error {
			j, err := f.Job(ctx, "web")
			if err != nil {
				return err
			}
			s := j.GetStatus()
			if s.GetState() == nusav1.JobState_JOB_STATE_RUNNING {
				t.Fatalf("running: %v", s)
			}
			if s.GetState() != nusav1.JobState_JOB_STATE_FAILED {
				return fmt.Errorf("%v: %s", s.GetState(), s.GetMessage())
			}
			if !strings.Contains(s.GetMessage(), "exited with code 1") {
				t.Errorf("failed because %q", s.GetMessage())
			}
			return nil
		})
		if _, present := versions(t.Context()); present < 2 {
			t.Errorf("%d instances are left", present)
		}
	})
}
