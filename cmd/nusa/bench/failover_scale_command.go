package bench

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/bench/failover"
	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/topo"
)

// scaleFlags defines the flags that the measurements with emulated regions share.
func scaleFlags(cmd *cobra.Command, o *failover.Scale, out *report.Output) {
	f := cmd.Flags()
	f.IntVar(&o.Instances, "instances", 20_000, "number of instances, each a job of its own")
	f.IntVar(&o.Regions, "regions", o.Regions, "number of emulated regions")
	f.DurationVar(&o.Lease, "lease", o.Lease, "lease of regions")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "bound of each wait")
	f.StringVar(&o.Dir, "dir", os.TempDir(), "parent of the temporary folder")
	bindOutput(cmd, out)
}

// checkScale checks the flags of scaleFlags. least is the least number of regions.
func checkScale(o *failover.Scale, out report.Output, least int) error {
	for _, n := range []struct {
		flag            string
		value, from, to int
	}{{"--instances", o.Instances, 1, 1_000_000}, {"--regions", o.Regions, least, topo.MaxRegions}} {
		if n.value < n.from || n.value > n.to {
			return fmt.Errorf("%s: %d is not %d..%d", n.flag, n.value, n.from, n.to)
		}
	}
	if o.Lease < 3*time.Second || o.Timeout <= 0 {
		return errors.New("--lease must be at least 3s, --timeout more than 0")
	}
	return out.Check()
}

func failoverMovesCommand() *cobra.Command {
	o := failover.Scale{Regions: 10, Lease: 10 * time.Second}
	var out report.Output
	cmd := &cobra.Command{
		Use:   "failover-moves",
		Short: "Measure how fast many instances of a lost region get other regions",
		Long: `Starts a global server as a process, and emulated regions in this process. One region gets
all the instances. Then the region is cut off: its connection delivers nothing, and neither
end sees that. The times begin when the server declares the region lost, because its slots
are due then. Emulated regions report an instance as running when they accept its slot.`,
		Example: "  nusa bench failover-moves --instances 20000 -o json",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().DurationVar(&o.After, "after", 10*time.Second, "disconnect.region.after of the jobs")
	scaleFlags(cmd, &o, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkScale(&o, out, 2); err != nil {
			return err
		}
		return measure(cmd, out, &o.Progress, func() (*failover.Moves, error) { return failover.MeasureMoves(cmd.Context(), o) })
	}
	return cmd
}

func failoverCostCommand() *cobra.Command {
	o := failover.Scale{Regions: 1000, Lease: 15 * time.Second, After: time.Hour}
	var out report.Output
	var phase time.Duration
	cmd := &cobra.Command{
		Use:   "failover-cost",
		Short: "Measure what the silence of a third of the regions costs the active server",
		Long: `Starts a global server as a process, and emulated regions in this process. The server is
measured for a time while all regions are connected. Then a third of the regions is cut off,
and the server is measured for the same time. Nothing moves, because disconnect.region.after
is an hour.`,
		Example: "  nusa bench failover-cost --regions 1000 -o json",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().DurationVar(&phase, "phase", time.Minute, "time of each of the two measurements")
	scaleFlags(cmd, &o, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkScale(&o, out, 3); err != nil {
			return err
		}
		if phase < 2*time.Second {
			return fmt.Errorf("--phase: %s is less than 2s", phase)
		}
		return measure(cmd, out, &o.Progress, func() (*failover.Cost, error) { return failover.MeasureCost(cmd.Context(), o, phase) })
	}
	return cmd
}
