package accept

import (
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// DisconnectedRange is a part From ≤ i < To of a slot. No node can take these instances
// now, and an earlier attempt of each may still run on a lost node. The region does not
// give such instances back. When the lost node is back, the instances continue as
// disconnect.reconcile says. The region reports them to the global tier, and that tier
// revokes them once another region has room.
type DisconnectedRange struct {
	From, To   int32
	Generation int64
	NodeName   string
	// SinceUnixNano is when the node was last seen.
	SinceUnixNano int64
}

// Disconnected returns the disconnected instances of a group, in ascending order. unplaced
// comes from a plan over the view, or over an earlier view.
func Disconnected(view *state.View, key state.GroupKey, unplaced []sched.Unplaced) []DisconnectedRange {
	if len(unplaced) == 0 {
		return nil
	}
	g, ok := view.Group(key)
	if !ok {
		return nil
	}
	var out []DisconnectedRange
	last := int32(-1)
	for a := range view.GroupAllocs(key) {
		if a.Index == last || !a.Live() || !a.Disconnected {
			continue
		}
		last = a.Index
		s := state.SlotOf(g.Slots, a.Index)
		n := mayRunOn(view, key, a.Index)
		if s == nil || n == nil || !s.Wants(a.Index) || !isUnplaced(unplaced, s, a.Index) {
			continue
		}
		next := DisconnectedRange{a.Index, a.Index + 1, s.Generation, n.Name, n.StatusUnixNano}
		if k := len(out) - 1; k >= 0 && out[k].To == a.Index && out[k].Generation == s.Generation && out[k].NodeName == n.Name {
			out[k].To++
			continue
		}
		out = append(out, next)
	}
	return out
}

// isUnplaced reports whether a plan found no node for an index of a slot.
func isUnplaced(unplaced []sched.Unplaced, s *state.Slot, index int32) bool {
	for i := range unplaced {
		u := &unplaced[i]
		if u.Generation != s.Generation || u.System || u.Key != s.Key() {
			continue
		}
		for _, r := range u.Ranges {
			if index >= r.From && index < r.To {
				return true
			}
		}
	}
	return false
}

// mayRunOn returns the lost node on which the latest attempt of an instance may still run.
// It returns nil if there is no such node, or if another attempt is on a connected node. On
// a node that left on purpose nothing runs.
func mayRunOn(view *state.View, key state.GroupKey, index int32) *state.Node {
	var lost *state.Node
	for a := range view.InstanceAllocs(key, index) {
		if !a.Live() {
			continue
		}
		if !a.Disconnected {
			return nil
		}
		if n, ok := view.Node(a.NodeID); ok && n.Status == state.NodeLost {
			lost = n
		}
	}
	return lost
}
