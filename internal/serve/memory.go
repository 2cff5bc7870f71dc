package serve

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// paceInterval is the interval at which GOGC is set again.
	paceInterval = time.Second
	// restPercent, leastPercent and mostPercent bound GOGC; Go's default is 100. restPercent
	// is the lower bound at rest, and leastPercent the lower bound under load.
	restPercent, leastPercent, mostPercent = 10, 60, 400
	// leastRoom is how many bytes a busy program may allocate at least until the next collection. The stacks of many
	// sessions make a collection expensive, and do not count as heap.
	leastRoom = 160 << 20
	// The interval of collections at rest is collectEvery, or collectMiB for each MiB that lives if that is longer.
	// So they cost a fiftieth of a core, or twice that as GOGC is rounded down, if a collection marks a MiB in a
	// millisecond. A program at rest that allocates less than the budget in that time gets less memory than the budget.
	collectEvery, collectMiB = 4 * time.Second, 50 * time.Millisecond
	// releaseEvery, or the interval of collections if that is longer, is the least time between two releases of memory
	// at rest without a burst. At least leastRelease bytes, and at least an eighth of what lives, must be unused then.
	releaseEvery = 10 * time.Second
	leastRelease = 8 << 20
	// busyRate is the number of bytes that a busy program allocates in a second, both in the latest
	// step and as the mean of meanSteps steps. restAfter is how long a program must not be busy
	// until it is at rest.
	busyRate  = 16 << 20
	restAfter = 3 * time.Second
	meanSteps = 5
	// shortest is the shortest time between two collections from which a rate is
	// computed.
	shortest = 10 * time.Millisecond
)

// HeapBudget is the budget of global and regional servers for PaceCollector.
const HeapBudget = 256 << 20

// PaceCollector lets the garbage collector run rarely while the heap is small, and more
// often as the heap grows. So memory is used for speed up to about budget bytes of heap, or
// leastRoom more than what lives, while the program allocates much. When the program comes to rest, unused memory returns
// to the kernel. Call PaceCollector once in a process, and stop when the role ends. If the
// operator has set GOGC, PaceCollector has no effect.
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
	sample := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	tick := time.NewTicker(paceInterval)
	defer tick.Stop()
	p := pacer{budget: budget}
	collected, since := nextCollection(), time.Now()
	percent, release := 0, false
	for last, atTick := 0, true; ; {
		metrics.Read(sample)
		live, allocated := sample[0].Value.Uint64(), sample[1].Value.Uint64()
		if atTick {
			held := sample[2].Value.Uint64() + sample[3].Value.Uint64()
			percent, release = p.step(live, allocated, held)
		} else {
			percent, release = p.collected(live, allocated, time.Since(since)), false
			collected, since = nextCollection(), time.Now()
		}
		if percent != last {
			debug.SetGCPercent(percent)
			last = percent
		}
		if release && p.first() {
			runtime.GC() // the next collection also frees what the pools hold since the load
		}
		if release {
			debug.FreeOSMemory() // it collects first
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			atTick = true
		case <-collected:
			atTick = false
		}
	}
}

// nextCollection returns a channel that is closed after the next collection.
func nextCollection() <-chan struct{} {
	done := make(chan struct{})
	type garbage struct{ _ *byte } // the pointer prevents that another object shares its memory
	runtime.AddCleanup(new(garbage), func(done chan struct{}) { close(done) }, done)
	return done
}

// pacer decides how often the collector runs. Its zero value, with a budget, begins with a
// program that has just started.
type pacer struct {
	budget uint64
	// allocated holds the number of bytes that were allocated up to each of the latest steps.
	allocated [meanSteps]uint64
	steps     int
	// mean is the number of bytes allocated in a second, over meanSteps steps. atCollection is
	// the number of bytes allocated up to the last collection.
	mean, atCollection uint64
	// latest is the value in allocated of the latest step.
	latest uint64
	// quiet is the number of steps since the program was busy. rested: the program has
	// returned its memory since then, releases times, the last time released steps ago.
	quiet              int
	rested             bool
	releases, released int
	// burst: a step has allocated as much as a busy program does, since the latest release. calm is
	// the number of steps since one allocated more than a quarter of that.
	burst bool
	calm  int
}

// step is called in each paceInterval with the bytes that live in the heap, with all
// bytes allocated so far, and with the bytes that the heap holds of the kernel's. It returns
// GOGC, and whether unused memory must return to the kernel now.
func (p *pacer) step(live, allocated, held uint64) (percent int, release bool) {
	oldest := &p.allocated[p.steps%meanSteps]
	p.mean = (allocated - *oldest) / uint64(meanSteps*paceInterval/time.Second)
	*oldest = allocated
	p.steps++
	step, busy := allocated-p.latest, uint64(busyRate*paceInterval/time.Second)
	active := step >= busy // the mean shows a load later
	if p.mean >= busyRate && active {
		p.quiet, p.rested = 0, false
	}
	p.latest = allocated
	p.quiet++
	if p.calm++; 4*step > busy {
		p.burst, p.calm = p.burst || active, 0
	}
	if p.quiet > int(restAfter/paceInterval) && !p.rested && !active {
		p.rested, p.releases, release = true, 0, true
	}
	p.released++
	unused := held - min(held, live)
	if p.rested && !active && unused >= max(leastRelease, live/8) {
		switch {
		case p.burst && p.calm >= int(restAfter/paceInterval): // too short to be a load, such as many regions that connect
			p.releases, release = 0, true
		case p.released >= int(max(releaseEvery, collectInterval(live))/paceInterval): // a little work at rest, such as checkpoints
			release = true
		}
	}
	if release {
		p.released, p.burst = 0, false
		p.releases++
	}
	return p.percent(live, p.mean), release
}

// first reports whether the latest release is the first one since a load or a burst.
func (p *pacer) first() bool { return p.releases == 1 }

// collected is called after each collection, with the time since the one before. It returns
// GOGC. At rest the heap may grow only by restPercent until the next collection, so a burst of
// work would be collected many times in its first second. The rate between two collections
// shows the burst at once.
func (p *pacer) collected(live, allocated uint64, since time.Duration) (percent int) {
	rate := float64(allocated-p.atCollection) / max(since, shortest).Seconds()
	p.atCollection = allocated
	return p.percent(live, max(p.mean, uint64(rate)))
}

// percent returns GOGC. Only a program at rest gets less memory than the budget allows.
func (p *pacer) percent(live, rate uint64) int {
	if !p.rested {
		rate = math.MaxUint64
	}
	return pace(live, p.budget, rate)
}

// pace returns GOGC: by how many per cent of the live heap the heap may grow until the
// next collection. The result is a multiple of 10, because each change of GOGC stops the
// program for a short time.
func pace(live, budget, rate uint64) int {
	if live == 0 {
		return mostPercent
	}
	most := max(100*(float64(budget)/float64(live)-1), 100*leastRoom/float64(live), leastPercent)
	needed := max(100*float64(rate)*collectInterval(live).Seconds()/float64(live), restPercent)
	return int(min(mostPercent, most, needed)) / 10 * 10
}

// collectInterval returns the interval of collections at rest.
func collectInterval(live uint64) time.Duration {
	return max(collectEvery, collectMiB*time.Duration(live>>20))
}
