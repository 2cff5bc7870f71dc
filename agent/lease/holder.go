package lease

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/lease"
)

// minRenewal bounds the pause between two requests that the region's lease asks for: near its
// end that lease may be short.
const minRenewal = 500 * time.Millisecond

// Holder is an agent's view of the leases of its node and of its region. One request asks for
// both, and both count from its sending. The zero value holds none. Not safe for concurrent use.
type Holder struct {
	node, region lease.Holder
	// sent is when the latest request was sent.
	sent   time.Duration
	number uint64
	// ofRegion: the latest grant had a part of the region's lease.
	ofRegion bool
	// waiting has the leases that were not granted in the present session yet, except to continue.
	waiting Binding
}

// Grant is the answer to a request.
type Grant struct {
	ID uint64
	// Node is the length of the node's lease, Region what is left of the region's; 0 for a lease
	// that is not granted.
	Node, Region time.Duration
	// Continue: what runs goes on under a lease that is still held, and nothing starts. The
	// master's log may be an old copy.
	Continue bool
}

// Request records that a request is sent now and returns its id, from 1.
func (h *Holder) Request(now time.Duration) uint64 {
	h.sent = now
	h.region.Request(now)
	return h.node.Request(now)
}

// Granted records the answer to a request. No deadline moves back, because an earlier grant was
// valid until its end. False: nothing was granted.
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

// lasting returns the length of a grant that only continues a lease: 0 if the lease has ended.
func lasting(l *lease.Holder, now, length time.Duration) time.Duration {
	if st := l.At(now); !st.Held || st.Left <= 0 {
		return 0
	}
	return length
}

// NewSession is called when a session with a master begins. What is ordered in it starts only
// under leases that are granted in it: the master's log may be an old copy, which the other agents
// or the global tier find out before such a grant. What runs goes on.
func (h *Holder) NewSession() { h.waiting = Both }

// Forget ends both leases and drops the replies to earlier requests. It is called when another
// incarnation of the region's log has begun: its orders may start nothing under a lease of the
// earlier incarnation. Supervisors keep their deadlines.
func (h *Holder) Forget() {
	h.node.Reset()
	h.region.Reset()
	h.ofRegion = false
}

// At returns the leases at a time.
func (h *Holder) At(now time.Duration) Leases {
	return Leases{Node: h.node.At(now), Region: h.region.At(now), Waiting: h.waiting}
}

// Renewal returns the time from now until the next request: a third of the node's lease after the
// latest one, or of the region's if that binds an allocation and is shorter. While the region
// holds no lease, the master tells when it is back. Before the first grant it is the fallback. A
// grant may bring it forward.
func (h *Holder) Renewal(now, fallback time.Duration, regionBinds bool) time.Duration {
	next := h.node.Renewal(fallback)
	if regionBinds && h.ofRegion {
		next = min(next, max(minRenewal, h.region.Renewal(next)))
	}
	return max(0, h.sent+next-now)
}

// Deadline returns the present deadline under a binding, with a greater number than every
// earlier one. The numbers also grow over restarts of the agent, because they are at least the
// time since the host's start. False: a lease that binds is not held or has ended.
func (h *Holder) Deadline(b Binding, now time.Duration) (Deadline, bool) {
	h.number = max(h.number+1, uint64(now))
	if b == None {
		return Deadline{Number: h.number}, true
	}
	s := h.At(now).Of(b)
	return Deadline{At: s.Deadline, Number: h.number}, s.Held && s.Left > 0
}
