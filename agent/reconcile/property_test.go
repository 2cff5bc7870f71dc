package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/agent/health"
	"github.com/nusa-scheduler/nusa/agent/lease"
)

// TestRulesHoldInRandomHistories orders, ends and forgets allocations in random order
// and checks the rules of an agent after each step.
func TestRulesHoldInRandomHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &checked{rt: rt, world: world{t: t, host: Host{CPUMilli: 1000, MemoryBytes: 1000, MaxStarting: 4, Drivers: map[string]Driver{"process": {Fencing: true}}},
			allocs: map[string]*Alloc{}, actual: map[string]Actual{}}, started: map[string]bool{}, reached: map[string]State{}}
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			w.anything()
			w.check()
		}
	})
}

// checked is a world that checks the rules.
type checked struct {
	world
	rt      *rapid.T
	started map[string]bool // runs that ever began
	reached map[string]State
	n       int
}

// anything makes one random change.
func (w *checked) anything() {
	ids := slices.Sorted(maps.Keys(w.allocs))
	kinds := []string{"alloc", "time", "lease", "leave"}
	if len(ids) > 0 {
		kinds = append(kinds, "want", "task", "task", "task", "task", "check", "check", "restart")
	}
	switch rapid.SampledFrom(kinds).Draw(w.rt, "kind") {
	case "alloc":
		w.add()
	case "time":
		w.now += time.Duration(rapid.IntRange(0, 5000).Draw(w.rt, "ms")) * time.Millisecond
	case "lease":
		w.grant(time.Duration(rapid.IntRange(0, 10).Draw(w.rt, "s"))*time.Second, time.Duration(rapid.IntRange(0, 10).Draw(w.rt, "region s"))*time.Second)
	case "leave":
		w.host.Leaving = rapid.IntRange(0, 20).Draw(w.rt, "leaves") == 0
	case "want":
		a := w.allocs[rapid.SampledFrom(ids).Draw(w.rt, "alloc")]
		a.Want = max(a.Want, rapid.SampledFrom([]Want{Stop, Forget}).Draw(w.rt, "want"))
	case "task":
		w.progress(rapid.SampledFrom(ids).Draw(w.rt, "alloc"))
	case "check":
		w.probe(rapid.SampledFrom(ids).Draw(w.rt, "alloc"))
	case "restart":
		for _, id := range ids { // the agent was killed and restarts
			act := w.actual[id]
			for _, task := range w.allocs[id].Tasks {
				ta := act.Tasks[task.Name]
				switch {
				case act.End != nil:
				case ta.Phase == Launching && rapid.Bool().Draw(w.rt, "cut off"), ta.Run == 0 && !act.Accepted && rapid.Bool().Draw(w.rt, "before its record"):
					w.task(&act, task.Name, func(t *TaskActual) { t.Phase, t.Run, t.StartUncertain = Waiting, max(1, t.Run), true })
				case ta.live():
					w.task(&act, task.Name, func(t *TaskActual) { t.Phase = Unknown })
				}
			}
			w.actual[id] = act
		}
	}
}

func (w *checked) add() {
	w.n++
	a := &Alloc{ID: fmt.Sprintf("a%03d", w.n), Batch: rapid.Bool().Draw(w.rt, "batch"),
		Ask: Ask{CPUMilli: int64(rapid.IntRange(0, 600).Draw(w.rt, "cpu")), Drivers: []string{"process"}}}
	a.Binding = rapid.SampledFrom([]lease.Binding{lease.None, lease.Node, lease.Region, lease.Both}).Draw(w.rt, "binding")
	for i := range rapid.IntRange(1, 3).Draw(w.rt, "tasks") {
		a.Tasks = append(a.Tasks, Task{Name: fmt.Sprintf("t%d", i), Checked: !a.Batch && rapid.Bool().Draw(w.rt, "checked"), Restart: Restart{
			Attempts: rapid.IntRange(0, 2).Draw(w.rt, "attempts"), Window: time.Minute, Delay: time.Second}})
	}
	w.allocs[a.ID] = a
}

// progress makes a random task change its phase.
func (w *checked) progress(id string) {
	act := w.actual[id]
	name := rapid.SampledFrom(w.allocs[id].Tasks).Draw(w.rt, "task").Name
	code := rapid.SampledFrom([]int{0, 0, 1}).Draw(w.rt, "code")
	w.task(&act, name, func(t *TaskActual) {
		switch t.Phase {
		case Launching:
			t.Phase = Up
			if code != 0 {
				*t = t.Finish(TaskActual{Phase: Ended, Run: t.Run, Reason: ReasonStartFailed, Finished: epoch.Add(w.now)})
			}
		case Up, Closing:
			end := TaskActual{Phase: Ended, Run: t.Run, ExitCode: code, Finished: epoch.Add(w.now)}
			if v := lease.Evaluate(w.allocs[id].Binding, w.leases.At(w.now)); v.MustStop && rapid.Bool().Draw(w.rt, "by its supervisor") {
				end.Reason = Reason(v.Reason)
			} else if t.Phase == Closing {
				end.Reason = StoppedByAgent
			}
			*t = t.Finish(end)
		}
	})
	w.actual[id] = act
}

// probe makes the checks of a random task pass or fail.
func (w *checked) probe(id string) {
	act := w.actual[id]
	task := rapid.SampledFrom(w.allocs[id].Tasks).Draw(w.rt, "task")
	w.task(&act, task.Name, func(t *TaskActual) {
		if task.Checked && t.Phase == Up && t.Health != health.Unhealthy {
			*t = t.WithHealth(rapid.SampledFrom([]health.Phase{health.Healthy, health.Unhealthy}).Draw(w.rt, "phase"), "fails")
		}
	})
	w.actual[id] = act
}

// check makes plans until nothing changes. It compares every action with the rules
// and applies it.
func (w *checked) check() {
	for round := 0; ; round++ {
		p := Make(w.input())
		if again := Make(w.input()); fmt.Sprint(again) != fmt.Sprint(p) {
			w.rt.Fatalf("the same input gave\n%v\nand\n%v", p, again)
		}
		w.apart(p)
		if len(p.Actions) == 0 {
			if !p.Wake.IsZero() && !p.Wake.After(epoch.Add(w.now)) {
				w.rt.Fatalf("at %s the plan is empty, but the next plan is at %s", w.now, p.Wake.Sub(epoch))
			}
			break
		}
		if round > 6 {
			w.rt.Fatalf("the plans never become empty: %v", p.Actions)
		}
		for _, a := range p.Actions {
			w.rule(a)
			w.apply(a)
		}
	}
	var used int64
	for id, a := range w.allocs {
		act := w.actual[id]
		if act.Accepted && act.End == nil {
			used += a.Ask.CPUMilli
		}
		act.Reached = StateOf(*a, act)
		if act.Reached < w.reached[id] {
			w.rt.Fatalf("%s went back from %s to %s", id, w.reached[id], act.Reached)
		}
		if act.Reached == Running && w.reached[id] < Running {
			for _, t := range a.Tasks {
				if t.Checked && act.Tasks[t.Name].Health != health.Healthy {
					w.rt.Fatalf("%s is running before the check of %s has passed", id, t.Name)
				}
			}
		}
		w.actual[id], w.reached[id] = act, act.Reached
		if act.End != nil {
			for name, t := range act.Tasks {
				if t.live() || t.Phase == Unknown || t.StartUncertain {
					w.rt.Fatalf("%s has ended, but its task %s has not", id, name)
				}
			}
		}
	}
	if used > w.host.CPUMilli {
		w.rt.Fatalf("%d of %d thousandths of a core are charged", used, w.host.CPUMilli)
	}
}

// apart makes a separate plan for each accepted allocation. It compares these plans with
// the plan for all allocations.
func (w *checked) apart(all Plan) {
	about := map[string][]Action{}
	for _, a := range all.Actions {
		about[a.Alloc] = append(about[a.Alloc], a)
	}
	in := w.input()
	var earliest time.Time
	for _, a := range in.Allocs {
		act := in.Actual[a.ID]
		if !act.Accepted && act.End == nil && a.Want == Run {
			continue
		}
		one := in
		one.Allocs, one.Actual = []Alloc{a}, map[string]Actual{a.ID: act}
		p := Make(one)
		if fmt.Sprint(p.Actions) != fmt.Sprint(about[a.ID]) {
			w.rt.Fatalf("%s among others:\n%v\nby itself:\n%v", a.ID, about[a.ID], p.Actions)
		}
		if !p.Wake.IsZero() && (earliest.IsZero() || p.Wake.Before(earliest)) {
			earliest = p.Wake
		}
	}
	if !earliest.IsZero() && (all.Wake.IsZero() || earliest.Before(all.Wake)) {
		w.rt.Fatalf("the next plan of all is at %s, of one of them at %s", all.Wake, earliest)
	}
}

// rule fails the test if an action breaks a rule.
func (w *checked) rule(a Action) {
	al, act := w.allocs[a.Alloc], w.actual[a.Alloc]
	if al == nil {
		w.rt.Fatalf("%s: no such allocation", a)
	}
	if a.Message == "" && a.Reason == "" && al.Want == Run {
		w.rt.Fatalf("%s: no reason", a)
	}
	switch a.Kind {
	case Start:
		run := fmt.Sprintf("%s/%s/%d", a.Alloc, a.Task, a.Run)
		if w.started[run] && !act.Tasks[a.Task].StartUncertain {
			w.rt.Fatalf("%s: it ran already", a)
		}
		w.started[run] = true
		if al.Want != Run || act.Closing != nil || act.End != nil || !act.Accepted || w.host.Leaving {
			w.rt.Fatalf("%s: it may not start: %+v", a, act)
		}
		if !lease.Evaluate(al.Binding, w.leases.At(w.now)).MayStart {
			w.rt.Fatalf("%s: without a lease", a)
		}
		if act.Tasks[a.Task].StartUncertain && a.Run != act.Tasks[a.Task].Run {
			w.rt.Fatalf("%s: the run before may begin yet", a)
		}
		n := 0
		for _, at := range act.Tasks[a.Task].Restarts {
			if at.After(epoch.Add(w.now - time.Minute)) {
				n++
			}
		}
		for _, t := range al.Tasks {
			if t.Name == a.Task && a.Restart && n >= t.Restart.Attempts {
				w.rt.Fatalf("%s: restarted %d times within a minute, %d are allowed", a, n, t.Restart.Attempts)
			}
		}
	case StopRun:
		if t := act.Tasks[a.Task]; t.Phase != Up && !t.startUncertain() {
			w.rt.Fatalf("%s: it does not run", a)
		}
		if act.Closing == nil && act.Tasks[a.Task].Health != health.Unhealthy && !lease.Evaluate(al.Binding, w.leases.At(w.now)).MustStop {
			w.rt.Fatalf("%s: nothing asks the run to end", a)
		}
	case Close, End:
		if al.Want == Run && ofLease(a.Reason) {
			w.rt.Fatalf("%s: the end of a lease ends no allocation", a)
		}
	case Accept, Decline:
		if act.Accepted || act.End != nil {
			w.rt.Fatalf("%s: decided before", a)
		}
	case Remove:
		if act.End == nil || al.Want != Forget {
			w.rt.Fatalf("%s: too early", a)
		}
	}
}
