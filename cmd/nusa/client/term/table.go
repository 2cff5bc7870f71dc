package term

import (
	"io"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
)

// Fit cuts a line so that it does not wrap in so many columns; colours have
// none. One column stays free, where terminals differ about wrapping, and the
// wider of two measures counts: not every terminal joins what makes up an
// emoji.
func Fit(line string, width int) string {
	most := max(width-1, 1)
	for n := most; n > 1; n-- {
		if cut := ansi.Truncate(line, n, "…"); ansi.StringWidthWc(cut) <= most {
			return cut
		}
	}
	return "…"
}

// Table aligns columns by what is seen: colours have no width. Columns whose
// head starts with ">" are aligned right.
type Table struct {
	heads []string
	Rows  [][]string
}

func NewTable(heads ...string) *Table { return &Table{heads: heads} }

func (t *Table) Row(cells ...string) { t.Rows = append(t.Rows, cells) }

// DropEmpty removes columns that have a head and nothing else.
func (t *Table) DropEmpty(heads ...string) {
	for _, h := range heads {
		for i := range t.heads {
			if strings.TrimPrefix(t.heads[i], ">") == h && t.empty(i) {
				t.heads = append(t.heads[:i:i], t.heads[i+1:]...)
				for r := range t.Rows {
					t.Rows[r] = append(t.Rows[r][:i:i], t.Rows[r][i+1:]...)
				}
				break
			}
		}
	}
}

// DropBlank removes columns without any text: there a 0 says something.
func (t *Table) DropBlank(head string) {
	for _, r := range t.Rows {
		for i, h := range t.heads {
			if strings.TrimPrefix(h, ">") == head && r[i] != "" {
				return
			}
		}
	}
	t.DropEmpty(head)
}

// Narrow shortens the last column when that is a message, to no less than a few
// words, so that lines do not wrap in so many columns; 0 = they may be of any
// length.
func (t *Table) Narrow(width int) {
	const words = 24
	last := len(t.heads) - 1
	if width <= 0 || last < 1 || t.heads[last] != "MESSAGE" {
		return
	}
	left := width - 1
	for i := range last {
		most := lipgloss.Width(strings.TrimPrefix(t.heads[i], ">"))
		for _, r := range t.Rows {
			most = max(most, lipgloss.Width(r[i]))
		}
		left -= most + len(Gap)
	}
	for _, r := range t.Rows {
		r[last] = Shorten(r[last], max(words, left))
	}
}

// Ditto shows a long text of the last column once where it stands several times
// below itself.
func (t *Table) Ditto() {
	const long = 24
	last, above := len(t.heads)-1, ""
	for _, r := range t.Rows {
		if r[last] == above && lipgloss.Width(above) > long {
			r[last] = "″"
		} else {
			above = r[last]
		}
	}
}

func (t *Table) empty(column int) bool {
	for _, r := range t.Rows {
		if r[column] != "" && r[column] != "0" && r[column] != "-" {
			return false
		}
	}
	return true
}

const Gap = "  "

// widths of the columns.
func (t *Table) widths() []int {
	out := make([]int, len(t.heads))
	for i, h := range t.heads {
		out[i] = lipgloss.Width(strings.TrimPrefix(h, ">"))
	}
	for _, r := range t.Rows {
		for i, cell := range r {
			out[i] = max(out[i], lipgloss.Width(cell))
		}
	}
	return out
}

// Width is that of the longest line.
func (t *Table) Width() int {
	sum := -len(Gap)
	for _, w := range t.widths() {
		sum += w + len(Gap)
	}
	return sum
}

// Blocks cuts a table into several that fit into so many columns, each with the
// first column; 0 = one of any width. A column that does not fit at all has a
// table of its own.
func (t *Table) Blocks(width int) []*Table {
	if width <= 0 {
		return []*Table{t}
	}
	widths := t.widths()
	var out []*Table
	for from := 1; from < len(widths); {
		sum, to := widths[0], from
		for to < len(widths) && (to == from || sum+len(Gap)+widths[to] < width) {
			sum += len(Gap) + widths[to]
			to++
		}
		b := &Table{heads: append([]string{t.heads[0]}, t.heads[from:to]...)}
		for _, r := range t.Rows {
			b.Rows = append(b.Rows, append([]string{r[0]}, r[from:to]...))
		}
		out, from = append(out, b), to
	}
	return out
}

func (t *Table) Write(w *Screen) {
	widths := t.widths()
	heads := make([]string, len(t.heads))
	for i, h := range t.heads {
		heads[i] = w.Faint(strings.TrimPrefix(h, ">"))
	}
	for _, r := range append([][]string{heads}, t.Rows...) {
		var b strings.Builder
		for i, cell := range r {
			if i > 0 {
				b.WriteString(Gap)
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

// WriteBody writes the rows without heads, indented.
func (t *Table) WriteBody(w *Screen) {
	body := &Table{heads: t.heads}
	for _, r := range t.Rows {
		body.Rows = append(body.Rows, append([]string{"  " + r[0]}, r[1:]...))
	}
	var b strings.Builder
	body.Write(w.Onto(&b))
	_, text, _ := strings.Cut(b.String(), "\n")
	io.WriteString(w, text)
}
