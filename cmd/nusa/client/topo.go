package client

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// nodesShown of a region in a tree, unless all are asked for: what needs looking
// at comes first.
const nodesShown = 20

func topologyCommand() *cobra.Command {
	s := &settings{}
	c := noun("topology", "See the federation as a tree, find near regions and paths, check the matrix",
		topologyShow(s), topologyNearest(s), topologyPath(s), topologyCheck(s))
	s.bind(c)
	return c
}

func topologyShow(s *settings) *cobra.Command {
	var nodes, all, dot bool
	c := &cobra.Command{
		Use: "show", Short: "Show global servers, regions, their servers and nodes, with their health", Args: takes(),
		Long: `Shows the federation as a tree. Of a region with many nodes those that are not
well come first and the others are counted; --all shows every one.

--dot writes the same for Graphviz.`,
		Example: "  nusa topology show\n  nusa topology show --nodes=false\n  nusa topology show --dot | dot -Tsvg > federation.svg",
		RunE: s.run(func(c *caller, _ []string) error {
			if dot && c.cmd.Flags().Changed("output") {
				return errors.New("give one of --dot and --output")
			}
			ctx, cancel := c.call()
			defer cancel()
			t, err := c.topology().Get(ctx, &nusav1.GetTopologyRequest{Nodes: nodes})
			if err != nil {
				return err
			}
			c.partial(t.GetErrors())
			if dot {
				dotTree(c.out, t)
				return nil
			}
			most := nodesShown
			if all {
				most = len(t.GetNodes())
			}
			return c.print(t, func(w io.Writer) { c.view().tree(w, t, most) })
		}),
	}
	f := c.Flags()
	f.BoolVar(&nodes, "nodes", true, "also show each region's nodes")
	f.BoolVar(&all, "all", false, fmt.Sprintf("every node, also of regions with more than %d", nodesShown))
	f.BoolVar(&dot, "dot", false, "write a graph for Graphviz")
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

// wellNode needs no looking at.
func wellNode(n *nusav1.Node) bool {
	return n.GetState() == nusav1.NodeState_NODE_STATE_READY && n.GetSilent() == nil && !n.GetDraining() && !n.GetCordoned()
}

// tree shows at most so many nodes of each region.
func (v view) tree(w io.Writer, t *nusav1.TopologyTree, most int) {
	root := branch{text: v.bold("federation") + gap + v.summary(t)}
	for _, s := range t.GetServers() {
		role := "stands by"
		if s.GetActive() {
			role = v.good("active")
		}
		root.sub = append(root.sub, branch{text: strings.Join([]string{"global " + s.GetName(), role, s.GetAddress(), v.faint(s.GetVersion())}, gap)})
	}
	nodes := map[string][]*nusav1.Node{}
	for _, n := range t.GetNodes() {
		nodes[n.GetRegion()] = append(nodes[n.GetRegion()], n)
	}
	for _, r := range t.GetRegions() {
		b := v.regionBranch(r)
		b.sub = append(b.sub, v.nodeBranches(nodes[r.GetDefinition().GetName()], most)...)
		for _, e := range t.GetErrors() {
			if e.GetRegion() == r.GetDefinition().GetName() {
				b.sub = append(b.sub, branch{text: v.bad("nodes not known: " + plain(e.GetMessage()))})
			}
		}
		root.sub = append(root.sub, b)
	}
	v.seenBy(w, "the federation", t)
	fmt.Fprintln(w, root.text)
	root.write(w, "")
}

// summary counts what is in a tree by its health.
func (v view) summary(t *nusav1.TopologyTree) string {
	var ready, lost, draining, cordoned int32
	var parts []string
	states := map[string]int{}
	for _, r := range t.GetRegions() {
		states[word(r.GetState())]++
		rep := r.GetReport()
		ready, lost = ready+rep.GetNodesReady(), lost+rep.GetNodesLost()
		draining, cordoned = draining+rep.GetNodesDraining(), cordoned+rep.GetNodesCordoned()
	}
	text := plural(len(t.GetRegions()), "region")
	for _, s := range []string{"connected", "disconnected", "lost", "defined"} {
		if states[s] > 0 && states[s] < len(t.GetRegions()) {
			parts = append(parts, fmt.Sprintf("%d %s", states[s], v.state(s)))
		} else if states[s] > 0 {
			parts = append(parts, "all "+v.state(s))
		}
	}
	if len(parts) > 0 {
		text += " (" + strings.Join(parts, ", ") + ")"
	}
	text += ", " + plural(ready, "node") + " ready"
	for _, c := range []struct {
		n    int32
		what string
	}{{lost, "lost"}, {draining, "draining"}, {cordoned, "cordoned"}} {
		if c.n > 0 {
			text += fmt.Sprintf(", %d %s", c.n, v.state(c.what))
		}
	}
	return text
}

func (v view) regionBranch(r *nusav1.Region) branch {
	text := []string{"region " + v.bold(r.GetDefinition().GetName()), v.regionState(r)}
	if l := r.GetDefinition().GetLocation(); l.GetName() != "" {
		text = append(text, l.GetName())
	}
	if rep := r.GetReport(); rep != nil {
		nodes := plural(rep.GetNodesReady(), "node") + " ready"
		if rep.GetNodesLost() > 0 {
			nodes += ", " + v.bad(fmt.Sprintf("%d lost", rep.GetNodesLost()))
		}
		text = append(text, nodes, v.faint(reportAge(r)))
	}
	b := branch{text: strings.Join(text, gap)}
	for _, s := range r.GetServers() {
		if s.GetId() == "" && s.GetAddress() == "" {
			continue // only a probe address, as regions know one another
		}
		role, health := v.server(r, s)
		b.sub = append(b.sub, branch{text: strings.Join([]string{role + " " + s.GetId(), health, s.GetAddress()}, gap)})
	}
	return b
}

// nodeBranches are at most so many nodes, those that are not well first if that
// is not all, and a line for the others.
func (v view) nodeBranches(nodes []*nusav1.Node, most int) []branch {
	shown, well := nodes, 0
	if len(nodes) > most {
		shown = nil
		for _, well := range []bool{false, true} {
			for _, n := range nodes {
				if wellNode(n) == well && len(shown) < most {
					shown = append(shown, n)
				}
			}
		}
	}
	var out []branch
	for _, n := range shown {
		if wellNode(n) {
			well++
		}
		c := n.GetInventory().GetCapacity()
		out = append(out, branch{text: strings.Join([]string{"node " + n.GetName(), shortID(n.GetId()), v.nodeState(n),
			cores(c.GetCpuMilli()) + " cores", size(c.GetMemoryBytes()), plural(n.GetAllocations(), "allocation")}, gap)})
	}
	if left := len(nodes) - len(shown); left > 0 {
		all := 0
		for _, n := range nodes {
			if wellNode(n) {
				all++
			}
		}
		text := fmt.Sprintf("and %d more nodes, ", left)
		if ill := left - (all - well); ill > 0 {
			text += fmt.Sprintf("%d of them not well", ill)
		} else {
			text += "all of them ready"
		}
		out = append(out, branch{text: v.faint(text + ": --all shows every one")})
	}
	return out
}
