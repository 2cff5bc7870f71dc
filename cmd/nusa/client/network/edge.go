package network

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// edgesOf maps a pair of regions to the edge between them.
func edgesOf(m *nusav1.MatrixResponse) map[[2]string]*nusav1.Edge {
	edges := map[[2]string]*nusav1.Edge{}
	for _, e := range m.GetEdges() {
		edges[[2]string{e.GetFrom(), e.GetTo()}] = e
	}
	return edges
}

// exactMillis returns a duration in milliseconds, rounded to microseconds, because further
// digits are noise.
func exactMillis(d time.Duration) string {
	return strconv.FormatFloat(math.Round(float64(d)/float64(time.Microsecond))/1000, 'f', -1, 64)
}

func rtt(e *nusav1.Edge, percentile int) *durationpb.Duration {
	switch percentile {
	case 90:
		return e.GetP90()
	case 99:
		return e.GetP99()
	}
	return e.GetP50()
}

func unknown(e *nusav1.Edge) bool {
	return e.GetSource() == nusav1.RTTSource_RTT_SOURCE_UNSPECIFIED ||
		e.GetSource() == nusav1.RTTSource_RTT_SOURCE_MEASURED && e.GetState() == nusav1.EdgeState_EDGE_STATE_UNKNOWN
}

// known reports whether an edge has a round trip to show.
func known(e *nusav1.Edge) bool {
	return !unknown(e) && e.GetState() != nusav1.EdgeState_EDGE_STATE_UNREACHABLE
}

// loss returns the share of lost probes and, if known, the shares of the two directions.
func loss(e *nusav1.Edge) string {
	text := fmt.Sprintf("%.1f%%", e.GetLoss()*100)
	if e.GetLossOut() > 0 || e.GetLossBack() > 0 {
		text += fmt.Sprintf(" (%.1f out, %.1f back)", e.GetLossOut()*100, e.GetLossBack()*100)
	}
	return text
}

// sortByRTT sorts edges by round trip. Edges without a known round trip come last.
func sortByRTT(edges []*nusav1.Edge, percentile int) {
	far := func(e *nusav1.Edge) time.Duration {
		if !known(e) {
			return math.MaxInt64
		}
		return rtt(e, percentile).AsDuration()
	}
	slices.SortStableFunc(edges, func(a, b *nusav1.Edge) int {
		return cmp.Or(cmp.Compare(far(a), far(b)), strings.Compare(a.GetTo(), b.GetTo()))
	})
}

// The marks of cells that do not show a present measured value.
const (
	markPredicted   = "~"
	markEstimated   = "≈"
	markStale       = "?"
	markDisbelieved = "!"
	cellUnreachable = "×"
	cellUnknown     = "·"
)

// edgeMarks says which marks occur, for the legend.
type edgeMarks struct{ predicted, estimated, stale, disbelieved, unreachable, unknown bool }

func (m *edgeMarks) add(edges []*nusav1.Edge) {
	for _, e := range edges {
		m.predicted = m.predicted || e.GetSource() == nusav1.RTTSource_RTT_SOURCE_PREDICTED
		m.estimated = m.estimated || e.GetSource() == nusav1.RTTSource_RTT_SOURCE_ESTIMATED
		m.stale = m.stale || e.GetState() == nusav1.EdgeState_EDGE_STATE_STALE
		m.disbelieved = m.disbelieved || e.GetDoubt() != ""
		m.unreachable = m.unreachable || e.GetState() == nusav1.EdgeState_EDGE_STATE_UNREACHABLE
		m.unknown = m.unknown || unknown(e)
	}
}

func writeLegend(w *term.Screen, edges []*nusav1.Edge) {
	var m edgeMarks
	m.add(edges)
	writeLegendOf(w, m)
}

// writeLegendOf explains the colours, and the marks that occur.
func writeLegendOf(w *term.Screen, m edgeMarks) {
	parts := []string{"plain measured"}
	for _, mark := range []struct {
		there bool
		text  string
	}{
		{m.predicted, markPredicted + " predicted"}, {m.estimated, markEstimated + " estimated"}, {m.stale, markStale + " stale"},
		{m.disbelieved, markDisbelieved + " measured but not believed"}, {m.unreachable, cellUnreachable + " unreachable"}, {m.unknown, cellUnknown + " unknown"},
	} {
		if mark.there {
			parts = append(parts, mark.text)
		}
	}
	fmt.Fprintf(w, "\n%s\n", w.Faint(strings.Join(parts, "   ")))
	if !w.On {
		return
	}
	var scale []string
	for _, s := range latencyScale {
		scale = append(scale, w.Paint(s.colour, s.text))
	}
	fmt.Fprintln(w, strings.Join(scale, term.Gap))
}

// latencyScale has the colours of round trips, from the palette of 256 colours. The bounds
// are distances that people know: one metropolis, one continent, one ocean, half the world.
var latencyScale = []struct {
	below  time.Duration
	colour string
	text   string
}{
	{30 * time.Millisecond, "42", "< 30"},
	{80 * time.Millisecond, "112", "< 80"},
	{150 * time.Millisecond, "220", "< 150"},
	{250 * time.Millisecond, "208", "< 250"},
	{1 << 62, "203", "≥ 250"},
}

// edgeCell returns the round trip of an edge with its marks.
func edgeCell(w *term.Screen, e *nusav1.Edge, percentile int) string {
	if e.GetState() == nusav1.EdgeState_EDGE_STATE_UNREACHABLE {
		return w.Bad(cellUnreachable)
	}
	if unknown(e) {
		return w.Faint(cellUnknown)
	}
	text := term.Millis(rtt(e, percentile))
	switch {
	case e.GetSource() == nusav1.RTTSource_RTT_SOURCE_PREDICTED:
		text = markPredicted + text
	case e.GetSource() == nusav1.RTTSource_RTT_SOURCE_ESTIMATED:
		text = markEstimated + text
	case e.GetState() == nusav1.EdgeState_EDGE_STATE_STALE:
		text += markStale
	}
	if e.GetDoubt() != "" {
		text += markDisbelieved
	}
	for _, s := range latencyScale {
		if rtt(e, percentile).AsDuration() < s.below {
			return w.Paint(s.colour, text)
		}
	}
	return text
}

// edgeText returns the round trip of an edge in words, for lines without a legend. Examples
// are "163 ms", "~158 ms predicted", "unreachable" and "unknown".
func edgeText(w *term.Screen, e *nusav1.Edge, percentile int) string {
	switch {
	case e.GetState() == nusav1.EdgeState_EDGE_STATE_UNREACHABLE:
		return w.Bad("unreachable")
	case unknown(e):
		return w.Faint("unknown")
	}
	text := edgeCell(w, e, percentile) + " ms"
	switch {
	case e.GetSource() != nusav1.RTTSource_RTT_SOURCE_MEASURED:
		text += " " + term.Word(e.GetSource())
	case e.GetState() == nusav1.EdgeState_EDGE_STATE_STALE:
		text += " stale"
	}
	if e.GetDoubt() != "" {
		text += ", not believed: " + term.OneLine(e.GetDoubt())
	}
	return text
}

// writeMarkLegend writes a legend if an edge has a mark.
func writeMarkLegend(w *term.Screen, edges []*nusav1.Edge) {
	for _, e := range edges {
		if e.GetSource() != nusav1.RTTSource_RTT_SOURCE_MEASURED || e.GetState() != nusav1.EdgeState_EDGE_STATE_OK || e.GetDoubt() != "" {
			writeLegend(w, edges)
			return
		}
	}
}

// pathEdge returns an edge that has the round trip of a path. Older servers do not send the
// state of a path, and then the state is OK.
func pathEdge(p *nusav1.Path) *nusav1.Edge {
	state := p.GetState()
	if state == nusav1.EdgeState_EDGE_STATE_UNKNOWN {
		state = nusav1.EdgeState_EDGE_STATE_OK
	}
	return &nusav1.Edge{P50: p.GetRtt(), Source: p.GetSource(), State: state, Doubt: strings.Join(p.GetDoubts(), "; ")}
}
