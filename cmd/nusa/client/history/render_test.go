package history

import (
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRendering shows every table from fixed messages, plain and in colour.
func TestRendering(t *testing.T) {
	sample.Render(t, []sample.Rendering{
		sample.Of("latency --history", func(w *term.Screen) { writeAllSeries(w, sample.EdgeHistory(), []string{"p50_ms", "loss"}) }),
		sample.Of("latency --history --to eastus", func(w *term.Screen) { writeSeries(w, sample.EdgeHistory()[0]) }),
		sample.Of("node history of pools", func(w *term.Screen) {
			writeAllSeries(w, []*nusav1.HistorySeries{sample.NodeHistory()}, []string{"cpu", "memory_used"})
		}),
		sample.Of("node history", func(w *term.Screen) { writeSeries(w, sample.NodeHistory()) }),
	})
}
