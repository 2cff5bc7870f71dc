package network

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/node"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/region"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The colours of Graphviz that show health.
const (
	dotGood = "palegreen"
	dotWait = "khaki"
	dotBad  = "lightcoral"
	dotNone = "lightgrey"
)

// dotTree writes a tree in the language of Graphviz. It contains the global servers, and a
// cluster for each region with the region's servers and nodes. Colours and labels show
// their health.
func dotTree(w io.Writer, t *nusav1.TopologyTree) {
	d := dotWriter{w: w}
	d.line("digraph nusa {")
	d.line("  rankdir=LR;")
	d.line("  node [shape=box, style=filled, fillcolor=white];")
	active := ""
	for _, s := range t.GetServers() {
		id, role, colour := "global/"+s.GetName(), "stands by", dotNone
		if s.GetActive() || active == "" {
			active = id
		}
		if s.GetActive() {
			role, colour = "active", dotGood
		}
		d.node("  ", id, colour, "global "+s.GetName(), role, s.GetAddress())
	}
	if active == "" { // a region's own server knows no active global server
		active = "global"
		d.node("  ", active, dotNone, "global tier")
	}
	for _, s := range t.GetServers() {
		if id := "global/" + s.GetName(); id != active {
			d.edge("  ", active, id, "dashed")
		}
	}
	for _, r := range t.GetRegions() {
		d.region(r, t.GetNodes(), active)
	}
	d.line("}")
}

func (d dotWriter) region(r *nusav1.Region, nodes []*nusav1.Node, above string) {
	name := r.GetDefinition().GetName()
	id := "region/" + name
	colour, style := dotBad, "dashed"
	switch r.GetState() {
	case nusav1.RegionState_REGION_STATE_CONNECTED:
		colour, style = dotGood, "solid"
	case nusav1.RegionState_REGION_STATE_ISLAND:
		colour, style = dotWait, "solid"
	case nusav1.RegionState_REGION_STATE_DEFINED, nusav1.RegionState_REGION_STATE_UNSPECIFIED:
		colour = dotNone
	}
	if r.GetCordoned() && colour == dotGood {
		colour = dotWait
	}
	state := region.State(&term.Screen{}, r)
	d.line("  subgraph " + dotQuote("cluster_"+name) + " {")
	d.line("    label=" + dotLabel(name) + ";")
	d.node("    ", id, colour, "region "+name, state, r.GetDefinition().GetLocation().GetName())
	for _, s := range r.GetServers() {
		if s.GetId() == "" && s.GetAddress() == "" {
			continue
		}
		role, health := region.ServerState(&term.Screen{}, r, s)
		colour := map[string]string{"healthy": dotGood, "unhealthy": dotBad}[health]
		sid := "server/" + name + "/" + s.GetId()
		d.node("    ", sid, cmp.Or(colour, dotNone), role+" "+s.GetId(), health, s.GetAddress())
		d.edge("    ", id, sid, "solid")
	}
	for _, n := range nodes {
		if n.GetRegion() != name {
			continue
		}
		colour := dotWait
		switch {
		case healthyNode(n):
			colour = dotGood
		case n.GetState() != nusav1.NodeState_NODE_STATE_READY:
			colour = dotBad
		}
		nid := "node/" + name + "/" + n.GetId()
		d.node("    ", nid, colour, "node "+n.GetName(), node.State(&term.Screen{}, n))
		d.edge("    ", id, nid, "solid")
	}
	d.line("  }")
	d.edge("  ", above, id, style)
}

type dotWriter struct{ w io.Writer }

func (d dotWriter) line(s string) { fmt.Fprintln(d.w, s) }

// node writes a node. Its label has one line for each text that is not empty.
func (d dotWriter) node(indent, id, colour string, lines ...string) {
	fmt.Fprintf(d.w, "%s%s [label=%s, fillcolor=%s];\n", indent, dotQuote(id), dotLabel(lines...), dotQuote(colour))
}

func (d dotWriter) edge(indent, from, to, style string) {
	fmt.Fprintf(d.w, "%s%s -> %s [style=%s];\n", indent, dotQuote(from), dotQuote(to), dotQuote(style))
}

// dotQuote quotes an ID. In an ID \" is the only escape, but a backslash before the closing
// quote would escape that quote. Labels need doubled backslashes in any case, so dotQuote
// doubles every backslash.
func dotQuote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(term.OneLine(s)) + `"`
}

// dotLabel quotes a text of several lines. Escapes that labels know, such as \N for the
// node's name, have no effect in the result.
func dotLabel(lines ...string) string {
	var parts []string
	for _, l := range lines {
		if l != "" {
			q := dotQuote(l)
			parts = append(parts, q[1:len(q)-1])
		}
	}
	return `"` + strings.Join(parts, `\n`) + `"`
}
