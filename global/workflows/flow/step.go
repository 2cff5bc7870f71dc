package flow

import (
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/job/steps"
)

// look decides about one step.
func (d *decider) look(i int) {
	st := d.step(i)
	if st.End != steps.None || i == d.s.Graph.OnExit && d.s.Phase != Exiting {
		return
	}
	if d.s.Phase == Canceling {
		for item, it := range st.Items {
			d.cancel(i, item, it)
		}
		return
	}
	if fresh(st) && !d.starts(i) {
		return
	}
	for item := range st.Items {
		if d.room <= 0 {
			d.plan.Left = append(d.plan.Left, i)
			return
		}
		d.item(i, item)
	}
}

// fresh reports whether nothing was decided about a step.
func fresh(st Step) bool {
	return !slices.ContainsFunc(st.Items, func(it Item) bool { return it.Stage != Idle || it.Approved })
}

// starts reports whether a fresh step may start. If it never will, it ends.
func (d *decider) starts(i int) bool {
	s := &d.s.Graph.Steps[i]
	switch s.Depends.Eval(d.endOf) {
	case steps.Open:
		if !plant.Is(plant.DependsForgotten) {
			return false
		}
	case steps.False:
		d.endAll(i, steps.Skipped, d.because(i))
		return false
	}
	if slices.ContainsFunc(d.s.Rules[i].Uses, func(j int) bool { _, changed := d.steps[j]; return changed }) {
		return false // it is looked at again, because each end of a step is followed by a look at the next ones
	}
	if !d.s.Rules[i].When {
		return d.hasItems(i)
	}
	switch ok, err := d.v.When(i); {
	case err != nil:
		d.endAll(i, steps.Failed, "when: "+err.Error())
		return false
	case !ok:
		d.endAll(i, steps.Skipped, "when is false")
		return false
	}
	return d.hasItems(i)
}

// hasItems reports whether a step that may start has something to do. If not, it ends.
func (d *decider) hasItems(i int) bool {
	switch r := &d.s.Rules[i]; {
	case r.Wrong != "":
		d.endAll(i, steps.Failed, r.Wrong)
		return false
	case r.Items == 0:
		d.endAll(i, steps.Succeeded, "its list is empty")
		return false
	}
	return true
}

// because says why the condition of a step is false.
func (d *decider) because(i int) string {
	const most = 4
	var out []string
	for _, j := range d.s.Graph.After[i] {
		if end := d.endOf(j); end != steps.None && len(out) < most {
			out = append(out, d.s.Graph.Steps[j].Name+" "+past(end))
		}
	}
	if len(out) == 0 {
		return "depends is false"
	}
	return "depends is false: " + strings.Join(out, ", ")
}

// endAll ends a fresh step.
func (d *decider) endAll(i int, end steps.End, why string) {
	item := 0
	if d.s.Rules[i].Items >= 0 {
		item = Whole
	}
	d.act(Action{Do: Finish, Step: i, Item: item, End: end, Why: why})
}

// item decides about one item of a step that may start.
func (d *decider) item(i, item int) {
	it, rule := d.step(i).Items[item], &d.s.Rules[i]
	switch it.Stage {
	case Idle:
		switch {
		case rule.Approval && !it.Approved:
			d.act(Action{Do: Await, Step: i, Item: item, Until: d.timeout(rule), Why: "waits for an approval"})
		case !d.s.Graph.Steps[i].Job:
			d.done(i, item, steps.Succeeded, "approved")
		default:
			d.start(i, item)
		}
	case Approval:
		if due(it.Until, d.now) {
			d.done(i, item, steps.TimedOut, "nobody approved it in time")
		}
	case Backoff:
		if due(it.Until, d.now) {
			d.start(i, item)
		}
	case Active:
		switch end, why := d.v.Job(i, item); {
		case end != steps.None:
			d.ended(i, item, it, end, why)
		case due(it.Until, d.now):
			d.act(Action{Do: Stop, Step: i, Item: item, End: steps.TimedOut, Why: tooLong})
		}
	case Stopping:
		if end, _ := d.v.Job(i, item); end != steps.None && !plant.Is(plant.EndForgotten) {
			d.ended(i, item, it, it.End, tooLong)
		}
	}
}

const tooLong = "took longer than its timeout"

func due(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }

func (d *decider) timeout(r *Rule) time.Time {
	if r.Timeout <= 0 {
		return time.Time{}
	}
	return d.now.Add(r.Timeout)
}

// start begins an attempt, if there is room.
func (d *decider) start(i, item int) {
	rule := &d.s.Rules[i]
	if rule.Items >= 0 && d.step(i).Active+d.waits[i] >= rule.AtOnce {
		return // the end of another item makes room
	}
	if d.active >= d.s.MaxParallel || d.s.OneFirst && d.active > 0 {
		if n := len(d.plan.Held); n == 0 || d.plan.Held[n-1] != i {
			d.plan.Held = append(d.plan.Held, i)
		}
		return
	}
	if rule.Semaphores && !d.v.Has(i, item) {
		d.plan.Waits = append(d.plan.Waits, [2]int{i, item})
		d.waits[i]++
		return
	}
	d.act(Action{Do: Start, Step: i, Item: item, Until: d.timeout(rule)})
}

// ended decides what follows the end of an attempt.
func (d *decider) ended(i, item int, it Item, end steps.End, why string) {
	rule := &d.s.Rules[i]
	if !rule.Again(it, end) {
		d.done(i, item, end, why)
		return
	}
	pause := min(rule.Backoff, MaxBackoff)
	for range it.Tries - 1 {
		pause = min(2*pause, MaxBackoff)
	}
	until := d.now.Add(pause)
	if why == "" {
		why = past(end)
	}
	d.act(Action{Do: Retry, Step: i, Item: item, End: end, Until: until, Why: why})
}

// Again reports whether an attempt is followed by another one. it is as during the attempt.
func (r *Rule) Again(it Item, end steps.End) bool {
	limit := r.Limit
	if plant.Is(plant.RetryFewer) {
		limit--
	}
	return end.Bad() && r.Retry[end] && (it.Tries <= limit || plant.Is(plant.LimitForgotten))
}

// Followed reports whether an attempt that has failed, or fails now, is followed by another one. latest is the number
// of the latest attempt of the item it.
func (r *Rule) Followed(p Phase, it Item, attempt, latest int) bool {
	switch {
	case plant.Is(plant.LetterOfEach):
		return false
	case attempt != latest:
		return attempt < latest
	case it.Stage == Active:
		return (p == Running || p == Exiting) && r.Again(it, steps.Failed)
	case it.Stage == Stopping: // its job may fail by itself before it stops
		return (p == Running || p == Exiting) && r.Again(it, it.End)
	}
	return it.Stage == Backoff
}

func (d *decider) done(i, item int, end steps.End, why string) {
	d.act(Action{Do: Finish, Step: i, Item: item, End: end, Why: why})
}

// cancel stops what an item does.
func (d *decider) cancel(i, item int, it Item) {
	switch it.Stage {
	case Approval, Backoff:
		d.done(i, item, steps.Canceled, "")
	case Active, Stopping:
		switch end, why := d.v.Job(i, item); {
		case end != steps.None && it.Stage == Active:
			d.done(i, item, end, why)
		case end != steps.None:
			d.done(i, item, it.End, "")
		case it.Stage == Active:
			d.act(Action{Do: Stop, Step: i, Item: item, End: steps.Canceled})
		}
	}
}
