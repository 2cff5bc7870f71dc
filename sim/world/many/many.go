package many

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/sim/world"
)

// Options are the options of Run.
type Options struct {
	// Seed is the seed of the first world. Each seed is the one before plus Step; a Step of 0
	// counts as 1.
	Seed, Step uint64
	Worlds     int
	// Last is how many lines of the trace are printed with a violation.
	Last int
	// All: continue after a violation. Quiet: print no violation.
	All, Quiet bool
	// Life: only worlds with life. See world.HasLife.
	Life bool
	// Bug is the only bug that Planted plants. Empty: all bugs.
	Bug string
	Out io.Writer
}

// Summary is the result of many worlds.
type Summary struct {
	world.Stats
	Worlds, Violations int
	// Found are the violations, sorted by seed.
	Found []world.Violation
	// CPU is the processor time used. Took is the elapsed time.
	CPU, Took time.Duration
}

// Run runs worlds on all processors, each world on one processor. It prints violations and a
// summary. It returns false if there was a violation.
func Run(o Options) bool {
	s := runAll(o)
	fmt.Fprintf(o.Out, "%d worlds, %.1f virtual hours (%.3f years), %d faults, %d operations, %d verdicts, %d moves, %d elections, %d alarms taken over, %d processes, "+
		"%d violations; %.0f virtual seconds a CPU second, %s\n", s.Worlds, s.Virtual.Hours(), s.Virtual.Hours()/8766, s.Faults, s.Operations,
		s.Verdicts, s.Moves, s.Elections+s.Terms, s.Alarms, s.Forks, s.Violations, s.Virtual.Seconds()/max(0.001, s.CPU.Seconds()), s.Took.Round(time.Second/10))
	return s.Violations == 0
}

func runAll(o Options) Summary {
	var (
		mu    sync.Mutex
		sum   Summary
		next  int
		grp   sync.WaitGroup
		began = time.Now()
		used  = cpuTime()
	)
	defer debug.SetGCPercent(debug.SetGCPercent(2000)) // worlds are small and short
	seed := o.Seed - max(1, o.Step)
	take := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		if next == o.Worlds || sum.Violations > 0 && !o.All {
			return 0, false
		}
		next++
		for seed += max(1, o.Step); o.Life && !world.HasLife(seed); seed += max(1, o.Step) {
		}
		return seed, true
	}
	for range runtime.GOMAXPROCS(0) {
		grp.Go(func() {
			for {
				seed, ok := take()
				if !ok {
					return
				}
				stats, v := world.Run(seed, nil)
				mu.Lock()
				sum.Add(stats)
				sum.Worlds++
				if v.What != "" {
					sum.Violations++
					sum.Found = append(sum.Found, v)
					if !o.Quiet {
						report(o, seed, v.What)
					}
				}
				mu.Unlock()
			}
		})
	}
	grp.Wait()
	slices.SortFunc(sum.Found, func(a, b world.Violation) int { return cmp.Compare(a.Seed, b.Seed) })
	sum.CPU, sum.Took = cpuTime()-used, time.Since(began)
	return sum
}

// report prints a violation with the last lines of its trace. For the trace it runs the world
// again.
func report(o Options, seed uint64, failed string) {
	var trace bytes.Buffer
	if o.Last > 0 {
		world.Run(seed, &trace)
		lines := bytes.Split(trace.Bytes(), []byte("\n"))
		fmt.Fprintf(o.Out, "%s\n", bytes.Join(lines[max(0, len(lines)-o.Last):], []byte("\n")))
	}
	fmt.Fprintf(o.Out, "seed %d: %s\nreplay: go run ./sim/world/simulate -seed %d -worlds 1 -trace\n", seed, failed, seed)
}

// cpuTime returns the processor time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
