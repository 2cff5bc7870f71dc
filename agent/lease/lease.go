package lease

import "github.com/nusa-scheduler/nusa/internal/lease"

// Reason why a task may not run: the protocol's name in lower case without REASON_.
type Reason string

// ReasonExpired: the lease expired and the group does not run without a lease.
const ReasonExpired Reason = "lease_expired"

// Policy is disconnect.node.running of a group.
type Policy int

const (
	// Keep running without a lease.
	Keep Policy = iota
	// Stop when the lease ends.
	Stop
)

// State of the lease at one time.
type State = lease.State

// Verdict says what the allocations of a group may do.
type Verdict struct {
	// MayStart new runs.
	MayStart bool
	// MustStop the running tasks.
	MustStop bool
	Reason   Reason
}

// Evaluate applies a policy to the lease. An agent that has just started holds no lease:
// nothing that needs a lease is started, and running tasks are left to their supervisors,
// which know the deadline.
func Evaluate(p Policy, s State) Verdict {
	switch {
	case p == Keep:
		return Verdict{MayStart: true}
	case !s.Held:
		return Verdict{Reason: ReasonExpired}
	case s.Left <= 0:
		return Verdict{MustStop: true, Reason: ReasonExpired}
	}
	return Verdict{MayStart: true}
}
