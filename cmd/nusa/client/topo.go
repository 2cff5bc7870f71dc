package client

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func topologyCommand() *cobra.Command {
	s := &settings{}
	c := noun("topology", "See the federation as a tree, find near regions and paths", topologyShow(s), topologyNearest(s), topologyPath(s))
	s.bind(c)
	return c
}

func topologyShow(s *settings) *cobra.Command {
	var nodes bool
	c := &cobra.Command{
		Use: "show", Short: "Show global servers, regions, their servers and nodes", Args: takes(),
		RunE: s.run(func(c *caller, _ []string) error {
			ctx, cancel := c.call()
			defer cancel()
			t, err := c.topology().Get(ctx, &nusav1.GetTopologyRequest{Nodes: nodes})
			if err != nil {
				return err
			}
			c.partial(t.GetErrors())
			return c.print(t, func(w io.Writer) { c.view().tree(w, t) })
		}),
	}
	c.Flags().BoolVar(&nodes, "nodes", true, "also show each region's nodes")
	return c
}

// branch is one line of a tree and what hangs below it.
type branch struct {
	text string
	sub  []branch
}

func (b branch) write(w io.Writer, prefix string) {
	for i, s := range b.sub {
		tee, rail := "├─ ", "│  "
		if i == len(b.sub)-1 {
			tee, rail = "└─ ", "   "
		}
		fmt.Fprintf(w, "%s%s%s\n", prefix, tee, s.text)
		s.write(w, prefix+rail)
	}
}

func (v view) tree(w io.Writer, t *nusav1.TopologyTree) {
	root := branch{text: v.bold("federation")}
	for _, s := range t.GetServers() {
		role := "stands by"
		if s.GetActive() {
			role = v.good("active")
		}
		root.sub = append(root.sub, branch{text: strings.Join([]string{"global " + s.GetName(), role, s.GetAddress(), v.faint(s.GetVersion())}, gap)})
	}
	for _, r := range t.GetRegions() {
		name := r.GetDefinition().GetName()
		text := []string{"region " + v.bold(name), v.regionState(r)}
		if l := r.GetDefinition().GetLocation(); l.GetName() != "" {
			text = append(text, l.GetName())
		}
		if r.GetReport() != nil {
			text = append(text, plural(r.GetReport().GetNodesReady(), "node")+" ready", v.faint(reportAge(r)))
		}
		b := branch{text: strings.Join(text, gap)}
		for _, s := range r.GetServers() {
			if s.GetId() == "" && s.GetAddress() == "" {
				continue // only a probe address, as regions know one another
			}
			role, health := v.server(r, s)
			b.sub = append(b.sub, branch{text: strings.Join([]string{role + " " + s.GetId(), health, s.GetAddress()}, gap)})
		}
		for _, n := range t.GetNodes() {
			if n.GetRegion() == name {
				c := n.GetInventory().GetCapacity()
				b.sub = append(b.sub, branch{text: strings.Join([]string{"node " + n.GetName(), shortID(n.GetId()), v.nodeState(n),
					cores(c.GetCpuMilli()) + " cores", size(c.GetMemoryBytes()), plural(n.GetAllocations(), "allocation")}, gap)})
			}
		}
		root.sub = append(root.sub, b)
	}
	fmt.Fprintln(w, root.text)
	root.write(w, "")
}

func topologyNearest(s *settings) *cobra.Command {
	var limit, percentile int
	var location string
	c := &cobra.Command{
		Use: "nearest [REGION]", Short: "List regions by their round trip from a region or a place", Args: takes("[REGION]"),
		Long:    "Lists regions by round trip, the worse of both directions, from a region or (--location) from coordinates.",
		Example: "  nusa topology nearest southeastasia\n  nusa topology nearest --location -6.2,106.8",
		RunE: s.run(func(c *caller, args []string) error {
			if err := checkPercentile(percentile); err != nil {
				return err
			}
			req := &nusav1.NearestRequest{Limit: int32(limit), Percentile: int32(percentile)}
			from := location
			switch {
			case len(args) == 1 && location == "":
				req.Region, from = args[0], args[0]
			case len(args) == 0 && location != "":
				var err error
				if req.Location, err = parseLocation(location); err != nil {
					return err
				}
			default:
				return errors.New("give either a region or --location LATITUDE,LONGITUDE")
			}
			ctx, cancel := c.call()
			defer cancel()
			resp, err := c.topology().Nearest(ctx, req)
			if err != nil {
				return err
			}
			return c.print(resp, func(w io.Writer) { c.view().nearest(w, from, percentile, resp) })
		}),
	}
	c.Flags().IntVarP(&limit, "limit", "k", 10, "at most this many")
	c.Flags().IntVarP(&percentile, "percentile", "p", 50, "50, 90 or 99")
	c.Flags().StringVar(&location, "location", "", "LATITUDE,LONGITUDE in degrees")
	return c
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

func (v view) nearest(w io.Writer, from string, percentile int, resp *nusav1.NearestResponse) {
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
}

func topologyPath(s *settings) *cobra.Command {
	var k, percentile int
	c := &cobra.Command{
		Use: "path FROM TO", Short: "Find the k best paths between two regions, relays included", Args: takes("FROM", "TO"),
		RunE: s.run(func(c *caller, args []string) error {
			if err := checkPercentile(percentile); err != nil {
				return err
			}
			if k < 1 || k > 16 {
				return fmt.Errorf("-k: %d is not within 1..16", k)
			}
			ctx, cancel := c.call()
			defer cancel()
			resp, err := c.topology().Path(ctx, &nusav1.PathRequest{From: args[0], To: args[1], K: int32(k), Percentile: int32(percentile)})
			if err != nil {
				return err
			}
			return c.print(resp, func(w io.Writer) { c.view().paths(w, resp) })
		}),
	}
	c.Flags().IntVarP(&k, "paths", "k", 3, "how many")
	c.Flags().IntVarP(&percentile, "percentile", "p", 50, "50, 90 or 99")
	return c
}

func (v view) paths(w io.Writer, resp *nusav1.PathResponse) {
	if len(resp.GetPaths()) == 0 {
		fmt.Fprintln(w, "no path is known")
		return
	}
	t := newTable(">RANK", ">MS", "PATH", "SOURCE")
	for i, p := range resp.GetPaths() {
		e := &nusav1.Edge{P50: p.GetRtt(), Source: p.GetSource(), State: nusav1.EdgeState_EDGE_STATE_OK}
		t.row(count(i+1), v.cell(e, 50), strings.Join(p.GetRegions(), " → "), v.state(word(p.GetSource())))
	}
	t.write(w, v.palette)
}

func eventsCommand() *cobra.Command {
	s := &settings{}
	var token string
	c := &cobra.Command{
		Use: "events", Short: "Follow what happens", Args: takes(),
		Long: `Prints events as they happen, until Ctrl-C:

  job       submitted, stopped, purged; a batch job complete or failed
  slot      instances offered to a region, accepted, returned, stopped, done
  instance  given up after its last attempt, or lost with its node
  node      silent or back, cordoned, drained, removed
  region    defined, connected, disconnected, cordoned, removed

Each attempt of an instance is in: alloc list --all. A region's own server tells
of its own jobs and nodes. With --token it goes on after an earlier event (-o
json shows tokens) and says so when that is too long ago.`,
		RunE: s.run(func(c *caller, _ []string) error {
			stream, err := nusav1.NewEventsClient(c.conn).Watch(c.ctx, &nusav1.WatchEventsRequest{Token: token})
			if err != nil {
				return err
			}
			for {
				e, err := stream.Recv()
				switch {
				case errors.Is(err, io.EOF), err != nil && c.interrupted():
					return nil
				case err != nil:
					return err
				}
				if err := c.printLine(e, func(w io.Writer) { c.style.event(w, e) }); err != nil {
					return err
				}
			}
		}),
	}
	s.bind(c)
	c.Flags().StringVar(&token, "token", "", "go on after the event with this token")
	return c
}

func (p palette) event(w io.Writer, e *nusav1.Event) {
	if e.GetReset_() {
		fmt.Fprintln(w, p.wait("(a gap: older events are no longer kept)"))
		if e.GetType() == "" {
			return
		}
	}
	line := fmt.Sprintf("%-20s  %-28s  %s", e.GetType(), e.GetSubject(), plain(e.GetMessage()))
	fmt.Fprintf(w, "%s  %s\n", p.faint(e.GetTime().AsTime().Local().Format(time.TimeOnly)), strings.TrimRight(line, " "))
}

func versionCommand() *cobra.Command {
	s := &settings{}
	var server bool
	c := &cobra.Command{
		Use: "version", Short: "Print the version of this binary, and with --server of the server", Args: takes(),
		RunE: s.run(func(c *caller, _ []string) error {
			own := &nusav1.InfoResponse{Role: "client", Version: serve.Version}
			if !server {
				return c.print(own, func(w io.Writer) {
					fmt.Fprintf(w, "nusa %s (%s, %s/%s)\n", serve.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
				})
			}
			ctx, cancel := c.call()
			defer cancel()
			info, err := nusav1.NewSystemClient(c.conn).Info(ctx, &nusav1.InfoRequest{})
			if err != nil {
				return err
			}
			return c.print(info, func(w io.Writer) {
				fmt.Fprintf(w, "client %s\nserver %s  %s\n", serve.Version, info.GetVersion(), strings.Join(strings.Fields(info.GetRole()+" "+info.GetName()+" "+info.GetRegion()), " "))
			})
		}),
	}
	s.bind(c)
	c.Flags().BoolVar(&server, "server", false, "ask the server too")
	return c
}
