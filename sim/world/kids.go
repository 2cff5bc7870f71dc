package world

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/schedules/plan"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/job/steps"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

// The numbers of the invariants of this file.
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

func submitSchedule(w *world, name string) {
	e := w.Engine
	period := machine.Pick[time.Duration](e, 13, 20, 30, 45) * time.Second
	rule := &plan.Rule{Job: name, Next: func(after time.Time) (time.Time, bool) { return after.Truncate(period).Add(period), true },
		Jitter: machine.Pick[time.Duration](e, 0, 0, 5) * time.Second, Overlap: machine.Pick(e, plan.Skip, plan.BufferOne, plan.BufferAll, plan.Cancel, plan.Terminate, plan.Allow),
		Buffer: 1 + e.Rng.IntN(3), CatchUp: machine.Pick[time.Duration](e, 20, 60, 600) * time.Second}
	put(w, schedulePrefix+name, func(t *globalTerm) any {
		now := time.Unix(t.g.h.Wall()/1e9, 0)
		if w.Tracing() {
			w.Tracef("operator: schedule %s each %s, overlap %s, catch up %s", name, period, rule.Overlap, rule.CatchUp)
		}
		s := plan.State{Decided: now}
		if e.Chance(3) {
			s.BackfillAt, s.BackfillTo, s.BackfillLeft = now.Add(-4*period), now, 3
		}
		return &scheduleRecord{rule: rule, state: s, wall: now}
	})
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

func submitFlow(w *world, name string) {
	d := newFlow(w.Engine, name)
	if d == nil {
		return
	}
	r := &flowRecord{flowDef: d}
	for i := range d.rules {
		n := max(1, d.rules[i].Items)
		r.items, r.attempts = append(r.items, make([]flow.Item, n)), append(r.attempts, make([]int, n))
	}
	put(w, flowPrefix+name, func(*globalTerm) any {
		if w.Tracing() {
			w.Tracef("operator: workflow %s with %d steps, on_exit %d", name, len(d.rules), d.graph.OnExit)
		}
		return r
	})
	w.In(w.Between(5*time.Second, 40*time.Second), func() { steer(w, name, w.Chance(4)) })
}

// newFlow makes a random workflow.
func newFlow(e *machine.Engine, name string) *flowDef {
	n := 2 + e.Rng.IntN(4)
	var all []steps.Step
	rules := map[string]flow.Rule{}
	for i := range n {
		step := steps.Step{Name: string(rune('a' + i)), Job: true, When: e.Chance(6)}
		if i > 0 {
			ends := func() string {
				return fmt.Sprintf("%c.%s", 'a'+e.Rng.IntN(i), machine.Pick(e, "succeeded", "succeeded", "succeeded", "failed", "skipped"))
			}
			text := ends()
			switch e.Rng.IntN(4) {
			case 0:
				text += " && " + ends()
			case 1:
				text += " || " + ends()
			case 2:
				text = fmt.Sprintf("%c.succeeded || %s", 'a'+i-1, text)
			}
			step.Depends, _ = steps.Parse(text)
		} else {
			step.Depends, _ = steps.Parse("")
		}
		r := flow.Rule{When: step.When, Items: -1, Limit: e.Rng.IntN(3), Backoff: time.Second, Retry: map[steps.End]bool{steps.Failed: true, steps.Lost: true}}
		if e.Chance(4) {
			r.Items, r.AtOnce = 1+e.Rng.IntN(4), 1+e.Rng.IntN(2)
		} else if e.Chance(4) {
			r.Approval, r.Timeout = true, machine.Pick[time.Duration](e, 20, 60)*time.Second
		} else if e.Chance(3) {
			r.Timeout = machine.Pick[time.Duration](e, 5, 15) * time.Second
		}
		if r.Timeout > 0 {
			r.Retry[steps.TimedOut], step.Timeout = e.Chance(2), true
		}
		rules[step.Name] = r
		all = append(all, step)
	}
	onExit := ""
	if e.Chance(3) {
		onExit = "x"
		d, _ := steps.Parse("")
		all = append(all, steps.Step{Name: onExit, Depends: d, Job: true})
		rules[onExit] = flow.Rule{Items: -1}
	}
	g, wrong := steps.New(all, onExit)
	if len(wrong) > 0 {
		return nil
	}
	d := &flowDef{name: name, graph: g, maxParallel: 1 + e.Rng.IntN(4)}
	for _, s := range g.Steps {
		d.rules, d.when = append(d.rules, rules[s.Name]), append(d.when, !e.Chance(2))
	}
	return d
}

// steer approves what waits in a run of a workflow, or cancels the run.
func steer(w *world, name string, cancel bool) {
	if w.Now < int64(calm) {
		w.In(w.Between(10*time.Second, 40*time.Second), func() { steer(w, name, false) })
	}
	t := w.active()
	if t == nil {
		return
	}
	t.commit(func() []store.Write {
		old := t.flows[name]
		if old == nil || old.ended || old.phase != flow.Running {
			return nil
		}
		next := *old
		next.did, next.items = nil, nil
		changed := cancel
		if cancel {
			next.phase = flow.Canceling
		}
		for i := range old.items {
			items := slices.Clone(old.items[i])
			for k := range items {
				if items[k].Stage == flow.Approval && !cancel {
					items[k], changed = flow.Item{Approved: true}, true
				}
			}
			next.items = append(next.items, items)
		}
		if !changed {
			return nil
		}
		return []store.Write{{Key: flowPrefix + name, Value: &next}}
	}, nil)
}

// kidsSeen is what the watch knows about schedules and workflows.
type kidsSeen struct {
	fates map[string]string // by the schedule and the time
	began map[string]bool   // jobs of runs
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
	case *scheduleRecord:
		if was, had := old.(*scheduleRecord); had {
			v.scheduled(key, was, is)
		}
	case *flowRecord:
		if was, had := old.(*flowRecord); had {
			v.flowed(was, is)
		}
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
	if v.kids.began[name] {
		v.fail(number, "run %s begins again", name)
	}
	v.kids.began[name] = true
	switch of := schedulePrefix + k.of; {
	case k.backfill:
		v.fate(of+" backfill", k.at, "begun")
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
		if k := v.w.kids[run]; schedulePrefix+k.of == name && k.at.After(after) {
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
			if is.attempts[i][item] > is.rules[i].Limit+1 {
				v.fail(workflowKept, "step %s of %s is tried %d times; the limit is %d retries", is.graph.Steps[i].Name, is.name, is.attempts[i][item], is.rules[i].Limit)
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
		if k.schedule != nil && k.neverOverlaps {
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
			for item, it := range items {
				child := t.jobs[r.childName(i, item, r.attempts[i][item])]
				waits = waits || it.Stage == flow.Approval || it.Stage == flow.Backoff || child != nil && (it.Stage == flow.Active || it.Stage == flow.Stopping)
			}
		}
		if p := (children{t}).decideFlow(r); !waits || !p.Idle() {
			w.watch.fail(workflowKept, "run %s stands still", name)
		}
	}
	for _, name := range sortedKeys(t.schedules) {
		r := t.schedules[name]
		if next, _ := r.rule.Next(r.state.Decided); !r.state.Paused || next.Before(r.wall.Add(-r.rule.Jitter-30*time.Second)) {
			w.watch.fail(scheduleKept, "%s has decided nothing since %s", name, r.state.Decided)
		}
	}
}
