package lease

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/lease"
)

// minRenewal is the shortest pause between two requests for the sake of the region's lease.
// The grants of that lease may be short shortly before its end.
const minRenewal = 500 * time.Millisecond

// Holder is an agent's view of the leases of its node and of its region. One request asks
// for both, and both count from the time at which the request is sent. The zero value holds
// no lease. A Holder is not safe for concurrent use.
type Holder struct {
	node, region lease.Holder
	// sent is the time at which the latest request was sent.
	sent   time.Duration
	number uint64
	// ofRegion says that the latest grant included the region's lease.
	ofRegion bool
	// waiting are the leases that no full grant of the present session has renewed. A grant
	// that only continues what runs is not a full grant.
	waiting Binding
}

// Grant is the master's answer to a lease request.
type Grant struct {
	ID uint64
	// Node is the length of the node's lease. Region is the remaining length of the
	// region's lease. Each is 0 if that lease is not granted.
	Node, Region time.Duration
	// Continue says that the grant only continues what is running under a lease that is
	// still held. Nothing may start under the grant, because the master's log may be an old
	// copy.
	Continue bool
}

// Request records that a request is sent now and returns its id, from 1.
func (h *Holder) Request(now time.Duration) uint64 {
	h.sent = now
	h.region.Request(now)
	return h.node.Request(now)
}

// Granted records the answer to a request. It never moves a deadline to an earlier time,
// because an earlier grant stays valid until its end. Granted returns false if nothing was
// granted.
func (h *Holder) Granted(g Grant, now time.Duration) bool {
	if g.Continue {
		g.Node, g.Region = lasting(&h.node, now, g.Node), lasting(&h.region, now, g.Region)
	}
	node, region := h.node.Granted(g.ID, g.Node), h.region.Granted(g.ID, g.Region)
	if !node && !region {
		return false
	}
	h.ofRegion = g.Region > 0
	if node && !g.Continue {
		h.waiting &^= Node
	}
	if region && !g.Continue {
		h.waiting &^= Region
	}
	return true
}

// lasting returns the length of a grant that only continues a lease, or 0 if that lease has
// ended.
func lasting(l *lease.Holder, now, length time.Duration) time.Duration {
	if st := l.At(now); !st.Held || st.Left <= 0 {
		return 0
	}
	return length
}

// NewSession is called when a session with a master begins. The orders of the session start
// only under leases that the session grants. The master's log may be an old copy. The other
// agents or the global tier can show that, and the master grants nothing before they had
// time to do so. Running tasks continue.
func (h *Holder) NewSession() { h.waiting = Both }

// Forget ends both leases and drops the answers to earlier requests. It is called when the
// region's log has begun another incarnation. The orders of that incarnation must start
// nothing under a lease of the earlier one. Supervisors keep their deadlines.
func (h *Holder) Forget() {
	h.node.Reset()
	h.region.Reset()
	h.ofRegion = false
}

// At returns the leases at a time.
func (h *Holder) At(now time.Duration) Leases {
	return Leases{Node: h.node.At(now), Region: h.region.At(now), Waiting: h.waiting}
}

// Renewal returns the time from now until the next request. The pause after the latest
// request is a third of the node's lease. If the region's lease binds an allocation and is
// shorter, the pause is a third of that lease. Before the first grant the pause is
// fallback. While the region holds no lease, its lease does not shorten the pause, because
// the master sends a message when the lease is back.
func (h *Holder) Renewal(now, fallback time.Duration, regionBinds bool) time.Duration {
	next := h.node.Renewal(fallback)
	if regionBinds && h.ofRegion {
		next = min(next, max(minRenewal, h.region.Renewal(next)))
	}
	return max(0, h.sent+next-now)
}

// Deadline returns the present deadline under a binding, with a greater number than every
// earlier deadline. The numbers also grow over restarts of the agent, because each is at
// least the time since the host's start. The result is false if a lease that binds is not
// held or has ended.
func (h *Holder) Deadline(b Binding, now time.Duration) (Deadline, bool) {
	h.number = max(h.number+1, uint64(now))
	if b == None {
		return Deadline{Number: h.number}, true
	}
	s := h.At(now).Of(b)
	return Deadline{At: s.Deadline, Number: h.number}, s.Held && s.Left > 0
}
