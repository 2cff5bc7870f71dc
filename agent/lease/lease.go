package lease

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/lease"
)

// Reason why a task may not run: the protocol's name in lower case without REASON_.
type Reason string

const (
	// ReasonExpired: the node holds no lease of its master.
	ReasonExpired Reason = "lease_expired"
	// ReasonRegion: the region's lease ended, or the master has passed none on yet.
	ReasonRegion Reason = "region_lease"
)

// Binding is the set of leases that bind an allocation: its tasks stop when one of them ends.
type Binding uint8

// The bindings. Both is Node and Region.
const (
	None   Binding = 0
	Node   Binding = 1
	Region Binding = 2
	Both           = Node | Region
)

// Bindings are all bindings but None.
var Bindings = [...]Binding{Node, Region, Both}

// String returns the binding in lower case.
func (b Binding) String() string { return [...]string{"none", "node", "region", "both"}[b&Both] }

// State of one lease at one time.
type State = lease.State

// Leases are the states of both leases at one time.
type Leases struct {
	Node, Region State
	// Waiting has the leases under which nothing starts before the next grant that does not only
	// continue what runs.
	Waiting Binding
}

// Of returns the state of the leases that bind as one lease: it ends with the earlier one.
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

// Verdict says what an allocation may do.
type Verdict struct {
	// MayStart new runs.
	MayStart bool
	// MustStop the running tasks. They start again when the lease is back.
	MustStop bool
	// Reason why nothing may start.
	Reason Reason
	// Waiting as in Leases: the leases are held.
	Waiting bool
}

// Evaluate applies the binding of an allocation to the leases. An agent that has just
// started holds no lease: nothing that needs a lease is started, and running tasks are left to
// their supervisors, which know the deadline.
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

// Message describes for people why nothing may start.
func (v Verdict) Message() string {
	switch {
	case v.MayStart:
		return ""
	case v.Waiting && v.Reason == ReasonRegion:
		return "this master has passed on no lease of the global tier yet; it starts once the region has one"
	case v.Waiting:
		return "the region's servers have started again; it starts once every node of the region has connected, or every earlier lease is over"
	case v.Reason == ReasonRegion:
		return "the region holds no lease of the global tier; it starts again in place when the lease is back"
	}
	return "no master renews the node's lease; it starts again in place when the lease is back"
}
