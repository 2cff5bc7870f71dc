package client

import (
	"io"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
)

// palette colours text, or does not: pipes and NO_COLOR get none.
type palette struct{ on bool }

func (p palette) paint(colour, text string) string {
	if !p.on || text == "" {
		return text
	}
	return lipgloss.NewStyle().Foreground(lipgloss.Color(colour)).Render(text)
}

func (p palette) bold(text string) string {
	if !p.on || text == "" {
		return text
	}
	return lipgloss.NewStyle().Bold(true).Render(text)
}

// Colours of the basic sixteen follow the terminal's theme.
func (p palette) good(text string) string  { return p.paint("2", text) }
func (p palette) wait(text string) string  { return p.paint("3", text) }
func (p palette) bad(text string) string   { return p.paint("1", text) }
func (p palette) faint(text string) string { return p.paint("8", text) }

// state colours the name of a state by what it means.
func (p palette) state(text string) string {
	switch text {
	case "running", "healthy", "complete", "ready", "connected", "accepted", "taken", "ok", "done", "yes":
		return p.good(text)
	case "pending", "starting", "waiting", "stopping", "offered", "defined", "draining", "cordoned", "stale", "predicted", "estimated":
		return p.wait(text)
	case "failed", "unhealthy", "lost", "disconnected", "rejected", "unreachable":
		return p.bad(text)
	}
	return text
}

// fit cuts a line so that it does not wrap in so many columns; colours have
// none. One column stays free, where terminals differ about wrapping, and the
// wider of two measures counts: not every terminal joins what makes up an
// emoji.
func fit(line string, width int) string {
	most := max(width-1, 1)
	for n := most; n > 1; n-- {
		if cut := ansi.Truncate(line, n, "…"); ansi.StringWidthWc(cut) <= most {
			return cut
		}
	}
	return "…"
}

// table aligns columns by what is seen: colours have no width. Columns whose
// head starts with ">" are aligned right.
type table struct {
	heads []string
	rows  [][]string
}

func newTable(heads ...string) *table { return &table{heads: heads} }

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// dropEmpty removes columns that have a head and nothing else.
func (t *table) dropEmpty(heads ...string) {
	for _, h := range heads {
		for i := range t.heads {
			if strings.TrimPrefix(t.heads[i], ">") == h && t.empty(i) {
				t.heads = append(t.heads[:i:i], t.heads[i+1:]...)
				for r := range t.rows {
					t.rows[r] = append(t.rows[r][:i:i], t.rows[r][i+1:]...)
				}
				break
			}
		}
	}
}

// dropBlank removes columns without any text: there a 0 says something.
func (t *table) dropBlank(head string) {
	for _, r := range t.rows {
		for i, h := range t.heads {
			if strings.TrimPrefix(h, ">") == head && r[i] != "" {
				return
			}
		}
	}
	t.dropEmpty(head)
}

// narrow shortens the last column when that is a message, to no less than a few
// words, so that lines do not wrap in so many columns; 0 = they may be of any
// length.
func (t *table) narrow(width int) {
	const words = 24
	last := len(t.heads) - 1
	if width <= 0 || last < 1 || t.heads[last] != "MESSAGE" {
		return
	}
	left := width - 1
	for i := range last {
		most := lipgloss.Width(strings.TrimPrefix(t.heads[i], ">"))
		for _, r := range t.rows {
			most = max(most, lipgloss.Width(r[i]))
		}
		left -= most + len(gap)
	}
	for _, r := range t.rows {
		r[last] = shorten(r[last], max(words, left))
	}
}

// ditto shows a long text of the last column once where it stands several times
// below itself.
func (t *table) ditto() {
	const long = 24
	last, above := len(t.heads)-1, ""
	for _, r := range t.rows {
		if r[last] == above && lipgloss.Width(above) > long {
			r[last] = "″"
		} else {
			above = r[last]
		}
	}
}

func (t *table) empty(column int) bool {
	for _, r := range t.rows {
		if r[column] != "" && r[column] != "0" && r[column] != "-" {
			return false
		}
	}
	return true
}

const gap = "  "

// widths of the columns.
func (t *table) widths() []int {
	out := make([]int, len(t.heads))
	for i, h := range t.heads {
		out[i] = lipgloss.Width(strings.TrimPrefix(h, ">"))
	}
	for _, r := range t.rows {
		for i, cell := range r {
			out[i] = max(out[i], lipgloss.Width(cell))
		}
	}
	return out
}

// width is that of the longest line.
func (t *table) width() int {
	sum := -len(gap)
	for _, w := range t.widths() {
		sum += w + len(gap)
	}
	return sum
}

// blocks cuts a table into several that fit into so many columns, each with the
// first column; 0 = one of any width. A column that does not fit at all has a
// table of its own.
func (t *table) blocks(width int) []*table {
	if width <= 0 {
		return []*table{t}
	}
	widths := t.widths()
	var out []*table
	for from := 1; from < len(widths); {
		sum, to := widths[0], from
		for to < len(widths) && (to == from || sum+len(gap)+widths[to] < width) {
			sum += len(gap) + widths[to]
			to++
		}
		b := &table{heads: append([]string{t.heads[0]}, t.heads[from:to]...)}
		for _, r := range t.rows {
			b.rows = append(b.rows, append([]string{r[0]}, r[from:to]...))
		}
		out, from = append(out, b), to
	}
	return out
}

func (t *table) write(w io.Writer, p palette) {
	widths := t.widths()
	heads := make([]string, len(t.heads))
	for i, h := range t.heads {
		heads[i] = p.faint(strings.TrimPrefix(h, ">"))
	}
	for _, r := range append([][]string{heads}, t.rows...) {
		var b strings.Builder
		for i, cell := range r {
			if i > 0 {
				b.WriteString(gap)
			}
			blank := strings.Repeat(" ", widths[i]-lipgloss.Width(cell))
			if strings.HasPrefix(t.heads[i], ">") {
				b.WriteString(blank + cell)
			} else {
				b.WriteString(cell + blank)
			}
		}
		io.WriteString(w, strings.TrimRight(b.String(), " ")+"\n")
	}
}

// writeBody writes the rows without heads, indented.
func (t *table) writeBody(w io.Writer, p palette) {
	body := &table{heads: t.heads}
	for _, r := range t.rows {
		body.rows = append(body.rows, append([]string{"  " + r[0]}, r[1:]...))
	}
	var b strings.Builder
	body.write(&b, p)
	_, text, _ := strings.Cut(b.String(), "\n")
	io.WriteString(w, text)
}
