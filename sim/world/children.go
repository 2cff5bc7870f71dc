package world

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/global/progress"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/schedules/plan"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/job/steps"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/rollout"
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
	rule  *plan.Rule
	state plan.State
	// runs are the runs that have not ended, the earliest first. total counts all runs.
	runs  []plan.Run
	total int
	// did is the plan of the latest step, and wall the wall clock of the server at the latest step that was not
	// paused. Only the watch reads them.
	did  plan.Plan
	wall time.Time
}

// flowDef is a workflow. It never changes.
type flowDef struct {
	name        string
	graph       *steps.Graph
	rules       []flow.Rule
	when        []bool
	maxParallel int
}

// flowRecord is the stored record of a run of a workflow. It never changes.
type flowRecord struct {
	*flowDef
	phase    flow.Phase
	outcome  flow.Outcome
	why      string
	ended    bool
	items    [][]flow.Item
	attempts [][]int
	did      []flow.Action // by the latest step; only the watch reads it
	at       int64         // true time of the latest step
}

// kid says which run a job is.
type kid struct {
	of            string
	step, item    int // of a workflow
	schedule      *plan.Rule
	flow          *flowDef
	at            time.Time // of a schedule
	neverOverlaps bool
	backfill      bool
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
	for _, name := range sortedKeys(t.jobs) { // forget the runs that have ended
		if j := t.jobs[name]; j.purge && len(t.slotsOf(name)) == 0 {
			t.commit(func() []store.Write {
				if j := t.jobs[name]; j == nil || !j.purge || len(t.slotsOf(name)) > 0 {
					return nil
				}
				return []store.Write{{Key: jobPrefix + name, Delete: true}}
			}, nil)
		}
	}
}

// load begins a term with the stored records.
func (t children) load() {
	if !plant.Is(plant.TimesForgotten) {
		return
	}
	for name, r := range t.schedules {
		next := *r
		next.state.Decided = time.Unix(t.g.h.Wall()/1e9, 0)
		t.schedules[name] = &next
	}
}

// runState returns how a run is, as schedules.RunState does. gone: its job does not exist.
func (t children) runState(name string) (s plan.RunState, gone bool) {
	j := t.jobs[name]
	if j == nil {
		return plan.Stopped, true
	}
	owned, failed := 0, 0
	for _, s := range t.slotsOf(name) {
		part, has := partOf(t, s.Region, name)
		switch n := part.Groups[s.Group]; {
		case s.Vacant || len(s.Former) > 0:
			return plan.Active, false
		case s.State == region.Done:
			owned += s.Count()
		case !j.stopped && has && part.Version == s.JobVersion && part.Run == s.Run && n.Open == 0 && n.Ended == s.Count() && s.Desired == region.DesiredRun && s.State == region.Accepted:
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

// stop returns the write that stops a run. purge: the job is forgotten afterwards.
func (t children) stop(name string, purge bool) []store.Write {
	j := t.jobs[name]
	if j == nil || j.stopped && (j.purge || !purge) {
		return nil
	}
	return []store.Write{{Key: jobPrefix + name, Value: &jobRecord{jobVersion: j.jobVersion, run: j.run, revision: j.revision, stopped: true, purge: j.purge || purge}}}
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
	g.life.retry = &retry.Policy{Attempts: int32(e.Rng.IntN(2)), Default: retry.Rule{Attempts: -1, From: time.Second, To: 2 * time.Second}, Rules: []retry.Rule{{ExitCodes: []int32{exitFinal}, Fail: true}}}
	g.hash = g.identity()
	v.groups = []*groupVersion{g}
	v.spec = fmt.Appendf(nil, "%s v1 %d", name, len(w.specs))
	w.specs[string(v.spec)], w.versions[versionKey{name, 1}], w.kids[name] = v, v, k
	return store.Write{Key: jobPrefix + name, Value: &jobRecord{jobVersion: v}}
}

// began notes the revision of the jobs that a transaction has stored.
func (t children) began(ws []store.Write) {
	for _, o := range ws {
		if j, is := o.Value.(*jobRecord); is && j.revision == 0 {
			j.revision, j.run = t.rev, t.rev
		}
	}
}

// stepSchedule makes up to n steps of a schedule.
func (t children) stepSchedule(name string, n int) {
	if next, _ := t.scheduleStep(name, true); next == nil || n == 0 {
		return
	}
	var ws []store.Write
	t.commit(func() []store.Write {
		var next *scheduleRecord
		next, ws = t.scheduleStep(name, false)
		if next == nil {
			return nil
		}
		if plant.Is(plant.RunBeforeRecord) && next.did.Start != nil {
			return ws
		}
		ws = append(ws, store.Write{Key: schedulePrefix + name, Value: next})
		return ws
	}, func(ok bool) {
		if ok {
			t.began(ws)
			t.stepSchedule(name, n-1)
		}
	})
}

// scheduleStep returns the record of a schedule after a step, and the writes to jobs. It returns nil if nothing
// follows. ask: the caller asks only whether something follows.
func (t children) scheduleStep(name string, ask bool) (*scheduleRecord, []store.Write) {
	old := t.schedules[name]
	if old == nil {
		return nil, nil
	}
	now := time.Unix(0, t.g.h.Wall())
	next := &scheduleRecord{rule: old.rule, state: old.state, total: old.total, wall: now}
	if old.state.Paused {
		next.wall = old.wall
	}
	var runs []plan.Run
	var ws []store.Write
	for _, r := range old.runs {
		r.State, _ = t.runState(r.Name)
		if j := t.jobs[r.Name]; j != nil {
			r.Stopping = j.stopped
		}
		runs = append(runs, r)
		if r.State == plan.Active {
			next.runs = append(next.runs, r)
		} else {
			ws = append(ws, t.stop(r.Name, true)...)
		}
	}
	next.did = plan.Step(*old.rule, old.state, now, runs)
	next.state = next.did.State
	if t.w.Now > int64(lastStart) && !next.state.Paused { // an operator pauses it
		next.did = plan.Plan{}
		next.state = old.state
		next.state.Paused = true
	}
	if ask && next.did.Start != nil {
		return next, nil
	}
	if s := next.did.Start; s != nil {
		run := plan.Name(name, s.Time, s.Trigger, func(n string) bool { return t.jobs[n] != nil })
		if t.jobs[run] != nil {
			next.state.Skipped++
			next.did.Skipped = append(next.did.Skipped, plan.Skipped{Time: s.Time, Why: "exists already"})
			next.did.Start = nil
		} else {
			next.runs = append(next.runs, plan.Run{Name: run, Backfill: s.Trigger == plan.Backfill})
			next.total++
			ws = append(ws, t.begin(run, kid{of: name, schedule: old.rule, at: s.Time, backfill: s.Trigger == plan.Backfill, neverOverlaps: old.rule.Overlap != plan.Allow && old.rule.Overlap != plan.Terminate}))
		}
	}
	for _, s := range next.did.Stop {
		ws = append(ws, t.stop(s.Name, false)...)
	}
	if len(ws) == 0 && next.did.Start == nil && reflect.DeepEqual(next.state, old.state) && len(next.runs) == len(old.runs) {
		return nil, nil
	}
	if t.w.Tracing() && !ask {
		t.w.Tracef("%s: schedule %s: start %v stop %v skipped %d missed %d, %d active", t.g.name, name, next.did.Start, next.did.Stop, len(next.did.Skipped), next.did.Missed, len(next.runs))
	}
	return next, ws
}

// childName returns the name of the job of an attempt of a step.
func (r *flowRecord) childName(step, item, attempt int) string {
	return fmt.Sprintf("%s.%s-%d-%d", r.name, r.graph.Steps[step].Name, item, attempt)
}

// snapshotOf returns what package flow decides about.
func (r *flowRecord) snapshotOf() *flow.Snapshot {
	s := &flow.Snapshot{Graph: r.graph, Rules: r.rules, Phase: r.phase, Outcome: r.outcome, Why: r.why, MaxParallel: r.maxParallel}
	for i, items := range r.items {
		st := flow.Step{Items: items, End: flow.EndOf(items)}
		for _, it := range items {
			a, b := flow.Count(it)
			st.Active += a
			s.Active, s.Begun = s.Active+a, s.Begun+b
		}
		if st.End == steps.None && i != r.graph.OnExit {
			s.Open++
		}
		s.Steps = append(s.Steps, st)
	}
	return s
}

// decideFlow returns what follows in a run of a workflow.
func (t children) decideFlow(r *flowRecord) flow.Plan {
	all := make([]int, 0, len(r.items))
	for i := range r.items {
		all = append(all, i)
	}
	return flow.Decide(r.snapshotOf(), all, time.Unix(0, t.g.h.Wall()), flow.View{
		Job: func(step, item int) (steps.End, string) {
			switch s, gone := t.runState(r.childName(step, item, r.attempts[step][item])); {
			case gone:
				return steps.Lost, ""
			case s == plan.Complete:
				return steps.Succeeded, ""
			case s == plan.Active:
				return steps.None, ""
			}
			return steps.Failed, ""
		},
		When: func(step int) (bool, error) { return r.when[step], nil },
	}, 40)
}

// stepFlow makes up to n steps of a run of a workflow.
func (t children) stepFlow(name string, n int) {
	if r := t.flows[name]; n == 0 || r == nil || r.ended {
		return
	} else if p := t.decideFlow(r); p.Idle() {
		return
	}
	var ws []store.Write
	t.commit(func() []store.Write {
		r := t.flows[name]
		if r == nil || r.ended {
			return nil
		}
		ws = t.flowStep(r)
		return ws
	}, func(ok bool) {
		if ok {
			t.began(ws)
			t.stepFlow(name, n-1)
		}
	})
}

// flowStep returns the writes of a step of a run.
func (t children) flowStep(old *flowRecord) (ws []store.Write) {
	p := t.decideFlow(old)
	if p.Idle() {
		return nil
	}
	next := *old
	next.items, next.attempts, next.did, next.at = nil, nil, p.Actions, t.w.Now
	for i := range old.items {
		next.items, next.attempts = append(next.items, slices.Clone(old.items[i])), append(next.attempts, slices.Clone(old.attempts[i]))
	}
	for _, a := range p.Actions {
		for item := range next.items[a.Step] {
			if a.Item != item && a.Item != flow.Whole {
				continue
			}
			was := next.items[a.Step][item]
			next.items[a.Step][item] = a.Apply(was)
			child := next.childName(a.Step, item, next.attempts[a.Step][item])
			switch a.Do {
			case flow.Start:
				next.attempts[a.Step][item]++
				child = next.childName(a.Step, item, next.attempts[a.Step][item])
				ws = append(ws, t.begin(child, kid{of: old.name, flow: old.flowDef, step: a.Step, item: item}))
			case flow.Stop:
				ws = append(ws, t.stop(child, false)...)
			case flow.Retry, flow.Finish:
				ws = append(ws, t.stop(child, true)...)
			}
		}
		if t.w.Tracing() {
			t.w.Tracef("%s: workflow %s: %s", t.g.name, old.name, a)
		}
	}
	switch {
	case p.Ended:
		next.ended, next.outcome, next.why = true, p.Outcome, p.Why
	case p.Changes:
		next.phase, next.outcome, next.why = p.Phase, p.Outcome, p.Why
	}
	return append(ws, store.Write{Key: flowPrefix + old.name, Value: &next})
}

// isChild reports whether a job is a run of a schedule or of a workflow.
func isChild(job string) bool { return strings.Contains(job, ".") }

// bindsBoth reports whether both leases bind a run.
func bindsBoth(r *run) bool { return r.o.binding == lease.Both }

// tick decides about each rollout.
func (t rollouts) tick() {
	if !t.w.life || t.level() == 0 || t.ended() || !t.config().Serving(t.now()) {
		return
	}
	for _, name := range sortedKeys(t.jobs) {
		if !t.evaluates(t.jobs[name]) {
			delete(t.rolling, name)
			continue
		}
		if next, d := t.evaluate(t.jobs[name]); next != nil {
			was := t.rollouts[name]
			t.commit(func() []store.Write {
				j := t.jobs[name]
				if t.leadership.conflict || j == nil || !t.evaluates(j) || t.rollouts[name] != was || j.rolledOut() != next.Version {
					return nil
				}
				if t.w.Tracing() {
					t.w.Tracef("%s: rollout of %s v%d: %s: %s", t.g.name, name, next.Version, d.Kind, d.Why)
				}
				return []store.Write{{Key: rolloutPrefix + name, Value: next}}
			}, nil)
		}
	}
}

// evaluates reports whether a job has a rollout about which something is left to decide.
func (t rollouts) evaluates(j *jobRecord) bool {
	r := t.present(j)
	return j.typ != state.Batch && !j.stopped && j.rolledOut() > 0 && (r == nil || !r.Done)
}

// evaluate returns the record to store about a job's rollout, or nil, and the decision.
func (t rollouts) evaluate(j *jobRecord) (*rolloutRecord, progress.Decision) {
	rec, soft := t.present(j), t.rolling[j.name]
	if soft == nil {
		soft = &rollout.Soft{}
		t.rolling[j.name] = soft
	}
	next, d := soft.Evaluate(j.rolledOut(), rec.stored(), t.groupsOf(j, rec), t.stageOf(j, rec.stored()), t.heldBy(j), t.now(), t.wall())
	if next == nil {
		return nil, d
	}
	out := &rolloutRecord{Record: *next}
	if rec != nil {
		out.stable = rec.stable
	}
	return out, d
}

// heldBy returns why no deadline of a job's rollout counts, or "".
func (t rollouts) heldBy(j *jobRecord) string {
	for _, s := range t.slotsOf(j.name) {
		if r := t.regions[s.Region]; r != nil && !r.life.Connected() {
			return "region " + s.Region + " is disconnected"
		} else if r != nil && t.holdsCanary(j, s) {
			return "an override of region " + s.Region + " may keep a canary stopped"
		}
	}
	return ""
}

// holdsCanary reports whether an override may keep a canary of a slot stopped, as global/state/job.go does.
func (t rollouts) holdsCanary(j *jobRecord, s region.Slot) bool {
	rec, rep := t.present(j).stored(), t.regions[s.Region].report
	c := rec.Of(s.Group)
	return rep != nil && rec.Waits() && c != nil && rep.held[groupName{j.name, s.Group}] > 0 && s.From < c.From+c.N && s.To > c.From
}

// groupsOf returns the groups that take part in a rollout.
func (t rollouts) groupsOf(j *jobRecord, rec *rolloutRecord) (out []rollout.Group) {
	canaries := rec.stored().Waits()
	for _, g := range j.groups {
		c := rec.stored().Of(g.group)
		if g.life.since == 0 || canaries && c == nil {
			continue
		}
		f := rollout.Group{MinHealthy: max(0, g.life.minHealthy), AutoPromote: g.life.autoPromote,
			Group: progress.Group{Name: g.group, Desired: t.count(j, g), HealthyDeadline: g.life.healthyBound, ProgressDeadline: g.life.growthBound}}
		if canaries {
			f.Desired = c.N
		}
		for _, name := range t.names {
			t.addRegion(&f.Group, name, j, g, canaries)
		}
		if canaries || g.life.since == j.rolledOut() || f.Outdated > 0 {
			out = append(out, f)
		}
	}
	return out
}

// addRegion adds to a group what one region reports. canaries: only the canaries count.
func (t rollouts) addRegion(f *progress.Group, name string, j *jobRecord, g *groupVersion, canaries bool) {
	rep := t.regions[name].report
	if rep == nil || !t.regions[name].life.Connected() {
		return
	}
	var newer, older versionCount
	for key, n := range rep.versions {
		if key.groupName != (groupName{j.name, g.group}) {
			continue
		}
		to := &newer
		if key.version < g.life.since {
			to = &older
		}
		to.serving, to.starting, to.down = to.serving+n.serving, to.starting+n.starting, to.down+n.down
	}
	if canaries {
		owned, c := 0, t.present(j).stored().Of(g.group)
		for _, s := range t.slotsOf(j.name) {
			if s.Group == g.group && s.Region == name && s.Desired == region.DesiredRun && s.JobVersion >= g.life.since {
				owned += max(0, min(s.To, c.From+c.N)-max(s.From, c.From))
			}
		}
		newer.serving = min(owned, newer.serving)
		older = versionCount{}
	}
	if !canaries {
		f.Desired -= rep.held[groupName{j.name, g.group}]
	}
	f.Healthy += newer.serving
	f.Starting += newer.starting
	f.Outdated += older.serving + older.starting + older.down
}
