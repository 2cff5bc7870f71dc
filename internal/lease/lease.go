package lease

import "time"

// maxPending bounds the remembered requests. A grant of an older one is ignored.
const maxPending = 8

// Holder is the holder's view of one lease: a node's, a region's or that of the
// active global server. The zero value holds none. Times are readings of a clock that keeps
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
// the request, so it ends at the holder before it ends at the grantor. The deadline never
// moves back. False: the request is not remembered and nothing changed.
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

// Forget ends the lease. Requests stay remembered, so that a later grant counts.
func (h *Holder) Forget() { h.held, h.deadline = false, 0 }

// Reset ends the lease, and answers to earlier requests do not count.
func (h *Holder) Reset() {
	h.Forget()
	h.sent = [maxPending]request{}
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
