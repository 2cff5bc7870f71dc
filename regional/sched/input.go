package sched

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Funcs evaluate expressions over nodes. The shell compiles them and caches the
// results by (node.ID, node.InventoryIndex). An expression that fails counts as
// false, and its error becomes the message of the reason.
type Funcs struct {
	// Match evaluates a boolean expression of a constraint or an affinity.
	Match func(expr string, n *state.Node) (bool, error)
	// Value evaluates a string expression of a spread.
	Value func(expr string, n *state.Node) (string, error)
}

// Input is everything that a plan depends on.
type Input struct {
	View *state.View
	// NowUnixNano is the time on the master's clock. It is compared with the times
	// that the master's commands brought into the state.
	NowUnixNano int64
	// NodeLease is the agents' lease. A longer one that may be outstanding is in the
	// view.
	NodeLease time.Duration
	// Absence returns how long a node has been absent, by the clock of the present
	// master, which nobody sets. It returns the same during one plan. nil: every node was
	// seen just now.
	Absence func(nodeID string) presence.Absence
	Funcs   Funcs
	// LogSuspect: the log may be an old copy, so nothing that a lease binds is placed by it.
	LogSuspect bool
	// MaxPlaces is the number of placements at which no further group is begun. One
	// group may have eight times as many, or an eighth of its instances if that is
	// more: placements of one group are the cheapest. 0 = 10,000. Plan.More says
	// that there may be more.
	MaxPlaces int
}

// priority returns the greatest priority of a group's job, over the job versions that
// the group's slots name.
func (in *Input) priority(g *state.GroupView) int32 {
	most := int32(0)
	for _, s := range g.Slots {
		if job, ok := in.View.Job(g.Key.JobKey(), s.JobVersion); ok {
			most = max(most, job.Priority)
		}
	}
	return most
}

// mayReserve is false for groups that certainly have no instance that has waited
// for ReserveAfter. It is cheap.
func (in *Input) mayReserve(g *state.GroupView) bool {
	return slices.ContainsFunc(g.Slots, func(s *state.Slot) bool {
		return s.Desired == state.Run && in.NowUnixNano >= s.CommittedUnixNano+int64(ReserveAfter)
	})
}

// replacementDue returns the time from which an allocation on a lost node counts as
// gone, and whether there is such a time before the node is back. spec is what the group
// should be like now; nil if the group is no longer known. The node follows the version of
// the allocation, which may be an earlier one.
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
	switch binding := ordered.Binding(a.Local); {
	case binding != state.BindNone:
		left = max(left, absent.LeaseLeft(in.longestLease(binding), ordered.KillTimeout))
	case bound(spec, a.Local):
		return 0, false // no lease ends what the node was ordered to run
	}
	return in.NowUnixNano + int64(left), true
}

func (in *Input) absence(nodeID string) presence.Absence {
	if in.Absence == nil {
		return presence.Absence{}
	}
	return in.Absence(nodeID)
}

// orderedGroup returns the group as an allocation's node knows it, or otherwise if that
// version is not stored.
func (in *Input) orderedGroup(a *state.Alloc, otherwise *state.Group) *state.Group {
	if job, ok := in.View.Job(a.Key().JobKey(), a.JobVersion); ok {
		if g := job.Group(a.Group); g != nil {
			return g
		}
	}
	return otherwise
}

// longestLease returns the longest lease that may bind what a node runs. A node has its
// region's lease from its master, so that lease ends there, too.
func (in *Input) longestLease(binding state.Binding) time.Duration {
	cluster := in.View.Cluster()
	if binding == state.BindRegion {
		return cluster.RegionLeaseMax
	}
	return max(in.NodeLease, cluster.NodeLeaseMax)
}

// bound reports whether a lease binds the instances of a group.
func bound(g *state.Group, local bool) bool { return g.Binding(local) != state.BindNone }

// nodeStatus returns the status of an allocation's node in a word.
func (in *Input) nodeStatus(a *state.Alloc) string {
	if n, ok := in.View.Node(a.NodeID); ok {
		return n.Status.String()
	}
	return "gone"
}

// stillRunning returns text, after a semicolon, that says where an allocation that is
// given up may still run: its node is lost, and its group lets it continue there. It
// returns "" if it runs nowhere.
func (in *Input) stillRunning(a *state.Alloc, spec *state.Group) string {
	n, ok := in.View.Node(a.NodeID)
	if !ok || n.Status != state.NodeLost || spec == nil || bound(spec, a.Local) {
		return ""
	}
	return "; " + a.NodeName + " is silent and may run it until it is back"
}
