package client

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

func topologyNearest(s *settings) *cobra.Command {
	var limit, percentile int
	var location string
	c := &cobra.Command{
		Use: "nearest [REGION]", Short: "List regions by their round trip from a region or a place", Args: takes("[REGION]"),
		Long: `Lists regions by round trip, the worse of both directions, from a region or
(--location) from coordinates; without either a regional server means its own.

Nobody measures from coordinates: the round trips are estimated from the distance
over the globe alone, without what the regions measured among themselves. The
nearest ones are told well so; of those far away, ask from the nearest region.`,
		Example: "  nusa topology nearest southeastasia\n  nusa topology nearest --location -6.2,106.8",
		RunE: s.run(func(c *caller, args []string) error {
			if err := checkPercentile(percentile); err != nil {
				return err
			}
			if limit < 1 {
				return fmt.Errorf("--limit: %d is not 1 or more", limit)
			}
			region := ""
			if len(args) > 0 {
				region = args[0]
			}
			var place *nusav1.Location
			if region != "" || location != "" { // else a region's server means itself
				var err error
				if place, err = clientPlace(region, location); err != nil {
					return err
				}
			}
			req := &nusav1.NearestRequest{Region: region, Location: place, Limit: int32(limit), Percentile: int32(percentile)}
			ctx, cancel := c.call()
			defer cancel()
			resp, err := c.topology().Nearest(ctx, req)
			if err != nil {
				return err
			}
			from := cmp.Or(region+location, resp.GetSeenBy())
			return c.print(resp, func(w io.Writer) { c.view().nearest(w, from, place != nil, percentile, resp) })
		}),
	}
	c.Flags().IntVarP(&limit, "limit", "k", 10, "at most this many")
	c.Flags().IntVarP(&percentile, "percentile", "p", 50, "50, 90 or 99")
	c.Flags().StringVar(&location, "location", "", "LATITUDE,LONGITUDE in degrees")
	return c
}

// clientPlace reads a location; just one of region and location is to be given.
func clientPlace(region, location string) (*nusav1.Location, error) {
	if (region == "") == (location == "") {
		return nil, errors.New("give either a region or --location LATITUDE,LONGITUDE")
	}
	if location == "" {
		return nil, nil
	}
	return parseLocation(location)
}

func parseLocation(s string) (*nusav1.Location, error) {
	a, b, ok := strings.Cut(s, ",")
	lat, err1 := strconv.ParseFloat(strings.TrimSpace(a), 64)
	lon, err2 := strconv.ParseFloat(strings.TrimSpace(b), 64)
	if !ok || err1 != nil || err2 != nil || !(lat >= -90 && lat <= 90) || !(lon >= -180 && lon <= 180) {
		return nil, fmt.Errorf("--location: %q is not LATITUDE,LONGITUDE in degrees, such as -6.2,106.8", s)
	}
	return &nusav1.Location{Latitude: lat, Longitude: lon}, nil
}

func (v view) nearest(w io.Writer, from string, place bool, percentile int, resp *nusav1.NearestResponse) {
	v.seenBy(w, byMatrix, resp)
	if len(resp.GetRegions()) == 0 {
		fmt.Fprintln(w, "no region with a known distance")
		return
	}
	fmt.Fprintf(w, "nearest to %s, p%d round trips\n\n", v.bold(from), percentile)
	t := newTable("REGION", ">MS", "SOURCE", "STATE")
	for _, r := range resp.GetRegions() {
		e := &nusav1.Edge{P50: r.GetRtt(), P90: r.GetRtt(), P99: r.GetRtt(), Source: r.GetSource(), State: r.GetState()}
		t.row(r.GetRegion(), v.cell(e, percentile), v.state(word(r.GetSource())), v.state(word(r.GetState())))
	}
	t.write(w, v.palette)
	if !place {
		return
	}
	var unknown []string
	known := "" // the nearest with a location
	for _, r := range resp.GetRegions() {
		switch {
		case r.GetSource() == nusav1.RTTSource_RTT_SOURCE_UNSPECIFIED:
			unknown = append(unknown, r.GetRegion())
		case known == "":
			known = r.GetRegion()
		}
	}
	fmt.Fprintln(w)
	if known == "" {
		fmt.Fprintf(w, "no region has a location: give them some with %s region define -f FILE\n", v.nusa)
		return
	}
	if len(unknown) > 0 {
		fmt.Fprintf(w, "without a location, so perhaps nearer than they stand: %s\ngive them one with %s region define -f FILE\n", strings.Join(unknown, ", "), v.nusa)
	}
	fmt.Fprintf(w, "estimated from distances over the globe, most of them within %s; as measured from %s: %s topology nearest %[2]s\n",
		percent(topology.EstimateError), known, v.nusa)
}

// pathOptions are the flags of topology path.
type pathOptions struct {
	k, percentile, relays int
	cpu, queue            time.Duration
}

func topologyPath(s *settings) *cobra.Command {
	o := pathOptions{}
	c := &cobra.Command{
		Use: "path FROM TO", Short: "Find the k best paths between two regions, relays included", Args: takes("FROM", "TO"),
		Long: `Finds the best paths by round trip that can be gone now: over nothing that is
unreachable, over stale measurements only where there is no way without them, and
over guesses only where there is none with those. What such a path rests on is
marked. With --cpu-weight and --queue-weight the load
of the regions on the way counts too: at --cpu-weight 1ms a region that is 80 %
busy costs 2 ms, at --queue-weight 1ms each that waits in its queue one.`,
		Example: `  nusa topology path southeastasia eastus
  nusa topology path southeastasia eastus -k 5 --relays 1 --percentile 99
  nusa topology path southeastasia eastus --cpu-weight 5ms`,
		RunE: s.run(func(c *caller, args []string) error {
			req, err := o.request(args[0], args[1])
			if err != nil {
				return err
			}
			ctx, cancel := c.call()
			defer cancel()
			resp, err := c.topology().Path(ctx, req)
			if err != nil {
				return err
			}
			return c.print(resp, func(w io.Writer) {
				if len(resp.GetPaths()) == 0 {
					c.view().seenBy(w, byMatrix, resp)
					fmt.Fprintln(w, o.none(args[0], args[1]))
					return
				}
				c.view().paths(w, resp)
			})
		}),
	}
	f := c.Flags()
	f.IntVarP(&o.k, "paths", "k", 3, "how many")
	f.IntVarP(&o.percentile, "percentile", "p", 50, "50, 90 or 99")
	f.IntVar(&o.relays, "relays", 2, "at most so many regions in between, 0 = none")
	f.Var(weightSpan(&o.cpu), "cpu-weight", "how much the processors of the regions on the way count, such as 5ms")
	f.Var(weightSpan(&o.queue), "queue-weight", "how much their queues count, such as 1ms")
	return c
}

func weightSpan(to *time.Duration) *span {
	return &span{to, func(d time.Duration) error {
		if d > topology.MaxWeight {
			return fmt.Errorf("is more than %s", job.FormatDuration(topology.MaxWeight))
		}
		return nil
	}}
}

func (o pathOptions) request(from, to string) (*nusav1.PathRequest, error) {
	if o.k < 1 || o.k > topology.MaxPaths {
		return nil, fmt.Errorf("-k: %d is not within 1..%d", o.k, topology.MaxPaths)
	}
	relays, err := wireRelays(o.relays)
	if err != nil {
		return nil, err
	}
	req := &nusav1.PathRequest{From: from, To: to, K: int32(o.k), Percentile: int32(o.percentile), MaxRelays: relays}
	if o.cpu > 0 || o.queue > 0 {
		req.Weights = &nusav1.PathWeights{Cpu: durationpb.New(o.cpu), Queue: durationpb.New(o.queue)}
	}
	return req, checkPercentile(o.percentile)
}

// none says that there is no path.
func (o pathOptions) none(from, to string) string {
	text := fmt.Sprintf("no path from %s to %s over at most %s in between can be gone now", from, to, plural(o.relays, "region"))
	if o.relays == 0 {
		text = fmt.Sprintf("the direct way from %s to %s cannot be gone now", from, to)
	}
	if o.relays < topology.MaxRelays {
		text += fmt.Sprintf("; --relays %d may find one", max(o.relays+1, topology.DefaultRelays))
	}
	return text
}

// wireRelays is --relays on the wire, where 0 is the default.
func wireRelays(n int) (int32, error) {
	if n < 0 || n > topology.MaxRelays {
		return 0, fmt.Errorf("--relays: %d is not within 0..%d", n, topology.MaxRelays)
	}
	if n == 0 {
		return -1, nil
	}
	return int32(n), nil
}

func (v view) paths(w io.Writer, resp *nusav1.PathResponse) {
	v.seenBy(w, byMatrix, resp)
	t := newTable(">RANK", ">MS", ">AT MOST", ">COST", "PATH", "SOURCE", "STATE")
	var edges []*nusav1.Edge
	var idle, doubts []string
	for i, p := range resp.GetPaths() {
		e := pathEdge(p)
		edges = append(edges, e)
		upper, cost, state := "", "", ""
		if p.GetUpper().AsDuration() > p.GetRtt().AsDuration() {
			upper = millis(p.GetUpper())
		}
		if p.GetCost() != nil && (p.GetCostCpu().AsDuration() > 0 || p.GetCostQueue().AsDuration() > 0) {
			cost = fmt.Sprintf("%s (cpu %s, queue %s)", millis(p.GetCost()), millis(p.GetCostCpu()), millis(p.GetCostQueue()))
		}
		if p.GetState() != nusav1.EdgeState_EDGE_STATE_UNKNOWN {
			state = v.state(word(p.GetState()))
		}
		idle, doubts = append(idle, p.GetNoLoad()...), append(doubts, p.GetDoubts()...)
		t.row(count(i+1), v.cell(e, 50), upper, cost, strings.Join(p.GetRegions(), " → "), v.state(word(p.GetSource())), state)
	}
	t.dropBlank("AT MOST")
	t.dropBlank("COST")
	t.dropBlank("STATE")
	t.write(w, v.palette)
	if len(idle) > 0 {
		fmt.Fprintf(w, "\nthe load of %s is not known and counts as none\n", strings.Join(unique(idle), ", "))
	}
	for _, d := range unique(doubts) {
		fmt.Fprintf(w, "\n%s: what is longer counts, that or what is expected\n", plain(d))
	}
	v.marks(w, edges)
}

// marks is a legend where there is something to explain.
func (v view) marks(w io.Writer, edges []*nusav1.Edge) {
	for _, e := range edges {
		if e.GetSource() != nusav1.RTTSource_RTT_SOURCE_MEASURED || e.GetState() != nusav1.EdgeState_EDGE_STATE_OK || e.GetDoubt() != "" {
			v.legend(w, edges)
			return
		}
	}
}

// pathEdge shows a path's round trip as that of an edge. Older servers do not
// say its state.
func pathEdge(p *nusav1.Path) *nusav1.Edge {
	state := p.GetState()
	if state == nusav1.EdgeState_EDGE_STATE_UNKNOWN {
		state = nusav1.EdgeState_EDGE_STATE_OK
	}
	return &nusav1.Edge{P50: p.GetRtt(), Source: p.GetSource(), State: state, Doubt: strings.Join(p.GetDoubts(), "; ")}
}

// unique keeps the first of equal texts.
func unique(all []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range all {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}
