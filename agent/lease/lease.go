package lease

import "time"

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

// maxPending bounds the remembered requests. A grant of an older one is ignored.
const maxPending = 8

// Holder holds the lease of one node. Times are readings of a clock that keeps
// running while the host is suspended. Not safe for concurrent use.
type Holder struct {
	id       uint64
	sent     [maxPending]request
	held     bool
	deadline time.Duration
	duration time.Duration
}

type request struct {
	id uint64
	at time.Duration
}

// Request records that a request is sent now and returns its id, from 1.
func (h *Holder) Request(now time.Duration) uint64 {
	h.id++
	h.sent[h.id%maxPending] = request{h.id, now}
	return h.id
}

// Granted records the answer to a request. The lease counts from the sending of
// the request, so it ends on the node before it ends at the master. The deadline
// never moves back. False: the request is not remembered and nothing changed.
func (h *Holder) Granted(id uint64, duration time.Duration) bool {
	r := h.sent[id%maxPending]
	if id == 0 || r.id != id || duration <= 0 {
		return false
	}
	h.held = true
	h.duration = duration
	h.deadline = max(h.deadline, r.at+duration)
	return true
}

// State of the lease at one time.
type State struct {
	// Held is false until the first grant in the life of this process.
	Held bool
	// Deadline on the clock. Left is the time until it; ≤ 0 means expired.
	Deadline, Left time.Duration
}

// At returns the state at a time.
func (h *Holder) At(now time.Duration) State {
	return State{Held: h.held, Deadline: h.deadline, Left: h.deadline - now}
}

// Renewal returns the pause between two requests: a third of the lease, so that two
// may be lost. Before the first grant it is the fallback.
func (h *Holder) Renewal(fallback time.Duration) time.Duration {
	if !h.held {
		return fallback
	}
	return h.duration / 3
}

// Verdict says what the allocations of a group may do.
type Verdict struct {
	// MayStart new runs.
	MayStart bool
	// MustStop the running tasks.
	MustStop bool
	Reason   Reason
}

// Evaluate applies a policy to the lease. While the agent that has just started
// holds no lease, nothing that needs one is started, and running tasks are left to
// their supervisors, which know the deadline.
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
