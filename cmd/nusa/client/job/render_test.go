package job

import (
	"fmt"
	"testing"
	"time"

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
		sample.Of("job list", func(w *term.Screen) { writeJobs(w, []*nusav1.Job{sample.Job()}, "") }),
		sample.Of("job status, an update under way", func(w *term.Screen) { writeStatus(w, sample.Update()) }),
		sample.Of("job status, a version on its way through regions", func(w *term.Screen) { writeStatus(w, sample.Staged()) }),
		sample.Of("job status, in the order of the job, in 80 columns", func(w *term.Screen) {
			w.Width = 80
			writeRollout(w, sample.Ordered().GetStatus().GetRollout())
			fmt.Fprintln(w, orderNote(sample.Turns(), sample.Ordered().GetSpec()))
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
