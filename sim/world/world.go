package world

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
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

	plant.StartingForgotten:      {parallelKept},
	plant.RetryForever:           {retriesEnd},
	plant.DownForgotten:          {rolloutKept},
	plant.HealthyAtOnce:          {rolloutKept},
	plant.OverlapForgotten:       {scheduleKept},
	plant.RunBeforeRecord:        {scheduleKept},
	plant.TimesForgotten:         {scheduleKept},
	plant.DependsForgotten:       {workflowKept},
	plant.LimitForgotten:         {workflowKept},
	plant.PromotedAtOnce:         {canariesKept},
	plant.StableForgotten:        {canariesKept},
	plant.HoldForgotten:          {canariesKept},
	plant.OverrideEnded:          {overrideKept},
	plant.BoundOfSlot:            {overrideKept},
	plant.RegionsAtOnce:          {orderKept},
	plant.TurnForgotten:          {orderKept},
	plant.TriggerOverlaps:        {scheduleKept},
	plant.BackfillStands:         {scheduleKept},
	plant.UnitsForgotten:         {workflowKept},
	plant.RetryAll:               {workflowKept},
	plant.EndForgotten:           {workflowKept},
	plant.PauseForgotten:         {orderKept},
	plant.ContinueForgotten:      {orderKept},
	plant.RevertForgotten:        {orderKept},
	plant.UnprovenKept:           {orderKept},
	plant.LastRule:               {retriesEnd, retriesKept},
	plant.LeaveForgotten:         {retriesKept},
	plant.BackoffForgotten:       {retriesKept},
	plant.AttemptsForgotten:      {retriesEnd},
	plant.MemoryForgotten:        {retriesKept},
	plant.MemoryUnbounded:        {retriesKept},
	plant.LetterTwice:            {lettersKept},
	plant.LetterOfEach:           {lettersKept},
	plant.LetterOfNeighbour:      {lettersKept},
	plant.LettersUnread:          {lettersKept},
	plant.FailureUnhandled:       {workflowKept},
	plant.RetryFewer:             {workflowKept},
	plant.ReboundKept:            {overrideKept},
	plant.ReboundEnded:           {overrideKept},
	plant.SchedulePauseForgotten: {scheduleKept},
	plant.RuleForgotten:          {scheduleKept},
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

// upgrades lets one world in five begin with processes of the feature level before the present
// one. An operator upgrades them one by one.
func (o operator) upgrades() {
	if o.seed%5 != 3 {
		return
	}
	o.upgraded = true
	at := func() time.Duration { return o.Between(40*time.Second, 350*time.Second) }
	for _, g := range o.globals {
		g.old = o.Chance(3)
		if g.old {
			o.In(at(), func() { o.upgrade(g.p, &g.old, nil) })
		}
	}
	for _, r := range o.regions {
		next, last := at(), time.Duration(0)
		some := o.Chance(2)
		for _, s := range r.raft.servers {
			s.old = some && !o.Chance(4)
			if s.old {
				last = min(next, 380*time.Second)
				o.In(last, func() { o.upgrade(s.p, &s.old, r.levelChanged) })
				next += o.Between(5*time.Second, 40*time.Second)
			}
		}
		if last > 0 && o.Chance(2) {
			o.uninformed(r, last)
		}
		for _, a := range r.agents {
			a.old = o.Chance(2)
			if a.old {
				o.In(at(), func() { o.upgrade(a.p, &a.old, nil) })
			}
		}
	}
}

// uninformed changes a job of a region of the earlier level to a version that the node's lease binds.
// The instances go on, and their agents do not learn of the lease. Some agents are cut off before
// the last server of the region is upgraded.
func (o operator) uninformed(r *regionSim, last time.Duration) {
	d := director(o)
	node := func(stop bool) func() {
		return func() {
			d.bind(r, func(g *groupVersion) {
				g.region.stop, g.node, g.kill, g.setup = false, policy{2 * time.Second, stop, true}, 2*time.Second, 0
			})
		}
	}
	o.In(last-35*time.Second, node(false))
	o.In(last-10*time.Second, node(true))
	o.In(last-o.Between(0, 2*time.Second), func() {
		for _, a := range r.agents {
			for _, s := range r.raft.servers {
				if a != r.agents[0] {
					o.cutPair(a.h, s.h, min(60*time.Second, calm-time.Duration(o.Now)), true)
				}
			}
		}
	})
}

// upgrade starts a process again in the present version.
func (o operator) upgrade(p *machine.Proc, old *bool, done func()) {
	if o.Tracing() {
		o.Tracef("operator: upgrade %s", p.Name)
	}
	p.Kill(false)
	*old = false
	o.In(o.Between(100*time.Millisecond, 3*time.Second), func() {
		p.Start()
		if done != nil {
			done()
		}
	})
}

// removeNode removes a node while it is switched off or cut off. Later the node returns, with its
// disk or with an empty one. The node returns with its disk only if that starts nothing that no
// lease binds: the removal says that such work is gone.
func (o operator) removeNode() {
	r := o.regions[o.Rng.IntN(len(o.regions))]
	a, d := r.agents[o.Rng.IntN(len(r.agents))], min(o.Between(20*time.Second, 90*time.Second), calm-time.Duration(o.Now))
	if a.p.Unwanted || a.h.Down || d < 10*time.Second {
		return
	}
	empty := false
	if o.Chance(2) {
		for _, s := range r.raft.servers {
			o.cutPair(a.h, s.h, d, true)
		}
	} else {
		o.note("switch off %s for %s", a.id, d)
		a.h.Crash()
		a.h.Off = true
		empty = o.Chance(2)
		o.In(d, func() { o.switchOn(a, empty) })
	}
	o.In(o.Between(10*time.Second, d), func() {
		if empty || !a.mayRunUnbound() {
			o.remove(r, a.id)
		}
	})
}

// mayRunUnbound reports whether a node without contact runs work that no lease binds, or starts such
// work again by the orders on its disk.
func (a *agent) mayRunUnbound() bool {
	for _, run := range a.runs {
		if !run.ended && run.o.binding == lease.None {
			return true
		}
	}
	for id, o := range a.disk.orders {
		if a.understood(o).binding == lease.None && o.want == state.Run && a.disk.records[id].End == nil && !a.disk.removed[id] {
			return true
		}
	}
	return len(a.disk.pending) > 0
}

// remove removes a node that is not ready, as regional/api does.
func (o operator) remove(r *regionSim, id string) {
	m := r.master()
	if m == nil {
		return
	}
	n, known := m.view().Node(id)
	if !known || n.Status == state.NodeReady || sched.BoundLeft(m.planInput(), id) > 0 {
		return
	}
	if o.Tracing() {
		o.Tracef("operator: remove %s", id)
	}
	m.propose(state.Command{RemoveNode: &state.RemoveNode{ID: id}}, nil)
}

// switchOn switches a node on again, unless its whole region is switched off. A node with an empty
// disk gets another id, so the operator removes the earlier one.
func (o operator) switchOn(a *agent, empty bool) {
	if !a.h.Off || a.r.raft.servers[0].h.Off {
		return
	}
	if empty {
		a.forget()
		was := a.id
		a.id += "+"
		var again func()
		again = func() {
			o.In(o.Between(5*time.Second, 20*time.Second), again)
			o.remove(a.r, was)
		}
		again()
	}
	a.h.Off = false
	a.h.Restart()
}

// level is the least feature level of a region's servers.
func (r *regionSim) level() uint32 {
	if slices.ContainsFunc(r.raft.servers, func(s *regionServer) bool { return s.old }) {
		return 0
	}
	return state.FeatureLevel
}

// levelChanged tells the master that a server was upgraded.
func (r *regionSim) levelChanged() {
	if m := r.master(); m != nil {
		m.limits()
	}
}

// bindingOf returns the leases that an order of this master names. A master of the level before
// names none, so agents follow the policy for lost nodes.
func (m *master) bindingOf(g *groupVersion, local bool) lease.Binding {
	b := bindingOf(g, local)
	if m.srv.old {
		b &= lease.Node
	}
	return b
}

// understood is an order as the agent's version reads it.
func (a *agent) understood(o allocOrder) allocOrder {
	if a.old {
		o.binding &= lease.Node
	}
	return o
}

// understands checks that every server of a region can read what its log gets.
func (v *watch) understands(r *regionSim, cmd *state.Command) {
	if r.raft == nil || r.level() > 0 {
		return
	}
	for i := range cmd.Batch {
		v.understands(r, &cmd.Batch[i])
	}
	if cmd.JoinFederation != nil || cmd.RebindFederation != nil || cmd.SetLimits != nil || cmd.OrdersStored != nil {
		v.fail(8, "the log of %s gets a command that a server of the level before cannot read", r.name)
	}
}

// supported checks where a version runs that the region's lease binds: only in regions in which
// that lease ends it.
func (v *watch) supported(a *agent, o allocOrder) {
	if o.want == state.Run && !o.local && o.spec.boundByRegion() && o.binding&lease.Region == 0 {
		v.fail(1, "%s runs %s, and does not know that the region's lease binds it", a.id, o.instance)
	}
}

// gaveUp notes which runs continue although their region gives their allocations up. A region of
// the level before may do that: see sim/LEDGER.md.
func (v *watch) gaveUp(g *raftGroup, res *state.Result) {
	for i := range res.Batch {
		v.gaveUp(g, &res.Batch[i])
	}
	for _, a := range res.Orders {
		if a.State == state.Lost {
			v.leave(instanceOf(g.r, a), func(r *run) bool { return r.o.id == a.ID })
		}
	}
}

// answered notes which runs continue although their region, of the level before, answers that it
// has given their instances up.
func (v *watch) answered(r *regionSim, a state.Answer) {
	if a.State == state.SlotAccepted || a.State == state.SlotKept {
		return
	}
	for i := a.From; i < a.To; i++ {
		v.leave(instance{job: a.Job, group: a.Group, index: i}, func(o *run) bool { return o.a.r == r })
	}
}

func (v *watch) leave(i instance, of func(r *run) bool) {
	for _, r := range v.live[i] {
		r.givenUp = r.givenUp || of(r)
	}
}

// early reports whether a region of the level before placed the allocation of a run.
func (r *run) early() bool { return r.o.placed <= r.a.r.leveledIndex }
