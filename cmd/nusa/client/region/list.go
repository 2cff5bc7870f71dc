package region

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func listCommand(s *cli.Settings) *cobra.Command {
	var labels map[string]string
	var states *cli.States
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List regions", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Regions().List(ctx, &nusav1.ListRegionsRequest{Labels: labels, States: states.Words()})
			if err != nil {
				return err
			}
			resp.Regions = slices.DeleteFunc(resp.Regions, func(r *nusav1.Region) bool { return !states.Has(filter.Region(r)...) }) // a server of an earlier version does not select
			c.PrintAlarms(ctx)
			return c.Print(resp, func(w *term.Screen) {
				if none := cli.NoneSuch(c.Program, "regions", "region list", states, labels); len(resp.GetRegions()) == 0 && none != "" {
					fmt.Fprintln(w, none)
					return
				}
				writeRegions(w, resp.GetRegions())
			})
		}),
	}
	cli.LabelFlag(c, &labels, "regions")
	states = cli.StateFlag(c, "regions", filter.RegionStates...)
	return c
}

// NoneText returns a text that says that there are no regions, and how to define one.
func NoneText(w *term.Screen) string {
	return fmt.Sprintf("no regions; define one with: %s region define FILE, or start its servers", w.Program)
}

// queueCell is the position of the column QUEUE among the figures of a report.
const queueCell = 4

func writeRegions(w *term.Screen, regions []*nusav1.Region) {
	if len(regions) == 0 {
		fmt.Fprintln(w, NoneText(w))
		return
	}
	t := term.NewTable("REGION", "STATE", ">NODES", ">ALLOCS", ">CPU USED", ">UNRESERVED", ">QUEUE", "MASTER", ">REPORT", ">OLD POLICY", "LOCATION")
	old := false
	for _, r := range regions {
		rep := r.GetReport()
		cells := []string{"-", "-", "-", "-", "-"}
		if rep != nil && !r.GetLost().GetNothingRuns() {
			free := term.Cores(rep.GetFree().GetCpuMilli()) + " cpu, " + term.Size(rep.GetFree().GetMemoryBytes())
			cells = []string{nodesOf(rep), term.Count(liveAllocs(rep)), term.Percent(rep.GetUtilisation().GetCpu()), free, term.Count(rep.GetQueueLength())}
			if isOld(r) {
				old = true
				for i, c := range cells {
					if i != queueCell || c != "0" { // a blank queue column is left out
						cells[i] = "(" + c + ")"
					}
				}
			}
		}
		row := append([]string{r.GetDefinition().GetName(), State(w, r)}, cells...)
		t.Row(append(row, masterOf(r), term.Age(r.GetReportAge()), policyAge(r), r.GetDefinition().GetLocation().GetName())...)
	}
	t.DropEmpty("QUEUE", "LOCATION")
	t.DropBlank("OLD POLICY")
	t.Narrow(w.Width, "LOCATION", "OLD POLICY", "MASTER", "QUEUE", "UNRESERVED", "CPU USED", "ALLOCS")
	t.Write(w)
	if old {
		fmt.Fprintln(w, "\n(…): as the region reported last; REPORT is the age of that report")
	}
	first := true
	for _, r := range regions {
		for _, n := range notes(w, r) {
			if first {
				fmt.Fprintln(w)
			}
			first = false
			w.Note(r.GetDefinition().GetName()+": ", cli.WithProgram(n, w.Program))
		}
	}
}

// policyCurrent is the age up to which the policy of a region counts as the latest one.
const policyCurrent = time.Minute

// policyAge returns the age of the region's roles, bindings and tokens. It is blank if the region has
// stored none, or has the latest ones.
func policyAge(r *nusav1.Region) string {
	if r.GetPolicyVersion() == 0 || r.GetPolicyAge().AsDuration() < policyCurrent {
		return ""
	}
	return term.Age(r.GetPolicyAge())
}

// State returns the state of a region, for example "connected, cordoned" or "lost, silent
// 3m".
func State(w *term.Screen, r *nusav1.Region) string {
	state := w.State(term.Word(r.GetState()))
	if state == "" {
		state = w.Faint("not known here") // the called server is of another region and does not know this state
	}
	if r.GetAwaited() != nil && r.GetSilent() == nil {
		state = w.Wait("reconnecting")
	}
	for _, p := range []struct {
		is   bool
		text string
	}{
		{r.GetSilent() != nil, "silent " + jobstatus.Span(r.GetSilent().AsDuration())}, {r.GetDraining(), "draining"}, {r.GetReturning(), "work returns"}, {r.GetCordoned(), "cordoned"},
		{r.GetCommitBlocked() != nil, "cannot commit"},
	} {
		if p.is {
			state += ", " + w.Wait(p.text)
		}
	}
	return state
}

// notes returns what an operator should know about a region: why it is lost, and what
// happens to its work.
func notes(w *term.Screen, r *nusav1.Region) (out []string) {
	if l := r.GetLost(); l != nil {
		text := "lost"
		if l.GetAt() != nil {
			text = "declared lost " + w.Since(l.GetAt()) + " ago"
		}
		if l.GetBy() != "" {
			text += " by " + l.GetBy()
		}
		if l.GetWhy() != "" {
			text += " (" + term.OneLine(l.GetWhy()) + ")"
		}
		if l.GetNothingRuns() {
			text += ", nothing runs there"
		}
		out = append(out, text)
	}
	switch since := "since the election " + jobstatus.Span(r.GetAwaited().AsDuration()) + " ago"; {
	case r.GetAwaited() == nil:
	case r.GetSilent() == nil:
		out = append(out, "reconnecting "+since)
	default:
		out = append(out, "not connected "+since+", or for longer")
	}
	if r.GetFailoverMessage() != "" {
		out = append(out, term.OneLine(r.GetFailoverMessage()))
	}
	if b := r.GetCommitBlocked(); b != nil {
		out = append(out, "cannot commit to its log for "+jobstatus.Span(b.AsDuration())+", and takes no new work")
	}
	return out
}

// Disconnected reports whether the present state of a region's servers is unknown.
func Disconnected(r *nusav1.Region) bool {
	return r.GetState() != nusav1.RegionState_REGION_STATE_CONNECTED && r.GetState() != nusav1.RegionState_REGION_STATE_ISLAND
}

// isOld reports whether the figures of a region's report may differ from the present ones by more
// than a few seconds.
func isOld(r *nusav1.Region) bool { return Disconnected(r) || r.GetSilent() != nil }

// masterOf returns the master of a region. It returns "-" while the region is disconnected,
// because the master is then unknown.
func masterOf(r *nusav1.Region) string {
	if Disconnected(r) {
		return "-"
	}
	return term.OrDash(r.GetMaster())
}

// nodesOf counts the nodes of a region, as "ready" or "ready/all".
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
