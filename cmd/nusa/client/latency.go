package client

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// latencyOptions are the flags of nusa latency.
type latencyOptions struct {
	from       string
	percentile int
	watch      bool
	all        bool
	guesses    bool
	history    bool
	to         string
	since      time.Duration
}

func latencyCommand() *cobra.Command {
	s := &settings{}
	o := latencyOptions{}
	c := &cobra.Command{
		Use: "latency", Short: "Show the round trips between regions, and how they went", Args: takes(),
		Long: `Shows round trips in milliseconds: each row is the region that measured, each
column the one it probed. A value is plain when it was measured, ~ when it is
predicted from network coordinates, ≈ when it is estimated from the distance;
? marks a measurement that has become old, ! one that third regions contradict, ×
a region that does not answer.

Where a matrix is too wide, each region has a line that says what is near and
what was not measured: --all shows the whole matrix in parts, --from one row with
every detail. There, the loss says how much of it is known to be lost on the way
out and on the way back, and "heard" marks a region that cannot be reached
although its own probes arrive.

-o csv writes a matrix that "nusa dev --wan FILE" and "nusa bench topology
--matrix FILE" read: only what was measured, unless --guesses is given too.

--history shows how the round trips that --region measured went over time; a
regional server that is asked shows its own without --region.`,
		Example: `  nusa latency
  nusa latency --from japaneast
  nusa latency --percentile 99 --watch
  nusa latency -o csv > rtt.csv
  nusa latency --history --region japaneast --since 24h
  nusa latency --history --region japaneast --to eastus`,
		RunE: s.run(func(c *caller, _ []string) error { return c.latency(o) }),
	}
	s.bind(c, "csv")
	s.bindRegion(c, "with --history: the region that measured")
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "only what this region measured, with every detail")
	f.IntVarP(&o.percentile, "percentile", "p", 50, "50, 90 or 99")
	f.BoolVarP(&o.watch, "watch", "w", false, "go on and show changes")
	f.BoolVar(&o.all, "all", false, "the whole matrix, however wide")
	f.BoolVar(&o.guesses, "guesses", false, "with -o csv: also what was only predicted or estimated")
	f.BoolVar(&o.history, "history", false, "how it went over time, as the region keeps it")
	f.StringVar(&o.to, "to", "", "with --history: only to this region, with every field")
	bindSince(c, &o.since, "with --history: how far back")
	return c
}

func checkPercentile(p int) error {
	if !slices.Contains([]int{50, 90, 99}, p) {
		return fmt.Errorf("--percentile: %d is not one of 50, 90, 99", p)
	}
	return nil
}

// check refuses flags that have no meaning together.
func (o latencyOptions) check(c *caller) error {
	given := func(name string) bool { return c.cmd.Flags().Changed(name) }
	for _, name := range []string{"to", "since", "region"} {
		if given(name) && !o.history {
			return fmt.Errorf("--%s is for --history", name)
		}
	}
	switch {
	case o.guesses && c.output != "csv":
		return fmt.Errorf("--guesses is for -o csv: the table marks guesses")
	case c.output == "csv" && (o.watch || o.history):
		return fmt.Errorf("-o csv is for the matrix as it is: use -o json with --watch and --history")
	case o.watch && o.history:
		return fmt.Errorf("give one of --watch and --history")
	case o.history && given("from") && given("region") && o.from != c.region:
		return fmt.Errorf("--from and --region name two regions: give one")
	}
	return checkPercentile(o.percentile)
}

func (c *caller) latency(o latencyOptions) error {
	if err := o.check(c); err != nil {
		return err
	}
	if o.history {
		return c.latencyHistory(o)
	}
	req := &nusav1.MatrixRequest{From: o.from}
	if o.watch {
		return c.watchMatrix(req, o)
	}
	m, err := c.matrixPage(req)
	switch {
	case err != nil:
		return err
	case c.output == "csv":
		return c.matrixCSV(m, o)
	case m.GetNext() != "":
		return c.longMatrix(m, o)
	}
	return c.print(m, func(w io.Writer) { c.view().latency(w, m, o) })
}

// edgesOf finds edges by both ends.
func edgesOf(m *nusav1.MatrixResponse) map[[2]string]*nusav1.Edge {
	edges := map[[2]string]*nusav1.Edge{}
	for _, e := range m.GetEdges() {
		edges[[2]string{e.GetFrom(), e.GetTo()}] = e
	}
	return edges
}

// exactMillis has microseconds at most: more is noise.
func exactMillis(d time.Duration) string {
	return strconv.FormatFloat(math.Round(float64(d)/float64(time.Microsecond))/1000, 'f', -1, 64)
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

func unknown(e *nusav1.Edge) bool {
	return e.GetSource() == nusav1.RTTSource_RTT_SOURCE_UNSPECIFIED ||
		e.GetSource() == nusav1.RTTSource_RTT_SOURCE_MEASURED && e.GetState() == nusav1.EdgeState_EDGE_STATE_UNKNOWN
}

// known says that an edge has a round trip to show.
func known(e *nusav1.Edge) bool {
	return !unknown(e) && e.GetState() != nusav1.EdgeState_EDGE_STATE_UNREACHABLE
}

// loss is the share of probes lost and, where that is known, on which way.
func loss(e *nusav1.Edge) string {
	text := fmt.Sprintf("%.1f%%", e.GetLoss()*100)
	if e.GetLossOut() > 0 || e.GetLossBack() > 0 {
		text += fmt.Sprintf(" (%.1f out, %.1f back)", e.GetLossOut()*100, e.GetLossBack()*100)
	}
	return text
}

// row shows every detail of what one region measured, nearest first.
func (v view) row(w io.Writer, m *nusav1.MatrixResponse, o latencyOptions) {
	edges := slices.Clone(m.GetEdges())
	edges = slices.DeleteFunc(edges, func(e *nusav1.Edge) bool { return e.GetFrom() != o.from })
	if len(edges) == 0 {
		fmt.Fprintf(w, "nothing is known from %s; %s latency shows which regions there are\n", o.from, v.nusa)
		return
	}
	sortByRTT(edges, o.percentile)
	t := newTable("TO", ">P50", ">P90", ">P99", ">MIN", ">JITTER", ">LOSS", ">SAMPLES", ">ASIDE", ">AGE", "METHOD", "STATE", "SOURCE")
	for _, e := range edges {
		source := word(e.GetSource())
		if e.GetError() > 0 {
			source += fmt.Sprintf(" ±%s", percent(e.GetError()))
		}
		state := v.state(word(e.GetState()))
		if e.GetHeard() {
			state += ", heard"
		}
		if e.GetDoubt() != "" {
			source += ", not believed: " + plain(e.GetDoubt())
		}
		cells := []string{e.GetTo(), v.cell(e, 50), v.cell(e, 90), v.cell(e, 99), "-", "-", "-", "-", "-", "-", "-", state, source}
		if e.GetSource() == nusav1.RTTSource_RTT_SOURCE_MEASURED {
			copy(cells[4:], []string{millis(e.GetMin()), millis(e.GetJitter()), loss(e), count(e.GetSamples()), count(e.GetSetAside()), age(e.GetAge()), e.GetMethod()})
		}
		t.row(cells...)
	}
	t.dropEmpty("ASIDE")
	fmt.Fprintf(w, "from %s, ms\n\n", v.bold(o.from))
	t.write(w, v.palette)
	v.legend(w, edges)
}

// sortByRTT puts the nearest first and what has no round trip last.
func sortByRTT(edges []*nusav1.Edge, percentile int) {
	far := func(e *nusav1.Edge) time.Duration {
		if !known(e) {
			return math.MaxInt64
		}
		return rtt(e, percentile).AsDuration()
	}
	slices.SortStableFunc(edges, func(a, b *nusav1.Edge) int {
		return cmp.Or(cmp.Compare(far(a), far(b)), strings.Compare(a.GetTo(), b.GetTo()))
	})
}
