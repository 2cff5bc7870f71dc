package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/schedules/plan"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/global/workflows/semaphore"
	"github.com/nusa-scheduler/nusa/job/steps"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

// flowDef is a workflow. It never changes.
type flowDef struct {
	name        string
	graph       *steps.Graph
	depends     []string // by step
	rules       []flow.Rule
	when        []bool
	maxParallel int
	// needs has what each step takes of semaphores. inner has, by step, the workflow that it runs, as it was when the
	// outermost run began; nil: the step runs a job.
	needs [][]semaphore.Need
	inner []*flowDef
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
	// outer is the run whose step began this one, or "". outerAt is that step, its item, and the attempt.
	outer   string
	outerAt [3]int
	// from is the step of the latest retry, and before is the record before it; nil: there was no retry.
	from   int
	before *flowRecord
}

// begin returns the record of a new run. outer is the run whose step begins it, or "".
func (d *flowDef) begin(name, outer string, at [3]int) *flowRecord {
	own := *d
	own.name = name
	r := &flowRecord{flowDef: &own, outer: outer, outerAt: at}
	for i := range d.rules {
		n := max(1, d.rules[i].Items)
		r.items, r.attempts = append(r.items, make([]flow.Item, n)), append(r.attempts, make([]int, n))
	}
	return r
}

// semaphores are the names of the semaphores of a world.
var semaphores = [...]string{"s0", "s1"}

// submitFlow lets an operator begin a run of a workflow.
func submitFlow(w *world, name string) {
	d := newFlow(w, name, true)
	if d == nil {
		return
	}
	r := d.begin(name, "", [3]int{})
	put(w, flowPrefix+name, func(*globalTerm) any {
		if w.Tracing() {
			w.Tracef("operator: workflow %s with %d steps, on_exit %d", name, len(d.rules), d.graph.OnExit)
		}
		return r
	})
	w.In(w.Between(5*time.Second, 40*time.Second), func() { steer(w, name, w.Chance(4)) })
}

// newFlow makes a random workflow. nests: some of its steps run other workflows.
func newFlow(w *world, name string, nests bool) *flowDef {
	e := w.Engine
	n := 2 + e.Rng.IntN(4)
	var all []steps.Step
	depends := map[string]string{}
	rules, needs, inner := map[string]flow.Rule{}, map[string][]semaphore.Need{}, map[string]*flowDef{}
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
			depends[step.Name] = text
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
		switch {
		case nests && e.Chance(6):
			inner[step.Name] = newFlow(w, step.Name, false)
		case e.Chance(4):
			of := semaphores[e.Rng.IntN(2)]
			needs[step.Name] = append(needs[step.Name], semaphore.Need{Name: of, Units: 1 + e.Rng.IntN(w.units[of])})
			r.Semaphores = true
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
		d.needs, d.inner = append(d.needs, needs[s.Name]), append(d.inner, inner[s.Name])
		d.depends = append(d.depends, depends[s.Name])
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
	for _, inner := range sortedKeys(t.flows) {
		if inner == name || t.flows[inner].outer == name && !cancel {
			steerRun(w, t, inner, cancel)
		}
	}
}

// steerRun approves what waits in one run, cancels it, or lets it begin again.
func steerRun(w *world, t *globalTerm, name string, cancel bool) {
	t.commit(func() []store.Write {
		old := t.flows[name]
		switch {
		case old == nil:
			return nil
		case old.ended && w.Now < int64(calm) && w.Chance(2):
			return old.retry(w)
		case old.ended || old.phase != flow.Running:
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

// retry lets a run that has ended begin again from a step, as an operator asks.
func (r *flowRecord) retry(w *world) []store.Write {
	from := w.Rng.IntN(len(r.items))
	if r.outer != "" || r.outcome == flow.Succeeded || from == r.graph.OnExit {
		return nil
	}
	next := *r
	next.phase, next.outcome, next.why, next.ended, next.did = flow.Resetting, flow.Undecided, "", false, nil
	next.from, next.at = from, w.Now
	next.before = &flowRecord{items: r.items, attempts: r.attempts}
	if w.Tracing() {
		w.Tracef("operator: retry workflow %s from %s", r.name, r.graph.Steps[from].Name)
	}
	return []store.Write{{Key: flowPrefix + r.name, Value: &next}}
}

// repeats reports whether a retry runs a step again: it is the step of the retry, or depends on it, or is on_exit.
func (r *flowRecord) repeats(i int) bool {
	if i == r.from || i == r.graph.OnExit {
		return true
	}
	return slices.ContainsFunc(r.graph.After[i], r.repeats)
}

// addHeld adds the units that the steps of a run hold.
func (r *flowRecord) addHeld(to map[string]int) {
	for i, needs := range r.needs {
		for _, it := range r.items[i] {
			if active, _ := flow.Count(it); active == 0 {
				continue
			}
			for _, n := range needs {
				to[n.Name] += n.Units
			}
		}
	}
}

// semaphoreTerm is what the active server knows about semaphores. It is soft: who holds units follows from the
// records of runs, except for grants whose steps have not begun.
type semaphoreTerm struct {
	queue   semaphore.Queue
	granted map[semaphore.Key][]semaphore.Need
}

// noted forgets what waits, or was granted, for items that a record has begun or ended.
func (s *semaphoreTerm) noted(r *flowRecord) {
	for i, needs := range r.needs {
		for item, it := range r.items[i] {
			if len(needs) == 0 || !r.ended && it.Stage != flow.Active && it.Stage != flow.Stopping && it.Stage != flow.Done {
				continue
			}
			k := semaphore.Key{Run: r.name, Step: i, Item: item}
			s.queue.Remove(k)
			delete(s.granted, k)
		}
	}
}

// wait lets items wait for semaphores as a plan says, and gives back what the plan does not use.
func (t children) wait(r *flowRecord, p *flow.Plan) {
	s := &t.sems
	for i, needs := range r.needs {
		for item := range r.items[i] {
			k := semaphore.Key{Run: r.name, Step: i, Item: item}
			starts := slices.ContainsFunc(p.Actions, func(a flow.Action) bool { return a.Do == flow.Start && a.Step == i && a.Item == item })
			if len(needs) > 0 && !starts {
				delete(s.granted, k)
			}
		}
	}
	for _, w := range p.Waits {
		s.queue.Add(semaphore.Waiter{Key: semaphore.Key{Run: r.name, Step: w[0], Item: w[1]}, Since: time.Unix(0, t.g.h.Wall()), Needs: r.needs[w[0]]})
	}
}

// grant gives units to the items that have waited longest, and steps their runs.
func (t children) grant() {
	s := &t.sems
	if s.queue.Len() == 0 {
		return
	}
	held := map[string]int{}
	for _, r := range t.flows {
		r.addHeld(held)
	}
	for _, needs := range s.granted {
		for _, n := range needs {
			held[n.Name] += n.Units
		}
	}
	for _, w := range s.queue.Grant(func(name string) (int, int) { return t.w.units[name], held[name] }) {
		s.granted[w.Key] = w.Needs
		t.stepFlow(w.Run, 20)
	}
}

// innerEnd returns how the run of a step ended.
func (t children) innerEnd(name string) steps.End {
	switch in := t.flows[name]; {
	case in == nil:
		return steps.Lost
	case !in.ended:
		return steps.None
	case in.outcome == flow.Succeeded:
		return steps.Succeeded
	}
	return steps.Failed
}

// startChild returns the write that begins the job or the run of a step.
func (t children) startChild(r *flowRecord, step, item, attempt int) store.Write {
	name := r.childName(step, item, attempt)
	if d := r.inner[step]; d != nil {
		return store.Write{Key: flowPrefix + name, Value: d.begin(name, r.name, [3]int{step, item, attempt})}
	}
	return t.begin(name, kid{of: r.name, flow: r.flowDef, step: step, item: item, attempt: attempt})
}

// stopChild returns the write that stops the job or the run of a step. end: the step does not need it any more.
func (t children) stopChild(r *flowRecord, step int, name string, end bool) []store.Write {
	if r.inner[step] == nil {
		return t.stop(name, end)
	}
	in := t.flows[name]
	if end || in == nil || in.ended || in.phase != flow.Running && in.phase != flow.Resetting {
		return nil
	}
	next := *in
	next.phase, next.did = flow.Canceling, nil
	return []store.Write{{Key: flowPrefix + name, Value: &next}}
}

// childName returns the name of the job of an attempt of a step.
func (r *flowRecord) childName(step, item, attempt int) string {
	return fmt.Sprintf("%s.%s-%d-%d", r.name, r.graph.Steps[step].Name, item, attempt)
}

// snapshotOf returns what package flow decides about.
func (r *flowRecord) snapshotOf() *flow.Snapshot {
	s := &flow.Snapshot{Graph: r.graph, Rules: r.rules, Phase: r.phase, Outcome: r.outcome, Why: r.why, MaxParallel: r.maxParallel, From: r.from}
	stale := map[int]bool{}
	if r.phase == flow.Resetting {
		stale = flow.Stale(r.graph, r.from)
	}
	for i, items := range r.items {
		st := flow.Step{Items: items, End: flow.EndOf(items)}
		for _, it := range items {
			st.Stale = st.Stale || stale[i] && (it.Stage != flow.Idle || it.Approved)
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
		Has: func(step, item int) bool {
			_, has := t.sems.granted[semaphore.Key{Run: r.name, Step: step, Item: item}]
			return has
		},
		Job: func(step, item int) (steps.End, string) {
			if r.inner[step] != nil {
				return t.innerEnd(r.childName(step, item, r.attempts[step][item])), ""
			}
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
		t.wait(r, &p)
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
			t.stepFlow(name, n-1)
		}
	})
}

// flowStep returns the writes of a step of a run.
func (t children) flowStep(old *flowRecord) (ws []store.Write) {
	p := t.decideFlow(old)
	t.wait(old, &p)
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
				ws = append(ws, t.startChild(old, a.Step, item, next.attempts[a.Step][item]))
			case flow.Stop:
				ws = append(ws, t.stopChild(old, a.Step, child, false)...)
			case flow.Retry, flow.Finish:
				ws = append(ws, t.stopChild(old, a.Step, child, true)...)
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

// awaits reports whether an item of a run waits for something that is still to come: an operator, the end of a
// back-off, or the end of the job or run of its latest attempt.
func awaits(t *globalTerm, r *flowRecord, step, item int) bool {
	switch it := r.items[step][item]; it.Stage {
	case flow.Approval:
		return it.Until.IsZero() || it.Until.After(time.Unix(0, t.g.h.Wall()))
	case flow.Backoff:
		return it.Until.After(time.Unix(0, t.g.h.Wall()))
	case flow.Active, flow.Stopping:
		if r.inner[step] != nil {
			in := t.w.watch.innerOf(r, step, item)
			return in != nil && !in.ended
		}
		s, gone := (children{t}).runState(r.childName(step, item, r.attempts[step][item]))
		return !gone && s == plan.Active
	}
	return false
}

// unused reports whether nothing justifies that a step waits for a semaphore: the steps that hold units leave enough,
// and no other step waits for those that are held. No run that uses the semaphore has changed for ten seconds.
func unused(t *globalTerm, need semaphore.Need) bool {
	held, waiters := map[string]int{}, 0
	same := func(n semaphore.Need) bool { return n.Name == need.Name }
	for _, r := range t.flows {
		if slices.ContainsFunc(r.needs, func(all []semaphore.Need) bool { return slices.ContainsFunc(all, same) }) && t.w.Now-r.at < 10e9 {
			return false
		}
		r.addHeld(held)
		if r.ended {
			continue
		}
		for _, at := range (children{t}).decideFlow(r).Waits {
			if slices.ContainsFunc(r.needs[at[0]], same) {
				waiters++
			}
		}
	}
	n := held[need.Name]
	return n == 0 || n+need.Units <= t.w.units[need.Name] && waiters == 1
}
