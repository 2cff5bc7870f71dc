package regionlease

import (
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// maxPending bounds the grants that wait for the log. When it is reached, the oldest
	// grant is dropped.
	maxPending = 8
	// longestPause is the longest time between two requests.
	longestPause = 2 * time.Second
	// commitSlow is how long a commit may take before the region counts as unable to
	// commit.
	commitSlow = time.Second
)

// Basis holds the facts under which a grant is valid. The log has the same facts, and the
// two are compared.
type Basis struct {
	// Term and Nonce name the leadership of the global server that granted the lease. In
	// the log they name the latest leadership that the log has recorded.
	Term  uint64
	Nonce string
	Fence uint64
	// Incarnation is the incarnation of the region's log.
	Incarnation uint64
	// Federation is the federation to which the log is bound. Only the basis of the log has
	// it: a term of another federation has another nonce.
	Federation string
	// Orders is the position of the latest slot order in the log.
	Orders state.Position
	// Planned is the position in the slot orders up to which the agents' orders are
	// complete: every allocation that no slot wants at that position has its order to stop.
	// Only the basis of the log has it. Zero stands for the position Orders.
	Planned state.Position
}

// BasisOf returns the basis of a log.
func BasisOf(c state.Cluster) Basis {
	return Basis{Term: c.LeadershipTerm, Nonce: c.LeadershipNonce, Fence: c.Fence, Incarnation: c.Incarnation, Federation: c.FederationID, Orders: c.Orders}
}

// Grant is the global tier's response to a request.
type Grant struct {
	// ID is the id of the request.
	ID       uint64
	Duration time.Duration
	Basis    Basis
}

// Lease is a master's view of its region's lease. The zero value holds no lease, because a
// master does not take over the lease of an earlier master. Lease is not safe for
// concurrent use.
type Lease struct {
	holder  lease.Holder
	pending []Grant
	latest  uint64
	// fence, incarnation and federation are those of the log when the latest grant began to
	// count.
	fence, incarnation uint64
	federation         string
}

// NewSession records that a session with the global tier begins. It drops the grants of the
// former session that wait for the log. The lease itself continues.
func (l *Lease) NewSession() { l.pending, l.latest = nil, 0 }

// Request records that a request is sent now. It returns the request's id.
func (l *Lease) Request(now time.Duration) uint64 { return l.holder.Request(now) }

// Latest returns the id of the latest grant that arrived in this session, 0 for none.
func (l *Lease) Latest() uint64 { return l.latest }

// Granted records a grant. The grant counts once the log has the grant's basis.
func (l *Lease) Granted(g Grant) {
	l.latest = max(l.latest, g.ID)
	if len(l.pending) == maxPending {
		l.pending = append(l.pending[:0], l.pending[1:]...)
	}
	l.pending = append(l.pending, g)
}

// State is the state of the lease at one time.
type State struct {
	// Left is the remaining time. 0: the region holds no lease.
	Left time.Duration
	// Returned is true once when the region has a lease again after it had none.
	Returned bool
	// Why is the reason why the region holds no lease. Empty while it holds one.
	Why string
}

// At returns the state of the lease at now. log is the basis of the log at that time.
func (l *Lease) At(now time.Duration, log Basis) State {
	if log.Fence > l.fence || log.Incarnation != l.incarnation || log.Federation != l.federation {
		l.holder.Forget()
	}
	had := l.holder.At(now).Left > 0
	if !had && log.Planned != (state.Position{}) {
		// Tasks wait for the lease to start again. Tasks that the region no longer owns
		// must have their order to stop before that.
		log.Orders.Sequence = min(log.Orders.Sequence, log.planned())
	}
	why := "no grant has arrived"
	waiting := l.pending[:0]
	for _, g := range l.pending {
		switch missing, ever := lacks(log, g.Basis); {
		case missing == "":
			l.holder.Granted(g.ID, g.Duration)
			l.fence, l.incarnation, l.federation = log.Fence, log.Incarnation, log.Federation
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

// planned returns the sequence of Planned, or 0 when Planned and Orders have different
// epochs.
func (b Basis) planned() uint64 {
	if b.Planned.Epoch != b.Orders.Epoch {
		return 0
	}
	return b.Planned.Sequence
}

// lacks compares the basis of the log with the basis of a grant. missing says what the log
// lacks, empty for nothing. ever is false when the log cannot get it during this session.
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

// Pause returns the time between two requests for a lease of the given length.
func Pause(length time.Duration) time.Duration { return min(longestPause, length/3) }

// CommitBlocked returns for how long a region has been unable to commit. 0: the region can
// commit. waited is how long the region's oldest entry without an outcome has been in
// flight.
func CommitBlocked(waited time.Duration) time.Duration {
	if waited > commitSlow {
		return waited
	}
	return 0
}
