package recorder

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nusa-scheduler/nusa/security/audit"
)

const (
	// maxQueued bounds the entries that wait, maxTogether those that are written together.
	maxQueued, maxTogether = 256, 64
	// pause is the time between two writes.
	pause = time.Second
	// A window is the time in which each method of a caller gets one entry, at most maxMethods
	// methods of a caller do, and at most maxCallers callers. So a client that is denied again and
	// again cannot push other entries out of the trail.
	window                 = time.Minute
	maxMethods, maxCallers = 8, 256
)

// Queue holds entries about denied calls until Run writes them. A caller never waits for that.
type Queue struct {
	entries chan audit.Entry
	left    atomic.Int64 // how many entries did not fit since the last write

	mu sync.Mutex
	// callers are the callers of the present window.
	callers map[string]*caller
}

// caller is what the queue knows about a caller in the present window.
type caller struct {
	methods []string // the methods that have an entry
	others  int64    // how many denials have none
}

// NewQueue returns an empty queue.
func NewQueue() *Queue {
	return &Queue{entries: make(chan audit.Entry, maxQueued), callers: map[string]*caller{}}
}

// Add adds an entry. If the caller has too many, or the queue is full, the entry is counted only.
func (q *Queue) Add(e audit.Entry) {
	if q.first(e.Who, e.Method) {
		q.put(e)
	}
}

// AddStranger adds an entry about a caller without a certificate. All such callers together are bounded
// like one caller, and an address is like a method: at most one entry of an address and maxMethods
// entries in a window. So who has many addresses cannot fill the trail.
func (q *Queue) AddStranger(e audit.Entry) {
	from := e.From
	if host, _, err := net.SplitHostPort(from); err == nil {
		from = host
	}
	if q.first("", from) {
		q.put(e)
	}
}

// group returns the caller with whom a caller shares its entries: the servers of a region share them,
// because the region's authority can name as many servers as it likes.
func group(who string) string {
	if region, server, ok := strings.Cut(who, "/server/"); ok && server != "" && strings.HasPrefix(region, "region/") {
		return region
	}
	return who
}

// first reports whether a denial gets an entry in the present window.
func (q *Queue) first(who, method string) bool {
	who = group(who)
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.callers[who]
	if c == nil && len(q.callers) == maxCallers {
		q.left.Add(1)
		return false
	}
	if c == nil {
		c = &caller{}
		q.callers[who] = c
	}
	if len(c.methods) == maxMethods || slices.Contains(c.methods, method) {
		c.others++
		return false
	}
	c.methods = append(c.methods, method)
	return true
}

// next begins the next window. It adds an entry for each caller who has denials without one.
func (q *Queue) next() {
	q.mu.Lock()
	ended := q.callers
	q.callers = map[string]*caller{}
	q.mu.Unlock()
	for _, who := range slices.Sorted(maps.Keys(ended)) {
		if n := ended[who].others; n > 0 {
			of := "this caller"
			if who == "" {
				of = "callers without a certificate"
			}
			q.put(audit.Entry{Who: who, Verb: "call", Kind: "method", Outcome: audit.Denied, Reason: fmt.Sprintf("%d more denials of %s within %s", n, of, window)})
		}
	}
}

func (q *Queue) put(e audit.Entry) {
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
	windows := time.NewTicker(window)
	defer windows.Stop()
	for {
		var some []audit.Entry
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-windows.C:
			q.next()
			continue
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
