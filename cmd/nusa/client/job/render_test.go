package job

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRendering shows every table from fixed messages, plain and in colour.
func TestRendering(t *testing.T) {
	sample.Render(t, []sample.Rendering{
		sample.Of("job status", func(w *term.Screen) { writeStatus(w, sample.Job()) }),
		sample.Of("job status, the same reasons several times", func(w *term.Screen) { writeStatus(w, sample.Waiting()) }),
		sample.Of("job status, of a region's own", func(w *term.Screen) {
			j := sample.Waiting()
			j.Region, j.Status.Message = "eastus", "a: not enough cpu: needs 64 cpu"
			delete(j.Status.Groups, "b")
			delete(j.Status.Groups, "c")
			writeStatus(w, j)
		}),
		sample.Of("job status, of a system job", func(w *term.Screen) { writeStatus(w, sample.System()); writeSystemNote(w, sample.System()) }),
		sample.Of("job plan --verbose, of a system job", func(w *term.Screen) {
			writePlan(w, planHeader{name: "default/watch", submit: " watch.yaml", spec: sample.System().GetSpec(), notes: []string{"groups.web may run an instance twice"}}, &nusav1.PlanResponse{Revision: 9, Slots: sample.System().GetStatus().GetGroups()["node"].GetSlots()})
		}),
		sample.Of("job progress", func(w *term.Screen) { fmt.Fprintln(w, progressLine(w, sample.Job())) }),
		sample.Of("job run, in a pause between regions", func(w *term.Screen) { fmt.Fprintln(w, pauseText(w, sample.Ordered().GetStatus().GetRollout())) }),
		sample.Of("job list, jobs that run nothing themselves", func(w *term.Screen) {
			flow := &nusav1.Job{Version: 1, Spec: &nusav1.JobSpec{Namespace: "default", Name: "etl", Type: nusav1.JobType_JOB_TYPE_WORKFLOW, Workflow: &nusav1.Workflow{}}, Status: &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_RUNNING}}
			writeJobs(w, []*nusav1.Job{flow}, "")
		}),
		sample.Of("job list", func(w *term.Screen) { writeJobs(w, []*nusav1.Job{sample.Job()}, "") }),
		sample.Of("job status, an update under way", func(w *term.Screen) { writeStatus(w, sample.Update()) }),
		sample.Of("job status, a version on its way through regions", func(w *term.Screen) { writeStatus(w, sample.Staged()) }),
		sample.Of("job status, in the order of the job, in 80 columns", func(w *term.Screen) {
			w.Width = 80
			writeRollout(w, sample.Ordered().GetStatus().GetRollout())
			fmt.Fprintln(w, orderNote(sample.Turns(), sample.Ordered().GetSpec()))
		}),
		sample.Of("job status, of such, with its first lines once", func(w *term.Screen) {
			j := sample.Ordered()
			r := j.GetStatus().GetRollout()
			r.PauseLeft, r.Deadline = nil, durationpb.New(5*time.Minute)
			r.Regions["osaka"].Waits = ""
			r.Regions["tokyo"] = &nusav1.RegionRollout{Desired: 1, Outdated: 1, Waits: "version 3 waits for region osaka to be done"}
			writeStatus(w, j)
		}),
		sample.Of("times of a schedule in its zone, and a list", func(w *term.Screen) {
			at := timestamppb.New(sample.Noon.Add(11 * time.Hour))
			berlin := &nusav1.ScheduleStatus{Job: "default/nightly", TimeZone: "Europe/Berlin", Next: []*timestamppb.Timestamp{at}, Active: 1, Runs: []*nusav1.JobRun{
				{Name: "nightly.20260531-230000", State: nusav1.JobRunState_JOB_RUN_STATE_FAILED, Trigger: nusav1.JobRunTrigger_JOB_RUN_TRIGGER_SCHEDULE, Began: sample.Ago(13 * time.Hour), Ended: sample.Ago(12 * time.Hour)},
			}}
			writeSchedule(w, berlin)
			writeSchedules(w, []*nusav1.ScheduleStatus{berlin, {Job: "web/hourly", Next: []*timestamppb.Timestamp{at}, Paused: true}}, "")
		}),
		sample.Of("job plan, of such", func(w *term.Screen) {
			writePlan(w, planHeader{name: "default/api", submit: " api.yaml", orderNote: orderNote(sample.Turns(), sample.Job().GetSpec())}, sample.Turns())
		}),
		sample.Of("job progress, an update under way", func(w *term.Screen) { fmt.Fprintln(w, progressLine(w, sample.Update())) }),
		sample.Of("job plan", func(w *term.Screen) {
			writePlan(w, planHeader{name: "default/api", submit: " api.yaml"}, sample.Plan())
		}),
		sample.Of("job status, regions are cut off", func(w *term.Screen) { writeStatus(w, sample.CutOff()) }),
		sample.Of("job progress, regions are cut off", func(w *term.Screen) {
			fmt.Fprintln(w, progressLine(w, sample.CutOff()))
			fmt.Fprintln(w, progressLine(w, aged(sample.CutOff(), 90*time.Second)))
		}),
		sample.Of("job list, regions are cut off", func(w *term.Screen) { writeJobs(w, []*nusav1.Job{sample.CutOff()}, "") }),
		sample.Of("in 80 columns, regions are cut off", func(w *term.Screen) {
			w.Width = 80
			writeStatus(w, sample.CutOff())
			writeJobs(w, []*nusav1.Job{sample.CutOff(), sample.Job()}, "")
		}),
		sample.Of("job explain, in 80 columns", func(w *term.Screen) {
			w.Width = 80
			writeExplanation(w, sample.Explanation())
		}),
		sample.Of("job explain", func(w *term.Screen) { writeExplanation(w, sample.Explanation()) }),
	})
}

// TestMomentText: a time is shown in the zone of its schedule and in UTC, once if both are the same.
func TestMomentText(t *testing.T) {
	at := time.Date(2026, 7, 1, 22, 30, 0, 0, time.UTC)
	for zone, want := range map[string]string{
		"":              "2026-07-01 22:30:00 UTC",
		"UTC":           "2026-07-01 22:30:00 UTC",
		"No/Such":       "2026-07-01 22:30:00 UTC",
		"Europe/London": "2026-07-01 23:30:00 BST, 22:30:00 UTC",
		"Europe/Berlin": "2026-07-02 00:30:00 CEST, 2026-07-01 22:30:00 UTC",
	} {
		if got := momentText(at, zone); got != want {
			t.Errorf("%q: %s, want %s", zone, got, want)
		}
	}
}
