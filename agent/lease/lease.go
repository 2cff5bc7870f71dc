package lease

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/lease"
)

// Reason says why a task may not run. It is the name of the protocol's value in lower case,
// without REASON_.
type Reason string

const (
	// ReasonExpired: the node holds no lease of its master.
	ReasonExpired Reason = "lease_expired"
	// ReasonRegion: the region's lease has ended, or the master has not passed one on yet.
	ReasonRegion Reason = "region_lease"
)

// Binding is the set of leases that bind an allocation. The tasks of the allocation stop
// when one of these leases ends.
type Binding uint8

// The bindings. Both is the set of Node and Region.
const (
	None   Binding = 0
	Node   Binding = 1
	Region Binding = 2
	Both           = Node | Region
)

// Bindings are all bindings except None.
var Bindings = [...]Binding{Node, Region, Both}

// String returns the binding in lower case.
func (b Binding) String() string { return [...]string{"none", "node", "region", "both"}[b&Both] }

// State is the state of one lease at one time.
type State = lease.State

// Leases are the states of both leases at one time.
type Leases struct {
	Node, Region State
	// Waiting are the leases under which nothing starts yet, although they may be held.
	// They need a grant that does not only continue what runs.
	Waiting Binding
}

// Of returns the state of a binding as the state of one lease. With Both that lease ends at
// the earlier end.
func (l Leases) Of(b Binding) State {
	switch b {
	case Node:
		return l.Node
	case Region:
		return l.Region
	case Both:
		s := l.Node
		if l.Region.Deadline < s.Deadline {
			s = l.Region
		}
		s.Held = l.Node.Held && l.Region.Held
		return s
	}
	return State{}
}

// Verdict says whether an allocation may start and whether it must stop.
type Verdict struct {
	// MayStart says that new runs may start.
	MayStart bool
	// MustStop says that the running tasks must stop. They start again when the lease is
	// back.
	MustStop bool
	// Reason says why nothing may start.
	Reason Reason
	// Waiting says that the leases are held but that nothing may start yet
	// (Leases.Waiting).
	Waiting bool
}

// Evaluate applies the binding of an allocation to the leases. An agent that has just
// started holds no lease. In that case nothing that needs a lease starts, and running tasks
// continue until their supervisors end them at the deadline.
func Evaluate(b Binding, l Leases) Verdict {
	v := Verdict{MayStart: true}
	var ended time.Duration
	for _, one := range [...]struct {
		bit    Binding
		state  State
		reason Reason
	}{{Node, l.Node, ReasonExpired}, {Region, l.Region, ReasonRegion}} {
		switch {
		case b&one.bit == 0:
		case one.state.Held && one.state.Left <= 0 && (!v.MustStop || one.state.Deadline < ended):
			v, ended = Verdict{MustStop: true, Reason: one.reason}, one.state.Deadline
		case !one.state.Held && v.MayStart:
			v = Verdict{Reason: one.reason}
		}
	}
	switch {
	case !v.MayStart:
	case b&l.Waiting&Node != 0:
		v = Verdict{Reason: ReasonExpired, Waiting: true}
	case b&l.Waiting != 0:
		v = Verdict{Reason: ReasonRegion, Waiting: true}
	}
	return v
}

// Message says, for people, why nothing may start.
func (v Verdict) Message() string {
	switch {
	case v.MayStart:
		return ""
	case v.Waiting && v.Reason == ReasonRegion:
		return "this master has not passed on a lease of the global tier yet; the task starts once the region has a lease"
	case v.Waiting:
		return "the region's servers have started again; the task starts once every node of the region has connected, or every earlier lease is over"
	case v.Reason == ReasonRegion:
		return "the region holds no lease of the global tier; the task starts again in place when the lease is back"
	}
	return "no master renews the node's lease; the task starts again in place when the lease is back"
}
