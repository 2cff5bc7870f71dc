package regional

import (
	"context"
	"slices"
	"time"

	"golang.org/x/time/rate"
)

// flushRate and flushBurst bound how many agents a second are sent to of a
// master's own accord; what an agent asked for is answered at once.
const flushRate, flushBurst = 10_000, 64

// holdOrders is how long orders are held back at most while a large job is being
// planned part by part.
const holdOrders = 2 * time.Second

// poke has what is due sent in its turn, if nobody is about to already. Who
// waits for a turn does not keep the receiver from answering.
func (ss *agentSession) poke() {
	ss.mu.Lock()
	waits := ss.sending || ss.queued
	ss.again = ss.again || ss.sending
	ss.queued = ss.queued || !ss.sending
	ss.mu.Unlock()
	if !waits {
		ss.l.agents.enqueue(ss)
	}
}

// turn sends when the session's turn has come.
func (ss *agentSession) turn() {
	ss.mu.Lock()
	ss.queued = false
	ss.mu.Unlock()
	if ss.mayFlush() {
		ss.flush()
	}
}

// mayFlush makes the caller the one that sends, unless there is one.
func (ss *agentSession) mayFlush() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.sending {
		ss.again = true
		return false
	}
	ss.sending = true
	return true
}

// flush sends until nothing is due. After an error nobody sends any more; who
// receives finds out too.
func (ss *agentSession) flush() {
	for {
		if err := ss.send(); err != nil {
			return
		}
		ss.mu.Lock()
		ss.sending, ss.again = ss.again, false
		more := ss.sending
		ss.mu.Unlock()
		if !more {
			return
		}
	}
}

// dismiss tells every agent that this server is the master no more.
func (a *agents) dismiss() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.nodes {
		n.mu.Lock()
		if ss := n.session; ss != nil && ss.mayFlush() {
			a.l.s.streams.Go(ss.flush)
		}
		n.mu.Unlock()
	}
	a.turnMu.Lock()
	a.dismissed = true
	a.turnMu.Unlock()
	for _, ss := range a.take() {
		a.l.s.streams.Go(ss.turn)
	}
}

// enqueue gives a session its turn.
func (a *agents) enqueue(ss *agentSession) {
	a.turnMu.Lock()
	defer a.turnMu.Unlock()
	if a.dismissed { // nobody gives turns any more
		a.l.s.streams.Go(ss.turn)
		return
	}
	a.turns = append(a.turns, ss)
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// take is who waits for a turn.
func (a *agents) take() []*agentSession {
	a.turnMu.Lock()
	defer a.turnMu.Unlock()
	turns := a.turns
	a.turns = nil
	return turns
}

// deliver has sessions send in their turn until ctx ends, at most flushRate a
// second: when an entry concerns thousands of nodes, what more is decided
// meanwhile travels in the same messages, and the deciding goes on.
func (a *agents) deliver(ctx context.Context) error {
	turns := rate.NewLimiter(flushRate, flushBurst)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		}
		// What is decided is soon to be more: one message tells it all.
		hold := min(holdOrders, a.l.s.cfg.NodeLease/8)
		for held := time.Duration(0); held < hold && a.l.sched.more.Load(); held += hold / 50 {
			pause(ctx, hold/50)
		}
		for some := range slices.Chunk(a.take(), flushBurst) {
			_ = turns.WaitN(ctx, len(some)) // when ctx has ended the last word is sent
			for _, ss := range some {
				a.l.s.streams.Go(ss.turn)
			}
		}
	}
}
