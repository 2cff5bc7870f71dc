package sched

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// Change is a change of a job. With it, a node in its present state takes one more instance
// of a group.
type Change struct {
	NodeID   string
	NodeName string
	// Ask is the changed ask. What lists the differences, for example "at most 2 cpu".
	Ask  state.Ask
	What []string
	// shrunk is the sum of the relative reductions of the amounts.
	shrunk float64
}

// String prints, for example, "n1 would take one more with at most 2 cpu, in pool batch".
func (c *Change) String() string {
	return c.NodeName + " would take one more with " + strings.Join(c.What, ", ")
}

// Remedy returns the smallest change with which one more instance of a group fits. The
// smallest change concerns the fewest properties. Among equals it reduces the amounts
// least. Only nodes count that take work and are not reserved for others. Remedy returns
// nil if no change of the job helps, or if none is needed.
func Remedy(in Input, job *state.Job, group string) *Change {
	spec := job.Group(group)
	if spec == nil {
		return nil
	}
	key := state.GroupKey{Namespace: job.Key.Namespace, Job: job.Key.Job, Group: group, Local: job.Key.Local}
	t := newNodeTable(in.View)
	t.reserved, _ = reservedFrom(in, key, job.Priority)
	f := newFilter(t, in.Funcs, &spec.Ask, job.Key)
	var best *Change
	for n := range t.present() {
		if !n.Eligible() || t.reservedFor(n.pos) != nil {
			continue
		}
		change := remedyOn(f, n)
		switch {
		case change == nil:
		case len(change.What) == 0:
			return nil
		case best == nil || len(change.What) < len(best.What) || len(change.What) == len(best.What) && change.shrunk < best.shrunk:
			best = change
		}
	}
	return best
}

// remedyOn returns the change that a node requires. It returns nil if changes of amounts,
// pool, dedicated, tags, constraints and ports are not enough.
func remedyOn(f *filter, n *node) *Change {
	out := &Change{NodeID: n.ID, NodeName: n.Name, Ask: *f.ask}
	ask, before := &out.Ask, f.ask.Resources
	instead := func(what string) { out.What = append(out.What, what) }
	atMost := func(need *int64, free int64, text func(int64) string, what string) {
		if *need > free {
			out.shrunk += float64(*need-free) / float64(*need)
			*need = free
			instead("at most " + text(free) + " " + what)
		}
	}
	atMost(&ask.Resources.CPUMilli, n.free.CPUMilli, milli, "cpu")
	atMost(&ask.Resources.MemoryBytes, n.free.MemoryBytes, sizeBelow, "memory")
	atMost(&ask.Resources.DiskBytes, n.free.DiskBytes, sizeBelow, "disk")
	if r := ask.Resources; min(r.CPUMilli, r.MemoryBytes, r.DiskBytes) < 0 || r.CPUMilli == 0 && before.CPUMilli > 0 || r.MemoryBytes == 0 && before.MemoryBytes > 0 {
		return nil
	}
	if ask.Pool != n.Pool {
		ask.Pool = n.Pool
		instead("pool " + strconv.Quote(n.Pool))
	}
	if ask.Dedicated && f.table.shared(n, f.job) {
		ask.Dedicated = false
		instead("a node that is shared")
	}
	ask.Apart = slices.DeleteFunc(slices.Clone(f.ask.Apart), func(tag string) bool {
		used := n.tagInUse([]string{tag}) != ""
		if used {
			instead("no tag " + strconv.Quote(tag) + " in apart")
		}
		return used
	})
	ask.Constraints = nil
	for _, expr := range f.ask.Constraints {
		if ok, err := f.funcs.Match(expr, n.Node); err == nil && ok {
			ask.Constraints = append(ask.Constraints, expr)
			continue
		}
		instead("no constraint " + expr)
	}
	ask.Ports = slices.DeleteFunc(slices.Clone(f.ask.Ports), func(p state.PortAsk) bool {
		used := p.Static != 0 && !n.freePort(p.Static)
		if used {
			instead("no static port " + strconv.Itoa(int(p.Static)))
		}
		return used
	})
	changed := newFilter(f.table, f.funcs, ask, f.job)
	if cmp.Or(changed.refuseKind(n), changed.refuseRoom(n)) != "" {
		return nil
	}
	return out
}
