package sched

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// DrainingGroup is what of a group is still on a node that is being drained.
type DrainingGroup struct {
	Key state.GroupKey
	// Count is how many instances are still there, Fits how many of them the
	// region's other nodes take now, beside those of the groups before this one.
	Count, Fits int32
	// Reason and Message say why no more fit, in the words of a plan; empty if all
	// do.
	Reason  state.Reason
	Message string
}

// DrainingGroups answers for every group of which instances are to move away from a
// node: those that run and those that are being stopped for it. System jobs end
// there, and what nobody wants does too. Groups by priority, then by name. Where
// an instance would go best is not asked: the first node that takes it has it.
func DrainingGroups(in Input, nodeID string) []DrainingGroup {
	type moving struct {
		DrainingGroup
		job  *state.Job
		lost bool
	}
	groups := map[state.GroupKey]*moving{}
	for a := range in.View.NodeAllocs(nodeID) {
		if !a.Live() || a.Desired == state.Stop && a.Reason != state.ReasonNodeDraining {
			continue
		}
		g, ok := in.View.Group(a.Key())
		if !ok {
			continue
		}
		s := state.SlotOf(g.Slots, a.Index)
		if s == nil || !s.Wants(a.Index) {
			continue
		}
		job, ok := in.View.Job(a.Key().JobKey(), s.JobVersion)
		if !ok || job.Type == state.System || job.Group(a.Key().Group) == nil {
			continue
		}
		m := groups[a.Key()]
		if m == nil {
			m = &moving{DrainingGroup: DrainingGroup{Key: a.Key()}, job: job}
			groups[a.Key()] = m
		}
		m.Count++
		m.lost = m.lost || a.Disconnected
	}
	order := make([]*moving, 0, len(groups))
	for _, m := range groups {
		order = append(order, m)
	}
	slices.SortFunc(order, func(a, b *moving) int {
		return cmp.Or(cmp.Compare(b.job.Priority, a.job.Priority), strings.Compare(a.Key.String(), b.Key.String()))
	})
	t := newTable(in.View)
	out := make([]DrainingGroup, 0, len(order))
	for _, m := range order {
		c := newClass(t, in.Funcs, &m.job.Group(m.Key.Group).Ask, m.Key.JobKey())
		if m.lost {
			m.Reason, m.Message = state.ReasonNodeLost, "it is silent: what it runs is replaced as the group's disconnect says"
		} else {
			m.fit(c)
		}
		out = append(out, m.DrainingGroup)
	}
	return out
}

// fit puts the instances on the nodes of the class's table.
func (l *DrainingGroup) fit(c *class) {
	for i := 0; i < len(c.table.nodes) && l.Fits < l.Count; {
		n := &c.table.nodes[i]
		if c.refuse(n) != "" {
			i++ // nor will it take the next one
			continue
		}
		gpus, _ := giveGPUs(n.GPUs, n.gpu, c.units)
		c.table.take(n, c.Ask, l.Key.JobKey(), n.givePorts(c.Ports, 0), gpus)
		l.Fits++
	}
	if l.Fits == l.Count {
		return
	}
	why := c.hopeless()
	if why == nil {
		why = c.refusals(nil, "")
	}
	l.Reason, l.Message = why.reason, why.message
}
