package network

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/region"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// wideMatrix is the number of regions above which the columns have numbers instead of
	// names.
	wideMatrix = 8
	// pipeWidth is the greatest width of a matrix if the output is no terminal. In a file a
	// person can still read a matrix of that width.
	pipeWidth = 160
	// nearestShown is the number of nearest regions in a region's line.
	nearestShown = 3

	byMatrix = "by the matrix" // paths, nearest regions and findings are computed from the matrix

	tooWide = "; too wide for a matrix: --all shows it in parts, --from REGION a row, -o csv every value\n\n"
)

func writeLatency(w *term.Screen, m *nusav1.MatrixResponse, o latencyOptions) {
	writeSeenBy(w, "the matrix", m)
	switch {
	case len(m.GetRegions()) == 0:
		fmt.Fprintln(w, region.NoneText(w))
	case o.from != "":
		writeRow(w, m, o)
	default:
		writeMatrix(w, m, o)
	}
}

// writeSeenBy writes that a response is the view of one region, and for how long that
// region has had no contact with the global tier.
func writeSeenBy(w *term.Screen, what string, m interface {
	GetSeenBy() string
	GetAlone() *durationpb.Duration
}) {
	if m.GetSeenBy() == "" {
		return
	}
	text := fmt.Sprintf("%s as region %s sees it", what, m.GetSeenBy())
	switch alone := m.GetAlone().AsDuration(); {
	case m.GetAlone() == nil:
		text += ", which never had contact with the global tier"
	case alone > 0:
		text += fmt.Sprintf(", which had its last contact with the global tier %s ago", term.Age(m.GetAlone()))
	}
	fmt.Fprintf(w, "%s\n\n", w.Wait(text))
}

// writeMatrix writes a matrix whose heads are names if it fits, else a matrix whose heads
// are numbers. If that does not fit either, writeMatrix writes one line for each region.
func writeMatrix(w *term.Screen, m *nusav1.MatrixResponse, o latencyOptions) {
	most := w.Width - 1 // the last column stays free, because some terminals wrap the line after it
	if w.Width <= 0 {
		most = pipeWidth
	}
	t := matrixTable(w, m, o.percentile, len(m.GetRegions()) > wideMatrix)
	if t.Width() > most {
		t = matrixTable(w, m, o.percentile, true)
	}
	fmt.Fprintf(w, "round trips, p%d in ms", o.percentile)
	if t.Width() > most && !o.all {
		fmt.Fprint(w, tooWide)
		rows := rowsOf(m.GetEdges())
		var lines []regionLine
		for _, name := range m.GetRegions() {
			lines = append(lines, regionLineOf(name, rows[name], len(m.GetRegions())-1, o.percentile))
		}
		writeRegionLines(w, lines, o.percentile)
	} else {
		fmt.Fprintln(w)
		for _, b := range t.Blocks(w.Width) {
			fmt.Fprintln(w)
			b.Write(w)
		}
	}
	writeLegend(w, m.GetEdges())
}

func matrixTable(w *term.Screen, m *nusav1.MatrixResponse, percentile int, numbered bool) *term.Table {
	edges := edgesOf(m)
	heads := []string{"FROM \\ TO"}
	for i, r := range m.GetRegions() {
		if numbered {
			r = fmt.Sprint(i + 1)
		}
		heads = append(heads, ">"+r)
	}
	t := term.NewTable(heads...)
	for i, a := range m.GetRegions() {
		name := a
		if numbered {
			name = fmt.Sprintf("%2d %s", i+1, a)
		}
		row := []string{name}
		for _, b := range m.GetRegions() {
			if a == b {
				row = append(row, w.Faint("-"))
				continue
			}
			row = append(row, edgeCell(w, edges[[2]string{a, b}], percentile))
		}
		t.Row(row...)
	}
	return t
}

// regionLine summarizes the round trips of one region: the nearest regions, the median, the
// farthest region, and how many were not measured.
type regionLine struct {
	name             string
	near             []*nusav1.Edge // the nearest first, at most nearestShown
	median, farthest *nusav1.Edge   // nil if no round trip is known
	notMeasured      string
}

// regionLineOf summarizes the edges of one row. all is the number of edges in a complete
// row.
func regionLineOf(name string, row []*nusav1.Edge, all, percentile int) regionLine {
	l := regionLine{name: name, notMeasured: notMeasuredText(row, all)}
	sortByRTT(row, percentile)
	if i := slices.IndexFunc(row, func(e *nusav1.Edge) bool { return !known(e) }); i >= 0 {
		row = row[:i]
	}
	if len(row) > 0 {
		l.near, l.median, l.farthest = slices.Clone(row[:min(len(row), nearestShown)]), row[len(row)/2], row[len(row)-1]
	}
	return l
}

// rowsOf groups edges by the region that measured them.
func rowsOf(edges []*nusav1.Edge) map[string][]*nusav1.Edge {
	rows := map[string][]*nusav1.Edge{}
	for _, e := range edges {
		rows[e.GetFrom()] = append(rows[e.GetFrom()], e)
	}
	return rows
}

// writeRegionLines writes the summary of each region. Each line names as many nearest
// regions as fit.
func writeRegionLines(w *term.Screen, lines []regionLine, percentile int) {
	var t *term.Table
	for near := nearestShown; near > 0; near-- {
		t = term.NewTable("FROM", "NEAREST", ">MEDIAN", ">FARTHEST", "NOT MEASURED")
		for _, l := range lines {
			if l.median == nil {
				t.Row(l.name, "-", "-", "-", l.notMeasured)
				continue
			}
			var nearest []string
			for _, e := range l.near[:min(len(l.near), near)] {
				nearest = append(nearest, e.GetTo()+" "+edgeCell(w, e, percentile))
			}
			t.Row(l.name, strings.Join(nearest, ", "), edgeCell(w, l.median, percentile), edgeCell(w, l.farthest, percentile), l.notMeasured)
		}
		if w.Width <= 0 || t.Width() < w.Width {
			break
		}
	}
	t.Write(w)
}

// notMeasuredText counts the edges of a row that have no present measured value. An edge
// that the server did not send counts as unknown.
func notMeasuredText(row []*nusav1.Edge, all int) string {
	counts := map[string]int{}
	for _, e := range row {
		switch {
		case e.GetState() == nusav1.EdgeState_EDGE_STATE_UNREACHABLE:
			counts["unreachable"]++
		case unknown(e):
			counts["unknown"]++
		case e.GetSource() != nusav1.RTTSource_RTT_SOURCE_MEASURED:
			counts[term.Word(e.GetSource())]++
		case e.GetState() == nusav1.EdgeState_EDGE_STATE_STALE:
			counts["stale"]++
		}
	}
	counts["unknown"] += max(all-len(row), 0)
	var parts []string
	for _, what := range []string{"unreachable", "stale", "predicted", "estimated", "unknown"} {
		if counts[what] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[what], what))
		}
	}
	return term.OrDash(strings.Join(parts, ", "))
}
