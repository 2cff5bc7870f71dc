package world

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/schedules/plan"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/job/steps"
	"github.com/nusa-scheduler/nusa/sim/world/ends"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

func submitSchedule(w *world, name string) {
	rule := newRule(w, name)
	operator{w}.runNow(name)
	operator{w}.steerSchedule(name)
	put(w, schedulePrefix+name, func(t *globalTerm) any {
		now := time.Unix(t.g.h.Wall()/1e9, 0)
		if w.Tracing() {
			w.Tracef("operator: schedule %s each %s, overlap %s, catch up %s", name, every(rule), rule.Overlap, rule.CatchUp)
		}
		s := plan.State{Decided: now}
		return &scheduleRecord{rule: rule, state: s, wall: now}
	})
}

// newRule makes a random rule of a schedule.
func newRule(w *world, name string) *plan.Rule {
	e := w.Engine
	period := machine.Pick[time.Duration](e, 13, 20, 30, 45) * time.Second
	return &plan.Rule{Job: name, Next: func(after time.Time) (time.Time, bool) { return after.Truncate(period).Add(period), true },
		Jitter: machine.Pick[time.Duration](e, 0, 0, 5) * time.Second, Overlap: machine.Pick(e, plan.Skip, plan.BufferOne, plan.BufferAll, plan.Cancel, plan.Terminate, plan.Allow),
		Buffer: 1 + e.Rng.IntN(3), CatchUp: machine.Pick[time.Duration](e, 20, 60, 600) * time.Second, PauseAfter: machine.Pick(e, 0, 0, 0, 2)}
}

// every returns the time from one run to the next.
func every(r *plan.Rule) time.Duration {
	first, _ := r.Next(time.Unix(0, 0))
	second, _ := r.Next(first)
	return second.Sub(first)
}

// Operations on schedules.
const (
	opPause  = "pause"
	opResume = "resume"
	opChange = "change"
)

// steerSchedule lets operators pause, resume and change a schedule from time to time.
func (o operator) steerSchedule(name string) {
	o.In(o.Between(30*time.Second, 100*time.Second), func() {
		if o.Now >= int64(lastStart-40*time.Second) {
			return
		}
		o.steerSchedule(name)
		t := o.active()
		if t == nil || t.level() == 0 || t.schedules[name] == nil {
			return
		}
		op := machine.Pick(o.Engine, opPause, opChange)
		if t.schedules[name].state.Paused {
			op = machine.Pick(o.Engine, opResume, opResume, opChange)
		}
		rule := newRule(o.world, name)
		t.commit(func() []store.Write { return children{t}.operated(name, op, rule) }, nil)
	})
}

// operated returns the write of an operation on a schedule, as the Schedules service and a submit of its job store it.
func (t children) operated(name, op string, rule *plan.Rule) []store.Write {
	old := t.schedules[name]
	if old == nil || old.state.Paused == (op == opPause) && op != opChange {
		return nil
	}
	now := time.Unix(t.g.h.Wall()/1e9, 0)
	next := old.next(old.wall)
	next.runs, next.op = old.runs, op
	switch op {
	case opPause:
		next.state.Paused, next.state.PauseReason = true, "by an operator"
	case opResume:
		next.state.Paused, next.state.PauseReason, next.state.Failures, next.wall = false, "", 0, now
		if next.state.Decided.Before(now) {
			next.state.Decided = now // the times of the pause are skipped
		}
	case opChange:
		next.former, next.rule, next.asked = old.rule, rule, old.asked-old.state.BackfillLeft
		next.state = plan.State{Decided: now, Paused: old.state.Paused, PauseReason: old.state.PauseReason, Skipped: old.state.Skipped, Missed: old.state.Missed}
		next.wall = now
	}
	if t.w.Tracing() {
		t.w.Tracef("operator: %s schedule %s, each %s, overlap %s", op, name, every(next.rule), next.rule.Overlap)
	}
	return []store.Write{{Key: schedulePrefix + name, Value: next}}
}

// operated checks a step of a schedule against what operators did: a pause lasts until one resumes the schedule, and
// the latest version counts. It returns true if the step was an operation.
func (k *kidsSeen) operated(w *world, name string, was, is *scheduleRecord) bool {
	switch {
	case was.state.Paused && !is.state.Paused && is.op != opResume:
		w.watch.fail(scheduleKept, "%s is not paused any more, and nobody has resumed it", name)
	case was.rule != is.rule && is.op != opChange:
		w.watch.fail(scheduleKept, "%s runs each %s, overlap %s; its latest version says %s, %s", name, every(is.rule), is.rule.Overlap, every(was.rule), was.rule.Overlap)
	case is.op == "" && was.state.Paused && is.did.Start != nil && is.did.Start.Trigger != plan.Manual:
		w.watch.fail(scheduleKept, "a run of %s begins, and it is paused", name)
	}
	return is.op != ""
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
	next := old.next(now)
	if old.state.Paused {
		next.wall = old.wall
	}
	runs := t.runsOf(old)
	ws := t.keepActive(next, runs)
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
			ws = append(ws, t.beginRun(name, next, run))
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

// next returns the record for the next step.
func (r *scheduleRecord) next(now time.Time) *scheduleRecord {
	return &scheduleRecord{rule: r.rule, former: r.former, state: r.state, total: r.total, wall: now, backfills: r.backfills, asked: r.asked}
}

// runsOf returns the runs of a schedule that have not ended, as they are now.
func (t children) runsOf(of *scheduleRecord) (runs []plan.Run) {
	for _, r := range of.runs {
		r.State, _ = t.runState(r.Name)
		if j := t.jobs[r.Name]; j != nil {
			r.Stopping = j.stopped
		}
		runs = append(runs, r)
	}
	return runs
}

// keepActive adds the active runs to a record, and returns the writes that forget the others.
func (t children) keepActive(next *scheduleRecord, runs []plan.Run) (ws []store.Write) {
	for _, r := range runs {
		if r.State == plan.Active {
			next.runs = append(next.runs, r)
		} else {
			ws = append(ws, t.stop(r.Name, true)...)
		}
	}
	return ws
}

// beginRun notes the run of a plan in a record, and returns the write that stores its job.
func (t children) beginRun(of string, next *scheduleRecord, run string) store.Write {
	s, rule := next.did.Start, next.rule
	next.runs = append(next.runs, plan.Run{Name: run, Backfill: s.Trigger == plan.Backfill})
	next.total++
	return t.begin(run, kid{of: of, schedule: rule, at: s.Time, trigger: s.Trigger, backfill: next.backfills, neverOverlaps: rule.Overlap != plan.Allow && rule.Overlap != plan.Terminate})
}

// trigger begins a run now, as an operator asks. It stores what plan.Now decides.
func (t children) trigger(name string) {
	var ws []store.Write
	run := ""
	t.commit(func() []store.Write {
		old := t.schedules[name]
		if old == nil || old.state.Paused && t.w.Now > int64(lastStart) {
			return nil
		}
		now := time.Unix(0, t.g.h.Wall())
		next, runs := old.next(now), t.runsOf(old)
		if old.state.Paused {
			next.wall = old.wall
		}
		var why string
		next.did, why = plan.Now(*old.rule, old.state, now, runs)
		ended := t.keepActive(next, runs)
		if why != "" {
			return nil
		}
		run = plan.Name(name, next.did.Start.Time, plan.Manual, func(n string) bool { return t.jobs[n] != nil })
		if t.jobs[run] != nil {
			return nil
		}
		next.state = plan.Count(*old.rule, next.did.State, runs).State
		ws = append(ended, t.beginRun(name, next, run))
		for _, s := range next.did.Stop {
			ws = append(ws, t.stop(s.Name, false)...)
		}
		ws = append(ws, store.Write{Key: schedulePrefix + name, Value: next})
		return ws
	}, func(ok bool) {
		if ok {
			t.w.watch.kids.triggered = append(t.w.watch.kids.triggered, run)
		}
	})
}

// backfill begins runs for times that have passed, as an operator asks.
func (t children) backfill(name string, n int) {
	t.commit(func() []store.Write {
		old := t.schedules[name]
		if old == nil || old.state.Paused {
			return nil
		}
		now := time.Unix(t.g.h.Wall()/1e9, 0)
		next := old.next(old.wall)
		next.runs = old.runs
		first, _ := old.rule.Next(now)
		second, _ := old.rule.Next(first)
		from, ok := now.Add(-time.Duration(n)*second.Sub(first)), false
		n = plan.Between(*old.rule, from, now, 100)
		next.state, ok = plan.Fill(old.state, from, now, n)
		if !ok {
			return nil
		}
		next.asked, next.backfills = n, old.backfills+1
		return []store.Write{{Key: schedulePrefix + name, Value: next}}
	}, nil)
}

// runNow lets operators trigger schedules and fill times in, from time to time.
func (o operator) runNow(name string) {
	o.In(o.Between(20*time.Second, 90*time.Second), func() {
		if t := o.active(); t != nil && t.level() > 0 && o.Now < int64(lastStart) {
			if o.Tracing() {
				o.Tracef("operator: run %s now", name)
			}
			if o.Chance(3) {
				children{t}.backfill(name, 1+o.Rng.IntN(3))
			} else {
				children{t}.trigger(name)
			}
		}
		if o.Now < int64(calm) {
			o.runNow(name)
		}
	})
}

// exited notes how a process of a step ended.
func (k *kidsSeen) exited(r *run) {
	if k.exits == nil {
		k.exits, k.canceled = map[string]int{}, map[string]bool{}
	}
	if job := r.o.instance.job; isChild(job) && k.exits[job] != 1 {
		k.exits[job] = 1 + r.exit // another process may end later, of an owner that was lost
	}
}

// ended checks how steps end by a step of a run, and how the run ends: by the processes that really ran, and by the
// conditions of its steps.
func (k *kidsSeen) ended(w *world, was, is *flowRecord) {
	if is.phase == flow.Canceling || is.phase == flow.Resetting {
		if k.canceled == nil {
			k.exits, k.canceled = map[string]int{}, map[string]bool{}
		}
		k.canceled[is.name] = is.phase == flow.Canceling
	}
	for i, items := range is.items {
		for item, it := range items {
			if it.Stage == flow.Done && was.items[i][item].Stage != flow.Done {
				k.itemEnded(w, was, is, i, item)
			}
		}
	}
	if !is.ended || was.ended {
		return
	}
	var all []ends.Step
	for i, s := range is.graph.Steps {
		all = append(all, ends.Step{Name: s.Name, Depends: is.depends[i], When: !s.When || is.when[i], End: flow.EndOf(is.items[i]).String()})
	}
	onExit := ""
	if is.graph.OnExit >= 0 {
		onExit = is.graph.Steps[is.graph.OnExit].Name
	}
	want := ends.Outcome(all, onExit)
	if k.canceled[is.name] {
		want = flow.Canceled.String()
	} else if wrong := ends.Wrong(all, onExit); wrong != "" {
		w.watch.fail(workflowKept, "run %s has ended, and %s", is.name, wrong)
	}
	if got := is.outcome.String(); got != want {
		w.watch.fail(workflowKept, "run %s has %s, by its steps it has %s: %v", is.name, got, want, all)
	}
}

// itemEnded checks the end of an item.
func (k *kidsSeen) itemEnded(w *world, was, is *flowRecord, i, item int) {
	it, rule, tries := is.items[i][item], is.rules[i], is.attempts[i][item]
	child := is.childName(i, item, tries)
	if is.before != nil {
		tries -= is.before.attempts[i][item]
	}
	step := is.graph.Steps[i].Name
	if it.End.Bad() && tries > 0 && was.phase != flow.Canceling && rule.Retry[it.End] && tries <= rule.Limit {
		w.watch.fail(workflowKept, "step %s of %s is %s after %d tries, and the limit is %d retries", step, is.name, it.End, tries, rule.Limit)
	}
	if it.End != steps.Succeeded {
		return
	}
	if is.inner[i] != nil {
		if in := w.watch.innerOf(is, i, item); in == nil || in.outcome != flow.Succeeded {
			w.watch.fail(workflowKept, "step %s of %s has succeeded, and its run %s has not", step, is.name, child)
		}
	} else if k.exits[child] != 1 {
		w.watch.fail(workflowKept, "step %s of %s has succeeded, and no process of %s has: code %d", step, is.name, child, k.exits[child]-1)
	}
}

// ranOnce checks at the end that each run that was acknowledged to an operator began, and that backfills are complete.
func (k *kidsSeen) ranOnce(w *world, t *globalTerm) {
	for _, run := range k.triggered {
		if !k.began[run] {
			w.watch.fail(scheduleKept, "run %s was acknowledged to an operator, and never began", run)
		}
		if s, gone := (children{t}).runState(run); !gone && s != plan.Active && !t.jobs[run].purge && w.Now-int64(lastStart) > 60e9 {
			w.watch.fail(scheduleKept, "run %s has ended, and its schedule does not know that", run)
		}
	}
	for _, name := range sortedKeys(t.schedules) {
		r, n := t.schedules[name], 0
		for key := range k.fates {
			if strings.HasPrefix(key, fmt.Sprintf("%s%s backfill %d@", schedulePrefix, name, r.backfills)) {
				n++
			}
		}
		if r.state.BackfillLeft+n != r.asked && r.backfills > 0 {
			w.watch.fail(scheduleKept, "backfill %d of %s began %d of %d runs, and %d are left", r.backfills, name, n, r.asked, r.state.BackfillLeft)
		}
	}
}
