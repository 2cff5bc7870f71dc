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
}

// Request records that a request is sent now and returns its id, from 1.
func (h *Holder) Request(now time.Duration) uint64 {
	h.sent = now
	h.region.Request(now)
	return h.node.Request(now)
}

// Granted records the answer to a request: the length of the node's lease and what is left of
// the region's; 0 for a lease that is not granted. No deadline moves back, because an earlier
// grant was valid until its end. False: nothing was granted.
func (h *Holder) Granted(id uint64, node, region time.Duration) bool {
	nodeGranted, regionGranted := h.node.Granted(id, node), h.region.Granted(id, region)
	if nodeGranted || regionGranted {
		h.ofRegion = region > 0
	}
	return nodeGranted || regionGranted
}

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
	return Leases{Node: h.node.At(now), Region: h.region.At(now)}
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
