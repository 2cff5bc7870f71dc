package lease

import "time"

// maxPending bounds the remembered requests. A grant of an older request is ignored.
const maxPending = 8

// Holder is the holder's view of one lease: the lease of a node, of a region, or of the
// active global server. The zero value holds no lease. Times are readings of a clock that
// also runs while the host is suspended. A Holder is not safe for concurrent use.
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

// Granted records the grant of a request. The lease counts from the moment at which the
// request was sent, so it ends at the holder before it ends at the grantor. The deadline
// never moves back. If the request is not remembered, Granted changes nothing and returns
// false.
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

// Forget ends the lease. Requests stay remembered, so a grant that arrives later counts.
func (h *Holder) Forget() { h.held, h.deadline = false, 0 }

// Reset ends the lease. Grants of earlier requests are ignored from now on.
func (h *Holder) Reset() {
	h.Forget()
	h.sent = [maxPending]request{}
}

// State is the state of a lease at one time.
type State struct {
	// Held is false until the first grant in the life of this process.
	Held bool
	// Deadline is the end of the lease on the holder's clock. Left is the time until
	// Deadline; a lease with Left ≤ 0 has expired.
	Deadline, Left time.Duration
}

// At returns the state at a time.
func (h *Holder) At(now time.Duration) State {
	return State{Held: h.held, Deadline: h.deadline, Left: h.deadline - now}
}

// Renewal returns the pause between two requests: a third of the lease, so that two
// requests may be lost. Before the first grant Renewal returns fallback.
func (h *Holder) Renewal(fallback time.Duration) time.Duration {
	if !h.held {
		return fallback
	}
	return h.duration / 3
}
