package region

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func listCommand(s *cli.Settings) *cobra.Command {
	var labels map[string]string
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List regions", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Regions().List(ctx, &nusav1.ListRegionsRequest{Labels: labels})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) {
				if len(resp.GetRegions()) == 0 && len(labels) > 0 {
					fmt.Fprintf(w, "no regions with the labels %s; %s region list shows all\n", term.LabelText(labels), c.Program)
					return
				}
				writeRegions(w, resp.GetRegions())
			})
		}),
	}
	c.Flags().StringToStringVarP(&labels, "label", "l", nil, "only regions with this label, KEY=VALUE")
	return c
}

// NoneText says that there are no regions, and how to define one.
func NoneText(w *term.Screen) string {
	return fmt.Sprintf("no regions; define one with: %s region define FILE, or start its servers", w.Program)
}

func writeRegions(w *term.Screen, regions []*nusav1.Region) {
	if len(regions) == 0 {
		fmt.Fprintln(w, NoneText(w))
		return
	}
	t := term.NewTable("REGION", "STATE", ">NODES", ">ALLOCS", ">CPU USED", ">CPU UNRESERVED", ">MEMORY UNRESERVED", ">QUEUE", "MASTER", ">REPORT", "LOCATION")
	for _, r := range regions {
		rep := r.GetReport()
		cells := []string{"-", "-", "-", "-", "-", "-"}
		if rep != nil {
			cells = []string{nodesOf(rep), term.Count(liveAllocs(rep)), term.Percent(rep.GetUtilisation().GetCpu()), term.Cores(rep.GetFree().GetCpuMilli()), term.Size(rep.GetFree().GetMemoryBytes()), term.Count(rep.GetQueueLength())}
		}
		row := append([]string{r.GetDefinition().GetName(), State(w, r)}, cells...)
		t.Row(append(row, masterOf(r), term.Age(r.GetReportAge()), r.GetDefinition().GetLocation().GetName())...)
	}
	t.DropEmpty("QUEUE", "LOCATION")
	t.Write(w)
}

// State returns the state of a region: "connected, cordoned".
func State(w *term.Screen, r *nusav1.Region) string {
	state := w.State(term.Word(r.GetState()))
	if state == "" {
		state = w.Faint("not known here") // the server of one region was asked about another region
	}
	if r.GetCordoned() {
		state += ", " + w.Wait("cordoned")
	}
	return state
}

// disconnected reports whether the present state of a region's servers is unknown.
func disconnected(r *nusav1.Region) bool {
	return r.GetState() != nusav1.RegionState_REGION_STATE_CONNECTED && r.GetState() != nusav1.RegionState_REGION_STATE_ISLAND
}

// masterOf returns a region's master; "-" while the region is disconnected, because
// its master is then unknown.
func masterOf(r *nusav1.Region) string {
	if disconnected(r) {
		return "-"
	}
	return term.OrDash(r.GetMaster())
}

// nodesOf counts a region's nodes: "ready" or "ready/all".
func nodesOf(r *nusav1.RegionReport) string {
	if r.GetNodesLost() == 0 {
		return term.Count(r.GetNodesReady())
	}
	return fmt.Sprintf("%d/%d", r.GetNodesReady(), r.GetNodesReady()+r.GetNodesLost())
}

// liveAllocs counts the allocations that have not ended.
func liveAllocs(r *nusav1.RegionReport) int32 {
	a := r.GetAllocations()
	return a["pending"] + a["starting"] + a["running"]
}
