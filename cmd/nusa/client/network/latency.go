package network

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/history"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// latencyOptions holds the flags of `nusa latency`.
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

// LatencyCommand returns the command `nusa latency`.
func LatencyCommand() *cobra.Command {
	s := &cli.Settings{}
	o := latencyOptions{}
	c := &cobra.Command{
		Use: "latency", Short: "Show the round trips between regions, now and over time", Args: cli.Positional(),
		Long: `Shows round trips in milliseconds: each row is the region that measured, each
column the region that it probed. A plain value was measured. ~ is predicted from
network coordinates, ≈ is estimated from the distance, ? is an old measurement, ! is a
measurement that third regions contradict, × is a region that does not respond, · is
unknown.

If a matrix is too wide, each region has a line with the nearest regions and what was
not measured. --all shows the whole matrix in parts. --from shows one row with every
detail: loss shows the known loss on the way out and on the way back. "its probes
arrive" marks a region that cannot be reached although its own probes arrive.
"discarded" counts samples that do not count, because one of the two servers was late
itself.

-o csv writes a matrix that "nusa dev --wan FILE" and "nusa bench topology --matrix
FILE" read: only measured values, unless --guesses is given.

--history shows the round trips that --region measured over time. A regional server
shows its own region by default.`,
		Example: `  nusa latency
  nusa latency --from japaneast
  nusa latency --percentile 99 --watch
  nusa latency -o csv > rtt.csv
  nusa latency --history --region japaneast --since 24h
  nusa latency --history --region japaneast --to eastus`,
		RunE: s.Run(func(c *cli.Session, _ []string) error { return showLatency(c, o) }),
	}
	s.Bind(c, "csv")
	s.BindRegion(c, "with --history: the region that measured")
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "only what this region measured, with every detail")
	f.IntVarP(&o.percentile, "percentile", "p", 50, "50, 90 or 99")
	f.BoolVarP(&o.watch, "watch", "w", false, "continue and show changes")
	f.BoolVar(&o.all, "all", false, "the whole matrix, however wide")
	f.BoolVar(&o.guesses, "guesses", false, "with -o csv: also what was only predicted or estimated")
	f.BoolVar(&o.history, "history", false, "values over time, as far back as the region has them")
	f.StringVar(&o.to, "to", "", "with --history: only to this region, with every field")
	history.SinceFlag(c, &o.since, "with --history: how far back")
	return c
}

// check refuses flags that do not go together.
func (o latencyOptions) check(c *cli.Session) error {
	given := func(name string) bool { return c.Cmd.Flags().Changed(name) }
	for _, name := range []string{"to", "since", "region"} {
		if given(name) && !o.history {
			return fmt.Errorf("--%s is for --history", name)
		}
	}
	switch {
	case o.guesses && c.Output != "csv":
		return fmt.Errorf("--guesses is for -o csv: the table marks guesses")
	case c.Output == "csv" && (o.watch || o.history):
		return fmt.Errorf("-o csv is for the matrix as it is: use -o json with --watch and --history")
	case o.watch && o.history:
		return fmt.Errorf("give one of --watch and --history")
	case o.history && given("from") && given("region") && o.from != c.Region:
		return fmt.Errorf("--from and --region name two regions: give one")
	}
	return history.CheckPercentile(o.percentile)
}

func showLatency(c *cli.Session, o latencyOptions) error {
	if err := o.check(c); err != nil {
		return err
	}
	if o.history {
		return showLatencyHistory(c, o)
	}
	req := &nusav1.MatrixRequest{From: o.from}
	if o.watch {
		return watchMatrix(c, req, o)
	}
	m, err := matrixPage(c, req)
	switch {
	case err != nil:
		return err
	case c.Output == "csv":
		return writeCSV(c, m, o)
	case m.GetNext() != "":
		return showPagedMatrix(c, m, o)
	}
	return c.Print(m, func(w *term.Screen) { writeLatency(w, m, o) })
}
