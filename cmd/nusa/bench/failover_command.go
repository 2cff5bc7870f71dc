package bench

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/bench/failover"
	"github.com/nusa-scheduler/nusa/bench/report"
)

func failoverCommand() *cobra.Command {
	o := failover.Options{}
	var out report.Output
	cmd := &cobra.Command{
		Use:   "failover",
		Short: "Measure how fast the work of a region that is cut off runs elsewhere",
		Long: `Starts a federation of separate processes in a temporary folder: a global server,
and regions of one server and one agent each. Each region reaches the global server
through a proxy. A job runs in all regions. Its task writes CLOCK_BOOTTIME into a file
every 10 ms and ignores the stop signal.

Each round cuts off the region with the most instances: the proxy forwards nothing, and
neither end gets a TCP reset. When all of its instances run elsewhere, the cut ends. The
round ends when each instance runs exactly once.`,
		Example: "  nusa bench failover --rounds 3 --running keep --after 10s\n  nusa bench failover --rounds 20 --running stop --after 10s \\\n    --lease 10s --kill-timeout 5s -o json",
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&o.Rounds, "rounds", 3, "how often a region is cut off")
	f.StringVar(&o.Running, "running", "keep", "disconnect.region.running of the job: keep or stop")
	f.DurationVar(&o.After, "after", 10*time.Second, "disconnect.region.after of the job")
	f.DurationVar(&o.Lease, "lease", 10*time.Second, "lease of regions")
	f.DurationVar(&o.KillTimeout, "kill-timeout", 5*time.Second, "kill_timeout of the task")
	f.IntVar(&o.Instances, "instances", 6, "instances of the job")
	f.IntVar(&o.Regions, "regions", 3, "regions of the federation")
	f.DurationVar(&o.Timeout, "timeout", 3*time.Minute, "how long each step of a round may take")
	f.StringVar(&o.Dir, "dir", os.TempDir(), "parent of the temporary folder")
	bindOutput(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, n := range []struct {
			flag            string
			value, from, to int
		}{{"--rounds", o.Rounds, 1, 10_000}, {"--instances", o.Instances, 1, 100}, {"--regions", o.Regions, 2, 5}} {
			if n.value < n.from || n.value > n.to {
				return fmt.Errorf("%s: %d is not %d..%d", n.flag, n.value, n.from, n.to)
			}
		}
		switch {
		case out.Check() != nil:
			return out.Check()
		case o.Running != "keep" && o.Running != "stop":
			return fmt.Errorf("--running: %q is neither keep nor stop", o.Running)
		case o.After < time.Second || o.Lease < time.Second || o.KillTimeout < 0 || o.Timeout <= 0:
			return errors.New("--after and --lease must be at least 1s, --kill-timeout not negative, --timeout more than 0")
		}
		return measure(cmd, out, &o.Progress, func() (*failover.Result, error) { return failover.Measure(cmd.Context(), o) })
	}
	return cmd
}

// failoverTaskCommand returns the hidden command that is the task of the measured job.
func failoverTaskCommand() *cobra.Command {
	return &cobra.Command{
		Use: "failover-task FOLDER", Hidden: true, Args: cobra.ExactArgs(1),
		Short: "Write CLOCK_BOOTTIME into a file of a folder each 10 ms",
		RunE:  func(cmd *cobra.Command, args []string) error { return failover.Task(cmd.Context(), args[0]) },
	}
}
