package state

import "iter"

// Charges is a view of the nodes and what they are charged for alone, for who
// keeps it to compare a later view with (SameNodes, UsesSince): a whole one would
// keep every allocation as it was then.
func (v *View) Charges() *View {
	return &View{index: v.index, cluster: v.cluster, nodes: v.nodes, uses: v.uses}
}

// SameNodes says that no node was registered, changed or removed between two
// views of one state. False is possible even so.
func (v *View) SameNodes(old *View) bool { return v.nodes.Same(&old.nodes) }

// UsesSince yields the Num of every node whose use may differ from that in an
// older view of the same state, ascending. Nodes that came or went since are
// among them.
func (v *View) UsesSince(old *View) iter.Seq[uint32] {
	return v.uses.Since(&old.uses)
}
