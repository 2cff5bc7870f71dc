package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/bench/federation"
	"github.com/nusa-scheduler/nusa/bench/federation/parts"
	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/serve"
)

const federationLong = `Starts a global server as a process, with its etcd on disk in a temporary folder,
and emulated regions over the real protocol. The regions connect at once. They accept
each slot, report its instances as running, and report capacity and round trips as
often as regions do. The round trips are those that Azure publishes. A third of the
jobs are near a region, a sixth run in three regions.

"decided" counts the slots that regions have received, and "accepted" counts the slots
whose acceptance is stored. "running" is what a watch of a job shows, for a sample of
the jobs. "etcd alone" is a separate etcd on the same disk: 64 clients store jobs of
four keys, one job in a transaction, or 31 jobs with --stream. Afterwards the server
idles with all its regions. Then the command kills the server, starts it again and waits
for its first decision.

--stored then stores more jobs, and measures the same load once more before the restart.
It shows whether stored jobs make decisions slower, with --parts also those of the parts.

--parts then measures the bare parts in the same way: a process with the gRPC server and
the etcd of a global server that decides nothing. It receives, stores and sends what
each global tier must, so it shows what this machine allows. "ratios" are the figures of
the server divided by those of the bare parts.

--rounds repeats all of this with new processes, so the server and the bare parts are
measured in turn. The figures are then the medians of the rounds, and "ratios" the medians
of the rounds' ratios: on a noisy machine they say more than one round.

--against measures a running federation, but not its processes. The emulated regions
join with a special label, which the jobs ask for. Jobs and regions are removed
afterwards, also after Ctrl-C.

--trace replays a recorded load instead. It uses virtual time and only the placer, and
starts no server. The regions are emulated with the free resources of each of their
nodes. They are so large that the trace needs the share --load of them. FILE is a CSV
file of virtual machines (arrival_s, batch_id, cpu_cores, memory_gb, duration_max_s,
censored) or of pods (cpu_milli, memory_mib, creation_time, deletion_time), or a log in
the Standard Workload Format. It may be compressed with gzip. Equal requests of one
batch become one job.`

func federationCommand() *cobra.Command {
	o := federation.Options{}
	var out report.Output
	var trace replayFlags
	cmd := &cobra.Command{
		Use:   "federation",
		Short: "Measure how fast the global tier decides in which regions jobs run",
		Long:  federationLong,
		Example: "  nusa bench federation --regions 50 --jobs 20000 --concurrency 64\n" +
			"  nusa bench federation --jobs 20000 --stream --concurrency 8 -o json\n" +
			"  nusa bench federation --regions 200 --jobs 20000 --parts 20000 --rounds 3\n" +
			"  nusa bench federation --regions 200 --jobs 1000 --rate 50 --idle 0\n" +
			"  # with the trace of a checkout\n  nusa bench federation --regions 50 -o json \\\n    --trace bench/replay/testdata/azure-vm.csv",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&o.Regions, "regions", 5, "emulated regions")
	f.IntVar(&o.Jobs, "jobs", 2000, "jobs to submit")
	f.IntVar(&o.Concurrency, "concurrency", 64, "callers that submit at the same time; with --stream: streams")
	f.BoolVar(&o.Keys, "keys", false, "give each job an idempotency key")
	f.BoolVar(&o.Stream, "stream", false, "submit by SubmitMany instead of unary calls; not with --rate")
	f.Float64Var(&o.Rate, "rate", 0, "jobs a second, at fixed times; 0 = as fast as possible")
	f.StringVar(&o.Against, "against", "", "host:port of the active server of a running federation to measure instead")
	f.DurationVar(&o.Idle, "idle", 30*time.Second, "time without submits to measure afterwards; 0 = none")
	f.DurationVar(&o.Etcd, "etcd", 2*time.Second, "time to measure etcd alone, before and after; 0 = not")
	f.IntVar(&o.Parts, "parts", 0, "jobs for the bare parts, measured after the server; 0 = none; not with --against")
	f.IntVar(&o.Rounds, "rounds", 1, "how often to measure everything, with medians as the result; not with --against")
	f.IntVar(&o.Stored, "stored", 0, "jobs to store before the same load is measured once more; 0 = not; not with --against")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "bound of connecting, and of the time from the first submit until all is accepted")
	f.IntVar(&o.History, "history", 0, "jobs that have ended, in the store of the restarted server, whose memory and lists are measured then; not with --against")
	f.StringVar(&o.Dir, "dir", os.TempDir(), "parent of the temporary folder with the server's data")
	f.StringVar(&o.Profile, "profile", "", "folder for the server's CPU and heap profiles of the measured time and of the restart")
	trace.bind(f)
	bindOutput(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.Check(); err != nil {
			return err
		}
		if trace.trace != "" {
			return trace.run(cmd, out, o.Regions)
		}
		if err := o.Validate(); err != nil {
			return err
		}
		return measure(cmd, out, &o.Progress, func() (*federation.Result, error) {
			o.Say = func(s string) {
				if o.Progress != nil {
					o.Progress("")
				}
				fmt.Fprintln(cmd.ErrOrStderr(), "nusa: "+s)
			}
			return federation.Measure(cmd.Context(), o)
		})
	}
	return cmd
}

// federationEtcdCommand returns the hidden command that measures etcd alone, for nusa bench
// federation.
func federationEtcdCommand() *cobra.Command {
	var jobs int
	var d time.Duration
	var read bool
	cmd := &cobra.Command{
		Use: "federation-etcd FOLDER", Hidden: true, Args: cobra.ExactArgs(1),
		Short: "Print how many jobs a second etcd alone stores",
		RunE: func(cmd *cobra.Command, args []string) error {
			if read {
				defer serve.PaceCollector(serve.HeapBudget)()
				r, err := federation.ReadAlone(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			}
			r, err := federation.EtcdAlone(cmd.Context(), args[0], jobs, d)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
		},
	}
	cmd.Flags().IntVar(&jobs, "jobs", 1, "jobs of a transaction")
	cmd.Flags().DurationVar(&d, "for", time.Second, "measured time")
	cmd.Flags().BoolVar(&read, "read", false, "print instead how long etcd alone takes to open the folder and to read all keys")
	return cmd
}

// federationPartsCommand returns the hidden command that runs the bare parts, for nusa bench
// federation.
func federationPartsCommand() *cobra.Command {
	var cfg parts.Config
	cmd := &cobra.Command{
		Use: "federation-parts FOLDER", Hidden: true, Args: cobra.ExactArgs(1),
		Short: "Run the bare parts of a global server",
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Dir = args[0]
			defer serve.PaceCollector(serve.HeapBudget)()
			return parts.Run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVar(&cfg.GRPCAddr, "grpc-addr", "", "address for callers and regions")
	cmd.Flags().StringVar(&cfg.PeerAddr, "etcd-peer-addr", "", "peer address of etcd")
	return cmd
}
