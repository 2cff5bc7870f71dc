package recorder

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nusa-scheduler/nusa/security/audit"
)

const (
	// maxQueued bounds the entries that wait, maxTogether those that are written together.
	maxQueued, maxTogether = 256, 64
	// pause is the time between two writes. So a client that is denied again and again cannot fill
	// the trail.
	pause = time.Second
)

// Queue holds entries about denied calls until Run writes them. A caller never waits for that.
type Queue struct {
	entries chan audit.Entry
	left    atomic.Int64 // how many entries did not fit since the last write
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{entries: make(chan audit.Entry, maxQueued)} }

// Add adds an entry. If the queue is full, the entry is counted only.
func (q *Queue) Add(e audit.Entry) {
	select {
	case q.entries <- e:
	default:
		q.left.Add(1)
	}
}

// Run writes the entries until ctx ends. If write fails, its entries are lost, and failed gets the
// error.
func (q *Queue) Run(ctx context.Context, write func(context.Context, []audit.Entry) error, failed func(error)) error {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		var some []audit.Entry
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-q.entries:
			some = append(some, e)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-next.C:
		}
		for range min(len(q.entries), maxTogether-len(some)) {
			some = append(some, <-q.entries) // only Run takes entries
		}
		if n := q.left.Swap(0); n > 0 {
			some = append(some, audit.Entry{Verb: "call", Kind: "method", Outcome: audit.Denied, Reason: fmt.Sprintf("%d more denials were too many to record", n)})
		}
		if err := write(ctx, some); err != nil && ctx.Err() == nil {
			failed(err)
		}
		next.Reset(pause)
	}
}
