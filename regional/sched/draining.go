package sched

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// DrainingGroup is a group that still has instances on a draining node.
type DrainingGroup struct {
	Key state.GroupKey
	// Count is how many instances are still on the node. Fits is how many of them the
	// region's other nodes can take now, after the groups before this one have taken their
	// room.
	Count, Fits int32
	// Reason and Message say why the rest does not fit, in the words of a plan. They are
	// empty if all instances fit.
	Reason  state.Reason
	Message string
}

// DrainingGroups returns every group with instances that must move to other nodes. These
// are running instances, and instances that are being stopped because of the drain.
// Instances of system jobs, and instances that are no longer wanted, end on the node and do
// not count. The groups are sorted by priority, then by name. Fits is a simple count: the
// first node that can take an instance gets it.
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
	t := newNodeTable(in.View)
	out := make([]DrainingGroup, 0, len(order))
	for _, m := range order {
		f := newFilter(t, in.Funcs, &m.job.Group(m.Key.Group).Ask, m.Key.JobKey())
		if m.lost {
			m.Reason, m.Message = state.ReasonNodeLost, "it is silent: its instances are replaced as the group's disconnect says"
		} else {
			m.fit(f)
		}
		out = append(out, m.DrainingGroup)
	}
	return out
}

// mustLeave reports whether an allocation must leave its draining node now. Instances of system jobs are
// the last to leave, or stay if the drain keeps them.
func (d *decision) mustLeave(a *state.Alloc) bool {
	n, ok := d.p.in.View.Node(a.NodeID)
	if !ok || !d.system {
		return true
	}
	if n.KeepSystem {
		return false
	}
	return d.drainOver(a) || Left(d.p.in.View, n).Others == 0
}

// drainOver reports whether the deadline of the drain of an allocation's node has passed. If it has not,
// the next plan is due at that time.
func (d *decision) drainOver(a *state.Alloc) bool {
	n, ok := d.p.in.View.Node(a.NodeID)
	if !ok || !a.Moving || n.DrainUntilUnixNano == 0 || d.system && n.KeepSystem {
		return false
	}
	if n.DrainUntilUnixNano > d.p.in.NowUnixNano {
		d.out.wake(n.DrainUntilUnixNano)
		return false
	}
	return true
}

// LeftOn counts the live instances on a node.
type LeftOn struct {
	System int32 // of system jobs
	Others int32
}

// Left counts the instances that have not ended on a node.
func Left(view *state.View, n *state.Node) (out LeftOn) {
	for a := range view.NodeAllocs(n.ID) {
		if !a.Live() {
			continue
		}
		job, ok := view.Job(a.Key().JobKey(), a.JobVersion)
		if ok && job.Type == state.System {
			out.System++
		} else {
			out.Others++
		}
	}
	return out
}

// fit places the instances on nodes of the filter's table and sets Fits, Reason and
// Message.
func (g *DrainingGroup) fit(f *filter) {
	for i := 0; i < len(f.table.nodes) && g.Fits < g.Count; {
		n := &f.table.nodes[i]
		if f.refuse(n) != "" {
			i++ // the node has no room for a further instance
			continue
		}
		gpus, _ := giveGPUs(n.GPUs, n.gpu, f.units)
		f.table.charge(n, f.ask, g.Key.JobKey(), n.givePorts(f.ask.Ports, 0), gpus)
		g.Fits++
	}
	if g.Fits == g.Count {
		return
	}
	why := neverFits(f)
	if why == nil {
		why = refusalsNow(f, nil, "")
	}
	g.Reason, g.Message = why.reason, why.message
}

// QueuePlace is the place of a group in the region's queue, and what stands before it.
type QueuePlace struct {
	// Position counts from 1: the groups with waiting instances, in the order in which Make
	// places them.
	Position int32
	// Higher and Earlier count the waiting instances before the group: those of a higher priority,
	// and those of the same priority whose groups are older.
	Higher, Earlier int64
	// Asked is what all these instances ask for.
	Asked state.Resources
}

// Queue returns the place of each group that has waiting instances. It reads each undecided group
// once.
func Queue(view *state.View) map[state.GroupKey]QueuePlace {
	out := map[state.GroupKey]QueuePlace{}
	var at QueuePlace
	priority := int32(0)
	for g := range view.Undecided() {
		n := int64(g.Counts.Pending)
		if n == 0 {
			continue
		}
		if g.Priority != priority {
			at.Higher, at.Earlier, priority = at.Higher+at.Earlier, 0, g.Priority
		}
		at.Position++
		out[g.Key] = at
		at.Earlier += n
		ask := askOf(view, g)
		at.Asked.CPUMilli += n * ask.CPUMilli
		at.Asked.MemoryBytes += n * ask.MemoryBytes
		at.Asked.DiskBytes += n * ask.DiskBytes
	}
	return out
}

// askOf returns what an instance of the newest version of a group asks for.
func askOf(view *state.View, g *state.GroupView) state.Resources {
	version := int64(0)
	for _, s := range g.Slots {
		version = max(version, s.JobVersion)
	}
	job, ok := view.Job(g.Key.JobKey(), version)
	if !ok || job.Group(g.Key.Group) == nil {
		return state.Resources{}
	}
	return job.Group(g.Key.Group).Ask.Resources
}
