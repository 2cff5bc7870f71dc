package history

import (
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/series"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// historyRetention is how long regions retain series.
	historyRetention = 31 * cli.Day
	// sparkWidth is the usual width of a sparkline.
	sparkWidth = 40
)

// noiseMS is the greatest change of a round trip, in milliseconds, that counts as noise.
const noiseMS = 1

// nameOf returns the name of a series for people.
func nameOf(s *nusav1.HistorySeries) string {
	if s.GetName() != "" {
		return s.GetName()
	}
	return s.GetKey()
}

// timeSpan describes the time span and the interval of a series.
func timeSpan(w *term.Screen, s *nusav1.HistorySeries) string {
	points := 0
	for _, f := range s.GetFields() {
		points = max(points, len(f.GetMean()))
	}
	end := s.GetStart().AsTime().Add(time.Duration(points) * s.GetStep().AsDuration())
	text := term.Duration(end.Sub(s.GetStart().AsTime()))
	if ago := w.Now.Sub(end); ago > 2*s.GetStep().AsDuration() {
		text += " until " + term.Duration(ago) + " ago"
	}
	return text + ", a point each " + job.FormatDuration(s.GetStep().AsDuration())
}

// statistics summarizes all points of a field.
type statistics struct {
	min, mean, max, latest float64
	points, gaps           int
}

func summarize(f *nusav1.HistoryField) statistics {
	s := statistics{min: math.Inf(1), max: math.Inf(-1)}
	sum, n := 0.0, 0.0
	for i, c := range f.GetCount() {
		if c == 0 || i >= len(f.GetMean()) || i >= len(f.GetMin()) || i >= len(f.GetMax()) {
			s.gaps++
			continue
		}
		s.points++
		s.min, s.max = min(s.min, f.GetMin()[i]), max(s.max, f.GetMax()[i])
		sum, n = sum+f.GetMean()[i]*float64(c), n+float64(c)
		s.latest = f.GetMean()[i]
	}
	s.mean = sum / n
	return s
}

// gapText returns the share of points without a value. It never rounds to 0% or 100%.
func (s statistics) gapText() string {
	switch share := float64(s.gaps) / float64(s.gaps+s.points); {
	case s.gaps == 0:
		return ""
	case s.points > 0 && share > 0.99:
		return ">99%"
	case share < 0.01:
		return "<1%"
	default:
		return term.Percent(share)
	}
}

// spark draws a field as a line of characters. A gap is a blank.
func spark(f *nusav1.HistoryField, width int) string {
	values := make([]float64, len(f.GetMean()))
	for i, m := range f.GetMean() {
		values[i] = m
		if i >= len(f.GetCount()) || f.GetCount()[i] == 0 {
			values[i] = math.NaN()
		}
	}
	noise := 0.0
	if strings.HasSuffix(f.GetName(), "_ms") {
		noise = noiseMS
	}
	return series.Sparkline(values, width, noise)
}

// sparkRoom returns the width for sparklines. figures is the width of the other columns.
func sparkRoom(w *term.Screen, figures int) int {
	if w.Width <= 0 {
		return sparkWidth
	}
	return min(max(w.Width-figures, sparkWidth/4), 2*sparkWidth)
}

// writeSeries writes every field of one series, and its trends.
func writeSeries(w *term.Screen, s *nusav1.HistorySeries) {
	title := map[string]string{KindEdge: s.GetRegion() + " → " + nameOf(s)}[s.GetKind()]
	if title == "" {
		title = strings.TrimSpace(s.GetKind()+" "+nameOf(s)) + " in " + s.GetRegion()
	}
	fmt.Fprintf(w, "%s  %s\n\n", w.Bold(title), timeSpan(w, s))
	t := term.NewTable("FIELD", "OVER TIME", ">MIN", ">MEAN", ">MAX", ">LATEST", ">GAPS")
	for _, f := range s.GetFields() {
		st := summarize(f)
		if st.points == 0 {
			continue
		}
		text := unitOf(f.GetName())
		t.Row(FieldName(f.GetName()), spark(f, sparkRoom(w, 60)), text(st.min), text(st.mean), text(st.max), text(st.latest), st.gapText())
	}
	t.DropBlank("GAPS")
	if len(t.Rows) == 0 {
		fmt.Fprintln(w, "no values in this time")
	} else {
		t.Write(w)
	}
	writeTrends(w, s, "")
}

// writeAllSeries writes one line for each series. The line has the first of the columns
// over time and the means of the other columns.
func writeAllSeries(w *term.Screen, all []*nusav1.HistorySeries, columns []string) {
	first := all[0]
	title := first.GetKind() + "s in " + first.GetRegion()
	if first.GetKind() == KindEdge {
		title = "from " + first.GetRegion()
	}
	fmt.Fprintf(w, "%s  %s: %s\n\n", w.Bold(title), FieldName(columns[0]), timeSpan(w, first))
	heads := []string{strings.ToUpper(first.GetKind()), "OVER TIME", ">MIN", ">MEAN", ">MAX", ">LATEST"}
	if first.GetKind() == KindEdge {
		heads[0] = "TO"
	}
	for _, c := range columns[1:] {
		heads = append(heads, ">"+strings.ToUpper(FieldName(c)))
	}
	t := term.NewTable(append(heads, ">GAPS")...)
	for _, s := range all {
		row := []string{nameOf(s), "-", "-", "-", "-", "-"}
		gaps := ""
		if f := fieldOf(s, columns[0]); f != nil {
			if st := summarize(f); st.points > 0 {
				text := unitOf(columns[0])
				row = []string{nameOf(s), spark(f, sparkRoom(w, 70)), text(st.min), text(st.mean), text(st.max), text(st.latest)}
				gaps = st.gapText()
			}
		}
		for _, c := range columns[1:] {
			text := "-"
			if st := summarize(fieldOf(s, c)); st.points > 0 {
				text = unitOf(c)(st.mean)
			}
			row = append(row, text)
		}
		t.Row(append(row, gaps)...)
	}
	t.DropBlank("GAPS")
	t.Write(w)
	for _, s := range all {
		writeTrends(w, s, nameOf(s)+": ")
	}
}

func fieldOf(s *nusav1.HistorySeries, name string) *nusav1.HistoryField {
	for _, f := range s.GetFields() {
		if f.GetName() == name {
			return f
		}
	}
	return nil
}

// FieldName returns the name of a field in words. The suffix "ms" stays, because such
// values are written without a unit.
func FieldName(name string) string {
	name = strings.TrimSuffix(strings.TrimSuffix(name, "_bytes"), "_per_second")
	return strings.ReplaceAll(name, "_", " ")
}

// unitOf returns the function that writes the values of a field with their unit. It chooses
// by the field's name.
func unitOf(name string) func(float64) string {
	has := func(part string) bool { return strings.Contains(name, part) }
	switch {
	case strings.HasSuffix(name, "_ms"):
		return func(f float64) string {
			return term.Millis(durationpb.New(time.Duration(f * float64(time.Millisecond))))
		}
	case name == "loss", name == "cpu", has("share"), has("utilisation"):
		return func(f float64) string { return term.Number(f*100) + "%" }
	case has("network"), has("_per_second"):
		return term.Rate
	case has("memory"), has("disk"), has("swap"), has("bytes"):
		return func(f float64) string { return term.Size(int64(f)) }
	}
	return term.Number
}

// writeTrends writes when a resource of a series will run out, or why that is unknown. Each
// line begins with the text of.
func writeTrends(w *term.Screen, s *nusav1.HistorySeries, of string) {
	if len(s.GetTrends()) > 0 {
		fmt.Fprintln(w)
	}
	for _, t := range s.GetTrends() {
		fmt.Fprintln(w, of+trendText(w, t))
	}
}

func trendText(w *term.Screen, t *nusav1.HistoryTrend) string {
	what := FieldName(t.GetField())
	for _, end := range []string{" used", " free", " available"} {
		what = strings.TrimSuffix(what, end)
	}
	reason := term.OneLine(t.GetWhy())
	if !t.GetKnown() {
		return what + ": " + reason
	}
	left := t.GetAt().AsTime().Sub(w.Now)
	if left <= 0 {
		return w.Bad(what+" has run out") + w.Faint(" ("+reason+")")
	}
	unit, one := "day", cli.Day
	switch {
	case left < 2*time.Hour:
		unit, one = "minute", time.Minute
	case left < 2*cli.Day:
		unit, one = "hour", time.Hour
	}
	in := func(at *timestamppb.Timestamp) int {
		return max(int(math.Round(float64(at.AsTime().Sub(w.Now))/float64(one))), 0)
	}
	between := ""
	switch {
	case t.GetEarliest() == nil:
	case t.GetLatest() == nil:
		between = fmt.Sprintf(" (%d or more)", in(t.GetEarliest()))
	default:
		between = fmt.Sprintf(" (%d–%d)", in(t.GetEarliest()), in(t.GetLatest()))
	}
	line := fmt.Sprintf("%s runs out in about %s%s", what, term.Plural(max(in(t.GetAt()), 1), unit), between)
	if left < 3*cli.Day {
		line = w.Bad(line)
	} else {
		line = w.Wait(line)
	}
	if reason != "" {
		line += w.Faint("  " + reason)
	}
	return line
}
