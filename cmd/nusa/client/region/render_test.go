package region

import (
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRendering shows every table from fixed messages, plain and in colour.
func TestRendering(t *testing.T) {
	sample.Render(t, []sample.Rendering{
		sample.Of("region list", func(w *term.Screen) { writeRegions(w, sample.Regions()) }),
		sample.Of("region status", func(w *term.Screen) { writeRegion(w, sample.Regions()[0]) }),
		sample.Of("region status, disconnected", func(w *term.Screen) { writeRegion(w, sample.Disconnected()) }),
		sample.Of("region list, disconnected", func(w *term.Screen) { writeRegions(w, []*nusav1.Region{sample.Disconnected()}) }),
		sample.Of("region list, cut off", func(w *term.Screen) { writeRegions(w, sample.Silent()) }),
		sample.Of("region list, cut off, in 80 columns", func(w *term.Screen) { w.Width = 80; writeRegions(w, sample.Silent()) }),
		sample.Of("region list, cut off without work", func(w *term.Screen) {
			r := sample.Silent()[0]
			r.Report.Allocations, r.Report.QueueLength = nil, 0
			writeRegions(w, []*nusav1.Region{r})
		}),
		sample.Of("region list, after an election", func(w *term.Screen) { writeRegions(w, sample.Elected()) }),
		sample.Of("region status, cut off", func(w *term.Screen) {
			for _, r := range sample.Silent() {
				r.Report, r.Servers = nil, nil
				writeRegion(w, r)
			}
		}),
		sample.Of("region failback", func(w *term.Screen) { writeFailback(w, "tokyo", failback(), false) }),
		sample.Of("region failback, applied", func(w *term.Screen) { writeFailback(w, "tokyo", failback(), true) }),
		sample.Of("region failback of nothing", func(w *term.Screen) { writeFailback(w, "tokyo", &nusav1.FailbackResponse{}, false) }),
		sample.Of("region drain", func(w *term.Screen) {
			w.Note("", workText(&nusav1.Region{
				Definition: &nusav1.RegionDefinition{Name: "tokyo"}, Draining: true,
				FailoverMessage: "draining: 4 instances are left; default/api/web: no other region has room for more",
			}, w.Program))
		}),
		sample.Of("region status without a report", func(w *term.Screen) { writeRegion(w, sample.Regions()[1]) }),
		sample.Of("region status, as another region knows it", func(w *term.Screen) {
			writeRegion(w, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "jakarta"}, Servers: []*nusav1.RegionalServer{{ProbeAddress: "10.2.0.1:7613"}}})
		}),
	})
}

func failback() *nusav1.FailbackResponse {
	return &nusav1.FailbackResponse{More: 2, Moves: []*nusav1.FailbackMove{
		{Namespace: "default", Job: "api", Group: "web", From: 0, To: 4, Owner: "seoul", Returns: true},
		{Namespace: "default", Job: "api", Group: "web", From: 4, To: 5, Owner: "jakarta", Returns: true, Message: "follows when the instances that do not run now run again"},
		{Namespace: "shop", Job: "cart", Group: "db", From: 0, To: 1, Owner: "seoul", Message: "failback.mode is never"},
	}}
}
