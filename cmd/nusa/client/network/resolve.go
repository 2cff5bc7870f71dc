package network

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology/origin"
)

func originResolveCommand(s *cli.Settings) *cobra.Command {
	var location, current string
	c := &cobra.Command{
		Use: "resolve DOMAIN", Short: "Choose the origin of a domain for a client, and say why", Args: cli.Positional("DOMAIN"),
		Long: `Chooses the region that should serve a client, and the path to that region. The client
is in a region (--region) or at a place on the map (--location). The exit code is 1 if
no origin can serve the client.`,
		Example: `  nusa origin resolve www.example.com --region southeastasia
  nusa origin resolve www.example.com --location -6.2,106.8
  nusa origin resolve www.example.com --region eastus --current westeurope`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if _, err := origin.ParseDomain(args[0]); err != nil {
				return err
			}
			region := c.Region
			if location != "" && !c.Cmd.Flags().Changed("region") {
				region = "" // ignore the region that NUSA_REGION sets
			}
			if (region == "") == (location == "") {
				return errors.New("say where the client is: either --region or --location LATITUDE,LONGITUDE")
			}
			place, err := clientPlace(region, location)
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Origins().Resolve(ctx, &nusav1.ResolveOriginRequest{Domain: args[0], Region: region, Location: place, Current: current})
			if err != nil {
				return err
			}
			if err := c.Print(resp, func(w *term.Screen) { writeResolved(w, args[0], region+location, resp) }); err != nil {
				return err
			}
			if resp.GetChoice().GetRegion() == "" {
				return &cli.ExitError{Code: cli.ExitFail}
			}
			return nil
		}),
	}
	s.BindRegion(c, "where the client is")
	c.Flags().StringVar(&location, "location", "", "where the client is, LATITUDE,LONGITUDE in degrees")
	c.Flags().StringVar(&current, "current", "", "region of the origin that the client uses now: chosen again unless another one is much nearer")
	return c
}

func writeResolved(w *term.Screen, domain, client string, resp *nusav1.ResolveOriginResponse) {
	choice := resp.GetChoice()
	by := ""
	if resp.GetRecord() != "" && resp.GetRecord() != domain {
		by = " (by the record of " + resp.GetRecord() + ")"
	}
	if choice.GetRegion() == "" {
		fmt.Fprintf(w, "%s for a client at %s%s: %s\n", w.Bad("no origin of "+domain), client, by, term.OneLine(choice.GetWhy()))
	} else {
		at := ""
		if choice.GetAddress() != "" {
			at = " at " + term.OneLine(choice.GetAddress())
		}
		fmt.Fprintf(w, "%s for a client at %s: %s%s%s\n", domain, client, w.Good(choice.GetRegion()), at, by)
	}
	t := term.NewTable("ORIGIN", ">MS", ">WEIGHT", ">SCORE", "PATH", "#WHY")
	var edges []*nusav1.Edge
	for i, o := range append([]*nusav1.OriginChoice{choice}, resp.GetOthers()...) {
		if o.GetRegion() == "" {
			continue
		}
		ms, score, path, weight := "-", "-", "-", term.Number(max(o.GetWeight(), 0))
		if o.GetWeight() == 0 {
			weight = "1"
		}
		if p := o.GetPath(); len(p.GetRegions()) > 0 {
			e := pathEdge(p)
			if a := o.GetAccess(); a != nil { // add the round trip from the client to the first region of the path
				e.P50 = durationpb.New(e.GetP50().AsDuration() + a.GetRtt().AsDuration())
				e.Source, e.State = a.GetSource(), a.GetState()
			}
			edges = append(edges, e)
			ms, path = edgeCell(w, e, 50), strings.Join(p.GetRegions(), " → ")
			if o.GetScore() != nil {
				score = term.Millis(o.GetScore())
			}
		}
		name := o.GetRegion()
		if i == 0 {
			name = w.Good(name)
		} else if o.GetRefused() {
			name = w.Faint(name)
		}
		t.Row(name, ms, weight, score, path, term.OneLine(o.GetWhy()))
	}
	if len(t.Rows) > 0 {
		fmt.Fprintln(w)
		t.Write(w)
	}
	writeMarkLegend(w, edges)
	if resp.GetAge().AsDuration() > 0 { // 0 means the present state
		fmt.Fprintf(w, "\n%s\n", w.Faint("by the topology of "+term.Age(resp.GetAge())+" ago"))
	}
}
