package world

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

const (
	// length is the length of a world in true time. The faults end at calm.
	length = 600 * time.Second
	calm   = 450 * time.Second
)

// world is a whole federation in virtual time.
type world struct {
	*machine.Engine
	seed    uint64
	etcd    *store.Store
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
	// lateRenewals: one renewal in lateRenewals reaches its supervisor late; 0: the usual share.
	lateRenewals int
	// life: the world has what life.go describes, too.
	life bool
	// kids are the jobs of runs, by name.
	kids map[string]kid
	// units has the units of the semaphores.
	units map[string]int
	// upgraded: the world began with processes of the level before.
	upgraded bool
}

// newWorld makes the world of a seed, and starts everything.
func newWorld(seed uint64, out io.Writer) *world {
	w := &world{Engine: machine.New(seed, out), seed: seed, specs: map[string]*jobVersion{}, versions: map[versionKey]*jobVersion{}, systemJobs: map[string]bool{}, kids: map[string]kid{}, units: map[string]int{semaphores[0]: 1 + int(seed/LivesOf%2), semaphores[1]: 2}}
	w.life = HasLife(seed)
	w.watch = newWatch(w)
	w.Net.Disturbed = func() {
		for _, r := range w.regions {
			r.raft.disturbed()
		}
	}
	for _, cpu := range amounts {
		w.asks = append(w.asks, (&groupVersion{cpu: cpu}).ask())
	}
	w.etcd = store.New(w.Engine)
	w.etcd.Stored = w.watch.stored
	w.etcd.Committed = func(ws []store.Write) {
		w.watch.movedOn()
		w.watch.divided(ws)
		w.watch.turns.committed()
	}
	for i := range 1 + w.Rng.IntN(3) {
		w.globals = append(w.globals, newGlobalServer(w, i))
	}
	if w.Chance(4) {
		w.second = newGlobalServer(w, 0) // with the name of the first one
		w.second.p.Unwanted = true
		w.globals = append(w.globals, w.second)
	}
	regions := 3 + w.Rng.IntN(3)
	w.watch.logs = make([]logNumbers, regions)
	for i := range regions {
		w.regions = append(w.regions, newRegion(w, i, machine.Pick(w.Engine, 1, 1, 3), 2+w.Rng.IntN(3)))
	}
	operator{w}.upgrades()
	for _, h := range w.Hosts {
		for _, p := range h.Procs {
			p.Start()
		}
	}
	for _, r := range w.regions {
		r.raft.silentSince = -int64(10 * time.Second)
		w.In(w.Between(0, raftCheck), r.raft.check)
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
	w.RunUntil(int64(calm), stop)
	if !stop() {
		w.heal()
		w.RunUntil(int64(length), stop)
	}
	if !stop() {
		w.converged()
	}
	w.watch.stats.Virtual, w.watch.stats.Steps = time.Duration(w.Now), w.Steps
	return w.watch.failed
}

// active returns the term of a server that believes itself to be the active one and executes, or
// nil.
func (w *world) active() *globalTerm {
	for _, g := range w.globals {
		if g.term != nil && g.p.Up && !g.p.Stalled() {
			return g.term
		}
	}
	return nil
}

func (w *world) versionOf(s region.Slot) *jobVersion {
	return w.versions[versionKey{s.Job, s.JobVersion}]
}

// Violation is the violation that a world has shown. An empty What means none.
type Violation struct {
	Seed      uint64
	Invariant int
	What      string
}

// Run runs the world of a seed. It returns what happened, and the violation if there is one. If out
// is not nil, Run writes the trace to it.
func Run(seed uint64, out io.Writer) (Stats, Violation) {
	w := newWorld(seed, out)
	failed := w.run()
	return w.watch.stats, Violation{seed, w.watch.invariant, failed}
}

// String prints the size of the world.
func (w *world) String() string {
	return fmt.Sprintf("seed %d: %d global servers, %d regions, %d hosts", w.seed, len(w.globals), len(w.regions), len(w.Hosts))
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
	plant.OverrideEnded:     {overrideKept},
	plant.BoundOfSlot:       {overrideKept},
	plant.RegionsAtOnce:     {orderKept},
	plant.TurnForgotten:     {orderKept},
	plant.TriggerOverlaps:   {scheduleKept},
	plant.BackfillStands:    {scheduleKept},
	plant.UnitsForgotten:    {workflowKept},
	plant.RetryAll:          {workflowKept},
	plant.EndForgotten:      {workflowKept},
	plant.PauseForgotten:    {orderKept},
	plant.ContinueForgotten: {orderKept},
	plant.RevertForgotten:   {orderKept},
	plant.UnprovenKept:      {orderKept},
}

// NeedsLife reports whether only worlds with life show a bug.
func NeedsLife(b plant.Bug) bool { return breaks[b] != nil && breaks[b][0] > 9 }

// Shows reports whether a violation is of an invariant that the bug breaks.
func Shows(b plant.Bug, v Violation) bool {
	if own := breaks[b]; own != nil {
		return slices.Contains(own, v.Invariant)
	}
	return v.Invariant < 9
}
