package bench

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/charmbracelet/x/term"
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
		Long: `Starts an agent as a process of its own, its data in a temporary folder, under a
master that only gives it orders, over the real protocol.

It starts --tasks processes one after the other, each from the order to the
report that it runs; lets the agent idle with them; then runs --batch commands
that end at once ("true") through it, each of which is forgotten once it is
reported complete; and lets it idle again. Either time it waits first, some
seconds beyond --idle, until the agent is at rest and has given memory back. What
is resident is read at the end, when heartbeats and statistics, which go out every
5 s, have brought back what they need: an --idle under 6 s may read less than that.
Nobody asks for the agent's metrics meanwhile: that brings back some MB more, until
the agent gives back again, once a minute.

After each quarter of the batch it waits until the agent is at rest and has given
memory back, and looks at what could grow. The first half is to warm up; what is
more at the end than after half is named as grown. Of memory that is what the
agent holds, by 200 kB or more, and what is resident, by 2 MB: the larger the
batch, the less has to be left of each command to be seen, 20 bytes with 20,000.`,
		Example: "  nusa bench agent --tasks 100 --batch 1000\n  nusa bench agent --idle 0 --batch 20000 -o json",
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&o.Tasks, "tasks", 100, "processes to start, which then run")
	f.DurationVar(&o.Idle, "idle", 20*time.Second, "how long the agent idles with them, before the batch and after it, once it is at rest; 0 = not")
	f.IntVar(&o.Batch, "batch", 1000, "commands that end at once")
	f.IntVar(&o.Window, "window", 32, "of these are ordered at a time")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "give up after so long")
	f.StringVar(&o.Dir, "dir", os.TempDir(), "where the temporary folder of the agent's data is made")
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
		if term.IsTerminal(os.Stderr.Fd()) {
			o.Progress = progressLine(os.Stderr)
		}
		r, err := agent.Measure(cmd.Context(), o)
		if o.Progress != nil {
			o.Progress("")
		}
		if r != nil { // also what was reached until an error
			err = errors.Join(out.Print(cmd.OutOrStdout(), r, r.Table), err)
		}
		return err
	}
	return cmd
}
