package nodes

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nusa-scheduler/nusa/internal/wait"
)

// sendRate and sendBurst bound how many sessions a second get their turn to send. Replies
// to an agent's requests do not wait for a turn.
const sendRate, sendBurst = 10_000, 64

// maxOrderDelay is the longest time for which orders wait while a large job is planned in
// parts.
const maxOrderDelay = 2 * time.Second

// turnQueue holds the sessions that wait for their turn to send, each of them once.
type turnQueue struct {
	mu       sync.Mutex
	sessions []*session
	closed   bool
	wake     chan struct{} // with room for one
}

func newTurnQueue() turnQueue { return turnQueue{wake: make(chan struct{}, 1)} }

// push appends a session. It returns false when the queue is closed.
func (q *turnQueue) push(ss *session) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.sessions = append(q.sessions, ss)
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// popAll empties the queue and returns its sessions.
func (q *turnQueue) popAll() []*session {
	q.mu.Lock()
	defer q.mu.Unlock()
	sessions := q.sessions
	q.sessions = nil
	return sessions
}

// close makes the queue refuse further sessions. It returns the sessions that waited.
func (q *turnQueue) close() []*session {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	return q.popAll()
}

// enqueue puts a session into the turn queue. After the end of the term the session sends
// at once.
func (a *Agents) enqueue(ss *session) {
	if !a.turns.push(ss) {
		a.cfg.Streams.Go(ss.takeTurn)
	}
}

// Close makes every session send its agent the standby message, because this server's term
// has ended.
func (a *Agents) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.nodes {
		n.mu.Lock()
		if ss := n.session; ss != nil && ss.startSend() {
			a.cfg.Streams.Go(ss.sendAll)
		}
		n.mu.Unlock()
	}
	for _, ss := range a.turns.close() {
		a.cfg.Streams.Go(ss.takeTurn)
	}
}

// Deliver gives the sessions their turns until ctx ends, at most sendRate a second. When a
// log entry has orders for thousands of nodes, planning continues meanwhile, and the later
// orders for these nodes travel in the same messages.
func (a *Agents) Deliver(ctx context.Context) error {
	limit := rate.NewLimiter(sendRate, sendBurst)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.turns.wake:
		}
		// More orders for the same nodes are being planned. A short wait lets one message
		// carry them all.
		delay := min(maxOrderDelay, a.cfg.NodeLease/8)
		for waited := time.Duration(0); waited < delay && a.cfg.MorePlanned(); waited += delay / 50 {
			wait.For(ctx, delay/50)
		}
		for some := range slices.Chunk(a.turns.popAll(), sendBurst) {
			_ = limit.WaitN(ctx, len(some)) // WaitN fails only when ctx has ended; the sessions then send the standby message
			for _, ss := range some {
				a.cfg.Streams.Go(ss.takeTurn)
			}
		}
	}
}
