package bench

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/bench/workflows"
)

func workflowsCommand() *cobra.Command {
	o := workflows.Options{}
	var out report.Output
	cmd := &cobra.Command{
		Use:   "workflows",
		Short: "Measure how fast the global tier runs the steps of workflows",
		Long: `Starts a global server as a process, with its etcd on disk in a temporary folder,
and emulated regions over the real protocol. A step ends as soon as its region has
accepted it. Each run has --steps steps in --width chains: step number i depends on
step number i - width.

"end to next offer" is the time from the moment at which a region says that a step
has ended to that at which a region has the offer of the next step. It needs two
transactions: the end of the step's job, and the next step with its job and slot.
"bare etcd commit" is the time of one transaction of the same etcd afterwards.`,
		Example: "  nusa bench workflows --workflows 20 --steps 50 --concurrency 1\n" +
			"  nusa bench workflows --workflows 1000 --steps 10 --concurrency 1000 -o json\n" +
			"  nusa bench workflows --workflows 1 --steps 10000 --width 100",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&o.Regions, "regions", 5, "emulated regions")
	f.IntVar(&o.Workflows, "workflows", 20, "runs")
	f.IntVar(&o.Steps, "steps", 20, "steps of each run, 1..10000")
	f.IntVar(&o.Width, "width", 1, "chains of steps of each run, 1..1000")
	f.IntVar(&o.Concurrency, "concurrency", 1, "runs at the same time")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "bound of the measurement")
	f.StringVar(&o.Dir, "dir", os.TempDir(), "parent of the temporary folder with the server's data")
	f.StringVar(&o.Profile, "profile", "", "folder for the server's CPU and heap profiles")
	bindOutput(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.Check(); err != nil {
			return err
		}
		r, err := workflows.Measure(cmd.Context(), o)
		if err != nil {
			return err
		}
		return out.Print(cmd.OutOrStdout(), r, r.Table)
	}
	return cmd
}
