package network

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// matrixWatch holds the latest value of every edge.
type matrixWatch struct {
	whole   *nusav1.MatrixResponse
	at      map[[2]string]int // maps an edge to its position in whole
	token   string
	changed int // number of edges in the latest message
}

// watchMatrix shows a matrix as it changes. On a terminal it redraws the matrix. Otherwise
// it prints the changed edges.
func watchMatrix(c *cli.Session, req *nusav1.MatrixRequest, o latencyOptions) error {
	m := &matrixWatch{whole: &nusav1.MatrixResponse{}, at: map[[2]string]int{}}
	r := &cli.Resumed{Session: c}
	return r.Follow(c.Ctx, func(answered func()) error {
		req.Token = m.token
		return followMatrix(c, req, o, m, answered)
	})
}

// followMatrix shows the updates of one stream until the stream ends.
func followMatrix(c *cli.Session, req *nusav1.MatrixRequest, o latencyOptions, m *matrixWatch, answered func()) error {
	stream, err := c.Topology().Watch(c.Ctx, req)
	if err != nil {
		return err
	}
	for {
		update, err := stream.Recv()
		if err != nil {
			return err
		}
		answered()
		first := len(m.at) == 0
		m.apply(update)
		err = c.PrintLine(update, func(w *term.Screen) {
			switch {
			case c.Terminal:
				drawMatrix(w, m, o, term.TerminalHeight(c.Out))
			case first:
				writeLatency(w, m.whole, o)
			default:
				writeChanges(w, update, o)
			}
		})
		if err != nil {
			return err
		}
	}
}

// apply stores the changes that a message reports.
func (m *matrixWatch) apply(update *nusav1.MatrixResponse) {
	if update.GetReset_() {
		m.whole, m.at = &nusav1.MatrixResponse{}, map[[2]string]int{}
	}
	if update.GetToken() != "" {
		m.token = update.GetToken()
	}
	if update.GetSeenBy() != "" {
		m.whole.SeenBy, m.whole.Alone = update.GetSeenBy(), update.GetAlone()
	}
	m.changed = len(update.GetEdges())
	for _, e := range update.GetEdges() {
		key := [2]string{e.GetFrom(), e.GetTo()}
		if i, there := m.at[key]; there {
			m.whole.Edges[i] = e
			continue
		}
		m.at[key] = len(m.whole.Edges)
		m.whole.Edges = append(m.whole.Edges, e)
	}
	if len(update.GetRegions()) > 0 && !slices.Equal(update.GetRegions(), m.whole.GetRegions()) {
		m.whole.Regions = update.GetRegions()
		m.dropOldRegions()
	}
}

// dropOldRegions removes the edges of regions that no longer exist.
func (m *matrixWatch) dropOldRegions() {
	m.whole.Edges = slices.DeleteFunc(m.whole.Edges, func(e *nusav1.Edge) bool {
		return !slices.Contains(m.whole.Regions, e.GetFrom()) || !slices.Contains(m.whole.Regions, e.GetTo())
	})
	clear(m.at)
	for i, e := range m.whole.Edges {
		m.at[[2]string{e.GetFrom(), e.GetTo()}] = i
	}
}

// writeChanges writes the changed edges, for output that is no terminal.
func writeChanges(w *term.Screen, update *nusav1.MatrixResponse, o latencyOptions) {
	if update.GetReset_() {
		fmt.Fprintln(w, "(a gap: the whole matrix follows)")
	}
	for _, e := range update.GetEdges() {
		fmt.Fprintf(w, "%s %s -> %s %s\n", w.Now.Format(time.TimeOnly), e.GetFrom(), e.GetTo(), edgeText(w, e, o.percentile))
	}
}

// drawMatrix overwrites the previous matrix. It does not clear the screen first, because
// that would flicker. A last line counts the lines that do not fit.
func drawMatrix(w *term.Screen, m *matrixWatch, o latencyOptions, height int) {
	var text strings.Builder
	writeLatency(w.Onto(&text), m.whole, o)
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	if room := height - 2; room > 1 && len(lines) > room {
		lines = append(lines[:room-1], fmt.Sprintf("… %s more: make the window higher, or use --from REGION", term.Plural(len(lines)-room+1, "line")))
	}
	lines = append(lines, w.Faint(fmt.Sprintf("%s  %s changed; Ctrl-C ends it", w.Now.Format(time.TimeOnly), term.Plural(m.changed, "edge"))))
	var out strings.Builder
	out.WriteString("\x1b[H")
	for _, line := range lines {
		out.WriteString(term.Fit(line, w.Width) + "\x1b[K\n")
	}
	out.WriteString("\x1b[J")
	io.WriteString(w, out.String())
}
