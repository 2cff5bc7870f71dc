package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// checkedService returns a service of three instances that become healthy some time after their
// start.
func checkedService(after string, more ...string) string {
	return fmt.Sprintf(`
name: web
groups:
  all:
    count: 3
    %s
    tasks:
      main:
        driver: process
        config: {command: serve}
        env: {SIM_HEALTHY_AFTER: %s}
        resources: {cpu: 500m, memory: 64MiB}
        check: {command: [probe], interval: 10s, healthy_deadline: 1m}
        restart: {attempts: 1}
`, strings.Join(more, "\n    "), after)
}

// TestUnhealthyRollout: a job is running once its checks have passed. Before that its status says
// which checks it waits for. A rollout to a version that never becomes healthy stops with the first
// instance. With auto_revert the job returns to the earlier version.
func TestUnhealthyRollout(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		status := func() *nusav1.JobStatus {
			t.Helper()
			j, err := f.Job(t.Context(), "web")
			if err != nil {
				t.Fatal(err)
			}
			return j.GetStatus()
		}
		conn := f.Global(1)
		began := time.Now()
		mustSubmit(t, conn, checkedService("20s"), false)
		time.Sleep(10 * time.Second)
		if s := status(); s.GetState() != nusav1.JobState_JOB_STATE_STARTING || s.GetGroups()["all"].GetCounts().GetStarting() != 3 ||
			!strings.Contains(s.GetMessage(), "it has not passed its health check yet: alpha: command probe: exit code 1: warming up") {
			t.Errorf("before its checks pass it is %v", s)
		}
		running := func(version int64) func(context.Context) error {
			return func(context.Context) error {
				s := status()
				for _, slot := range s.GetGroups()["all"].GetSlots() {
					if slot.GetJobVersion() < version {
						return fmt.Errorf("%v", slot)
					}
				}
				if s.GetState() != nusav1.JobState_JOB_STATE_RUNNING {
					return fmt.Errorf("%v", s)
				}
				return nil
			}
		}
		f.Eventually(time.Minute, "web healthy", running(1))
		if took := time.Since(began); took < 20*time.Second || took > 30*time.Second {
			t.Errorf("running after %s, it is healthy after 20s", took)
		}

		// Two instances of the old version keep serving, however long the third is tried.
		mustSubmit(t, conn, checkedService("1000h"), false)
		for range 20 {
			time.Sleep(30 * time.Second)
			s := status()
			if c := s.GetGroups()["all"].GetCounts(); c.GetRunning() < 2 || s.GetState() == nusav1.JobState_JOB_STATE_RUNNING {
				t.Fatalf("while it is rolled out: %v", s)
			}
		}
		begun := f.Begun()
		for i := range int32(3) {
			n := begun[sim.Instance{Job: "web", Group: "all", Index: i}]
			if i == 0 && n < 4 || i > 0 && n != 1 {
				t.Errorf("index %d was begun %d times", i, n)
			}
		}

		// A good version ends the rollout.
		back := []string{"reschedule: {attempts: 0}", "update: {auto_revert: true}"}
		mustSubmit(t, conn, checkedService("3s", back...), false)
		f.Eventually(20*time.Minute, "web healthy again", running(3))

		// This version is reverted by itself once it has failed for good.
		mustSubmit(t, conn, checkedService("1000h", back...), false)
		f.Eventually(20*time.Minute, "web healthy as before", running(5))
		j, err := f.Job(t.Context(), "web")
		if err != nil {
			t.Fatal(err)
		}
		if env := j.GetSpec().GetGroups()["all"].GetTasks()["main"].GetEnv(); env["SIM_HEALTHY_AFTER"] != "3s" {
			t.Errorf("it went back to %v", env)
		}
	})
}
