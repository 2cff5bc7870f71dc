package world

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/schedules/plan"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

// The numbers of the invariants of this file. Worlds with life check them, too.
const (
	// parallelKept: no more instances of an array run at once than its `parallel`.
	parallelKept = 10
	// retriesEnd: no instance is tried more often than its policy allows.
	retriesEnd = 11
	// rolloutKept: a rollout takes down no more than max_parallel instances, and counts no instance as
	// healthy before it has run for min_healthy.
	rolloutKept = 12
	// canariesKept: no instance below the canaries gets a version before the canaries are promoted, a
	// server promotes only canaries that have run for min_healthy, and no rollout stands still.
	canariesKept = 15
)

// HasLife reports whether the world of a seed has life: two in eight have, one of them with scenes.
func HasLife(seed uint64) bool { return seed%LivesOf == 3 || seed%LivesOf == 5 }

// Lives of LivesOf worlds have life.
const Lives, LivesOf = 2, 8

// rules are the fields of a group that only worlds with life have.
type rules struct {
	retry *retry.Policy
	// parallel is how many instances of an array may run at once; 0: it is none.
	parallel            int
	minHealthy, stagger time.Duration
	// canaries is the number of canaries of each new version. A server promotes them if autoPromote is set.
	canaries                  int
	autoPromote               bool
	healthyBound, growthBound time.Duration // the deadlines of a rollout
	// since is the version that changed the work last. broken: its instances end after a moment.
	since  int64
	broken bool
}

// The exit codes of processes. After exitFinal, some policies try nothing again, and after exitElsewhere another region
// does. exitMemory: the process used more memory than it has.
const (
	exitFailed    = 1
	exitFinal     = 3
	exitElsewhere = 4
	exitMemory    = 137
)

// newRules makes the rules of a new group.
func newRules(w *world, g *groupVersion) (out rules) {
	e := w.Engine
	switch g.typ {
	case state.Service:
		out.minHealthy = machine.Pick[time.Duration](e, state.NoMinHealthy, time.Second, 3*time.Second, 8*time.Second)
		out.stagger = machine.Pick[time.Duration](e, 0, 0, 4*time.Second)
		out.healthyBound, out.growthBound = machine.Pick[time.Duration](e, 20, 60)*time.Second, machine.Pick[time.Duration](e, 40, 100)*time.Second
		if e.Chance(2) {
			out.canaries, out.autoPromote = 1+e.Rng.IntN(2), e.Chance(2)
		}
		g.count = 1 + e.Rng.IntN(6)
	case state.Batch:
		if e.Chance(2) {
			g.count, g.runs = 3+e.Rng.IntN(6), e.Between(3*time.Second, 40*time.Second)
			out.parallel = 1 + e.Rng.IntN(3)
		}
	default:
		return out
	}
	switch {
	case !e.Chance(2):
	case g.typ == state.Batch:
		out.retry = newPolicy(e)
	default:
		attempts := int32(e.Rng.IntN(4))
		out.retry = &retry.Policy{Attempts: attempts, Default: retry.Rule{Attempts: -1, From: time.Second, To: 4 * time.Second},
			Rules: []retry.Rule{{ExitCodes: []int32{exitFinal}, Fail: e.Chance(2), Attempts: -1, From: time.Second}}}
	}
	return out
}

// mebibyte is the unit of memory. Nodes have so much memory that it never decides where an instance fits.
const mebibyte = 1 << 20

// newPolicy makes the retry policy of a batch group.
func newPolicy(e *machine.Engine) *retry.Policy {
	p := &retry.Policy{Attempts: int32(e.Rng.IntN(4)), Default: retry.Rule{Attempts: -1, From: time.Second, To: 4 * time.Second}, MemoryBytes: 64 * mebibyte}
	p.Rules = []retry.Rule{
		{ExitCodes: []int32{exitFinal}, Fail: e.Chance(2), Attempts: -1, From: time.Second},
		{Categories: []retry.Category{retry.OOM}, MemoryMilli: machine.Pick[int64](e, 1300, 2000), MemoryLimit: machine.Pick[int64](e, 80, 100, 200) * mebibyte, Attempts: -1, From: time.Second},
		{ExitCodes: []int32{exitElsewhere}, OtherRegion: true, Attempts: machine.Pick[int32](e, -1, -1, 1), From: time.Second, To: 2 * time.Second},
		{Categories: []retry.Category{retry.NodeLost}, Attempts: machine.Pick[int32](e, -1, 1)},
	}
	if e.Chance(2) { // it also matches what the others do, so the order counts
		p.Rules = append(p.Rules, retry.Rule{Categories: []retry.Category{retry.App, retry.OOM}, Fail: e.Chance(3), Attempts: machine.Pick[int32](e, 0, 1), From: time.Second})
	}
	return p
}

// hasRule reports whether a rule of the policy meets a condition.
func (r *rules) hasRule(of func(retry.Rule) bool) bool {
	return r.retry != nil && slices.ContainsFunc(r.retry.Rules, of)
}

func asksOther(r retry.Rule) bool { return r.OtherRegion }

// changed updates the rules after a change of the group.
func (r *rules) changed(w *world, v *jobVersion, was, is *groupVersion) {
	if !w.life || was.cpu == is.cpu && was.kill == is.kill && was.singleton == is.singleton {
		return
	}
	r.since, r.broken = v.version, v.typ == state.Service && w.Chance(4)
}

func (r *rules) toState(to *state.Group) {
	to.Retry, to.Parallel, to.MinHealthy, to.Stagger = r.retry, int32(r.parallel), r.minHealthy, r.stagger
	if r.retry != nil {
		to.Ask.Resources.MemoryBytes = r.retry.MemoryBytes
	}
}

// level is the feature level that a region needs, as in global/state/toplace.go.
func (r *rules) level() int {
	switch {
	case r.hasRule(asksOther):
		return state.AttemptsLevel
	case r.parallel > 0:
		return state.ParallelLevel
	case r.retry != nil:
		return state.RetryLevel
	}
	return 0
}

// exit returns how a process of a batch instance ends.
func (r *rules) exit(w *world) int {
	switch {
	case r.retry != nil && w.Chance(3) && r.retry.MemoryBytes == 0:
		return machine.Pick(w.Engine, exitFailed, exitFailed, exitFinal)
	case r.retry != nil && r.retry.MemoryBytes > 0 && w.Chance(2):
		if w.Now > lastElsewhere {
			return machine.Pick(w.Engine, exitFailed, exitFinal, exitMemory)
		}
		return machine.Pick(w.Engine, exitFailed, exitFinal, exitMemory, exitMemory, exitElsewhere, exitElsewhere)
	case r.retry == nil && w.Chance(8):
		return exitFailed
	}
	return 0
}

// lastElsewhere is the time after which no process ends with exitElsewhere, so that the world comes to rest.
const lastElsewhere = int64(calm + 60*time.Second)

// failureOf returns why an allocation failed, as agent/master reports it.
func failureOf(e *reconcile.Outcome) *retry.Failure {
	if e.Failure == nil {
		return nil
	}
	f := e.Failure
	return &retry.Failure{Category: retry.Category(f.Category), Task: f.Task, ExitCode: int32(f.ExitCode), Signal: int32(f.Signal), Permanent: f.Permanent}
}

// lifeSeen is what the watch knows for the invariants of this file.
type lifeSeen struct {
	// up is when a process of an instance was first forked with the work of a version.
	up map[upKey]int64
}

type upKey struct {
	instance
	version int64
}

// forked notes that a process begins.
func (l *lifeSeen) forked(r *run, now int64) {
	if l.up == nil {
		l.up = map[upKey]int64{}
	}
	if k := (upKey{r.o.instance, r.o.spec.life.since}); l.up[k] == 0 {
		l.up[k] = now
	}
}

// lives checks what an entry of a region's log does to the lives of instances.
func (v *watch) lives(g *raftGroup, before *state.View, cmd *state.Command, res *state.Result) {
	for i := range res.Batch {
		v.lives(g, before, &cmd.Batch[i], &res.Batch[i])
	}
	after := g.st.Snapshot()
	v.retries.ended(g, before, after, cmd)
	v.retries.placed(g, after, cmd, res)
	if cmd.ApplyPlan == nil {
		return
	}
	for _, p := range cmd.ApplyPlan.Proven {
		was, had := before.Alloc(p.ID)
		is, has := after.Alloc(p.ID)
		if !had || !has || !was.Proving || is.Proving || was.JobVersion != is.JobVersion {
			continue
		}
		if spec := v.w.groupOf(after, is); spec != nil && spec.typ == state.Service && cmd.NowUnixNano-is.UpUnixNano < int64(spec.life.minHealthy) {
			v.fail(rolloutKept, "%s: %s counts as healthy after %s; min_healthy is %s", g.r.name, instanceOf(g.r, is), time.Duration(cmd.NowUnixNano-is.UpUnixNano), spec.life.minHealthy)
		}
	}
}

// planned checks a plan of a region: what it takes down for a new version.
func (v *watch) planned(m *master, view *state.View) {
	if !v.w.life || len(m.plan.Stops) == 0 {
		return
	}
	taken := map[state.GroupKey]int{}
	for _, s := range m.plan.Stops {
		if a, ok := view.Alloc(s.AllocID); ok && a.Serving() && s.Reason == state.ReasonSuperseded && !over(view, s) {
			taken[s.Key]++
		}
	}
	for key, n := range taken {
		slots, _ := view.Group(key)
		job, ok := view.Job(key.JobKey(), slots.Slots[0].JobVersion)
		if !ok || job.Type != state.Service {
			continue
		}
		down := v.down(view, slots, m.srv.h.Wall())
		if most := max(1, int(job.Group(key.Group).MaxParallel)); down+n > most {
			v.fail(rolloutKept, "%s: a rollout takes down %d instances of %s while %d are down; max_parallel is %d", m.r.name, n, key, down, most)
		}
	}
}

// over reports whether an instance needs no further attempt.
func over(view *state.View, s sched.Stop) bool {
	in := view.Instance(s.Key, s.Index)
	return in.Finished()
}

// down returns how many instances of a group certainly do not run because of changes or failures.
func (v *watch) down(view *state.View, g *state.GroupView, now int64) (n int) {
	for _, s := range g.Slots {
		for i := s.From; i < s.To; i++ {
			if !s.Wants(i) {
				continue
			}
			in := view.Instance(g.Key, i)
			live, connected, serving := 0, 0, false
			for a := range view.InstanceAllocs(g.Key, i) {
				if !a.Live() {
					continue
				}
				live++
				if !a.Disconnected {
					connected++
					serving = serving || a.Serving() && a.Desired == state.Run
				}
			}
			if !in.Finished() && (connected > 0 && !serving || live == 0 && in.Failures > 0 && in.NotBeforeUnixNano > now) {
				n++
			}
		}
	}
	return n
}

// atOnce checks how many instances of an array run, as far as leases end them when they are lost.
func (v *watch) atOnce(r *run) {
	g := r.o.spec
	bound := func(o *run) bool { return o.o.binding == lease.Both || o.o.local && o.o.binding&lease.Node != 0 }
	// What was submitted to a region of the level before has no bound.
	if g.life.parallel == 0 || !bound(r) || r.o.local && v.w.upgraded || v.copied(r.a.r) || r.a.r.clusters > 0 {
		return
	}
	n, at := 0, r.o.instance
	for at.index = 0; at.index < maxArray; at.index++ {
		if slices.ContainsFunc(v.live[at], func(o *run) bool { return bound(o) && executing(o) && !o.givenUp && o.o.spec.life.parallel > 0 }) {
			n++
		}
	}
	if n > g.life.parallel {
		v.fail(parallelKept, "%s forks %s, and %d instances run at once; parallel is %d", r.a.id, r.o.instance, n, g.life.parallel)
	}
}

// maxArray bounds the indices of arrays.
const maxArray = 16

// divided checks after a transaction that the parts of the regions do not exceed `parallel` together.
func (v *watch) divided(ws []store.Write) {
	if !v.w.life || v.restoredAt != 0 {
		return
	}
	seen := map[groupName]bool{}
	for _, o := range ws {
		s, is := o.Value.(region.Slot)
		name := groupName{s.Job, s.Group}
		j, _ := v.w.etcd.Value(jobPrefix + s.Job).(*jobRecord)
		if !is || s.Parallel == 0 || seen[name] || j == nil || j.group(s.Group) == nil {
			continue
		}
		seen[name] = true
		sum := 0
		for _, k := range v.w.etcd.Keys {
			if other, is := k.Value.(region.Slot); is && other.Job == s.Job && other.Group == s.Group && !other.Vacant && other.Desired == region.DesiredRun {
				sum += other.Parallel
			}
		}
		if most := j.group(s.Group).life.parallel; sum > most {
			v.fail(parallelKept, "the regions may run %d instances of %s/%s at once; parallel is %d", sum, s.Job, s.Group, most)
		}
	}
}

// standing checks at the end that no array waits for its turn while nothing of it runs.
func standing(w *world) {
	for _, r := range w.regions {
		m := r.master()
		if m == nil || m.plan == nil {
			continue
		}
		for _, wait := range m.plan.Waiting {
			if wait.Reason == state.ReasonParallel && !busy(w, wait.Key, r) && !w.watch.overrides.keepsShare(wait.Key) {
				w.watch.fail(parallelKept, "%s: %s waits for its turn, and nothing of it runs", r.name, wait.Key)
			}
		}
	}
}

// busy reports whether some instance of a group runs or waits for something else.
func busy(w *world, key state.GroupKey, at *regionSim) bool {
	for _, r := range w.regions {
		if key.Local && r != at {
			continue
		}
		m := r.master()
		if m == nil || m.plan == nil {
			continue
		}
		for a := range m.view().GroupAllocs(key) {
			if a.Live() || a.ModifiedUnixNano > m.srv.h.Wall()-45e9 {
				return true
			}
		}
		for _, u := range m.plan.Unplaced {
			if u.Key == key {
				return true
			}
		}
		for _, u := range m.plan.Waiting {
			if u.Key == key && u.Reason != state.ReasonParallel {
				return true
			}
		}
	}
	return false
}

// steer is what operators do with rollouts: they promote, fail, pause and resume. At the end they promote
// and resume all.
func (o operator) steer() {
	end := o.Now >= int64(calm)
	if !end || o.Now < int64(calm)+int64(60*time.Second) {
		o.In(o.Between(5*time.Second, 30*time.Second), o.steer)
	}
	t := o.active()
	if t == nil || t.level() == 0 {
		return
	}
	if !end && o.Chance(2) {
		o.newWork()
	}
	if !end && o.Chance(2) {
		o.runAgain()
	}
	for _, name := range sortedKeys(t.rollouts) {
		how := o.Rng.IntN(8)
		t.commit(func() []store.Write {
			j := t.jobs[name]
			if j == nil || (rollouts{t}).present(j) == nil || t.rollouts[name].Done || t.rollouts[name].Failed != "" {
				return nil
			}
			if j.order != nil && j.groups[0].life.broken && !end {
				return nil // operators let such a version take its course
			}
			was := t.rollouts[name]
			next := *was
			next.Decided = false
			switch {
			case end:
				next.Promoted, next.Paused = len(next.Canaries) > 0, false
			case how == 0 && was.Waits():
				next.Promoted = true
			case how == 1:
				next.Failed = "by an operator"
			case how < 4:
				next.Paused = !next.Paused
			case how == 4:
				next.Unpaused = (rollouts{t}).wall()
			}
			if next.Unpaused == was.Unpaused && next.Promoted == was.Promoted && next.Failed == was.Failed && next.Paused == was.Paused {
				return nil
			}
			if o.Tracing() {
				o.Tracef("operator: rollout of %s v%d: promoted %v, failed %q, paused %v", name, next.Version, next.Promoted, next.Failed, next.Paused)
			}
			return []store.Write{{Key: rolloutPrefix + name, Value: &next}}
		}, nil)
	}
}

// runAgain begins another run of a batch job whose instances have all ended. What they have left behind, such as dead
// letters, does not keep it from running.
func (o operator) runAgain() {
	o.submit(func(t *globalTerm) *jobRecord {
		for _, name := range sortedKeys(t.jobs) {
			j := t.jobs[name]
			if isChild(name) || j.typ != state.Batch || j.stopped {
				continue
			}
			if s, _ := (children{t}).runState(name); s == plan.Complete || s == plan.Failed {
				if o.Tracing() {
					o.Tracef("operator: run %s again", name)
				}
				return &jobRecord{jobVersion: j.jobVersion, revision: j.revision}
			}
		}
		return nil
	})
}

// newWork submits a version of a service that changes the work of each group.
func (o operator) newWork() {
	o.submit(func(t *globalTerm) *jobRecord {
		old := o.aJob(t)
		if old == nil || old.stopped || old.typ != state.Service {
			return nil
		}
		if r := (rollouts{t}).present(old); r != nil && !r.Done && r.Failed == "" && !o.Chance(4) {
			return nil // most rollouts go on to their end, or to a deadline
		}
		v := o.newVersion(old.name, old.jobVersion)
		fails := v.order != nil && o.Chance(2)
		for i, g := range v.groups {
			was := old.groups[i]
			g.cpu = machine.Pick(o.Engine, amounts[:]...)
			g.kill = was.kill + time.Millisecond
			g.life.changed(o.world, v, was, g)
			if fails { // in each region, without canaries that would show it before
				g.life.broken, g.life.canaries, g.life.minHealthy = true, 0, 3*time.Second
			}
			g.hash = g.identity()
		}
		o.versions[versionKey{v.name, v.version}] = v
		if o.Tracing() {
			o.Tracef("operator: new work %s", v)
		}
		return &jobRecord{jobVersion: v, run: old.run, revision: old.revision}
	})
}
