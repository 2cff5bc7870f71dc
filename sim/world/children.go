package world

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/schedules/plan"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

const (
	schedulePrefix = "schedules/"
	flowPrefix     = "workflows/"
	// lastStart is the time after which no run of a schedule begins, so that the world comes to rest.
	lastStart = 530 * time.Second
)

// scheduleRecord is the stored record of a schedule. It never changes.
type scheduleRecord struct {
	// former is the rule of the version before, or nil. op is the operation of an operator that the record is from, or "".
	rule, former *plan.Rule
	op           string

	state plan.State
	// runs are the runs that have not ended, the earliest first. total counts all runs.
	runs  []plan.Run
	total int
	// did is the plan of the latest step, and wall the wall clock of the server at the latest step that was not
	// paused. Only the watch reads them.
	did  plan.Plan
	wall time.Time
	// backfills counts the backfills, and asked the times that the latest one has.
	backfills, asked int
}

// kid says which run a job is.
type kid struct {
	of            string
	step, item    int // of a workflow
	attempt       int
	schedule      *plan.Rule
	flow          *flowDef
	at            time.Time // of a schedule
	neverOverlaps bool
	born          int64 // true time
	trigger       plan.Trigger
	backfill      int // the number of the backfill
}

// children runs schedules and workflows in a leadership term. It is the shell of the packages plan and flow,
// as global/schedules and global/workflows are.
type children struct{ *globalTerm }

// tick decides about every schedule and workflow.
func (t children) tick() {
	if t.ended() || !t.w.life || t.level() == 0 || t.leadership.conflict || !t.config().Serving(t.now()) {
		return
	}
	for _, name := range sortedKeys(t.schedules) {
		t.stepSchedule(name, 20)
	}
	for _, name := range sortedKeys(t.flows) {
		t.stepFlow(name, 20)
	}
	t.grant()
	retries(t).askLetters()
	retries(t).endKids()
	for _, name := range sortedKeys(t.jobs) { // forget the runs that have ended
		if j := t.jobs[name]; j.purge && j.stopped && len(t.slotsOf(name)) == 0 {
			t.commit(func() []store.Write {
				if j := t.jobs[name]; j == nil || !j.purge || len(t.slotsOf(name)) > 0 {
					return nil
				}
				return append(retries(t).forgetAttempts(name), store.Write{Key: jobPrefix + name, Delete: true})
			}, nil)
		}
	}
}

// load begins a term with the stored records.
func (t children) load() {
	for name, r := range t.schedules {
		next := *r
		switch {
		case plant.Is(plant.TimesForgotten):
			next.state.Decided = time.Unix(t.g.h.Wall()/1e9, 0)
		case plant.Is(plant.SchedulePauseForgotten) && t.w.Now < int64(lastStart):
			next.state.Paused = false
		case plant.Is(plant.RuleForgotten) && r.former != nil:
			next.rule = r.former
		}
		t.schedules[name] = &next
	}
}

// runState returns how a run is, as schedules.RunState does. gone: its job does not exist.
func (t children) runState(name string) (s plan.RunState, gone bool) {
	j := t.jobs[name]
	if j == nil {
		return plan.Stopped, true
	}
	owned, failed, parts := 0, 0, map[string]int{}
	for _, s := range t.slotsOf(name) {
		part, has := partOf(t, s.Region, name)
		n := part.Groups[s.Group]
		parts[s.Region+"/"+s.Group] += s.Count()
		switch ended := s.State == region.Done || s.State == region.Accepted; {
		case s.Vacant || len(s.Former) > 0:
			return plan.Active, false
		case s.State == region.Done && (j.stopped || !has && t.regions[s.Region].session == nil):
			owned += s.Count()
			if s.Reason != "" {
				failed++
			}
		case ended && !j.stopped && has && part.Version == s.JobVersion && part.Run == s.Run && n.Open == 0 && s.Desired == region.DesiredRun && n.Ended >= parts[s.Region+"/"+s.Group]:
			owned, failed = owned+s.Count(), failed+n.Failed
		default:
			return plan.Active, false
		}
	}
	switch {
	case j.stopped:
		return plan.Stopped, false
	case owned < j.groups[0].count:
		return plan.Active, false
	case failed > 0:
		return plan.Failed, false
	}
	return plan.Complete, false
}

// stop returns the write that stops a run. purge: it has ended, and its job is forgotten when its dead letters are stored.
func (t children) stop(name string, purge bool) []store.Write {
	j := t.jobs[name]
	if j == nil || (j.stopped || purge) && (j.purge || !purge) {
		return nil
	}
	return []store.Write{{Key: jobPrefix + name, Value: &jobRecord{jobVersion: j.jobVersion, run: j.run, revision: j.revision, stopped: j.stopped || !purge, purge: j.purge || purge}}}
}

// begin returns the write that stores the job of a run.
func (t children) begin(name string, k kid) store.Write {
	w := t.w
	e := w.Engine
	v := &jobVersion{name: name, version: 1, typ: state.Batch, priority: 50}
	after := func() time.Duration { return machine.Pick(e, waits[:]...) }
	g := &groupVersion{job: name, group: "g0", typ: state.Batch, count: 1, cpu: 100, kill: e.Between(0, 4*time.Second), maxParallel: 1,
		node: policy{after(), true, true}, region: policy{after(), true, true}, runs: e.Between(time.Second, 15*time.Second)}
	if k.schedule != nil {
		g.runs = e.Between(time.Second, 60*time.Second)
	}
	g.life.retry = newPolicy(e)
	g.hash = g.identity()
	v.groups = []*groupVersion{g}
	v.spec = fmt.Appendf(nil, "%s v1 %d", name, len(w.specs))
	k.born = w.Now
	w.specs[string(v.spec)], w.versions[versionKey{name, 1}], w.kids[name] = v, v, k
	return store.Write{Key: jobPrefix + name, Value: &jobRecord{jobVersion: v}}
}

// isChild reports whether a job is a run of a schedule or of a workflow.
func isChild(job string) bool { return strings.Contains(job, ".") }

// bindsBoth reports whether both leases bind a run.
func bindsBoth(r *run) bool { return r.o.binding == lease.Both }

// The numbers of the invariants of schedules and workflows.
const (
	// scheduleKept: each time of a schedule has one fate, no run begins twice, and no run overlaps another one
	// against the rule.
	scheduleKept = 13
	// workflowKept: a step runs only after what it depends on, once in each attempt, and no more often than
	// its rule says. Every run of a workflow ends.
	workflowKept = 14
)

// partOf returns the latest report of a region about its part of a job.
func partOf(t children, at, job string) (place.Summary, bool) {
	r := t.regions[at]
	if r == nil || r.report == nil {
		return place.Summary{}, false
	}
	s, has := r.report.parts[job]
	return s, has
}

// scenario submits the schedules and workflows of a world.
func scenario(w *world) {
	w.In(w.Between(60*time.Second, 120*time.Second), operator{w}.steer)
	operator{w}.overrides()
	for i := range w.Rng.IntN(3) {
		name := fmt.Sprintf("cron%d", i)
		w.In(w.Between(5*time.Second, 60*time.Second), func() { submitSchedule(w, name) })
	}
	for i := range w.Rng.IntN(4) {
		name := fmt.Sprintf("flow%d", i)
		w.In(w.Between(5*time.Second, 350*time.Second), func() { submitFlow(w, name) })
	}
}

// put stores a record, unless there is one. Without an active server it tries again.
func put(w *world, key string, value func(t *globalTerm) any) {
	t := w.active()
	if t == nil || t.level() == 0 {
		if w.Now < int64(calm) {
			w.In(5*time.Second, func() { put(w, key, value) })
		}
		return
	}
	t.commit(func() []store.Write {
		if t.mods[key] != 0 {
			return nil
		}
		return []store.Write{{Key: key, Value: value(t)}}
	}, nil)
}

// kidsSeen is what the watch knows about schedules and workflows.
type kidsSeen struct {
	fates map[string]string // by the schedule and the time
	began map[string]bool   // jobs of runs
	// exits has the exit code, plus one, of the latest process of the job of a step, or of one that has succeeded. canceled are the runs that were canceled.
	exits    map[string]int
	canceled map[string]bool
	// triggered are the runs that a server acknowledged to operators.
	triggered []string
}

// kept checks a write of the store that concerns schedules, workflows or their runs.
func (v *watch) kept(key string, old, next any) {
	if v.restoredAt != 0 {
		return
	}
	switch is := next.(type) {
	case *jobRecord:
		if k, known := v.w.kids[is.name]; known && old == nil {
			v.kidBegan(is.name, k)
		}
	case *nusav1.DeadLetter:
		v.stats.Letters++
		v.retries.stored(is)
	case *scheduleRecord:
		if was, had := old.(*scheduleRecord); had {
			v.scheduled(key, was, is)
		}
	case *flowRecord:
		if was, had := old.(*flowRecord); had {
			v.flowed(was, is)
		} else if is.outer != "" {
			v.kidBegan(is.name, kid{of: is.outer})
		}
		v.units(is)
	}
}

// kidBegan checks that a run begins once.
func (v *watch) kidBegan(name string, k kid) {
	if v.kids.began == nil {
		v.kids.began, v.kids.fates = map[string]bool{}, map[string]string{}
	}
	number := workflowKept
	if k.schedule != nil {
		number = scheduleKept
	}
	once := name
	if k.trigger == plan.Backfill { // no history keeps the names of the runs of an earlier backfill
		once = fmt.Sprintf("%s of backfill %d", name, k.backfill)
	}
	if v.kids.began[once] {
		v.fail(number, "run %s begins again", name)
	}
	v.kids.began[once] = true
	switch of := schedulePrefix + k.of; {
	case k.trigger == plan.Backfill:
		v.fate(fmt.Sprintf("%s backfill %d", of, k.backfill), k.at, "begun")
	case k.trigger == plan.Manual:
	case k.schedule != nil:
		v.fate(of, k.at, "begun")
	}
}

// fate notes what became of a time of a schedule.
func (v *watch) fate(of string, at time.Time, what string) {
	if v.kids.fates == nil {
		v.kids.began, v.kids.fates = map[string]bool{}, map[string]string{}
	}
	key := fmt.Sprintf("%s@%d", of, at.Unix())
	if was, has := v.kids.fates[key]; has {
		v.fail(scheduleKept, "time %d of %s is %s, and was %s", at.Unix(), of, what, was)
	}
	v.kids.fates[key] = what
}

// scheduled checks a step of a schedule.
func (v *watch) scheduled(name string, was, is *scheduleRecord) {
	if is.did.Start != nil {
		active, stopping := 0, true
		for _, r := range is.runs[:len(is.runs)-1] {
			active++
			j, _ := v.w.etcd.Value(jobPrefix + r.Name).(*jobRecord)
			stopping = stopping && (r.Backfill || j != nil && j.stopped || slices.ContainsFunc(is.did.Stop, func(s plan.Stop) bool { return s.Name == r.Name }))
		}
		o := is.rule.Overlap
		if active > 0 && o != plan.Allow && (o != plan.Terminate || !stopping) {
			v.fail(scheduleKept, "a run of %s begins while %d have not ended; overlap is %s", name, active, o)
		}
	}
	if is.state.Decided.Before(was.state.Decided) {
		v.timesComeAgain(name, is.state.Decided)
	}
	if v.kids.operated(v.w, name, was, is) {
		return
	}
	for _, s := range is.did.Skipped {
		v.fate(name, s.Time, "skipped")
	}
	late, n := is.wall.Add(-is.rule.Jitter-is.rule.CatchUp), 0
	for at := was.state.Decided; n < 900; n++ {
		at, _ = is.rule.Next(at)
		if at.After(is.state.Decided) {
			break
		}
		_, has := v.kids.fates[fmt.Sprintf("%s@%d", name, at.Unix())]
		if waits := slices.ContainsFunc(is.state.Waiting, at.Equal); !has && !waits && !at.Before(late) {
			v.fail(scheduleKept, "time %d of %s gets no run, and is only %s late", at.Unix(), name, is.wall.Sub(at))
		}
	}
}

// timesComeAgain forgets what became of the times of a schedule that are still to come. A server whose clock was
// hours ahead has decided them: see plan.Step. In this world no history keeps the names of their runs.
func (v *watch) timesComeAgain(name string, after time.Time) {
	for run := range v.kids.began {
		if k := v.w.kids[run]; schedulePrefix+k.of == name && k.trigger == plan.BySchedule && k.at.After(after) {
			delete(v.kids.began, run)
		}
	}
	for key := range v.kids.fates {
		of, at, _ := strings.Cut(key, "@")
		if unix, err := strconv.ParseInt(at, 10, 64); err == nil && of == name && unix > after.Unix() {
			delete(v.kids.fates, key)
		}
	}
}

// flowed checks a step of a run of a workflow.
func (v *watch) flowed(was, is *flowRecord) {
	active := 0
	for i := range is.items {
		n := 0
		for item, it := range is.items[i] {
			if it.Stage == flow.Active || it.Stage == flow.Stopping {
				n++
			}
			tries := is.attempts[i][item]
			if is.before != nil {
				tries -= is.before.attempts[i][item]
			}
			if tries > is.rules[i].Limit+1 {
				v.fail(workflowKept, "step %s of %s is tried %d times; the limit is %d retries", is.graph.Steps[i].Name, is.name, tries, is.rules[i].Limit)
			}
			if is.before != nil && tries > 0 && !is.repeats(i) && flow.EndOf(is.before.items[i]) != steps.None {
				v.fail(workflowKept, "step %s of %s runs again after a retry from %s, on which it does not depend", is.graph.Steps[i].Name, is.name, is.graph.Steps[is.from].Name)
			}
			if in := v.innerOf(is, i, item); in != nil && !in.ended && it.Stage != flow.Active && it.Stage != flow.Stopping {
				v.fail(workflowKept, "step %s of %s goes on, and its run %s has not ended", is.graph.Steps[i].Name, is.name, in.name)
			}
			if is.attempts[i][item] > was.attempts[i][item] {
				v.stepBegins(was, is, i)
			}
		}
		if most := is.rules[i].AtOnce; is.rules[i].Items > 0 && n > most {
			v.fail(workflowKept, "%d items of step %s of %s run at once, of %d", n, is.graph.Steps[i].Name, is.name, most)
		}
		active += n
	}
	if active > is.maxParallel {
		v.fail(workflowKept, "%d steps of %s run at once, of %d", active, is.name, is.maxParallel)
	}
	v.kids.ended(v.w, was, is)
}

// innerOf returns the run of the latest attempt of a step that runs another workflow, or nil.
func (v *watch) innerOf(r *flowRecord, step, item int) *flowRecord {
	if r.inner[step] == nil || r.attempts[step][item] == 0 {
		return nil
	}
	in, _ := v.w.etcd.Value(flowPrefix + r.childName(step, item, r.attempts[step][item])).(*flowRecord)
	return in
}

// units checks that no more units of a semaphore are held than it has, in the state that a write makes. The writes
// of a transaction are checked one by one: the jobs and runs of steps do not hold units.
func (v *watch) units(is *flowRecord) {
	held := map[string]int{}
	is.addHeld(held)
	if len(held) == 0 {
		return
	}
	for key, k := range v.w.etcd.Keys {
		if r, flows := k.Value.(*flowRecord); flows && key != flowPrefix+is.name {
			r.addHeld(held)
		}
	}
	for _, name := range sortedKeys(held) {
		if held[name] > v.w.units[name] {
			v.fail(workflowKept, "%d units of semaphore %s are held, of %d", held[name], name, v.w.units[name])
		}
	}
}

// stepBegins checks that what a step depends on has ended as it must.
func (v *watch) stepBegins(was, is *flowRecord, i int) {
	end := func(j int) steps.End { return flow.EndOf(is.items[j]) }
	s := is.graph.Steps[i]
	switch {
	case i == is.graph.OnExit:
		for j := range is.items {
			if j != i && end(j) == steps.None && was.phase != flow.Exiting {
				v.fail(workflowKept, "on_exit of %s begins before the end of %s", is.name, is.graph.Steps[j].Name)
			}
		}
	case was.phase != flow.Running:
		v.fail(workflowKept, "step %s of %s begins after the run was canceled", s.Name, is.name)
	case s.Depends.Eval(end) != steps.True || s.When && !is.when[i]:
		v.fail(workflowKept, "step %s of %s begins, and its conditions do not hold", s.Name, is.name)
	}
}

// kidForks checks, by the processes that really run, that a run waits for others.
func (v *watch) kidForks(r *run) {
	k, known := v.w.kids[r.o.instance.job]
	if !known || !bindsBoth(r) || v.restoredAt != 0 || v.copied(r.a.r) || r.a.r.clusters > 0 {
		return
	}
	for i, all := range v.live {
		o, other := v.w.kids[i.job]
		if !other || o.of != k.of || i.job == r.o.instance.job || !slices.ContainsFunc(all, func(x *run) bool { return x != r && bindsBoth(x) && executing(x) && !x.givenUp && !v.copied(x.a.r) }) {
			continue
		}
		if k.schedule != nil && k.neverOverlaps && o.neverOverlaps { // the schedule may have changed meanwhile
			v.fail(scheduleKept, "%s runs %s while %s runs; overlap is %s", r.a.id, r.o.instance.job, i.job, k.schedule.Overlap)
		}
		if k.flow == nil {
			continue
		}
		rec, _ := v.w.etcd.Value(flowPrefix + k.of).(*flowRecord)
		same := o.step == k.step && o.item == k.item
		if rec != nil && (same || slices.Contains(rec.graph.After[k.step], o.step) && flow.EndOf(rec.items[o.step]) != steps.None) {
			v.fail(workflowKept, "%s runs %s while %s runs, which has ended before", r.a.id, r.o.instance.job, i.job)
		}
	}
}

// stuck checks at the end that no schedule and no workflow is stuck.
func stuck(w *world, t *globalTerm) {
	if w.watch.restoredAt != 0 || t.level() == 0 {
		return
	}
	for _, name := range sortedKeys(t.flows) {
		r := t.flows[name]
		if r.ended || w.Now-r.at < 30e9 {
			continue
		}
		waits := false
		for i, items := range r.items {
			for item := range items {
				waits = waits || awaits(t, r, i, item)
			}
		}
		p := (children{t}).decideFlow(r)
		for _, at := range p.Waits {
			waits = true
			if need := r.needs[at[0]][0]; unused(t, need) { // steps of a world take units of one semaphore
				w.watch.fail(workflowKept, "step %s of %s waits for semaphore %s, which has the units", r.graph.Steps[at[0]].Name, r.name, need.Name)
			}
		}
		if !waits || !p.Idle() {
			w.watch.fail(workflowKept, "run %s stands still", name)
		}
	}
	w.watch.kids.ranOnce(w, t)
	for _, name := range sortedKeys(t.schedules) {
		r := t.schedules[name]
		if next, _ := r.rule.Next(r.state.Decided); !r.state.Paused || next.Before(r.wall.Add(-r.rule.Jitter-30*time.Second)) {
			w.watch.fail(scheduleKept, "%s has decided nothing since %s", name, r.state.Decided)
		}
	}
}
