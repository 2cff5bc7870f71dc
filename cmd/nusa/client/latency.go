package client

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Marks of cells that are not plain measurements.
const (
	markPredicted   = "~"
	markEstimated   = "≈"
	markStale       = "?"
	cellUnreachable = "×"
	cellUnknown     = "·"
	// wideMatrix is the number of regions above which columns are numbered.
	wideMatrix = 8
)

func latencyCommand() *cobra.Command {
	s := &settings{}
	var from string
	var percentile int
	var watch bool
	c := &cobra.Command{
		Use: "latency", Short: "Show the measured round trips between regions", Args: takes(),
		Long: `Shows round trips in milliseconds: each row is the region that measured, each
column the one it probed. A value is plain when it was measured, ~ when it is
predicted from network coordinates, ≈ when it is estimated from the distance;
? marks a measurement that has become old. With --from, the loss says how much of
it is known to be lost on the way out and on the way back, and "heard" marks a
region that cannot be reached although its own probes arrive.`,
		Example: "  nusa latency\n  nusa latency --from japaneast\n  nusa latency --percentile 99 --watch",
		RunE: s.run(func(c *caller, _ []string) error {
			if err := checkPercentile(percentile); err != nil {
				return err
			}
			req := &nusav1.MatrixRequest{From: from}
			if watch {
				return c.watchMatrix(req, percentile)
			}
			ctx, cancel := c.call()
			defer cancel()
			m, err := c.topology().Matrix(ctx, req)
			if err != nil {
				return err
			}
			return c.print(m, func(w io.Writer) { c.view().latency(w, m, from, percentile) })
		}),
	}
	s.bind(c)
	c.Flags().StringVar(&from, "from", "", "only what this region measured, with every detail")
	c.Flags().IntVarP(&percentile, "percentile", "p", 50, "50, 90 or 99")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "go on and show changes")
	return c
}

func checkPercentile(p int) error {
	if !slices.Contains([]int{50, 90, 99}, p) {
		return fmt.Errorf("--percentile: %d is not one of 50, 90, 99", p)
	}
	return nil
}

// watchMatrix keeps the latest of every edge; on a terminal it draws over the
// matrix, else it prints the edges that changed.
func (c *caller) watchMatrix(req *nusav1.MatrixRequest, percentile int) error {
	stream, err := c.topology().Watch(c.ctx, req)
	if err != nil {
		return err
	}
	whole := &nusav1.MatrixResponse{}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF), err != nil && c.interrupted():
			return nil
		case err != nil:
			return err
		}
		first := len(whole.GetEdges()) == 0
		merge(whole, m)
		v := c.view()
		err = c.printLine(m, func(w io.Writer) {
			if c.terminal || first {
				if c.terminal {
					fmt.Fprint(w, "\x1b[H\x1b[2J")
				}
				v.latency(w, whole, req.GetFrom(), percentile)
				return
			}
			for _, e := range m.GetEdges() {
				fmt.Fprintf(w, "%s %s -> %s %s ms\n", v.now.Format(time.TimeOnly), e.GetFrom(), e.GetTo(), v.cell(e, percentile))
			}
		})
		if err != nil {
			return err
		}
	}
}

// merge puts what changed into the whole.
func merge(whole, m *nusav1.MatrixResponse) {
	if len(m.GetRegions()) > 0 {
		whole.Regions = m.GetRegions()
	}
	for _, e := range m.GetEdges() {
		i := slices.IndexFunc(whole.Edges, func(o *nusav1.Edge) bool { return o.GetFrom() == e.GetFrom() && o.GetTo() == e.GetTo() })
		if i < 0 {
			whole.Edges = append(whole.Edges, e)
		} else {
			whole.Edges[i] = e
		}
	}
}

func (v view) latency(w io.Writer, m *nusav1.MatrixResponse, from string, percentile int) {
	if len(m.GetRegions()) == 0 {
		fmt.Fprintln(w, "no regions")
		return
	}
	if from != "" {
		v.row(w, m, from, percentile)
		return
	}
	v.matrix(w, m, percentile)
}

func (v view) matrix(w io.Writer, m *nusav1.MatrixResponse, percentile int) {
	edges := map[[2]string]*nusav1.Edge{}
	for _, e := range m.GetEdges() {
		edges[[2]string{e.GetFrom(), e.GetTo()}] = e
	}
	numbered := len(m.GetRegions()) > wideMatrix
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
	fmt.Fprintf(w, "round trips, p%d in ms\n\n", percentile)
	t.write(w, v.palette)
	v.legend(w, m.GetEdges())
}

// legend explains the marks that are there, and the colours.
func (v view) legend(w io.Writer, edges []*nusav1.Edge) {
	var parts []string
	add := func(there bool, text string) {
		if there && !slices.Contains(parts, text) {
			parts = append(parts, text)
		}
	}
	add(true, "plain measured")
	for _, e := range edges {
		add(e.GetSource() == nusav1.RTTSource_RTT_SOURCE_PREDICTED, markPredicted+" predicted")
		add(e.GetSource() == nusav1.RTTSource_RTT_SOURCE_ESTIMATED, markEstimated+" estimated")
		add(e.GetState() == nusav1.EdgeState_EDGE_STATE_STALE, markStale+" stale")
		add(e.GetState() == nusav1.EdgeState_EDGE_STATE_UNREACHABLE, cellUnreachable+" unreachable")
		add(v.unknown(e), cellUnknown+" unknown")
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

func (v view) unknown(e *nusav1.Edge) bool {
	return e.GetSource() == nusav1.RTTSource_RTT_SOURCE_UNSPECIFIED ||
		e.GetSource() == nusav1.RTTSource_RTT_SOURCE_MEASURED && e.GetState() == nusav1.EdgeState_EDGE_STATE_UNKNOWN
}

// cell is an edge's round trip with its marks.
func (v view) cell(e *nusav1.Edge, percentile int) string {
	if e.GetState() == nusav1.EdgeState_EDGE_STATE_UNREACHABLE {
		return v.bad(cellUnreachable)
	}
	if v.unknown(e) {
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
	for _, s := range latencyScale {
		if rtt(e, percentile).AsDuration() < s.below {
			return v.paint(s.colour, text)
		}
	}
	return text
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

// row shows every detail of what one region measured, nearest first.
// loss is the share of probes lost and, where that is known, on which way.
func loss(e *nusav1.Edge) string {
	text := fmt.Sprintf("%.1f%%", e.GetLoss()*100)
	if e.GetLossOut() > 0 || e.GetLossBack() > 0 {
		text += fmt.Sprintf(" (%.1f out, %.1f back)", e.GetLossOut()*100, e.GetLossBack()*100)
	}
	return text
}

func (v view) row(w io.Writer, m *nusav1.MatrixResponse, from string, percentile int) {
	edges := slices.Clone(m.GetEdges())
	edges = slices.DeleteFunc(edges, func(e *nusav1.Edge) bool { return e.GetFrom() != from })
	slices.SortStableFunc(edges, func(a, b *nusav1.Edge) int {
		return int(rtt(a, percentile).AsDuration() - rtt(b, percentile).AsDuration())
	})
	t := newTable("TO", ">P50", ">P90", ">P99", ">MIN", ">JITTER", ">LOSS", ">SAMPLES", ">AGE", "METHOD", "STATE", "SOURCE")
	for _, e := range edges {
		source := word(e.GetSource())
		if e.GetError() > 0 {
			source += fmt.Sprintf(" ±%s", percent(e.GetError()))
		}
		if e.GetSource() != nusav1.RTTSource_RTT_SOURCE_MEASURED {
			t.row(e.GetTo(), v.cell(e, 50), v.cell(e, 90), v.cell(e, 99), "-", "-", "-", count(e.GetSamples()), "-", e.GetMethod(), v.state(word(e.GetState())), source)
			continue
		}
		state := v.state(word(e.GetState()))
		if e.GetHeard() {
			state += ", heard"
		}
		t.row(e.GetTo(), v.cell(e, 50), v.cell(e, 90), v.cell(e, 99), millis(e.GetMin()), millis(e.GetJitter()), loss(e),
			count(e.GetSamples()), age(e.GetAge()), e.GetMethod(), state, source)
	}
	fmt.Fprintf(w, "from %s, ms\n\n", v.bold(from))
	t.write(w, v.palette)
	v.legend(w, edges)
}
