package regionlease

import (
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// maxPending bounds the grants that wait for the log; the oldest is dropped.
	maxPending = 8
	// longestPause is the longest time between two requests.
	longestPause = 2 * time.Second
	// commitSlow is how long a commit may take before the region counts as unable to
	// commit.
	commitSlow = time.Second
)

// Basis is what a grant rests on, and the same of the region's log.
type Basis struct {
	// Term and Nonce are the leadership term of the grantor; of the log, the greatest
	// that it has.
	Term  uint64
	Nonce string
	Fence uint64
	// Incarnation of the region's log.
	Incarnation uint64
	// Orders is the position of the slot orders that the log has.
	Orders state.Position
	// Planned is up to where the agents' orders follow the slot orders: nothing is left on
	// its way that stops what no slot wants. Only of the log. Zero: up to Orders.
	Planned state.Position
}

// BasisOf returns the basis that a log has.
func BasisOf(c state.Cluster) Basis {
	return Basis{Term: c.LeadershipTerm, Nonce: c.LeadershipNonce, Fence: c.Fence, Incarnation: c.Incarnation, Orders: c.Orders}
}

// Grant is the answer to a request.
type Grant struct {
	// ID of the request.
	ID       uint64
	Duration time.Duration
	Basis    Basis
}

// Lease is a master's view of its region's lease. The zero value holds none: a master
// does not take over the lease of an earlier one. Not safe for concurrent use.
type Lease struct {
	holder  lease.Holder
	pending []Grant
	latest  uint64
	// fence and incarnation are those of the log when the lease began to count.
	fence, incarnation uint64
}

// NewSession notes that a session with the global tier begins: grants of the former one
// that wait for the log do not count. The lease itself goes on.
func (l *Lease) NewSession() { l.pending, l.latest = nil, 0 }

// Request records that a request is sent now and returns its id.
func (l *Lease) Request(now time.Duration) uint64 { return l.holder.Request(now) }

// Latest returns the id of the latest grant that was received in this session; 0 for none.
func (l *Lease) Latest() uint64 { return l.latest }

// Granted records a grant. It counts once the log has what it rests on.
func (l *Lease) Granted(g Grant) {
	l.latest = max(l.latest, g.ID)
	if len(l.pending) == maxPending {
		l.pending = append(l.pending[:0], l.pending[1:]...)
	}
	l.pending = append(l.pending, g)
}

// State of the lease at one time.
type State struct {
	// Left is the remaining time; 0 = the region holds no lease.
	Left time.Duration
	// Returned is true once when the region has a lease again after it had none.
	Returned bool
	// Why says why the region holds no lease.
	Why string
}

// At returns the state of the lease at a time at which the log has a basis.
func (l *Lease) At(now time.Duration, log Basis) State {
	if log.Fence > l.fence || log.Incarnation != l.incarnation {
		l.holder.Forget()
	}
	had := l.holder.At(now).Left > 0
	if !had && log.Planned != (state.Position{}) {
		// Tasks wait for the lease to start again. Those that the region lost are stopped first.
		log.Orders.Sequence = min(log.Orders.Sequence, log.planned())
	}
	why := "no grant has arrived"
	waiting := l.pending[:0]
	for _, g := range l.pending {
		switch missing, ever := lacks(log, g.Basis); {
		case missing == "":
			l.holder.Granted(g.ID, g.Duration)
			l.fence, l.incarnation = log.Fence, log.Incarnation
		case ever:
			waiting = append(waiting, g)
			why = missing
		default:
			why = missing
		}
	}
	l.pending = waiting
	st := l.holder.At(now)
	if st.Left > 0 {
		return State{Left: st.Left, Returned: !had}
	}
	if st.Held {
		why = "it ended " + (-st.Left).Round(time.Millisecond).String() + " ago: " + why + " since then"
	}
	return State{Why: why}
}

// planned returns the sequence of Planned, 0 in another epoch than that of Orders.
func (b Basis) planned() uint64 {
	if b.Planned.Epoch != b.Orders.Epoch {
		return 0
	}
	return b.Planned.Sequence
}

// lacks returns what the log lacks of the basis of a grant, empty for nothing. ever is
// false when the log never has it while this session lasts.
func lacks(log, g Basis) (missing string, ever bool) {
	switch {
	case g.Term != log.Term || g.Nonce != log.Nonce:
		return fmt.Sprintf("a grant of leadership term %d came, the log has %d", g.Term, log.Term), false
	case g.Fence != log.Fence:
		return fmt.Sprintf("a grant of fence %d came, the log has %d", g.Fence, log.Fence), false
	case g.Incarnation != log.Incarnation:
		return fmt.Sprintf("a grant of incarnation %d came, the log has %d", g.Incarnation, log.Incarnation), false
	case (g.Orders.Epoch != log.Orders.Epoch || g.Orders.Sequence > log.Orders.Sequence) && !plant.Is(plant.GrantBeforeOrders):
		return fmt.Sprintf("a grant waits for slot orders up to %d, the log has %d", g.Orders.Sequence, log.Orders.Sequence), true
	}
	return "", true
}

// Pause returns the time between two requests of a lease of this length.
func Pause(length time.Duration) time.Duration { return min(longestPause, length/3) }

// CommitBlocked returns for how long a region has been unable to commit, whose oldest
// entry without an outcome has waited for a time; 0 = it can commit.
func CommitBlocked(waited time.Duration) time.Duration {
	if waited > commitSlow {
		return waited
	}
	return 0
}
