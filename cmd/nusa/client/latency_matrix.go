package client

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Marks of cells that are not plain measurements.
const (
	markPredicted   = "~"
	markEstimated   = "≈"
	markStale       = "?"
	markDoubt       = "!"
	cellUnreachable = "×"
	cellUnknown     = "·"
)

const (
	// wideMatrix is the number of regions above which columns are numbered.
	wideMatrix = 8
	// pipeWidth is how wide a matrix may be where nobody says how wide lines
	// are: what a person still reads in a file.
	pipeWidth = 160
	// nearestShown in the line of a region.
	nearestShown = 3

	byMatrix = "by the matrix" // what paths and the like rest on

	tooWide = "; too wide for a matrix: --all shows it in parts, --from REGION a row, -o csv every value\n\n"
)

func (v view) latency(w io.Writer, m *nusav1.MatrixResponse, o latencyOptions) {
	v.seenBy(w, "the matrix", m)
	switch {
	case len(m.GetRegions()) == 0:
		fmt.Fprintln(w, v.noRegions())
	case o.from != "":
		v.row(w, m, o)
	default:
		v.matrix(w, m, o)
	}
}

// seenBy says that it is a region that answers, and for how long by itself.
func (v view) seenBy(w io.Writer, what string, m interface {
	GetSeenBy() string
	GetAlone() *durationpb.Duration
}) {
	if m.GetSeenBy() == "" {
		return
	}
	text := fmt.Sprintf("%s as region %s sees it", what, m.GetSeenBy())
	switch alone := m.GetAlone().AsDuration(); {
	case m.GetAlone() == nil:
		text += ", which has not heard from the global tier"
	case alone > 0:
		text += fmt.Sprintf(", which last heard from the global tier %s ago", age(m.GetAlone()))
	}
	fmt.Fprintf(w, "%s\n\n", v.wait(text))
}

// matrix has the names as heads where they fit, else numbers, else it is a list
// of regions.
func (v view) matrix(w io.Writer, m *nusav1.MatrixResponse, o latencyOptions) {
	most := v.width - 1 // one column stays free, where terminals wrap
	if v.width <= 0 {
		most = pipeWidth
	}
	t := v.matrixTable(m, o.percentile, len(m.GetRegions()) > wideMatrix)
	if t.width() > most {
		t = v.matrixTable(m, o.percentile, true)
	}
	fmt.Fprintf(w, "round trips, p%d in ms", o.percentile)
	if t.width() > most && !o.all {
		fmt.Fprint(w, tooWide)
		rows := rowsOf(m.GetEdges())
		var lines []regionLine
		for _, name := range m.GetRegions() {
			lines = append(lines, regionLineOf(name, rows[name], len(m.GetRegions())-1, o.percentile))
		}
		v.regionLines(w, lines, o.percentile)
	} else {
		fmt.Fprintln(w)
		for _, b := range t.blocks(v.width) {
			fmt.Fprintln(w)
			b.write(w, v.palette)
		}
	}
	v.legend(w, m.GetEdges())
}

func (v view) matrixTable(m *nusav1.MatrixResponse, percentile int, numbered bool) *table {
	edges := edgesOf(m)
	heads := []string{"FROM \\ TO"}
	for i, r := range m.GetRegions() {
		if numbered {
			r = fmt.Sprint(i + 1)
		}
		heads = append(heads, ">"+r)
	}
	t := newTable(heads...)
	for i, a := range m.GetRegions() {
		name := a
		if numbered {
			name = fmt.Sprintf("%2d %s", i+1, a)
		}
		row := []string{name}
		for _, b := range m.GetRegions() {
			if a == b {
				row = append(row, v.faint("-"))
				continue
			}
			row = append(row, v.cell(edges[[2]string{a, b}], percentile))
		}
		t.row(row...)
	}
	return t
}

// regionLine is what there is to say of one region: what is near, the middle and
// the farthest, and what has not been measured.
type regionLine struct {
	name             string
	near             []*nusav1.Edge // nearest first, at most nearestShown
	median, farthest *nusav1.Edge   // nil where nothing is known
	lacks            string
}

// regionLineOf sums up the edges of one row; all is how many there should be.
func regionLineOf(name string, row []*nusav1.Edge, all, percentile int) regionLine {
	l := regionLine{name: name, lacks: lacking(row, all)}
	sortByRTT(row, percentile)
	if i := slices.IndexFunc(row, func(e *nusav1.Edge) bool { return !known(e) }); i >= 0 {
		row = row[:i]
	}
	if len(row) > 0 {
		l.near, l.median, l.farthest = slices.Clone(row[:min(len(row), nearestShown)]), row[len(row)/2], row[len(row)-1]
	}
	return l
}

// rowsOf are the edges by the region that measured.
func rowsOf(edges []*nusav1.Edge) map[string][]*nusav1.Edge {
	rows := map[string][]*nusav1.Edge{}
	for _, e := range edges {
		rows[e.GetFrom()] = append(rows[e.GetFrom()], e)
	}
	return rows
}

// regionLines say for each region what is near, how far the others are and what
// has not been measured; what is near takes the room that is left.
func (v view) regionLines(w io.Writer, lines []regionLine, percentile int) {
	var t *table
	for near := nearestShown; near > 0; near-- {
		t = newTable("FROM", "NEAREST", ">MEDIAN", ">FARTHEST", "NOT MEASURED")
		for _, l := range lines {
			if l.median == nil {
				t.row(l.name, "-", "-", "-", l.lacks)
				continue
			}
			var nearest []string
			for _, e := range l.near[:min(len(l.near), near)] {
				nearest = append(nearest, e.GetTo()+" "+v.cell(e, percentile))
			}
			t.row(l.name, strings.Join(nearest, ", "), v.cell(l.median, percentile), v.cell(l.farthest, percentile), l.lacks)
		}
		if v.width <= 0 || t.width() < v.width {
			break
		}
	}
	t.narrow(v.width)
	t.write(w, v.palette)
}

// lacking counts the edges of one row that are not plain measurements; what the
// server did not even name is unknown. It has no colours: it may be shortened.
func lacking(row []*nusav1.Edge, all int) string {
	counts := map[string]int{}
	for _, e := range row {
		switch {
		case e.GetState() == nusav1.EdgeState_EDGE_STATE_UNREACHABLE:
			counts["unreachable"]++
		case unknown(e):
			counts["unknown"]++
		case e.GetSource() != nusav1.RTTSource_RTT_SOURCE_MEASURED:
			counts[word(e.GetSource())]++
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
	return orDash(strings.Join(parts, ", "))
}

// marks are the kinds of edges there are, for the legend.
type marks struct{ predicted, estimated, stale, doubt, unreachable, unknown bool }

func (m *marks) add(edges []*nusav1.Edge) {
	for _, e := range edges {
		m.predicted = m.predicted || e.GetSource() == nusav1.RTTSource_RTT_SOURCE_PREDICTED
		m.estimated = m.estimated || e.GetSource() == nusav1.RTTSource_RTT_SOURCE_ESTIMATED
		m.stale = m.stale || e.GetState() == nusav1.EdgeState_EDGE_STATE_STALE
		m.doubt = m.doubt || e.GetDoubt() != ""
		m.unreachable = m.unreachable || e.GetState() == nusav1.EdgeState_EDGE_STATE_UNREACHABLE
		m.unknown = m.unknown || unknown(e)
	}
}

func (v view) legend(w io.Writer, edges []*nusav1.Edge) {
	var m marks
	m.add(edges)
	v.legendOf(w, m)
}

// legendOf explains the marks that are there, and the colours.
func (v view) legendOf(w io.Writer, m marks) {
	parts := []string{"plain measured"}
	for _, mark := range []struct {
		there bool
		text  string
	}{
		{m.predicted, markPredicted + " predicted"}, {m.estimated, markEstimated + " estimated"}, {m.stale, markStale + " stale"},
		{m.doubt, markDoubt + " measured but not believed"}, {m.unreachable, cellUnreachable + " unreachable"}, {m.unknown, cellUnknown + " unknown"},
	} {
		if mark.there {
			parts = append(parts, mark.text)
		}
	}
	fmt.Fprintf(w, "\n%s\n", v.faint(strings.Join(parts, "   ")))
	if !v.on {
		return
	}
	var scale []string
	for _, s := range latencyScale {
		scale = append(scale, v.paint(s.colour, s.text))
	}
	fmt.Fprintln(w, strings.Join(scale, gap))
}

// latencyScale are the colours of round trips, of 256; the bounds are what
// people notice: one metropolis, one continent, one ocean, half the world.
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

// cell is an edge's round trip with its marks.
func (v view) cell(e *nusav1.Edge, percentile int) string {
	if e.GetState() == nusav1.EdgeState_EDGE_STATE_UNREACHABLE {
		return v.bad(cellUnreachable)
	}
	if unknown(e) {
		return v.faint(cellUnknown)
	}
	text := millis(rtt(e, percentile))
	switch {
	case e.GetSource() == nusav1.RTTSource_RTT_SOURCE_PREDICTED:
		text = markPredicted + text
	case e.GetSource() == nusav1.RTTSource_RTT_SOURCE_ESTIMATED:
		text = markEstimated + text
	case e.GetState() == nusav1.EdgeState_EDGE_STATE_STALE:
		text += markStale
	}
	if e.GetDoubt() != "" {
		text += markDoubt
	}
	for _, s := range latencyScale {
		if rtt(e, percentile).AsDuration() < s.below {
			return v.paint(s.colour, text)
		}
	}
	return text
}
