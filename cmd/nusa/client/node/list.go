package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/filter"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func listCommand(s *cli.Settings) *cobra.Command {
	var pool string
	var labels map[string]string
	var states *cli.States
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List nodes", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Nodes().List(ctx, &nusav1.ListNodesRequest{Region: c.Region, Pool: pool, Labels: labels, States: states.Words()})
			if err != nil {
				return err
			}
			resp.Nodes = slices.DeleteFunc(resp.Nodes, func(n *nusav1.Node) bool { // a server of an earlier version does not select
				return !states.Has(filter.Node(n)...) || !filter.Labels(n.GetInventory().GetLabels(), labels)
			})
			c.WarnPartial(resp.GetErrors())
			return c.Print(resp, func(w *term.Screen) {
				writeNodes(w, resp.GetNodes(), noNodesText(c, pool, labels, states, cli.Incomplete(resp.GetErrors())))
			})
		}),
	}
	s.BindRegion(c, "only nodes of this region")
	c.Flags().StringVar(&pool, "pool", "", "only nodes of this pool")
	cli.LabelFlag(c, &labels, "nodes")
	states = cli.StateFlag(c, "nodes", filter.NodeStates...)
	return c
}

// noNodesText returns a text that says that no node matched the filters, and what to do
// next.
func noNodesText(c *cli.Session, pool string, labels map[string]string, states *cli.States, unseen string) string {
	what := "no nodes" + states.Text()
	if pool != "" {
		what += " in pool " + pool
	}
	if len(labels) > 0 {
		what += " with the labels " + term.LabelText(labels)
	}
	if c.Region != "" {
		what += " in region " + c.Region
	}
	what += unseen
	if what == "no nodes" {
		return fmt.Sprintf("no nodes; start an agent with: %s agent", c.Program)
	}
	return fmt.Sprintf("%s; %s node list shows all", what, c.Program)
}

func writeNodes(w *term.Screen, nodes []*nusav1.Node, none string) {
	if len(nodes) == 0 {
		fmt.Fprintln(w, none)
		return
	}
	t := term.NewTable("NODE", "NAME", "REGION", "STATE", "POOL", ">CPU RESERVED", ">MEMORY RESERVED", ">CPU USED", ">MEMORY USED", ">ALLOCS", ">STATS")
	for _, n := range nodes {
		c, a := n.GetInventory().GetCapacity(), n.GetAllocated()
		cpuUsed, memUsed := "-", "-"
		if n.GetStats() != nil {
			cpuUsed, memUsed = term.Percent(n.GetStats().GetCpu()), memoryUsed(n)
		}
		t.Row(term.ShortID(n.GetId()), n.GetName(), n.GetRegion(), State(w, n), n.GetInventory().GetPool(),
			term.Cores(a.GetCpuMilli())+"/"+term.Cores(c.GetCpuMilli()), term.Size(a.GetMemoryBytes())+"/"+term.Size(c.GetMemoryBytes()),
			cpuUsed, memUsed, term.Count(n.GetAllocations()), term.Age(n.GetStatsAge()))
	}
	t.Narrow(w.Width, "STATS", "POOL", "MEMORY RESERVED", "CPU RESERVED", "REGION", "ALLOCS")
	t.Write(w)
}

func memoryUsed(n *nusav1.Node) string {
	s := n.GetStats()
	total := s.GetMemoryUsedBytes() + s.GetMemoryAvailableBytes()
	if total == 0 {
		return "-"
	}
	return term.Percent(float64(s.GetMemoryUsedBytes()) / float64(total))
}

// State returns the state of a node, for example "ready, draining" or "lost, silent 5m".
func State(w *term.Screen, n *nusav1.Node) string {
	parts := []string{w.State(term.Word(n.GetState()))}
	if n.GetSilent() != nil {
		parts = append(parts, w.Wait("silent "+term.Age(n.GetSilent())))
	}
	if n.GetDraining() {
		parts = append(parts, w.Wait("draining"))
	}
	if n.GetCordoned() {
		parts = append(parts, w.Wait("cordoned"))
	}
	return strings.Join(parts, ", ")
}
