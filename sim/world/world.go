package world

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

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/plant"
)

const (
	// length is the length of a world in true time. The faults end at calm.
	length = 600 * time.Second
	calm   = 450 * time.Second
)

// world is a whole federation in virtual time.
type world struct {
	engine
	seed    uint64
	net     network
	hosts   []*host
	etcd    *etcd
	globals []*globalServer
	// second is a second process with the first server's name, on another host; nil: none.
	second  *globalServer
	regions []*regionSim
	watch   *watch

	specs      map[string]*jobVersion // by the text of the spec
	versions   map[versionKey]*jobVersion
	systemJobs map[string]bool
	jobNames   int
	asks       []place.Ask
	ids        int
	idle       []*timer // timers that have fired, to be used again
	// lateRenewals: one renewal in lateRenewals reaches its supervisor late; 0: the usual share.
	lateRenewals int
	// life: the world has what life.go describes, too.
	life bool
	// kids are the jobs of runs, by name.
	kids map[string]kid
	// upgraded: the world began with processes of the level before.
	upgraded bool
}

// newWorld makes the world of a seed, and starts everything.
func newWorld(seed uint64, out io.Writer) *world {
	w := &world{engine: newEngine(seed, out), seed: seed, specs: map[string]*jobVersion{}, versions: map[versionKey]*jobVersion{}, systemJobs: map[string]bool{}, kids: map[string]kid{}}
	w.net.w, w.life = w, hasLife(seed)
	w.watch = newWatch(w)
	w.after = func() {}
	for _, cpu := range amounts {
		w.asks = append(w.asks, (&groupVersion{cpu: cpu}).ask())
	}
	w.etcd = newEtcd(w)
	for i := range 1 + w.rng.IntN(3) {
		w.globals = append(w.globals, newGlobalServer(w, i))
	}
	if w.chance(4) {
		w.second = newGlobalServer(w, 0) // with the name of the first one
		w.second.p.unwanted = true
		w.globals = append(w.globals, w.second)
	}
	regions := 3 + w.rng.IntN(3)
	w.watch.logs = make([]logNumbers, regions)
	for i := range regions {
		w.regions = append(w.regions, newRegion(w, i, pick(&w.engine, 1, 1, 3), 2+w.rng.IntN(3)))
	}
	operator{w}.upgrades()
	for _, h := range w.hosts {
		for _, p := range h.procs {
			p.start()
		}
	}
	for _, r := range w.regions {
		r.raft.silentSince = -int64(10 * time.Second)
		w.in(w.between(0, raftCheck), r.raft.check)
	}
	w.operate()
	if w.life {
		scenario(w)
	}
	w.beginFaults()
	director{w}.begin()
	return w
}

// run runs the world to its end, and returns the violation, or "".
func (w *world) run() string {
	stop := func() bool { return w.watch.failed != "" }
	w.runUntil(int64(calm), stop)
	if !stop() {
		w.heal()
		w.runUntil(int64(length), stop)
	}
	if !stop() {
		w.converged()
	}
	w.watch.stats.Virtual, w.watch.stats.Steps = time.Duration(w.now), w.steps
	return w.watch.failed
}

// active returns the term of a server that believes itself to be the active one and executes, or
// nil.
func (w *world) active() *globalTerm {
	for _, g := range w.globals {
		if g.term != nil && g.p.up && !g.p.stalled() {
			return g.term
		}
	}
	return nil
}

func (w *world) versionOf(s region.Slot) *jobVersion {
	return w.versions[versionKey{s.Job, s.JobVersion}]
}

// Run runs the world of a seed. It returns what happened, and the violation if there is one. If out
// is not nil, Run writes the trace to it.
func Run(seed uint64, out io.Writer) (Stats, string) {
	stats, v := runWorld(seed, out)
	return stats, v.What
}

// Violation is the violation that a world has shown. An empty What means none.
type Violation struct {
	Seed      uint64
	Invariant int
	What      string
}

func runWorld(seed uint64, out io.Writer) (Stats, Violation) {
	w := newWorld(seed, out)
	failed := w.run()
	return w.watch.stats, Violation{seed, w.watch.invariant, failed}
}

// String prints the size of the world.
func (w *world) String() string {
	return fmt.Sprintf("seed %d: %d global servers, %d regions, %d hosts", w.seed, len(w.globals), len(w.regions), len(w.hosts))
}

// Options are the options of RunMany.
type Options struct {
	// Seed is the seed of the first world. Each seed is the one before plus Step; a Step of 0
	// counts as 1.
	Seed, Step uint64
	Worlds     int
	// Last is how many lines of the trace are printed with a violation.
	Last int
	// All: continue after a violation. Quiet: print no violation.
	All, Quiet bool
	// Life: only worlds with life. See life.go.
	Life bool
	// Bug is the only bug that RunPlanted plants. Empty: all bugs.
	Bug string
	Out io.Writer
}

// Summary is the result of many worlds.
type Summary struct {
	Stats
	Worlds, Violations int
	// Found are the violations, sorted by seed.
	Found []Violation
	// CPU is the processor time used. Took is the elapsed time.
	CPU, Took time.Duration
}

// RunMany runs worlds on all processors, each world on one processor. It prints violations and a
// summary. It returns false if there was a violation.
func RunMany(o Options) bool {
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
		for seed += max(1, o.Step); o.Life && !hasLife(seed); seed += max(1, o.Step) {
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
				stats, v := runWorld(seed, nil)
				mu.Lock()
				sum.Stats.add(stats)
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
	slices.SortFunc(sum.Found, func(a, b Violation) int { return cmp.Compare(a.Seed, b.Seed) })
	sum.CPU, sum.Took = cpuTime()-used, time.Since(began)
	return sum
}

// report prints a violation with the last lines of its trace. For the trace it runs the world
// again.
func report(o Options, seed uint64, failed string) {
	var trace bytes.Buffer
	if o.Last > 0 {
		Run(seed, &trace)
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

// breaks names the invariants that a planted bug breaks, for bugs that break none of 1 to 8. For
// all other bugs, a violation of invariant 9 is not enough: a world that does not converge does not
// show what is wrong.
var breaks = map[plant.Bug][]int{
	plant.AnswerOnce: {9},
	plant.DeltaLate:  {9},

	plant.StartingForgotten: {parallelKept},
	plant.RetryForever:      {retriesEnd},
	plant.DownForgotten:     {rolloutKept},
	plant.HealthyAtOnce:     {rolloutKept},
	plant.OverlapForgotten:  {scheduleKept},
	plant.RunBeforeRecord:   {scheduleKept},
	plant.TimesForgotten:    {scheduleKept},
	plant.DependsForgotten:  {workflowKept},
	plant.LimitForgotten:    {workflowKept},
	plant.PromotedAtOnce:    {canariesKept},
	plant.StableForgotten:   {canariesKept},
	plant.HoldForgotten:     {canariesKept},
}

// shows reports whether a violation is of an invariant that the bug breaks.
func shows(b plant.Bug, v Violation) bool {
	if own := breaks[b]; own != nil {
		return slices.Contains(own, v.Invariant)
	}
	return v.Invariant < 9
}

// planted holds the violations that one bug has shown.
type planted struct {
	bug plant.Bug
	// found is the first violation of an invariant that the bug breaks. unclear is the first
	// violation that shows only that the world does not converge.
	found, unclear *Violation
	worlds         int
	// healthy is the number of violations that the same world also has without the bug.
	healthy int
}

// RunPlanted plants each bug in turn. It runs worlds until one shows a violation that the same
// world does not have without the bug. It returns false if a bug has survived all worlds. Only a
// build with the tag `planted` has the bugs.
func RunPlanted(o Options) bool {
	all, survived := 0, 0
	for _, b := range plant.Bugs {
		if o.Bug != "" && o.Bug != string(b) {
			continue
		}
		all++
		p := searchPlanted(o, b)
		switch {
		case p.found != nil:
			fmt.Fprintf(o.Out, "%-34s found by seed %d: %s\n", b, p.found.Seed, p.found.What)
		case p.unclear != nil:
			survived++
			fmt.Fprintf(o.Out, "%-34s SURVIVED %d worlds; seed %d only: %s\n", b, p.worlds, p.unclear.Seed, p.unclear.What)
		default:
			survived++
			fmt.Fprintf(o.Out, "%-34s SURVIVED %d worlds; %d seeds fail without it, too\n", b, p.worlds, p.healthy)
		}
	}
	plant.Set("")
	fmt.Fprintf(o.Out, "%d bugs, %d found, %d survived\n", all, all-survived, survived)
	return survived == 0
}

// searchPlanted runs worlds with a bug until one of them shows the bug.
func searchPlanted(o Options, b plant.Bug) planted {
	p := planted{bug: b}
	for p.worlds < o.Worlds && p.found == nil {
		part := o
		part.Worlds, part.Quiet, part.All = min(20, o.Worlds-p.worlds), true, true
		part.Seed, part.Life = o.Seed+uint64(p.worlds), breaks[b] != nil && breaks[b][0] > 9
		if part.Life {
			part.Seed = o.Seed + uint64(p.worlds)/lives*livesOf
		}
		plant.Set(b)
		sum := runAll(part)
		p.worlds += part.Worlds
		plant.Set("")
		for i := range sum.Found {
			v := &sum.Found[i]
			if p.found != nil || p.unclear != nil && !shows(b, *v) {
				continue
			}
			if _, failed := Run(v.Seed, nil); failed != "" {
				p.healthy++
				continue
			}
			if shows(b, *v) {
				p.found = v
			} else {
				p.unclear = v
			}
		}
	}
	return p
}
