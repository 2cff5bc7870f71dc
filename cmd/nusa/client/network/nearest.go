package network

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/history"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

func nearestCommand(s *cli.Settings) *cobra.Command {
	var limit, percentile int
	var location string
	c := &cobra.Command{
		Use: "nearest [REGION]", Short: "List regions by their round trip from a region or a place", Args: cli.Positional("[REGION]"),
		Long: `Lists regions by round trip, the worse of both directions, from a region or
(--location) from coordinates. By default a regional server uses its own region.

No region measures from coordinates: these round trips are estimated from the
distance alone. The estimate is good for near regions. For distant regions, use the
nearest region as REGION.`,
		Example: "  nusa topology nearest southeastasia\n  nusa topology nearest --location -6.2,106.8",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if err := history.CheckPercentile(percentile); err != nil {
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
			if region != "" || location != "" { // if both are empty, a regional server uses its own region
				var err error
				place, err = clientPlace(region, location)
				if err != nil {
					return err
				}
			}
			req := &nusav1.NearestRequest{Region: region, Location: place, Limit: int32(limit), Percentile: int32(percentile)}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Topology().Nearest(ctx, req)
			if err != nil {
				if region == "" && place == nil && status.Code(err) == codes.InvalidArgument {
					return fmt.Errorf("from where? Name a region, as in `%s topology nearest REGION`, or a place with --location LATITUDE,LONGITUDE; `%[1]s region list` shows the regions", c.Program)
				}
				return err
			}
			from := cmp.Or(region+location, resp.GetSeenBy())
			return c.Print(resp, func(w *term.Screen) { writeNearest(w, from, place != nil, percentile, resp) })
		}),
	}
	c.Flags().IntVarP(&limit, "limit", "k", 10, "at most this many")
	c.Flags().IntVarP(&percentile, "percentile", "p", 50, "50, 90 or 99")
	c.Flags().StringVar(&location, "location", "", "LATITUDE,LONGITUDE in degrees")
	return c
}

// clientPlace parses a location. It returns an error unless exactly one of region and
// location is given.
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

func writeNearest(w *term.Screen, from string, place bool, percentile int, resp *nusav1.NearestResponse) {
	writeSeenBy(w, byMatrix, resp)
	if len(resp.GetRegions()) == 0 {
		fmt.Fprintln(w, "no region with a known distance")
		return
	}
	fmt.Fprintf(w, "nearest to %s, p%d round trips\n\n", w.Bold(from), percentile)
	t := term.NewTable("REGION", ">MS", "SOURCE", "STATE")
	for _, r := range resp.GetRegions() {
		e := &nusav1.Edge{P50: r.GetRtt(), P90: r.GetRtt(), P99: r.GetRtt(), Source: r.GetSource(), State: r.GetState()}
		t.Row(r.GetRegion(), edgeCell(w, e, percentile), w.State(term.Word(r.GetSource())), w.State(term.Word(r.GetState())))
	}
	t.Write(w)
	if !place {
		return
	}
	var unknown []string
	known := "" // the nearest region with a location
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
		fmt.Fprintf(w, "no region has a location: give them some with %s region define -f FILE\n", w.Program)
		return
	}
	if len(unknown) > 0 {
		fmt.Fprintf(w, "without a location, so perhaps nearer than shown: %s\ngive them one with %s region define -f FILE\n", strings.Join(unknown, ", "), w.Program)
	}
	fmt.Fprintf(w, "estimated from distances over the globe, most of them within %s\nmeasured from %s: %s topology nearest %[2]s\n",
		term.Percent(topology.EstimateError), known, w.Program)
}
