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
		sample.Of("region status, cut off", func(w *term.Screen) {
			for _, r := range sample.Silent() {
				r.Report, r.Servers = nil, nil
				writeRegion(w, r)
			}
		}),
		sample.Of("region status without a report", func(w *term.Screen) { writeRegion(w, sample.Regions()[1]) }),
		sample.Of("region status, as another region knows it", func(w *term.Screen) {
			writeRegion(w, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "jakarta"}, Servers: []*nusav1.RegionalServer{{ProbeAddress: "10.2.0.1:7613"}}})
		}),
	})
}
