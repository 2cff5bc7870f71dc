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
		Short: "Measure how well unmeasured round trips are predicted",
		Long: `Reads the round trips between regions from a file, lets each region measure a
few others, predicts the rest and compares.

Formats: "matrix" is CSV in milliseconds. Its first row and first column are region
names, a row is a source, a blank cell or "-" is no measurement. "edges" is CSV with
the columns src, dst, rtt_ms and optionally min_ms. "plain" is a square of numbers
without names, separated by commas or white space.

A pair is unordered; its round trip is the mean of both directions. Each region
starts at most --neighbours probes. Seven of ten go to random regions. The rest goes
out in three rounds: half to regions that may be its nearest, half to pairs with the
least certain prediction. These are the adaptive pairs.

Errors are |predicted - true| / true over the unmeasured pairs. The nearest stretch
is the mean over the regions of (true round trip to the region that seems nearest) ÷
(true round trip to the nearest). Measured pairs count as measured, others as
predicted.

Impossible round trips are rejected and counted: not a number, not above zero, above
a minute, below their own min_ms, faster than light in fibre between known Azure
regions, three times and 20 ms off the opposite direction or other samples of the
pair, or far outside what round trips to third regions allow. Rejected pairs do not
count in the errors.`,
		Example: "  nusa latency -o csv > rtt.csv\n  nusa bench topology --matrix rtt.csv --neighbours 2\n" +
			"  # with the tables of a checkout\n" +
			"  nusa bench topology --matrix topology/wan/data/azure_p50_2025-06.csv\n" +
			"  nusa bench topology --matrix topology/testdata/planetlab_120.txt \\\n    --format plain --neighbours 32 --seed 7 -o json",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&o.Matrix, "matrix", "", "file of round trips in milliseconds")
	f.StringVar(&o.Format, "format", "matrix", "format of the file: matrix, edges or plain")
	f.IntVar(&o.Neighbours, "neighbours", 16, "regions that each region may measure")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the random choices")
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
