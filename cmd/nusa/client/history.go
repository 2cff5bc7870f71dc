package client

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/series"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Kinds of series.
const (
	kindEdge = "edge"
	kindNode = "node"
	kindPool = "pool"
)

const (
	// day, since no duration has it.
	day = 24 * time.Hour
	// kept is for how long regions keep series.
	kept = 31 * day
	// sparkWidth is the width of a sparkline where the terminal leaves room, or
	// where there is none.
	sparkWidth = 40
)

// noiseMS is by how many milliseconds round trips change of themselves.
const noiseMS = 1

// spanType of flags tells flagError that their errors name the value.
const spanType = "span"

// span is the value of a flag: a duration, also in days and weeks, always with a unit.
type span struct {
	to    *time.Duration
	check func(time.Duration) error
}

func (s *span) String() string {
	if s.to == nil {
		return ""
	}
	return job.FormatDuration(*s.to)
}

func (s *span) Type() string { return spanType }

// Set implements pflag.Value.
func (s *span) Set(text string) error {
	d, err := job.ParseDuration(text)
	for unit, long := range map[string]time.Duration{"d": day, "w": 7 * day} {
		if amount, ok := strings.CutSuffix(text, unit); ok {
			if n, bad := strconv.ParseFloat(amount, 64); bad == nil && math.Abs(n) < 1e4 {
				d, err = time.Duration(n*float64(long)), nil
			}
		}
	}
	if errors.Is(err, job.ErrUnit) {
		return fmt.Errorf("%w, d, w", err)
	}
	if err != nil {
		return err
	}
	if err := s.check(d); err != nil {
		return fmt.Errorf("%s %w", text, err)
	}
	*s.to = d
	return nil
}

// bindSince adds --since: an hour unless told otherwise.
func bindSince(c *cobra.Command, to *time.Duration, usage string) {
	*to = time.Hour
	c.Flags().Var(&span{to, func(d time.Duration) error {
		if d < time.Second || d > kept {
			return fmt.Errorf("is not within 1s..%s, for as long as regions keep it", human(kept))
		}
		return nil
	}}, "since", usage+", such as 30m, 24h or 7d")
}

// historyRequest asks for the time before now.
func historyRequest(kind, region, key string, since time.Duration) *nusav1.HistoryRequest {
	now := time.Now()
	return &nusav1.HistoryRequest{Kind: kind, Region: region, Key: key, From: timestamppb.New(now.Add(-since)), To: timestamppb.New(now)}
}

// history asks for series and shows them: of one with every field, of several a
// line each with the fields of columns.
func (c *caller) history(req *nusav1.HistoryRequest, since time.Duration, columns []string) error {
	ctx, cancel := c.call()
	defer cancel()
	resp, err := c.topology().History(ctx, req)
	if err != nil {
		return c.keyGiven(req.GetKind(), err)
	}
	c.partial(resp.GetErrors())
	return c.print(resp, func(w io.Writer) {
		v := c.view()
		switch all := resp.GetSeries(); {
		case len(all) == 0:
			fmt.Fprintf(w, "nothing was kept of %s in the last %s%s; --since reaches back %s\n", seriesText(req), human(since), unseen(resp.GetErrors()), human(kept))
		case len(all) == 1 && req.GetKey() != "":
			v.oneSeries(w, all[0])
		default:
			v.manySeries(w, all, columns)
		}
	})
}

// keyGiven says of a problem with the key of a series which flag that came from:
// nobody has typed "key".
func (c *caller) keyGiven(kind string, err error) error {
	problems := rpcerr.Problems(err)
	for _, p := range problems {
		if p.GetField() != "key" {
			return err
		}
		if p.Field = "--pool"; kind == kindEdge {
			p.Field = "--to"
			p.Message += fmt.Sprintf(": `%s region list` shows them", c.nusa)
		}
	}
	if len(problems) == 0 {
		return err
	}
	return rpcerr.Refuse(status.Code(err), problems...)
}

// seriesText names what was asked for.
func seriesText(req *nusav1.HistoryRequest) string {
	text := req.GetKind() + "s"
	if req.GetKey() != "" {
		text = req.GetKind() + " " + req.GetKey()
	}
	if req.GetRegion() != "" {
		text += map[bool]string{true: " from ", false: " in "}[req.GetKind() == kindEdge] + req.GetRegion()
	}
	return text
}

func (c *caller) latencyHistory(o latencyOptions) error {
	region := c.region
	if o.from != "" {
		region = o.from
	}
	if region != "" && region == o.to {
		return fmt.Errorf("--to: %s does not measure itself: name another region", region)
	}
	field := fmt.Sprintf("p%d_ms", o.percentile)
	return c.history(historyRequest(kindEdge, region, o.to, o.since), o.since, []string{field, "loss"})
}

// nameOf is a series' name for people.
func nameOf(s *nusav1.HistorySeries) string {
	if s.GetName() != "" {
		return s.GetName()
	}
	return s.GetKey()
}

// spanOf says over what time a series goes, and how finely.
func (v view) spanOf(s *nusav1.HistorySeries) string {
	points := 0
	for _, f := range s.GetFields() {
		points = max(points, len(f.GetMean()))
	}
	end := s.GetStart().AsTime().Add(time.Duration(points) * s.GetStep().AsDuration())
	text := human(end.Sub(s.GetStart().AsTime()))
	if ago := v.now.Sub(end); ago > 2*s.GetStep().AsDuration() {
		text += " until " + human(ago) + " ago"
	}
	return text + ", a point each " + job.FormatDuration(s.GetStep().AsDuration())
}

// statistics of a field over all of its points.
type statistics struct {
	min, mean, max, latest float64
	points, gaps           int
}

func statisticsOf(f *nusav1.HistoryField) statistics {
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

// gapText is the share of points without a value; what is there is never
// rounded away.
func (s statistics) gapText() string {
	switch share := float64(s.gaps) / float64(s.gaps+s.points); {
	case s.gaps == 0:
		return ""
	case s.points > 0 && share > 0.99:
		return ">99%"
	case share < 0.01:
		return "<1%"
	default:
		return percent(share)
	}
}

// spark draws a field; gaps are blanks.
func spark(f *nusav1.HistoryField, width int) string {
	values := make([]float64, len(f.GetMean()))
	for i, m := range f.GetMean() {
		if values[i] = m; i >= len(f.GetCount()) || f.GetCount()[i] == 0 {
			values[i] = math.NaN()
		}
	}
	noise := 0.0
	if strings.HasSuffix(f.GetName(), "_ms") {
		noise = noiseMS
	}
	return series.Sparkline(values, width, noise)
}

// sparkRoom is how wide sparklines may be beside so many columns of figures.
func (v view) sparkRoom(figures int) int {
	if v.width <= 0 {
		return sparkWidth
	}
	return min(max(v.width-figures, sparkWidth/4), 2*sparkWidth)
}

// oneSeries shows every field and the trends.
func (v view) oneSeries(w io.Writer, s *nusav1.HistorySeries) {
	title := map[string]string{kindEdge: s.GetRegion() + " → " + nameOf(s)}[s.GetKind()]
	if title == "" {
		title = strings.TrimSpace(s.GetKind()+" "+nameOf(s)) + " in " + s.GetRegion()
	}
	fmt.Fprintf(w, "%s  %s\n\n", v.bold(title), v.spanOf(s))
	t := newTable("FIELD", "OVER TIME", ">MIN", ">MEAN", ">MAX", ">LATEST", ">GAPS")
	for _, f := range s.GetFields() {
		st := statisticsOf(f)
		if st.points == 0 {
			continue
		}
		text := unitOf(f.GetName())
		t.row(fieldName(f.GetName()), spark(f, v.sparkRoom(60)), text(st.min), text(st.mean), text(st.max), text(st.latest), st.gapText())
	}
	t.dropBlank("GAPS")
	if len(t.rows) == 0 {
		fmt.Fprintln(w, "no values in this time")
	} else {
		t.write(w, v.palette)
	}
	v.trends(w, s, "")
}

// manySeries shows the first of columns as a line over time, the others as
// their means.
func (v view) manySeries(w io.Writer, all []*nusav1.HistorySeries, columns []string) {
	first := all[0]
	title := first.GetKind() + "s in " + first.GetRegion()
	if first.GetKind() == kindEdge {
		title = "from " + first.GetRegion()
	}
	fmt.Fprintf(w, "%s  %s: %s\n\n", v.bold(title), fieldName(columns[0]), v.spanOf(first))
	heads := []string{strings.ToUpper(first.GetKind()), "OVER TIME", ">MIN", ">MEAN", ">MAX", ">LATEST"}
	if first.GetKind() == kindEdge {
		heads[0] = "TO"
	}
	for _, c := range columns[1:] {
		heads = append(heads, ">"+strings.ToUpper(fieldName(c)))
	}
	t := newTable(append(heads, ">GAPS")...)
	for _, s := range all {
		row := []string{nameOf(s), "-", "-", "-", "-", "-"}
		gaps := ""
		if f := fieldOf(s, columns[0]); f != nil {
			if st := statisticsOf(f); st.points > 0 {
				text := unitOf(columns[0])
				row = []string{nameOf(s), spark(f, v.sparkRoom(70)), text(st.min), text(st.mean), text(st.max), text(st.latest)}
				gaps = st.gapText()
			}
		}
		for _, c := range columns[1:] {
			text := "-"
			if st := statisticsOf(fieldOf(s, c)); st.points > 0 {
				text = unitOf(c)(st.mean)
			}
			row = append(row, text)
		}
		t.row(append(row, gaps)...)
	}
	t.dropBlank("GAPS")
	t.write(w, v.palette)
	for _, s := range all {
		v.trends(w, s, nameOf(s)+": ")
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

// fieldName is a field for people; values of "_ms" say nothing of it, so the
// name keeps that.
func fieldName(name string) string {
	name = strings.TrimSuffix(strings.TrimSuffix(name, "_bytes"), "_per_second")
	return strings.ReplaceAll(name, "_", " ")
}

// unitOf writes a field's values by its name, as the regions name them.
func unitOf(name string) func(float64) string {
	has := func(part string) bool { return strings.Contains(name, part) }
	switch {
	case strings.HasSuffix(name, "_ms"):
		return func(f float64) string { return millis(durationpb.New(time.Duration(f * float64(time.Millisecond)))) }
	case name == "loss", name == "cpu", has("share"), has("utilisation"):
		return func(f float64) string { return number(f*100) + "%" }
	case has("network"), has("_per_second"):
		return rate
	case has("memory"), has("disk"), has("swap"), has("bytes"):
		return func(f float64) string { return size(int64(f)) }
	}
	return number
}

// trends says when something runs out, or that there is no telling; of stands
// before each.
func (v view) trends(w io.Writer, s *nusav1.HistorySeries, of string) {
	if len(s.GetTrends()) > 0 {
		fmt.Fprintln(w)
	}
	for _, t := range s.GetTrends() {
		fmt.Fprintln(w, of+v.trend(t))
	}
}

func (v view) trend(t *nusav1.HistoryTrend) string {
	what := fieldName(t.GetField())
	for _, end := range []string{" used", " free", " available"} {
		what = strings.TrimSuffix(what, end)
	}
	reason := plain(t.GetWhy())
	if !t.GetKnown() {
		return what + ": " + reason
	}
	left := t.GetAt().AsTime().Sub(v.now)
	if left <= 0 {
		return v.bad(what+" has run out") + v.faint(" ("+reason+")")
	}
	unit, one := "day", day
	switch {
	case left < 2*time.Hour:
		unit, one = "minute", time.Minute
	case left < 2*day:
		unit, one = "hour", time.Hour
	}
	in := func(at *timestamppb.Timestamp) int {
		return max(int(math.Round(float64(at.AsTime().Sub(v.now))/float64(one))), 0)
	}
	between := ""
	switch {
	case t.GetEarliest() == nil:
	case t.GetLatest() == nil:
		between = fmt.Sprintf(" (%d or more)", in(t.GetEarliest()))
	default:
		between = fmt.Sprintf(" (%d–%d)", in(t.GetEarliest()), in(t.GetLatest()))
	}
	line := fmt.Sprintf("%s runs out in about %s%s", what, plural(max(in(t.GetAt()), 1), unit), between)
	if left < 3*day {
		line = v.bad(line)
	} else {
		line = v.wait(line)
	}
	if reason != "" {
		line += v.faint("  " + reason)
	}
	return line
}
