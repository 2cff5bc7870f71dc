package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/schedules/plan"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/job/steps"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

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
