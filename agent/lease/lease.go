// Package lease decides what may still run when the master is silent: the
// arithmetic of a lease that its holder counts from sending the request, and
// each group's choice for its end.
package lease

import "time"

// Reason is why something may not run; the wire's name without REASON_.
type Reason string

// ReasonExpired: the lease ran out and the group wants no work without one.
const ReasonExpired Reason = "lease_expired"

// Policy is disconnect.node.running of a group.
type Policy int

const (
	// Keep running without a lease.
	Keep Policy = iota
	// Stop when the lease ends.
	Stop
)

// maxUnanswered bounds the requests that are remembered; an older one whose
// grant still comes is ignored.
const maxUnanswered = 8

// Holder keeps the lease of one node. Times are readings of a clock that runs
// through suspend. Not safe for concurrent use.
type Holder struct {
	id       uint64
	sent     [maxUnanswered]request
	held     bool
	deadline time.Duration
	duration time.Duration
}

type request struct {
	id uint64
	at time.Duration
}

// Request notes that a request is being sent now and returns its id, from 1.
func (h *Holder) Request(now time.Duration) uint64 {
	h.id++
	h.sent[h.id%maxUnanswered] = request{h.id, now}
	return h.id
}

// Granted notes the answer to a request. The lease is counted from the sending
// of the request, so it ends here before it ends at the grantor; it never moves
// back. False: no such request is remembered, nothing changed.
func (h *Holder) Granted(id uint64, duration time.Duration) bool {
	r := h.sent[id%maxUnanswered]
	if id == 0 || r.id != id || duration <= 0 {
		return false
	}
	h.held = true
	h.duration = duration
	h.deadline = max(h.deadline, r.at+duration)
	return true
}

// State is the lease as seen at a time.
type State struct {
	// Held is false until the first grant in the life of this process.
	Held bool
	// Deadline on the clock; Left is what remains of it, ≤ 0 = expired.
	Deadline, Left time.Duration
}

// At is the state now.
func (h *Holder) At(now time.Duration) State {
	return State{Held: h.held, Deadline: h.deadline, Left: h.deadline - now}
}

// Renewal is how long to wait between two requests: a third of the lease, so
// that two may be lost. Without a grant yet: the fallback.
func (h *Holder) Renewal(fallback time.Duration) time.Duration {
	if !h.held {
		return fallback
	}
	return h.duration / 3
}

// Verdict says what a group's allocations may do.
type Verdict struct {
	// MayStart new runs.
	MayStart bool
	// MustStop what runs.
	MustStop bool
	Reason   Reason
}

// Judge applies a policy. Without any lease yet — the agent has just started —
// running tasks are left to their supervisors, which know the deadline, and
// nothing bound to a lease is started.
func Judge(p Policy, s State) Verdict {
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
