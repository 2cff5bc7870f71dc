package bench

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/bench/region"
	"github.com/nusa-scheduler/nusa/bench/report"
)

func regionCommand() *cobra.Command {
	o := region.Options{}
	var out report.Output
	cmd := &cobra.Command{
		Use:   "region",
		Short: "Measure how fast a region places and acknowledges allocations",
		Long: `Starts regional servers as processes of their own, their Raft logs on disk in a
temporary folder, and simulated agents over the real protocol, which say at once
that what they are ordered to run is running. Then it submits jobs of the
region's own and watches them being placed, as any client could.

placed counts committed allocations; acknowledged those of which the region has
committed that they run. With --rate jobs are sent at fixed times, whatever
becomes of the earlier ones, and latencies count from the intended time.

--against measures a region that runs already, without figures of its
processes. Simulated agents join it for the time, in a pool of their own where no
other work lands; with --nodes 0 none do, and the jobs go to nodes that are there,
in the default pool; where the region says that there is no room for them it ends
with that. Jobs and simulated nodes are removed afterwards, also after Ctrl-C; a
second one leaves them and says how to remove them.`,
		Example: "  nusa bench region --nodes 1000 --jobs 10000 --count 1\n" +
			"  nusa bench region --nodes 5000 --jobs 3000 --rate 50 --servers 3 -o json\n" +
			"  nusa bench region --against 10.0.0.1:7610 --nodes 0 --jobs 100",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&o.Nodes, "nodes", 100, "simulated agents")
	f.IntVar(&o.AgentsPerConnection, "agents-per-connection", 1, "agents that share a connection; real ones have their own")
	f.IntVar(&o.Jobs, "jobs", 1000, "jobs to submit")
	f.IntVar(&o.Count, "count", 1, "instances of each job")
	f.Float64Var(&o.Rate, "rate", 0, "jobs a second, at fixed times; 0 = as fast as the callers can")
	f.IntVar(&o.Concurrency, "concurrency", 16, "callers that submit at a time; with --stream: streams")
	f.IntVar(&o.Connections, "connections", 4, "connections that the callers share")
	f.IntVar(&o.Servers, "servers", 1, "regional servers: 1 or 3")
	f.BoolVar(&o.Stream, "stream", false, "submit by SubmitMany instead of unary calls; not with --rate")
	f.BoolVar(&o.NoAck, "no-ack", false, "agents take orders and say nothing about them")
	f.IntVar(&o.Warmup, "warmup", 100, "jobs of one instance to place before measuring")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "give up when not all is placed and acknowledged this long after the first submit")
	f.DurationVar(&o.Timeout, "duration", 5*time.Minute, "the same as --timeout")
	f.DurationVar(&o.Idle, "idle", 0, "then measure the servers' CPU for so long while nothing is submitted")
	f.BoolVar(&o.Restart, "restart", false, "then kill the master with SIGKILL, start it again and measure the time to the next placement")
	f.BoolVar(&o.FastRaft, "fast-raft", false, "servers notice a dead master in half a second")
	f.StringVar(&o.Against, "against", "", "host:port of a running region's server to measure instead")
	f.StringVar(&o.Dir, "dir", os.TempDir(), "where the temporary folder of the servers' data is made")
	f.StringVar(&o.Profile, "profile", "", "folder for the servers' CPU and heap profiles of the measured time")
	bindOutput(cmd, &out)
	cmd.MarkFlagsMutuallyExclusive("timeout", "duration")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.Check(); err != nil {
			return err
		}
		if err := o.Validate(); err != nil {
			return err
		}
		if term.IsTerminal(os.Stderr.Fd()) {
			o.Progress = progressLine(os.Stderr)
		}
		o.Say = func(s string) {
			if o.Progress != nil {
				o.Progress("")
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "nusa: "+s)
		}
		r, err := region.Measure(cmd.Context(), o)
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
