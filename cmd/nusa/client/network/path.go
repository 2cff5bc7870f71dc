package network

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/history"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// pathOptions holds the flags of `nusa topology path`.
type pathOptions struct {
	k, percentile, relays int
	cpu, queue            time.Duration
}

func pathCommand(s *cli.Settings) *cobra.Command {
	o := pathOptions{}
	c := &cobra.Command{
		Use: "path FROM TO", Short: "Find the k best paths between two regions, relays included", Args: cli.Positional("FROM", "TO"),
		Long: `Finds the best usable paths by round trip. A path avoids unreachable edges, uses old
measurements only when there is no way without them, and estimates only when there is
no measured way; marks show which. With --cpu-weight and --queue-weight the load of
the regions on the way counts: with --cpu-weight 1ms a region that is 80 % busy adds
2 ms, with --queue-weight 1ms each instance in its queue adds 1 ms.`,
		Example: `  nusa topology path southeastasia eastus
  nusa topology path southeastasia eastus -k 5 --relays 1 --percentile 99
  nusa topology path southeastasia eastus --cpu-weight 5ms`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			req, err := o.request(args[0], args[1])
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Topology().Path(ctx, req)
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) {
				if len(resp.GetPaths()) == 0 {
					writeSeenBy(w, byMatrix, resp)
					fmt.Fprintln(w, o.noPathText(args[0], args[1]))
					return
				}
				writePaths(w, resp)
			})
		}),
	}
	f := c.Flags()
	f.IntVarP(&o.k, "paths", "k", 3, "how many")
	f.IntVarP(&o.percentile, "percentile", "p", 50, "50, 90 or 99")
	f.IntVar(&o.relays, "relays", 2, "at most this many regions in between, 0 = none")
	f.Var(weightSpan(&o.cpu), "cpu-weight", "how much the processors of the regions on the way count, such as 5ms")
	f.Var(weightSpan(&o.queue), "queue-weight", "how much the queues of these regions count, such as 1ms")
	return c
}

func weightSpan(to *time.Duration) *cli.DurationValue {
	return cli.NewDuration(to, func(d time.Duration) error {
		if d > topology.MaxWeight {
			return fmt.Errorf("is more than %s", job.FormatDuration(topology.MaxWeight))
		}
		return nil
	})
}

func (o pathOptions) request(from, to string) (*nusav1.PathRequest, error) {
	if o.k < 1 || o.k > topology.MaxPaths {
		return nil, fmt.Errorf("-k: %d is not within 1..%d", o.k, topology.MaxPaths)
	}
	relays, err := relaysToProto(o.relays)
	if err != nil {
		return nil, err
	}
	req := &nusav1.PathRequest{From: from, To: to, K: int32(o.k), Percentile: int32(o.percentile), MaxRelays: relays}
	if o.cpu > 0 || o.queue > 0 {
		req.Weights = &nusav1.PathWeights{Cpu: durationpb.New(o.cpu), Queue: durationpb.New(o.queue)}
	}
	return req, history.CheckPercentile(o.percentile)
}

// noPathText says that no path can be used now, and which flag may find one.
func (o pathOptions) noPathText(from, to string) string {
	text := fmt.Sprintf("no path from %s to %s over at most %s in between is open now", from, to, term.Plural(o.relays, "region"))
	if o.relays == 0 {
		text = fmt.Sprintf("the direct way from %s to %s cannot be used now", from, to)
	}
	if o.relays < topology.MaxRelays {
		text += fmt.Sprintf("; --relays %d may find one", max(o.relays+1, topology.DefaultRelays))
	}
	return text
}

// relaysToProto converts --relays for a request, in which 0 means the default and -1 means
// no relay.
func relaysToProto(n int) (int32, error) {
	if n < 0 || n > topology.MaxRelays {
		return 0, fmt.Errorf("--relays: %d is not within 0..%d", n, topology.MaxRelays)
	}
	if n == 0 {
		return -1, nil
	}
	return int32(n), nil
}

func writePaths(w *term.Screen, resp *nusav1.PathResponse) {
	writeSeenBy(w, byMatrix, resp)
	t := term.NewTable(">RANK", ">MS", ">AT MOST", ">COST", "PATH", "SOURCE", "STATE")
	var edges []*nusav1.Edge
	var idle, doubts []string
	for i, p := range resp.GetPaths() {
		e := pathEdge(p)
		edges = append(edges, e)
		upper, cost, state := "", "", ""
		if p.GetUpper().AsDuration() > p.GetRtt().AsDuration() {
			upper = term.Millis(p.GetUpper())
		}
		if p.GetCost() != nil && (p.GetCostCpu().AsDuration() > 0 || p.GetCostQueue().AsDuration() > 0) {
			cost = fmt.Sprintf("%s (cpu %s, queue %s)", term.Millis(p.GetCost()), term.Millis(p.GetCostCpu()), term.Millis(p.GetCostQueue()))
		}
		if p.GetState() != nusav1.EdgeState_EDGE_STATE_UNKNOWN {
			state = w.State(term.Word(p.GetState()))
		}
		idle, doubts = append(idle, p.GetNoLoad()...), append(doubts, p.GetDoubts()...)
		t.Row(term.Count(i+1), edgeCell(w, e, 50), upper, cost, strings.Join(p.GetRegions(), " → "), w.State(term.Word(p.GetSource())), state)
	}
	t.DropBlank("AT MOST")
	t.DropBlank("COST")
	t.DropBlank("STATE")
	t.Write(w)
	if len(idle) > 0 {
		fmt.Fprintf(w, "\nthe load of %s is not known and counts as none\n", strings.Join(term.Unique(idle), ", "))
	}
	for _, d := range term.Unique(doubts) {
		fmt.Fprintf(w, "\n%s: the longer of the measured and the expected round trip counts\n", term.OneLine(d))
	}
	writeMarkLegend(w, edges)
}
