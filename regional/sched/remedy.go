package sched

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// Change is what a job would have to give up so that a node takes one more
// instance of a group as it is now.
type Change struct {
	NodeID   string
	NodeName string
	// Ask as it would be, and in words what differs: "at most 2 cpu".
	Ask  state.Ask
	What []string
	// lack is the sum of the shares that amounts would have to shrink by.
	lack float64
}

// String prints "n1 would take one more with at most 2 cpu, in pool batch".
func (c *Change) String() string {
	return c.NodeName + " would take one more with " + strings.Join(c.What, ", ")
}

// Remedy is the smallest change by which one more instance of a group would
// fit: of the fewest things, and of those the least of what is asked for. Only
// nodes that take work, and are not kept for others, are looked at. Nil where no
// change of the job helps, or none is needed.
func Remedy(in Input, job *state.Job, group string) *Change {
	spec := job.Group(group)
	if spec == nil {
		return nil
	}
	key := state.GroupKey{Namespace: job.Key.Namespace, Job: job.Key.Job, Group: group, Local: job.Key.Local}
	t := newTable(in.View)
	t.kept, _ = keptBefore(in, key, job.Priority)
	c := newClass(t, in.Funcs, &spec.Ask, job.Key)
	var best *Change
	for n := range t.present() {
		if !n.Eligible() || t.keeps(n.pos) != nil {
			continue
		}
		change := c.remedy(n)
		switch {
		case change == nil:
		case len(change.What) == 0:
			return nil
		case best == nil || len(change.What) < len(best.What) || len(change.What) == len(best.What) && change.lack < best.lack:
			best = change
		}
	}
	return best
}

// remedy is what would have to change for a node; nil if more than amounts, the
// pool, constraints and ports are in the way.
func (c *class) remedy(n *node) *Change {
	out := &Change{NodeID: n.ID, NodeName: n.Name, Ask: *c.Ask}
	ask := &out.Ask
	instead := func(what string) { out.What = append(out.What, what) }
	atMost := func(need *int64, free int64, text func(int64) string, what string) {
		if *need > free {
			out.lack += float64(*need-free) / float64(*need)
			*need = free
			instead("at most " + text(free) + " " + what)
		}
	}
	atMost(&ask.Resources.CPUMilli, n.free.CPUMilli, milli, "cpu")
	atMost(&ask.Resources.MemoryBytes, n.free.MemoryBytes, sizeBelow, "memory")
	atMost(&ask.Resources.DiskBytes, n.free.DiskBytes, sizeBelow, "disk")
	if r := ask.Resources; min(r.CPUMilli, r.MemoryBytes, r.DiskBytes) < 0 || r.CPUMilli == 0 && c.Resources.CPUMilli > 0 || r.MemoryBytes == 0 && c.Resources.MemoryBytes > 0 {
		return nil
	}
	if ask.Pool != n.Pool {
		ask.Pool = n.Pool
		instead("pool " + strconv.Quote(n.Pool))
	}
	if ask.Dedicated && c.table.shared(n, c.job) {
		ask.Dedicated = false
		instead("a node that is shared")
	}
	ask.Apart = slices.DeleteFunc(slices.Clone(c.Apart), func(tag string) bool {
		taken := n.taken([]string{tag}) != ""
		if taken {
			instead("no tag " + strconv.Quote(tag) + " in apart")
		}
		return taken
	})
	ask.Constraints = nil
	for _, expr := range c.Constraints {
		if ok, err := c.funcs.Match(expr, n.Node); err == nil && ok {
			ask.Constraints = append(ask.Constraints, expr)
			continue
		}
		instead("no constraint " + expr)
	}
	ask.Ports = slices.DeleteFunc(slices.Clone(c.Ports), func(p state.PortAsk) bool {
		taken := p.Static != 0 && !n.freePort(p.Static)
		if taken {
			instead("no static port " + strconv.Itoa(int(p.Static)))
		}
		return taken
	})
	changed := newClass(c.table, c.funcs, ask, c.job)
	if cmp.Or(changed.refuseKind(n), changed.refuseRoom(n)) != "" {
		return nil
	}
	return out
}
