package serve

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// paceInterval is the interval at which GOGC is set again.
	paceInterval = time.Second
	// leastPercent and mostPercent bound GOGC; Go's default is 100.
	leastPercent, mostPercent = 60, 400
)

// PaceCollector lets the garbage collector run rarely while the heap is small, and more
// often as the heap grows. So memory is used for speed up to about budget bytes of heap.
// Call PaceCollector once in a process, and stop when the role ends. If the operator has
// set GOGC, PaceCollector has no effect.
func PaceCollector(budget uint64) (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { paceCollector(ctx, budget) })
	return func() { cancel(); done.Wait() }
}

func paceCollector(ctx context.Context, budget uint64) {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(paceInterval)
	defer tick.Stop()
	for last := 0; ; {
		metrics.Read(sample)
		if p := pace(sample[0].Value.Uint64(), budget); p != last {
			debug.SetGCPercent(p)
			last = p
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// pace returns GOGC: by how many per cent of the live heap the heap may grow until the
// next collection. The result is a multiple of 20, because each change of GOGC stops the
// program for a short time.
func pace(live, budget uint64) int {
	if live == 0 {
		return mostPercent
	}
	p := 100 * (float64(budget)/float64(live) - 1)
	return min(mostPercent, max(leastPercent, int(p)/20*20))
}
