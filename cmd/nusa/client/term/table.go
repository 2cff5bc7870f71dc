package term

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
)

// Fit cuts a line so that the line does not wrap in a terminal of width columns. Colours
// take no columns. One column stays free, because terminals wrap at different columns. Not
// every terminal joins the parts of an emoji, so Fit measures the text in two ways, and the
// wider result counts.
func Fit(line string, width int) string {
	most := max(width-1, 1)
	for n := most; n > 1; n-- {
		if cut := ansi.Truncate(line, n, "…"); ansi.StringWidthWc(cut) <= most {
			return cut
		}
	}
	return "…"
}

// Table aligns columns by their visible width. Colours have no width. A head may begin with
// a mark, which is not shown. ">" aligns the column to the right. "#" makes it a column of
// messages. If a long message is repeated or is too wide for the terminal, Write shows the
// message once below the table, and its number in the cells.
type Table struct {
	heads []string
	Rows  [][]string
	// narrowed are the heads of the columns that Narrow has removed.
	narrowed []string
}

// NewTable returns a table with these heads.
func NewTable(heads ...string) *Table { return &Table{heads: heads} }

func headText(head string) string { return strings.TrimLeft(head, ">#") }

// Row adds a row with a cell for each column.
func (t *Table) Row(cells ...string) { t.Rows = append(t.Rows, cells) }

// DropEmpty removes each of the given columns in which every cell is blank, 0 or "-".
func (t *Table) DropEmpty(heads ...string) {
	for _, h := range heads {
		if i := t.column(h); i >= 0 && t.empty(i) {
			t.drop(i)
		}
	}
}

// column returns the position of the column with a head, or -1 if there is none.
func (t *Table) column(head string) int {
	return slices.IndexFunc(t.heads, func(h string) bool { return headText(h) == head })
}

func (t *Table) drop(i int) {
	t.heads = append(t.heads[:i:i], t.heads[i+1:]...)
	for r := range t.Rows {
		t.Rows[r] = append(t.Rows[r][:i:i], t.Rows[r][i+1:]...)
	}
}

// Narrow removes columns, in the given order, until the table fits a terminal of width
// columns. A width of 0 is unlimited. Long messages do not count, because Write moves them
// below the table. Write also names the removed columns there.
func (t *Table) Narrow(width int, heads ...string) {
	for _, h := range heads {
		if i := t.column(h); i >= 0 && width > 0 && t.leastWidth() >= width {
			t.drop(i)
			t.narrowed = append(t.narrowed, h)
		}
	}
}

// leastWidth returns the width of the longest line if all long messages are below the
// table.
func (t *Table) leastWidth() int {
	sum := -len(Gap)
	for i, n := range t.widths() {
		if strings.HasPrefix(t.heads[i], "#") {
			n = t.leastMessage(i)
		}
		sum += n + len(Gap)
	}
	return sum
}

// leastMessage returns the width of a column of messages if all its long messages are below
// the table.
func (t *Table) leastMessage(column int) int {
	width := lipgloss.Width(headText(t.heads[column]))
	for _, r := range t.Rows {
		if n := lipgloss.Width(r[column]); n <= shortMessage {
			width = max(width, n)
		} else {
			width = max(width, noteMark)
		}
	}
	return width
}

// DropBlank removes a column if all its cells are blank. A 0 counts as text.
func (t *Table) DropBlank(head string) {
	for _, r := range t.Rows {
		for i, h := range t.heads {
			if headText(h) == head && r[i] != "" {
				return
			}
		}
	}
	t.DropEmpty(head)
}

func (t *Table) empty(column int) bool {
	for _, r := range t.Rows {
		if r[column] != "" && r[column] != "0" && r[column] != "-" {
			return false
		}
	}
	return true
}

// Gap is the text between two columns.
const Gap = "  "

// widths returns the width of each column.
func (t *Table) widths() []int {
	out := make([]int, len(t.heads))
	for i, h := range t.heads {
		out[i] = lipgloss.Width(headText(h))
	}
	for _, r := range t.Rows {
		for i, cell := range r {
			out[i] = max(out[i], lipgloss.Width(cell))
		}
	}
	return out
}

// Width returns the width of the longest line.
func (t *Table) Width() int {
	sum := -len(Gap)
	for _, w := range t.widths() {
		sum += w + len(Gap)
	}
	return sum
}

// Blocks cuts a table into several tables that fit width, each with the first column. A
// width of 0 is unlimited. A column that is too wide gets a table of its own.
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

// Write writes the table, and below the table the messages that its cells refer to.
func (t *Table) Write(w *Screen) {
	t, notes := t.footnotes(w.Width)
	t.writeRows(w)
	for i, text := range notes {
		if i == 0 {
			fmt.Fprintln(w)
		}
		w.Note(fmt.Sprintf("[%d] ", i+1), text)
	}
	if len(t.narrowed) > 0 {
		fmt.Fprintln(w)
		w.Note("left out: ", strings.Join(t.narrowed, ", ")+"; -o json has all")
	}
}

const (
	// longMessage is the width above which a repeated message becomes a footnote.
	longMessage = 56
	// shortMessage is the width up to which a message always stays in its cell.
	shortMessage = 24
	// noteMark is the width that a footnote's number such as "[12]" takes in a cell.
	noteMark = 6
	// plainWidth is the width of a line above which long messages become footnotes, if
	// there is no terminal.
	plainWidth = 120
)

// footnotes moves messages out of the cells. It returns the table with numbers in place of
// these messages, and the messages in the order of their numbers.
func (t *Table) footnotes(width int) (_ *Table, notes []string) {
	column := slices.IndexFunc(t.heads, func(h string) bool { return strings.HasPrefix(h, "#") })
	if column < 0 {
		return t, nil
	}
	times := map[string]int{}
	for _, r := range t.Rows {
		times[r[column]]++
	}
	room, least := width-1, shortMessage
	if width == 0 {
		room, least = plainWidth, longMessage
	}
	for i, w := range t.widths() {
		if i != column {
			room -= w + len(Gap)
		}
	}
	out := &Table{heads: t.heads, narrowed: t.narrowed}
	number := map[string]string{}
	for _, r := range t.Rows {
		message := r[column]
		if n := lipgloss.Width(message); n > longMessage && times[message] > 1 || n > least && n > room {
			if number[message] == "" {
				notes = append(notes, message)
				number[message] = fmt.Sprintf("[%d]", len(notes))
			}
			r = slices.Clone(r)
			r[column] = number[message]
		}
		out.Rows = append(out.Rows, r)
	}
	return out, notes
}

// WriteFields writes a table of names and values. An empty value is left out.
func WriteFields(w *Screen, fields [][2]string) {
	t := NewTable("FIELD", "#VALUE")
	for _, f := range fields {
		if f[1] != "" {
			t.Row(f[0], OneLine(f[1]))
		}
	}
	t.Write(w)
}

// Notes writes what is wrong with some objects below their table: names, and texts. An empty text is left
// out.
func (w *Screen) Notes(notes [][2]string) {
	first := true
	for _, n := range notes {
		if n[1] == "" {
			continue
		}
		if first {
			fmt.Fprintln(w)
		}
		first = false
		w.Note(n[0]+": ", OneLine(n[1]))
	}
}

// Note writes a text after its mark. On a terminal a long text continues on the next lines,
// indented.
func (w *Screen) Note(mark, text string) {
	indent := strings.Repeat(" ", min(lipgloss.Width(mark), maxIndent))
	if width := w.Width - lipgloss.Width(mark) - 1; width > shortMessage {
		lines := wrap(text, width)
		text = lines[0]
		if rest := strings.TrimSpace(strings.Join(lines[1:], " ")); rest != "" {
			text += "\n" + indent + strings.Join(wrap(rest, w.Width-len(indent)-1), "\n"+indent)
		}
	}
	if strings.TrimSpace(mark) != "" {
		mark = w.Faint(mark)
	}
	fmt.Fprintf(w, "%s%s\n", mark, strings.ReplaceAll(text, unbroken, " "))
}

// unbroken stands for a blank at which no line ends. It is a character for private use, as wide as a blank.
const unbroken = "\ue000"

// Whole keeps a command in the text of a note on one line, so that it can be copied.
func Whole(command string) string { return strings.ReplaceAll(command, " ", unbroken) }

// maxIndent bounds the blanks before the second line of a note.
const maxIndent = 4

// wrap breaks a text between words. It does not break at hyphens, because names contain
// hyphens.
func wrap(text string, width int) []string {
	var lines []string
	line, used := "", 0
	for _, word := range strings.Fields(text) {
		n := lipgloss.Width(word)
		if used > 0 && used+1+n > width {
			lines, line, used = append(lines, line), "", 0
		}
		if used > 0 {
			line, used = line+" ", used+1
		}
		line, used = line+word, used+n
	}
	return append(lines, line)
}

func (t *Table) writeRows(w *Screen) {
	widths := t.widths()
	heads := make([]string, len(t.heads))
	for i, h := range t.heads {
		heads[i] = w.Faint(headText(h))
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

// WriteBody writes the rows without heads and indented.
func (t *Table) WriteBody(w *Screen) {
	body := &Table{heads: t.heads}
	for _, r := range t.Rows {
		body.Rows = append(body.Rows, append([]string{"  " + r[0]}, r[1:]...))
	}
	var b strings.Builder
	body.writeRows(w.Onto(&b))
	_, text, _ := strings.Cut(b.String(), "\n")
	io.WriteString(w, text)
}
