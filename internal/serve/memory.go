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
	// paceInterval is how often the collector's pace is set.
	paceInterval = time.Second
	// leastPercent and mostPercent bound it; 100 is Go's own.
	leastPercent, mostPercent = 60, 400
)

// PaceCollector lets the garbage collector run seldom while the heap is small
// and more often as it grows, so that memory is spent on speed up to about
// budget bytes of heap. For the one role of a process; call stop when it ends.
// Does nothing where GOGC is set: then somebody has chosen.
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

// pace is by how many percent of what lives the heap may grow until the next
// collection, in steps of 20: each change costs a short stop.
func pace(live, budget uint64) int {
	if live == 0 {
		return mostPercent
	}
	p := 100 * (float64(budget)/float64(live) - 1)
	return min(mostPercent, max(leastPercent, int(p)/20*20))
}
