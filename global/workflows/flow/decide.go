package flow

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/job/steps"
)

// Costs of actions: about how many records each one writes.
const (
	costStart, costStop, costOther = 8, 6, 1
)

// Decide returns what follows in a run. It looks at the touched steps, and at those that follow from their
// ends. room bounds the cost of the actions: see costStart. Of the touched steps the one with the lowest
// index goes first, so the result does not depend on their order.
func Decide(s *Snapshot, touched []int, now time.Time, v View, room int) Plan {
	d := &decider{s: s, v: v, now: now, room: room, steps: map[int]Step{}, waits: map[int]int{}, open: s.Open, active: s.Active, begun: s.Begun}
	switch s.Phase {
	case Resetting:
		d.reset()
		return d.plan
	case Exiting:
		d.walk([]int{s.Graph.OnExit})
		if end := d.step(s.Graph.OnExit).End; end != steps.None && len(d.plan.Left) == 0 {
			d.end(exitOutcome(s, end))
		}
		return d.plan
	}
	d.walk(touched)
	if len(d.plan.Left) > 0 {
		return d.plan
	}
	switch {
	case s.Phase == Running && d.open == 0:
		d.finish(d.outcome())
	case s.Phase == Canceling && d.begun == 0:
		d.finish(Canceled, s.Why)
	}
	return d.plan
}

// exitOutcome returns how a run ends after on_exit.
func exitOutcome(s *Snapshot, end steps.End) (Outcome, string) {
	if s.Outcome == Succeeded && end != steps.Succeeded {
		return Failed, "step " + s.Graph.Steps[s.Graph.OnExit].Name + " " + past(end)
	}
	return s.Outcome, s.Why
}

// Past returns, for example, "timed out".
func Past(e steps.End) string { return past(e) }

func past(e steps.End) string {
	switch e {
	case steps.TimedOut:
		return "timed out"
	case steps.Lost, steps.Skipped, steps.Canceled:
		return "was " + e.String()
	}
	return e.String()
}

// decider makes one plan. It has the states of the steps that the plan changes.
type decider struct {
	s    *Snapshot
	v    View
	now  time.Time
	room int
	plan Plan

	steps               map[int]Step
	waits               map[int]int // by step: how many of its items wait for semaphores
	open, active, begun int
}

func (d *decider) step(i int) Step {
	if st, changed := d.steps[i]; changed {
		return st
	}
	return d.s.Steps[i]
}

func (d *decider) endOf(i int) steps.End { return d.step(i).End }

// walk looks at steps, and at those that follow from their ends.
func (d *decider) walk(touched []int) {
	queue := slices.Clone(touched)
	slices.Sort(queue)
	queue = slices.Compact(queue)
	for len(queue) > 0 {
		if d.room <= 0 {
			d.plan.Left = append(d.plan.Left, queue...)
			return
		}
		i := queue[0]
		queue = queue[1:]
		before := d.step(i).End
		d.look(i)
		if before != steps.None || d.step(i).End == steps.None || d.s.Phase != Running {
			continue
		}
		d.open--
		for _, next := range d.s.Graph.Before[i] { // a later index: it stands after i
			if at, is := slices.BinarySearch(queue, next); !is {
				queue = slices.Insert(queue, at, next)
			}
		}
	}
}

// act adds an action, and notes what becomes of its items.
func (d *decider) act(a Action) {
	d.plan.Actions = append(d.plan.Actions, a)
	switch a.Do {
	case Start:
		d.room -= costStart
	case Stop:
		d.room -= costStop
	default:
		d.room -= costOther
	}
	st := d.step(a.Step)
	if _, changed := d.steps[a.Step]; !changed {
		st.Items = slices.Clone(st.Items)
	}
	for item, from := range st.Items {
		if a.Item != item && a.Item != Whole {
			continue
		}
		to := a.Apply(from)
		st.Items[item] = to
		st.Active += working(to) - working(from)
		d.active += working(to) - working(from)
		d.begun += begun(to) - begun(from)
	}
	st.End = EndOf(st.Items)
	d.steps[a.Step] = st
}

func working(it Item) int {
	if it.Stage == Active || it.Stage == Stopping {
		return 1
	}
	return 0
}

func begun(it Item) int {
	if it.Stage == Idle || it.Stage == Done {
		return 0
	}
	return 1
}

// Count returns what one item adds to Snapshot.Active and Snapshot.Begun.
func Count(it Item) (active, all int) { return working(it), begun(it) }

// badness has the ends in the order in which they decide about a step with items.
var badness = [...]int{steps.Skipped: 0, steps.Succeeded: 1, steps.Canceled: 2, steps.TimedOut: 3, steps.Lost: 4, steps.Failed: 5}

// EndOf returns how a step with some items ended: with the worst end of an item. None: an item has not ended.
func EndOf(items []Item) steps.End {
	worst := steps.Skipped
	for _, it := range items {
		if it.Stage != Done {
			return steps.None
		}
		if badness[it.End] > badness[worst] {
			worst = it.End
		}
	}
	return worst
}

// reset makes the steps of a retry ready to run again.
func (d *decider) reset() {
	for _, i := range below(d.s.Graph, d.s.From) {
		if !d.s.Steps[i].Stale {
			continue
		}
		for item, it := range d.s.Steps[i].Items {
			if it.Stage == Idle && !it.Approved {
				continue // it was reset, or never began
			}
			if d.room <= 0 {
				d.plan.Left = append(d.plan.Left, i)
				return
			}
			d.plan.Actions = append(d.plan.Actions, Action{Do: Reset, Step: i, Item: item})
			d.room -= costOther
		}
	}
	d.plan.Changes, d.plan.Phase = true, Running
}

// outcome returns how a run ends whose steps have all ended.
func (d *decider) outcome() (Outcome, string) {
	bad, first := 0, ""
	for i, s := range d.s.Graph.Steps {
		end := d.endOf(i)
		if i == d.s.Graph.OnExit || !end.Bad() && end != steps.Canceled || slices.ContainsFunc(d.s.Graph.Before[i], func(next int) bool { return d.endOf(next) != steps.Skipped || plant.Is(plant.FailureUnhandled) }) {
			continue
		}
		bad++
		if bad == 1 {
			first = "step " + s.Name + " " + past(end)
		}
	}
	switch bad {
	case 0:
		return Succeeded, ""
	case 1:
		return Failed, first
	}
	return Failed, first + ", and others did not succeed"
}

// finish ends a run, or lets on_exit run first.
func (d *decider) finish(o Outcome, why string) {
	if d.s.Graph.OnExit < 0 {
		d.end(o, why)
		return
	}
	d.plan.Changes, d.plan.Phase, d.plan.Outcome, d.plan.Why = true, Exiting, o, why
}

func (d *decider) end(o Outcome, why string) {
	d.plan.Ended, d.plan.Outcome, d.plan.Why = true, o, why
}

// below returns the steps that a retry from a step runs again.
func below(g *steps.Graph, from int) []int {
	if plant.Is(plant.RetryAll) {
		out := make([]int, len(g.Steps))
		for i := range out {
			out[i] = i
		}
		return out
	}
	return g.Below(from)
}

// Stale returns the steps that a retry from a step resets.
func Stale(g *steps.Graph, from int) map[int]bool {
	out := map[int]bool{}
	for _, i := range below(g, from) {
		out[i] = true
	}
	return out
}
