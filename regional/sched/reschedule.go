package sched

import (
	"slices"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// otherTerms is more than fit (0..1), affinity (-1..1) and anti-affinity
// (-0.5..0) can make up for.
const otherTerms = 4

// failedHere is the penalty of a node on which the instance failed, for each
// time: more than all other terms together can make up for, so that such a node
// is taken again only where no other fits, and then the one where it failed
// least. Nomad's node-reschedule-penalty, but never outweighed. most is the
// greatest number of the group's instances on one spread value.
func failedHere(times int, most int32) float64 {
	return (spread(most) - otherTerms) * float64(times)
}

// blame is how often an instance failed on a node.
type blame struct {
	node  string // id
	times int
}

// blamed are the nodes on which an instance failed in a row, as far as its
// attempts are still remembered; the order is that of the first failures.
func (in *Input) blamed(key state.GroupKey, inst *state.Instance) []blame {
	if inst.Failures == 0 {
		return nil
	}
	var nodes []string // of each failure, the oldest first
	for a := range in.View.InstanceAllocs(key, inst.Index) {
		if a.Failure() && a.GroupHash == inst.Hash {
			nodes = append(nodes, a.NodeID)
		}
	}
	var out []blame
	for _, id := range nodes[max(0, len(nodes)-int(inst.Failures)):] {
		if i := slices.IndexFunc(out, func(b blame) bool { return b.node == id }); i >= 0 {
			out[i].times++
			continue
		}
		out = append(out, blame{id, 1})
	}
	return out
}

func timesOn(blamed []blame, node string) int {
	for _, b := range blamed {
		if b.node == node {
			return b.times
		}
	}
	return 0
}

// failedTerm is the part of a score for failures on the node.
func failedTerm(times int, most int32) Term {
	detail := "failed here before"
	if times > 1 {
		detail = "failed here " + plural(times, "time")
	}
	return Term{Name: "reschedule", Value: failedHere(times, most), Detail: detail}
}

// choose is the best node for an instance, -1 if none fits: of those where it
// did not fail if there are any, else one where it did.
func (p *picker) choose(exclude []string, blamed []blame) int32 {
	if len(blamed) == 0 {
		return p.best(exclude)
	}
	avoid := slices.Clone(exclude)
	for _, b := range blamed {
		avoid = append(avoid, b.node)
	}
	if pos := p.best(avoid); pos >= 0 {
		return pos
	}
	best, score := int32(-1), 0.0
	for _, b := range blamed {
		pos, ok := p.table.position(b.node)
		if !ok || !p.room[pos] || slices.Contains(exclude, b.node) || p.table.keeps(pos) != nil {
			continue
		}
		n := &p.table.nodes[pos]
		s := p.base(n, p.liking[pos]) + apart(p.here[pos]) + spread(p.there[p.bucket[pos]]) + failedHere(b.times, p.most())
		if best < 0 || s > score || s == score && pos < best {
			best, score = pos, s
		}
	}
	return best
}

// most is the greatest number of the group's instances on one spread value; 0
// where the group has no spread.
func (p *picker) most() int32 {
	if p.Spread == "" || len(p.there) == 0 {
		return 0
	}
	return slices.Max(p.there)
}
