package sched

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/pools"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Funcs evaluate expressions over nodes. The caller of the scheduler compiles the
// expressions and caches the results by (node.ID, node.InventoryIndex). An expression that
// fails counts as false, and its error becomes the message of the reason.
type Funcs struct {
	// Match evaluates a boolean expression: a constraint or an affinity.
	Match func(expr string, n *state.Node) (bool, error)
	// Value evaluates a string expression: a spread.
	Value func(expr string, n *state.Node) (string, error)
}

// Input is everything on which a plan depends.
type Input struct {
	View *state.View
	// NowUnixNano is the present time on the master's wall clock. It is compared with the
	// times in the state, which came from wall clocks of masters too.
	NowUnixNano int64
	// NodeLease is the configured length of the agents' lease. If longer leases may still
	// last, the view has their length.
	NodeLease time.Duration
	// Absence returns how long a node has been absent, by a clock of the master that nobody
	// can set. During one plan it returns the same value for a node each time. nil: every
	// node was seen just now.
	Absence func(nodeID string) presence.Absence
	Funcs   Funcs
	// Load is what the policies of pools weigh besides resources. nil: no pool has a policy. It
	// only decides where the next instances go.
	Load *pools.Load
	// LogSuspect is true while the log may be an old copy. The plan then places nothing
	// that a lease binds.
	LogSuspect bool
	// MaxPlaces is the number of placements after which no further group is begun. 0 stands
	// for 10,000. One group may have up to eight times as many placements, or an eighth of
	// its instances if that is more, because further placements of the same group cost
	// least. Plan.More reports that further placements may follow.
	MaxPlaces int
}

// priority returns the greatest priority of a group's job, over the job versions of the
// group's slots.
func (in *Input) priority(g *state.GroupView) int32 {
	most := int32(0)
	for _, s := range g.Slots {
		if job, ok := in.View.Job(g.Key.JobKey(), s.JobVersion); ok {
			most = max(most, job.Priority)
		}
	}
	return most
}

// mayReserve returns false for a group that certainly has no instance that has waited for
// ReserveAfter. It is a cheap test.
func (in *Input) mayReserve(g *state.GroupView) bool {
	return slices.ContainsFunc(g.Slots, func(s *state.Slot) bool {
		return s.Desired == state.Run && in.NowUnixNano >= s.CommittedUnixNano+int64(ReserveAfter)
	})
}

// replacementDue returns the time from which an allocation on a lost node counts as gone.
// ever is false if there is no such time before the node is back. spec is the group's
// present specification, nil if the group is unknown. It may differ from the version of the
// allocation, which is the version that the node follows.
func (in *Input) replacementDue(spec *state.Group, a *state.Alloc, system bool) (at int64, ever bool) {
	n, ok := in.View.Node(a.NodeID)
	if !ok || spec == nil {
		return 0, true
	}
	if !spec.Disconnect.Replace || system {
		return 0, false
	}
	after := spec.Disconnect.After
	if n.Status == state.NodeLeft {
		after = 0
	}
	absent := in.absence(a.NodeID)
	left := absent.Left(after)
	ordered := in.orderedGroup(a, spec)
	if plant.Is(plant.WallClock) {
		return n.StatusUnixNano + int64(max(after, in.longestLease(state.BindNode)+ordered.KillTimeout)), true
	}
	switch binding := a.Binding(ordered); {
	case binding != state.BindNone:
		left = max(left, absent.LeaseLeft(in.longestLease(binding), ordered.KillTimeout))
	case bound(spec, a.Local):
		return 0, false // no lease certainly ends the instance that the node was ordered to run
	}
	return in.NowUnixNano + int64(left), true
}

func (in *Input) absence(nodeID string) presence.Absence {
	if in.Absence == nil {
		return presence.Absence{}
	}
	return in.Absence(nodeID)
}

// orderedGroup returns the group in the version that an allocation's node knows. It returns
// otherwise if that version is not stored.
func (in *Input) orderedGroup(a *state.Alloc, otherwise *state.Group) *state.Group {
	if job, ok := in.View.Job(a.Key().JobKey(), a.JobVersion); ok {
		if g := job.Group(a.Group); g != nil {
			return g
		}
	}
	return otherwise
}

// longestLease returns the longest lease that may bind an instance on a silent node. The
// node gets the region's lease from its master, so without contact that lease ends on the
// node too.
func (in *Input) longestLease(binding state.Binding) time.Duration {
	cluster := in.View.Cluster()
	if binding == state.BindRegion {
		return cluster.RegionLeaseMax
	}
	return max(in.NodeLease, cluster.NodeLeaseMax)
}

// bound reports whether a lease binds the instances of a group.
func bound(g *state.Group, local bool) bool { return g.Binding(local) != state.BindNone }

// nodeStatus returns the status of an allocation's node in one word.
func (in *Input) nodeStatus(a *state.Alloc) string {
	if n, ok := in.View.Node(a.NodeID); ok {
		return n.Status.String()
	}
	return "gone"
}

// stillRunning returns a text that begins with a semicolon. It says where an allocation
// that is given up may still run: on its lost node, if its group lets it continue there.
// The text is empty if the allocation runs nowhere.
func (in *Input) stillRunning(a *state.Alloc, spec *state.Group) string {
	n, ok := in.View.Node(a.NodeID)
	if !ok || n.Status != state.NodeLost || spec == nil || a.Binding(spec) != state.BindNone {
		return ""
	}
	return "; " + a.NodeName + " is silent and may run it until it is back"
}
