package bench

import (
	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/bench/prediction"
	"github.com/nusa-scheduler/nusa/bench/report"
)

func topologyCommand() *cobra.Command {
	o := prediction.Options{}
	var out report.Output
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Measure how well round trips that nobody measured are predicted",
		Long: `Reads the round trips between regions from a file, lets each region measure a
few others, predicts the rest and compares.

Formats: matrix is CSV whose first row and first column are region names, a row
is a source, in milliseconds, blank or "-" where nobody measured. edges is CSV
with the columns src, dst, rtt_ms and optionally min_ms. plain is a square of
numbers without names, set apart by commas or white space.

A pair is unordered; its round trip is the mean of both directions. Each region
may start --neighbours probes: 7 of 10 to random others, the rest, in three rounds,
half to those that may be its nearest and half to the pairs whose prediction is
least sure. So there are at most regions × neighbours measured pairs, each
counted once; those of the three rounds are the adaptive ones.

Errors are |predicted - true| / true over the pairs that were not measured. The
nearest stretch is the mean over the regions of: true round trip to the region
thought nearest ÷ true round trip to the nearest, where measured pairs are known
as measured and the others as predicted.

Round trips that cannot be true are not believed and counted as rejected: those
that are no number, not above zero, above a minute, below their own min_ms,
faster than light in fibre between Azure regions (whose names are known), three
times and 20 ms off the opposite direction or other samples of the pair, and
those far outside what round trips to third regions allow. Such pairs are not
judged by.`,
		Example: "  nusa bench topology --matrix azure.csv\n" +
			"  nusa bench topology --matrix edges.csv --format edges --neighbours 32 --seed 7 -o json",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&o.Matrix, "matrix", "", "file of round trips in milliseconds")
	f.StringVar(&o.Format, "format", "matrix", "of the file: matrix, edges or plain")
	f.IntVar(&o.Neighbours, "neighbours", 16, "other regions that each may measure")
	f.Uint64Var(&o.Seed, "seed", 1, "of what is random")
	bindOutput(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.Check(); err != nil {
			return err
		}
		r, err := prediction.Measure(o)
		if err != nil {
			return err
		}
		return out.Print(cmd.OutOrStdout(), r, r.Table)
	}
	return cmd
}
