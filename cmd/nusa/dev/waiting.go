package dev

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// A start that takes longer than firstReport reports what it is waiting for. It repeats the
// report after each reportInterval.
const (
	firstReport    = time.Second
	reportInterval = 10 * time.Second
)

// waiting tracks what a start is still waiting for. It is safe for concurrent use.
type waiting struct {
	agents int // number of agents of each region

	mu      sync.Mutex
	global  bool // the global server is not ready yet
	regions []string
	// nodes counts the ready nodes of each connected region.
	nodes map[string]int
}

func newWaiting(regions []string, agents int) *waiting {
	return &waiting{agents: agents, global: true, regions: regions, nodes: map[string]int{}}
}

// globalReady records that the global server is ready.
func (w *waiting) globalReady() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.global = false
}

// region records the state of a region, and reports whether everything is ready.
func (w *waiting) region(name string, connected bool, nodes int) (all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.nodes, name)
	if connected {
		w.nodes[name] = nodes
	}
	return len(w.missing()) == 0
}

// missing lists what is not ready. The caller holds w.mu.
func (w *waiting) missing() []string {
	if w.global {
		return []string{"the global server"}
	}
	var out []string
	for _, r := range w.regions {
		nodes, connected := w.nodes[r]
		switch {
		case !connected:
			out = append(out, "region "+r+" (not connected to the global server yet)")
		case nodes < w.agents:
			out = append(out, fmt.Sprintf("region %s (%d of %d nodes ready)", r, nodes, w.agents))
		}
	}
	return out
}

// report reports what is missing, again and again, until ctx ends.
func (w *waiting) report(ctx context.Context, say func(string)) {
	next := time.NewTimer(firstReport)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		w.mu.Lock()
		missing := w.missing()
		w.mu.Unlock()
		if len(missing) > 0 {
			say("waiting for " + strings.Join(missing, ", "))
		}
		next.Reset(reportInterval)
	}
}
