package bench

import (
	"fmt"
	"os"
	"time"

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
		Long: `Starts regional servers as processes, with their Raft logs on disk in a temporary
folder, and simulated agents over the real protocol. The agents report each
ordered instance as running at once. Then the command submits jobs of the region
and watches their placement, as any client could.

"placed" counts committed allocations. "acknowledged" counts those whose running
state is committed. With --rate, jobs are sent at fixed times, whether or not the
earlier ones have a response; latencies count from the intended time.

--against measures a running region, without figures of its processes. Simulated
agents join the region in a pool of their own, where no other work is placed. With
--nodes 0 the jobs go to the region's own nodes, in the default pool; a region
without room for them ends the measurement. Jobs and simulated nodes are removed
afterwards, also after Ctrl-C. A second Ctrl-C ends the removal and prints how to
finish it.`,
		Example: "  nusa bench region --nodes 1000 --jobs 10000 --count 1\n" +
			"  nusa bench region --nodes 5000 --jobs 3000 --rate 50 --servers 3 -o json\n" +
			"  nusa bench region --against 10.0.0.1:7610 --nodes 0 --jobs 100",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&o.Nodes, "nodes", 100, "simulated agents")
	f.IntVar(&o.AgentsPerConnection, "agents-per-connection", 1, "agents that share a connection; real agents: 1")
	f.IntVar(&o.Jobs, "jobs", 1000, "jobs to submit")
	f.IntVar(&o.Count, "count", 1, "instances of each job")
	f.Float64Var(&o.Rate, "rate", 0, "jobs a second, at fixed times; 0 = as fast as possible")
	f.IntVar(&o.Concurrency, "concurrency", 16, "callers that submit at the same time; with --stream: streams")
	f.IntVar(&o.Connections, "connections", 4, "connections that the callers share")
	f.IntVar(&o.Servers, "servers", 1, "regional servers: 1 or 3")
	f.BoolVar(&o.Stream, "stream", false, "submit by SubmitMany instead of unary calls; not with --rate")
	f.BoolVar(&o.NoAck, "no-ack", false, "agents report nothing")
	f.IntVar(&o.Warmup, "warmup", 100, "jobs of one instance to place before the measurement")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "time from the first submit until all is placed and acknowledged")
	f.DurationVar(&o.Timeout, "duration", 5*time.Minute, "the same as --timeout")
	f.DurationVar(&o.Idle, "idle", 0, "afterwards, measure the servers' CPU for this time without submits")
	f.BoolVar(&o.Restart, "restart", false, "afterwards, kill the master with SIGKILL, start it again and measure the time to the next placement")
	f.BoolVar(&o.TLS, "tls", false, "give servers, agents and callers identities: all connections are TLS 1.3")
	f.BoolVar(&o.FastRaft, "fast-raft", false, "servers notice a dead master in half a second")
	f.StringVar(&o.Against, "against", "", "host:port of a running region's server to measure instead")
	f.StringVar(&o.Dir, "dir", os.TempDir(), "parent of the temporary folder with the servers' data")
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
		return measure(cmd, out, &o.Progress, func() (*region.Result, error) {
			o.Say = func(s string) {
				if o.Progress != nil {
					o.Progress("")
				}
				fmt.Fprintln(cmd.ErrOrStderr(), "nusa: "+s)
			}
			return region.Measure(cmd.Context(), o)
		})
	}
	return cmd
}
