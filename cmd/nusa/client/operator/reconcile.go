package operator

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func reconcileCommand(s *cli.Settings) *cobra.Command {
	now := false
	c := &cobra.Command{
		Use: "reconcile --now", Short: "Compare all tiers with one another, and repair what differs", Args: cli.Positional(),
		Long: `Compares what each tier should have with what it has, and repairs what differs:

  global   the memory of the active server with the store,
           and the store with the slots in the logs of the regions
  region   the log with the cache of the scheduler,
           and with the orders for each node
  agent    the log with the orders that each agent has,
           and the records of each agent with what its drivers run

All tiers do this by themselves each ten minutes, and after each reconnection. The metric
nusa_reconcile_repairs_total counts the repairs. A healthy federation has none, so each
repair is a bug to report.`,
		Example: "  nusa operator reconcile --now\n  nusa operator reconcile --now --region jakarta",
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if !now {
				return errors.New("the tiers compare themselves each ten minutes: add --now to compare them now")
			}
			resp, err := nusav1.NewRepairsClient(c.Conn).Run(c.Ctx, &nusav1.ReconcileRequest{Region: c.Region})
			if err != nil {
				return err
			}
			if err := c.Print(resp, func(w *term.Screen) { writeResults(w, resp) }); err != nil {
				return err
			}
			return notCompared(resp)
		}),
	}
	s.BindRegion(c, "only this region")
	c.Flags().BoolVar(&now, "now", false, "compare now")
	return c
}

// notCompared returns an error if a region was not compared. A node without a session is none: the
// region compares it when it returns.
func notCompared(resp *nusav1.ReconcileResponse) error {
	var regions []string
	for _, x := range resp.GetResults() {
		if x.GetTier() == "region" && x.GetSkipped() != "" {
			regions = append(regions, term.OneLine(x.GetRegion()))
		}
	}
	if len(regions) == 0 {
		return nil
	}
	return fmt.Errorf("not compared: %s: run the command again when these regions are connected", strings.Join(regions, ", "))
}

func writeResults(w *term.Screen, resp *nusav1.ReconcileResponse) {
	t := term.NewTable("TIER", "REGION", ">COMPARED", ">REPAIRED", "#NOT COMPARED")
	repairs := term.NewTable("KIND", "OBJECT", "#WHY", "#REPAIR")
	n, more := 0, int64(0)
	for _, x := range resp.GetResults() {
		t.Row(x.GetTier(), term.OrDash(term.OneLine(x.GetRegion())), fmt.Sprint(x.GetCompared()), fmt.Sprint(int64(len(x.GetRepairs()))+x.GetMore()), term.OneLine(x.GetSkipped()))
		for _, p := range x.GetRepairs() {
			repairs.Row(term.OneLine(p.GetKind()), term.OneLine(p.GetObject()), term.OneLine(p.GetWhy()), term.OneLine(p.GetRepair()))
			n++
		}
		more += x.GetMore()
	}
	t.DropEmpty("NOT COMPARED")
	t.Write(w)
	if n == 0 {
		return
	}
	fmt.Fprintln(w)
	repairs.Write(w)
	if more > 0 {
		fmt.Fprintln(w, w.Faint(fmt.Sprintf("(and %d more)", more)))
	}
}
