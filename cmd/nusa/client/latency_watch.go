package client

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// matrixWatch holds the latest of every edge.
type matrixWatch struct {
	whole   *nusav1.MatrixResponse
	at      map[[2]string]int // of an edge in whole
	token   string
	changed int // edges in the latest message
}

// watchMatrix shows a matrix as it changes: on a terminal it draws over it, else
// it prints the edges that changed.
func (c *caller) watchMatrix(req *nusav1.MatrixRequest, o latencyOptions) error {
	m := &matrixWatch{whole: &nusav1.MatrixResponse{}, at: map[[2]string]int{}}
	return c.goOn(func(answered func()) error {
		req.Token = m.token
		return c.followMatrix(req, o, m, answered)
	})
}

// followMatrix shows one stream until it ends.
func (c *caller) followMatrix(req *nusav1.MatrixRequest, o latencyOptions, m *matrixWatch, answered func()) error {
	stream, err := c.topology().Watch(c.ctx, req)
	if err != nil {
		return err
	}
	for {
		news, err := stream.Recv()
		if err != nil {
			return err
		}
		answered()
		first := len(m.at) == 0
		m.take(news)
		v := c.view()
		err = c.printLine(news, func(w io.Writer) {
			switch {
			case c.terminal:
				v.drawMatrix(w, m, o, terminalHeight(c.out))
			case first:
				v.latency(w, m.whole, o)
			default:
				v.changes(w, news, o)
			}
		})
		if err != nil {
			return err
		}
	}
}

// take puts what changed into the whole.
func (m *matrixWatch) take(news *nusav1.MatrixResponse) {
	if news.GetReset_() {
		m.whole, m.at = &nusav1.MatrixResponse{}, map[[2]string]int{}
	}
	if news.GetToken() != "" {
		m.token = news.GetToken()
	}
	if news.GetSeenBy() != "" {
		m.whole.SeenBy, m.whole.Alone = news.GetSeenBy(), news.GetAlone()
	}
	m.changed = len(news.GetEdges())
	for _, e := range news.GetEdges() {
		key := [2]string{e.GetFrom(), e.GetTo()}
		if i, there := m.at[key]; there {
			m.whole.Edges[i] = e
			continue
		}
		m.at[key] = len(m.whole.Edges)
		m.whole.Edges = append(m.whole.Edges, e)
	}
	if len(news.GetRegions()) > 0 && !slices.Equal(news.GetRegions(), m.whole.GetRegions()) {
		m.whole.Regions = news.GetRegions()
		m.forget()
	}
}

// forget drops edges of regions that are no longer there.
func (m *matrixWatch) forget() {
	m.whole.Edges = slices.DeleteFunc(m.whole.Edges, func(e *nusav1.Edge) bool {
		return !slices.Contains(m.whole.Regions, e.GetFrom()) || !slices.Contains(m.whole.Regions, e.GetTo())
	})
	clear(m.at)
	for i, e := range m.whole.Edges {
		m.at[[2]string{e.GetFrom(), e.GetTo()}] = i
	}
}

// changes are lines for those without a terminal.
func (v view) changes(w io.Writer, news *nusav1.MatrixResponse, o latencyOptions) {
	if news.GetReset_() {
		fmt.Fprintln(w, "(a gap: what follows is the whole matrix)")
	}
	for _, e := range news.GetEdges() {
		fmt.Fprintf(w, "%s %s -> %s %s ms\n", v.now.Format(time.TimeOnly), e.GetFrom(), e.GetTo(), v.cell(e, o.percentile))
	}
}

// drawMatrix draws over what was drawn before, without clearing the screen
// first: that would flicker. What has no place is left out, and counted.
func (v view) drawMatrix(w io.Writer, m *matrixWatch, o latencyOptions, height int) {
	var text strings.Builder
	v.latency(&text, m.whole, o)
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	if room := height - 2; room > 1 && len(lines) > room {
		lines = append(lines[:room-1], fmt.Sprintf("… %s more: make the window higher, or --from REGION", plural(len(lines)-room+1, "line")))
	}
	lines = append(lines, v.faint(fmt.Sprintf("%s  %s changed; Ctrl-C ends it", v.now.Format(time.TimeOnly), plural(m.changed, "edge"))))
	var out strings.Builder
	out.WriteString("\x1b[H")
	for _, line := range lines {
		out.WriteString(fit(line, v.width) + "\x1b[K\n")
	}
	out.WriteString("\x1b[J")
	io.WriteString(w, out.String())
}
