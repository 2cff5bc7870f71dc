package bench

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/bench/replay"
	"github.com/nusa-scheduler/nusa/bench/report"
)

// replayFlags are the flags of `nusa bench federation --trace`.
type replayFlags struct {
	replay.Options
	trace string
}

func (r *replayFlags) bind(f *pflag.FlagSet) {
	f.StringVar(&r.trace, "trace", "", "file with a recorded load to replay through the placer in virtual time, instead of a measurement")
	f.Float64Var(&r.Load, "load", 0.9, "with --trace: the greatest demand of the trace as a share of what all regions have")
	f.DurationVar(&r.Report, "report", 5*time.Second, "with --trace: virtual time between two reports of a region")
}

// run replays the trace in a federation with a number of regions.
func (r *replayFlags) run(cmd *cobra.Command, out report.Output, regions int) error {
	r.Regions = regions
	if err := r.Validate(); err != nil {
		return err
	}
	var other error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "trace", "load", "report", "regions", "output":
		default:
			if cmd.LocalNonPersistentFlags().Lookup(f.Name) != nil {
				other = fmt.Errorf("--%s: does not go with --trace", f.Name)
			}
		}
	})
	if other != nil {
		return other
	}
	requests, err := replay.ReadFile(r.trace)
	if err != nil {
		return fmt.Errorf("--trace: %w", err)
	}
	return measure(cmd, out, &r.Progress, func() (*replay.Result, error) {
		return replay.Run(cmd.Context(), requests, r.Options)
	})
}
