package bench

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/bench/agent"
	"github.com/nusa-scheduler/nusa/bench/report"
)

func agentCommand() *cobra.Command {
	o := agent.Options{}
	var out report.Output
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Measure how fast an agent starts and ends processes, and what it costs",
		Long: `Starts an agent as a process, with its data in a temporary folder, under a fake
master that sends it orders over the real protocol.

The command starts --tasks processes one by one and times each from the order to
the report that it runs. It lets the agent idle with them. Then it runs --batch
short commands ("true"), removes each once it is reported complete, and lets the
agent idle again.

Before each idle time it waits until the agent is at rest and has returned unused
memory to the kernel. It reads resident memory at the end of the idle time. That
includes the pages of the executable that are in use or cached by the kernel.

After each quarter of the batch the command waits for the agent to rest and measures
its memory. The first half warms the agent up. Memory that grows in the second half is
reported as grown: held memory by 200 kB or more, resident memory by 2 MB or more. A
larger batch shows a smaller leak: with 20,000 commands, 20 bytes for each command.`,
		Example: "  nusa bench agent --tasks 100 --batch 1000\n  nusa bench agent --idle 0 --batch 20000 -o json",
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&o.Tasks, "tasks", 100, "processes to start and keep running")
	f.DurationVar(&o.Idle, "idle", 20*time.Second, "time that the agent idles with these processes, before and after the batch; 0 = none")
	f.IntVar(&o.Batch, "batch", 1000, "short commands")
	f.IntVar(&o.Window, "window", 32, "short commands ordered at the same time")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "bound of the whole measurement")
	f.StringVar(&o.Dir, "dir", os.TempDir(), "parent of the temporary folder with the agent's data")
	f.StringVar(&o.Profile, "profile", "", "folder for the agent's CPU and heap profiles of the batch")
	bindOutput(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, n := range []struct {
			flag            string
			value, from, to int
		}{{"--tasks", o.Tasks, 1, 5000}, {"--batch", o.Batch, agent.Quarters, 1_000_000}, {"--window", o.Window, 1, 256}} {
			if n.value < n.from || n.value > n.to {
				return fmt.Errorf("%s: %d is not %d..%d", n.flag, n.value, n.from, n.to)
			}
		}
		switch {
		case out.Check() != nil:
			return out.Check()
		case o.Timeout <= 0:
			return fmt.Errorf("--timeout: %s is not more than 0", o.Timeout)
		case o.Idle < 0:
			return fmt.Errorf("--idle: %s is less than 0", o.Idle)
		}
		return measure(cmd, out, &o.Progress, func() (*agent.Result, error) { return agent.Measure(cmd.Context(), o) })
	}
	return cmd
}
