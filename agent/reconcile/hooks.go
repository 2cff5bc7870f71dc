package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
)

// Hook is the moment in the life of an allocation at which a task runs.
type Hook int

const (
	// Main: the task runs as long as the allocation.
	Main Hook = iota
	// Prestart: the task runs before the main tasks.
	Prestart
	// Poststart: the task starts when the main tasks run and their checks pass.
	Poststart
	// Poststop: the task runs after all other tasks have ended.
	Poststop
)

// PoststopLimit is the time for all poststop tasks. It is counted from the end of StopTime.
const PoststopLimit = 10 * time.Minute

// once reports whether a task must end by itself with exit code 0.
func (t Task) once() bool { return t.Hook != Main && !t.Sidecar }

// Done reports whether a task needs no further run. batch says that the job is a batch job.
func (t Task) Done(batch bool, ta TaskActual) bool {
	return (batch || t.once()) && ta.Phase == Ended && ta.ExitCode == 0 && ta.Signal == 0 && ta.Reason == ""
}

// done is Done for a task of an allocation.
func done(a Alloc, t Task, ta TaskActual) bool { return t.Done(a.Batch, ta) }

// mayBegin reports whether each task that comes before t is ready. Prestart tasks come before all
// others, and main tasks before poststart tasks. A task that ends by itself is ready when it is
// done, and any other task when it is done, or runs and passes its check.
func mayBegin(a Alloc, act Actual, t Task) bool {
	if t.Hook == Poststop {
		return false // continueClose starts it
	}
	for _, other := range a.Tasks {
		ta := act.Tasks[other.Name]
		ready := done(a, other, ta) || !other.once() && ta.serving(other)
		before := other.Hook == Prestart && t.Hook != Prestart || other.Hook == Main && t.Hook == Poststart
		if before && !ready {
			return false
		}
	}
	return true
}

// completed returns why an allocation is complete, or "" if it is not. Only a batch job completes.
// If its leader is done, the other tasks do not matter. Otherwise each main task must be done, and
// each poststart task that has begun, except sidecars.
func completed(a Alloc, act Actual) string {
	message := "every task exited with 0"
	if !slices.ContainsFunc(a.Tasks, func(t Task) bool { return t.Hook == Main }) {
		return ""
	}
	for _, t := range a.Tasks {
		ta := act.Tasks[t.Name]
		if t.Leader && done(a, t, ta) && a.Batch {
			return "the leader, task " + t.Name + ", exited with 0"
		}
		switch {
		case t.Hook == Main && (!a.Batch || !done(a, t, ta)),
			t.Hook == Poststart && t.once() && ta.Phase != Waiting && !done(a, t, ta):
			message = ""
		}
	}
	return message
}

// stopStage returns the stage in which a task is stopped: 0 for the leader, 2 for sidecars, 1 for
// other tasks.
func stopStage(t Task) int {
	switch {
	case t.Leader:
		return 0
	case t.Sidecar && t.Hook != Main:
		return 2
	}
	return 1
}

const stopStages = 3

// StopTime returns the longest time that the stop of an allocation's tasks takes. Poststop tasks
// are not in it.
func StopTime(a Alloc) time.Duration {
	var longest [stopStages]time.Duration
	for _, t := range a.Tasks {
		if t.Hook != Poststop {
			longest[stopStage(t)] = max(longest[stopStage(t)], t.KillTimeout+t.ShutdownDelay)
		}
	}
	var sum time.Duration
	for _, d := range longest {
		sum += d
	}
	return sum
}

// continueClose stops the running tasks, one stage after the other. Then it runs the poststop
// tasks. When nothing runs, it ends the allocation.
func (p *Plan) continueClose(in Input, a Alloc, act Actual, o Outcome) {
	for stage := range stopStages {
		live := false
		for _, t := range a.Tasks {
			ta := act.Tasks[t.Name]
			if t.Hook == Poststop || stopStage(t) != stage || !ta.live() && !ta.startUncertain() {
				continue
			}
			live = true
			if ta.Phase != Up && !ta.startUncertain() {
				continue
			}
			if at := o.Since.Add(t.ShutdownDelay); o.State == Stopped && in.Now.Before(at) {
				p.wakeAt(at)
				continue
			}
			p.add(Action{Kind: StopRun, Alloc: a.ID, Task: t.Name, Run: ta.Run, Grace: t.KillTimeout, Reason: o.Reason, Message: o.Message})
		}
		if live {
			return
		}
	}
	if !p.poststop(in, a, act, o) {
		p.add(Action{Kind: End, Alloc: a.ID, State: o.State, Reason: o.Reason, Message: o.Message, Failure: o.Failure})
	}
}

// poststop runs each poststop task once. It reports whether one still runs. It starts none if no
// other task has begun, if a lease binds the allocation, while the agent leaves, or after the limit.
func (p *Plan) poststop(in Input, a Alloc, act Actual, o Outcome) (live bool) {
	begun := false
	for _, t := range a.Tasks {
		begun = begun || t.Hook != Poststop && act.Tasks[t.Name].Run > 0
	}
	until := o.Since.Add(StopTime(a) + PoststopLimit)
	may := begun && a.Binding == lease.None && !in.Host.Leaving && in.Now.Before(until)
	for _, t := range a.Tasks {
		if t.Hook != Poststop {
			continue
		}
		ta := act.Tasks[t.Name]
		switch {
		case ta.Phase == Waiting && may:
			p.add(Action{Kind: Start, Alloc: a.ID, Task: t.Name, Run: max(1, ta.Run), Message: "the other tasks have ended"})
			live = true
		case ta.Phase == Up && (!in.Now.Before(until) || in.Host.Leaving), ta.startUncertain():
			p.add(Action{Kind: StopRun, Alloc: a.ID, Task: t.Name, Run: ta.Run, Grace: t.KillTimeout,
				Message: fmt.Sprintf("a poststop task may run for %s, and not while the agent leaves", PoststopLimit)})
			live = true
		case ta.live():
			if in.Now.Before(until) {
				p.wakeAt(until)
			}
			live = true
		}
	}
	return live
}
