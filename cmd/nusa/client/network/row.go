package network

import (
	"fmt"
	"slices"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// writeRow writes all values that one region measured, with the nearest region first.
func writeRow(w *term.Screen, m *nusav1.MatrixResponse, o latencyOptions) {
	edges := slices.Clone(m.GetEdges())
	edges = slices.DeleteFunc(edges, func(e *nusav1.Edge) bool { return e.GetFrom() != o.from })
	if len(edges) == 0 {
		fmt.Fprintf(w, "nothing is known from %s; %s latency shows which regions there are\n", o.from, w.Program)
		return
	}
	sortByRTT(edges, o.percentile)
	t := term.NewTable("TO", ">P50", ">P90", ">P99", ">MIN", ">JITTER", ">LOSS", ">SAMPLES", ">DISCARDED", ">AGE", "METHOD", "STATE", "SOURCE")
	for _, e := range edges {
		source := term.Word(e.GetSource())
		if e.GetError() > 0 {
			source += fmt.Sprintf(" ±%s", term.Percent(e.GetError()))
		}
		state := w.State(term.Word(e.GetState()))
		if e.GetHeard() {
			state += " (its probes arrive)"
		}
		if e.GetDoubt() != "" {
			source += ", not believed: " + term.OneLine(e.GetDoubt())
		}
		cells := []string{e.GetTo(), edgeCell(w, e, 50), edgeCell(w, e, 90), edgeCell(w, e, 99), "-", "-", "-", "-", "-", "-", "-", state, source}
		if e.GetSource() == nusav1.RTTSource_RTT_SOURCE_MEASURED {
			copy(cells[4:], []string{term.Millis(e.GetMin()), term.Millis(e.GetJitter()), loss(e), term.Count(e.GetSamples()), term.Count(e.GetSetAside()), term.Age(e.GetAge()), e.GetMethod()})
		}
		t.Row(cells...)
	}
	discarded := slices.ContainsFunc(edges, func(e *nusav1.Edge) bool { return e.GetSetAside() > 0 })
	t.DropEmpty("DISCARDED")
	t.Narrow(w.Width, "METHOD", "MIN", "SAMPLES", "DISCARDED", "JITTER")
	fmt.Fprintf(w, "from %s, ms\n\n", w.Bold(o.from))
	t.Write(w)
	if discarded {
		fmt.Fprintf(w, "\n%s\n", w.Faint("discarded: samples that do not count, because a server was late itself"))
	}
	writeLegend(w, edges)
}
