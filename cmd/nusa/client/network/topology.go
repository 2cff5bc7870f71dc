package network

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/node"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/region"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// nodesShown is how many nodes of a region a tree shows without --all.
const nodesShown = 20

// TopologyCommand returns the command `nusa topology`.
func TopologyCommand() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("topology", "See the federation as a tree, find near regions and paths, check the matrix",
		showCommand(s), nearestCommand(s), pathCommand(s), checkCommand(s))
	s.Bind(c)
	return c
}

func showCommand(s *cli.Settings) *cobra.Command {
	var nodes, all, dot bool
	c := &cobra.Command{
		Use: "show", Short: "Show global servers, regions, their servers and nodes, with their health", Args: cli.Positional(),
		Long: `Shows the federation as a tree. If a region has many nodes, the unhealthy ones come
first and the others are only counted; --all shows every node.

--dot writes the same for Graphviz.`,
		Example: "  nusa topology show\n  nusa topology show --nodes=false\n  nusa topology show --dot | dot -Tsvg > federation.svg",
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if dot && c.Cmd.Flags().Changed("output") {
				return errors.New("give one of --dot and --output")
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			t, err := c.Topology().Get(ctx, &nusav1.GetTopologyRequest{Nodes: nodes})
			if err != nil {
				return err
			}
			c.WarnPartial(t.GetErrors())
			if dot {
				dotTree(c.Out, t)
				return nil
			}
			most := nodesShown
			if all {
				most = len(t.GetNodes())
			}
			return c.Print(t, func(w *term.Screen) { writeTree(w, t, most) })
		}),
	}
	f := c.Flags()
	f.BoolVar(&nodes, "nodes", true, "also show each region's nodes")
	f.BoolVar(&all, "all", false, fmt.Sprintf("every node, also of regions with more than %d", nodesShown))
	f.BoolVar(&dot, "dot", false, "write a graph for Graphviz")
	return c
}

// treeLine is one line of a tree, with the lines below it.
type treeLine struct {
	text string
	sub  []treeLine
}

func (b treeLine) write(w io.Writer, prefix string) {
	for i, s := range b.sub {
		tee, rail := "├─ ", "│  "
		if i == len(b.sub)-1 {
			tee, rail = "└─ ", "   "
		}
		fmt.Fprintf(w, "%s%s%s\n", prefix, tee, s.text)
		s.write(w, prefix+rail)
	}
}

// healthyNode reports whether a node is ready and reachable and accepts work.
func healthyNode(n *nusav1.Node) bool {
	return n.GetState() == nusav1.NodeState_NODE_STATE_READY && n.GetSilent() == nil && !n.GetDraining() && !n.GetCordoned()
}

// writeTree writes a tree. most limits the nodes of each region.
func writeTree(w *term.Screen, t *nusav1.TopologyTree, most int) {
	root := treeLine{text: w.Bold("federation") + term.Gap + treeSummary(w, t)}
	for _, s := range t.GetServers() {
		role := "stands by"
		if s.GetActive() {
			role = w.Good("active")
		}
		root.sub = append(root.sub, treeLine{text: strings.Join([]string{"global " + s.GetName(), role, s.GetAddress(), w.Faint(s.GetVersion())}, term.Gap)})
	}
	nodes := map[string][]*nusav1.Node{}
	for _, n := range t.GetNodes() {
		nodes[n.GetRegion()] = append(nodes[n.GetRegion()], n)
	}
	for _, r := range t.GetRegions() {
		b := regionBranch(w, r)
		b.sub = append(b.sub, nodeBranches(w, nodes[r.GetDefinition().GetName()], most)...)
		for _, e := range t.GetErrors() {
			if e.GetRegion() == r.GetDefinition().GetName() {
				b.sub = append(b.sub, treeLine{text: w.Bad("nodes unknown: " + term.OneLine(e.GetMessage()))})
			}
		}
		root.sub = append(root.sub, b)
	}
	writeSeenBy(w, "the federation", t)
	fmt.Fprintln(w, root.text)
	root.write(w, "")
}

// treeSummary counts the regions by their state, and the nodes by their health.
func treeSummary(w *term.Screen, t *nusav1.TopologyTree) string {
	var ready, lost, draining, cordoned, unknown int32
	var parts []string
	states := map[string]int{}
	for _, r := range t.GetRegions() {
		states[term.Word(r.GetState())]++
		rep := r.GetReport()
		if region.Disconnected(r) {
			unknown += rep.GetNodesReady() + rep.GetNodesLost()
			continue
		}
		ready, lost = ready+rep.GetNodesReady(), lost+rep.GetNodesLost()
		draining, cordoned = draining+rep.GetNodesDraining(), cordoned+rep.GetNodesCordoned()
	}
	text := term.Plural(len(t.GetRegions()), "region")
	for _, s := range []string{"connected", "disconnected", "lost", "defined"} {
		if states[s] > 0 && states[s] < len(t.GetRegions()) {
			parts = append(parts, fmt.Sprintf("%d %s", states[s], w.State(s)))
		} else if states[s] > 0 {
			parts = append(parts, "all "+w.State(s))
		}
	}
	if len(parts) > 0 {
		text += " (" + strings.Join(parts, ", ") + ")"
	}
	text += ", " + term.Plural(ready, "node") + " ready"
	for _, c := range []struct {
		n    int32
		what string
	}{{lost, "lost"}, {draining, "draining"}, {cordoned, "cordoned"}, {unknown, "unknown"}} {
		if c.n > 0 {
			text += fmt.Sprintf(", %d %s", c.n, w.State(c.what))
		}
	}
	return text
}

func regionBranch(w *term.Screen, r *nusav1.Region) treeLine {
	text := []string{"region " + w.Bold(r.GetDefinition().GetName()), region.State(w, r)}
	if l := r.GetDefinition().GetLocation(); l.GetName() != "" {
		text = append(text, l.GetName())
	}
	if rep := r.GetReport(); rep != nil {
		nodes := term.Plural(rep.GetNodesReady(), "node") + " ready"
		if rep.GetNodesLost() > 0 {
			nodes += ", " + w.Bad(fmt.Sprintf("%d lost", rep.GetNodesLost()))
		}
		if region.Disconnected(r) {
			nodes = "had " + nodes
		}
		text = append(text, nodes, w.Faint(region.ReportAge(r)))
	}
	b := treeLine{text: strings.Join(text, term.Gap)}
	for _, s := range r.GetServers() {
		if s.GetId() == "" && s.GetAddress() == "" {
			continue // other regions know only a probe address of a region's server
		}
		role, health := region.ServerState(w, r, s)
		b.sub = append(b.sub, treeLine{text: strings.Join([]string{role + " " + s.GetId(), health, s.GetAddress()}, term.Gap)})
	}
	return b
}

// nodeBranches returns lines for the first nodes, up to most, and a line that counts the
// others. If not all nodes are shown, the unhealthy nodes come first.
func nodeBranches(w *term.Screen, nodes []*nusav1.Node, most int) []treeLine {
	shown, well := nodes, 0
	if len(nodes) > most {
		shown = nil
		for _, well := range []bool{false, true} {
			for _, n := range nodes {
				if healthyNode(n) == well && len(shown) < most {
					shown = append(shown, n)
				}
			}
		}
	}
	var out []treeLine
	for _, n := range shown {
		if healthyNode(n) {
			well++
		}
		c := n.GetInventory().GetCapacity()
		out = append(out, treeLine{text: strings.Join([]string{"node " + n.GetName(), term.ShortID(n.GetId()), node.State(w, n),
			term.Cores(c.GetCpuMilli()) + " cores", term.Size(c.GetMemoryBytes()), term.Plural(n.GetAllocations(), "allocation")}, term.Gap)})
	}
	if left := len(nodes) - len(shown); left > 0 {
		all := 0
		for _, n := range nodes {
			if healthyNode(n) {
				all++
			}
		}
		text := fmt.Sprintf("and %d more nodes, ", left)
		if ill := left - (all - well); ill > 0 {
			text += fmt.Sprintf("%d of them unhealthy", ill)
		} else {
			text += "all of them ready"
		}
		out = append(out, treeLine{text: w.Faint(text + ": --all shows every one")})
	}
	return out
}
