package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/health"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// advance makes plans and applies them until a plan contains no action. It returns the time
// of the next plan. The zero time means that the next plan follows the next event.
func (e *Engine) advance() time.Time {
	for range maxPlanRounds {
		in, whole := e.planner.input(view{now: e.cfg.Timeline.Now(), leases: e.leases.At(e.cfg.Clock()), host: e.host, allocs: e.allocs,
			portsInUse: e.cfg.PortsInUse, diskProblem: e.diskProblem})
		plan := reconcile.Make(in)
		wake := e.planner.planned(plan.Wake, whole)
		if len(plan.Actions) == 0 {
			return wake
		}
		for _, act := range plan.Actions {
			e.log.Debug("action", "do", act)
			e.cfg.Metrics.actions.WithLabelValues(act.Kind.String()).Inc()
			e.apply(act)
		}
	}
	e.planner.wake = e.cfg.Timeline.Now()
	return e.planner.wake
}

// apply applies one action. An action that takes time runs in a goroutine, which posts its
// result to the engine.
func (e *Engine) apply(do reconcile.Action) {
	a := e.allocs[do.Alloc]
	a.dirty = true
	switch do.Kind {
	case reconcile.Accept:
		a.act.Accepted = true
	case reconcile.Decline:
		a.act.End = &reconcile.Outcome{State: do.State, Declined: true, Reason: do.Reason, Message: do.Message}
		e.log.Info("allocation declined", "alloc", do.Alloc, "reason", do.Reason, "message", do.Message)
	case reconcile.Adopt:
		e.adopt(a, do)
	case reconcile.Start:
		e.startRun(a, do)
	case reconcile.Close:
		a.act.Closing = &reconcile.Outcome{State: do.State, Reason: do.Reason, Message: do.Message, Since: e.cfg.Timeline.Now(), Failure: do.Failure}
	case reconcile.StopRun:
		e.stopRun(a, do)
	case reconcile.End:
		a.act.End = &reconcile.Outcome{State: do.State, Reason: do.Reason, Message: do.Message, Failure: do.Failure}
		e.group.Go(func() error { return e.runner.cleanUp(do.Alloc) })
		e.log.Info("allocation ended", "alloc", do.Alloc, "state", do.State, "reason", do.Reason, "message", do.Message)
	case reconcile.Remove:
		e.remove(a)
	case reconcile.Resize:
		e.resizeRun(a, do)
	}
}

// startRun begins a run of a task.
func (e *Engine) startRun(a *alloc, do reconcile.Action) {
	now := time.Now()
	t := a.act.Tasks[do.Task]
	task := a.task(do.Task)
	l := launch{order: a.tasks[do.Task], binding: a.spec.Binding,
		// A driver may have no record of a run that did not start.
		previousKnown: t.Reason != reconcile.ReasonStartFailed && !t.Lapsed(), uncertain: t.StartUncertain}
	lapsed := t.Lapsed()
	t = t.Started(task, do.Run)
	if do.Restart {
		at := e.cfg.Timeline.Now()
		t.Restarts = append(reconcile.Recent(task.Restart, t.Restarts, at), at)
	}
	a.setTask(do.Task, t)
	d := a.detail(do.Task)
	d.State = nusav1.AllocState_ALLOC_STATE_STARTING
	if do.Restart {
		d.Restarts++
		addEvent(d, now, "restarting", do.Message)
	}
	if lapsed {
		a.act.Started = time.Time{} // the time without a lease does not count for max_runtime
		addEvent(d, now, "restarting", do.Message)
	}
	l.order.task.ID.Run = do.Run
	e.group.Go(func() error { return e.runner.launch(l) })
}

// stopRun stops a run. The goroutine that follows the run reports the end of the run.
func (e *Engine) stopRun(a *alloc, do reconcile.Action) {
	t := a.act.Tasks[do.Task]
	a.setTask(do.Task, t.Stopping(do.Reason))
	message := fmt.Sprintf("within %s", do.Grace)
	if do.Reason != reconcile.ReasonUnhealthy { // an earlier event has do.Message
		message += ": " + do.Message
	}
	addEvent(a.detail(do.Task), time.Now(), "stopping", message)
	id := driver.ID{Alloc: do.Alloc, Task: do.Task, Run: do.Run}
	e.checks.end(id)
	name := a.tasks[do.Task].driver
	drv := e.cfg.Drivers[name]
	switch {
	case drv == nil: // the agent had the driver before its restart
		e.runEnded(id, runEnd{end: reconcile.TaskActual{Phase: reconcile.Ended, Run: do.Run, Finished: time.Now(), ExitCode: -1,
			Reason: reconcile.ReasonUnsupported, Message: noDriver(name)}})
	case t.StartUncertain:
		e.group.Go(func() error {
			e.runner.stopUncertain(drv, id, do.Grace, reconcile.TaskActual{Reason: reconcile.StoppedByAgent, Message: "it did not begin"})
			return nil
		})
	default:
		e.group.Go(func() error {
			e.runner.stop(drv, id, do.Grace, func(error) {})
			return nil
		})
	}
}

// resizeRun changes the limits of a run.
func (e *Engine) resizeRun(a *alloc, do reconcile.Action) {
	t := a.act.Tasks[do.Task]
	name := a.tasks[do.Task].driver
	drv := e.cfg.Drivers[name]
	if drv == nil {
		a.setTask(do.Task, t.NotResized(do.Limits, noDriver(name)))
		return
	}
	t.Resizing = true
	a.setTask(do.Task, t)
	id := driver.ID{Alloc: do.Alloc, Task: do.Task, Run: do.Run}
	e.group.Go(func() error {
		err := e.runner.resize(drv, id, do.Limits)
		if e.ctx.Err() == nil {
			e.post(func() { e.runResized(id, do.Limits, do.Message, err) })
		}
		return nil
	})
}

// adopt continues a recorded run, in the state that its driver reported when the agent
// started.
func (e *Engine) adopt(a *alloc, do reconcile.Action) {
	t := a.act.Tasks[do.Task]
	to, ok := a.tasks[do.Task]
	drv := e.cfg.Drivers[to.driver]
	if !ok || drv == nil {
		end := t.Finish(reconcile.TaskActual{Phase: reconcile.Ended, Run: t.Run, Finished: e.cfg.Timeline.Now(), ExitCode: -1,
			Reason: reconcile.ReasonUnsupported, Message: noDriver(to.driver)})
		a.setTask(do.Task, end)
		return
	}
	id := driver.ID{Alloc: a.spec.ID, Task: do.Task, Run: do.Run}
	st, err := e.found[id].status, e.found[id].err
	delete(e.found, id)
	switch {
	case errors.Is(err, driver.ErrNotFound):
		t.Phase, t.StartUncertain = reconcile.Waiting, true // the driver does not know the run yet
		a.setTask(do.Task, t)
	case errors.Is(err, driver.ErrContract):
		t.Phase = reconcile.Launching
		a.setTask(do.Task, t)
		e.group.Go(func() error {
			e.runner.startFailed(drv, id, true, err)
			return nil
		})
	case err != nil:
		e.adoptLater(a, t, drv, id, err)
	case st.Cause == driver.CauseStopped && a.spec.Want == reconcile.Run && a.act.Closing == nil && t.Health != health.Unhealthy && t.Lapse == "":
		e.resume(a, do)
	case st.State == driver.Ended:
		e.log.Info("the run ended while no agent ran", "run", id, "exit_code", st.ExitCode)
		e.runEnded(id, e.runner.withOutput(id, endOf(do.Run, t.Restarts, st), to.output))
	default:
		e.log.Info("run adopted", "run", id, "pid", st.PID)
		e.runStarted(id, st.Started)
		e.group.Go(func() error {
			e.runner.follow(drv, id, to.output)
			return nil
		})
	}
}

// adoptLater asks the driver until the driver's result is conclusive. Until then the report
// says that the state of the run is unknown, and the engine neither starts nor stops the
// run.
func (e *Engine) adoptLater(a *alloc, t reconcile.TaskActual, drv driver.Driver, id driver.ID, err error) {
	t.Phase = reconcile.Launching
	a.setTask(id.Task, t)
	e.group.Go(func() error {
		found, ok := e.runner.askUntilConclusive(drv, id, err)
		if ok {
			e.post(func() {
				if t := a.act.Tasks[id.Task]; t.Run == id.Run && t.Phase == reconcile.Launching {
					t.Phase, e.found[id] = reconcile.Unknown, found
					a.setTask(id.Task, t)
				}
			})
		}
		return nil
	})
}

// resume prepares the next run of a task that an agent stopped although its order says run.
// Either the agent paused, or it was killed before it recorded why it stopped the task. In
// the second case the next plan decides about the stop again. In neither case has the task
// failed.
func (e *Engine) resume(a *alloc, do reconcile.Action) {
	e.log.Info("the task starts again", "alloc", do.Alloc, "task", do.Task, "run", do.Run+1)
	t := a.act.Tasks[do.Task]
	a.setTask(do.Task, t.Again(do.Run+1))
	a.act.Started = time.Time{} // the time of the pause does not count for max_runtime
	addEvent(a.detail(do.Task), time.Now(), "restarting", "the task was stopped together with the agent")
}

// remove forgets an allocation that has ended and deletes its folders.
func (e *Engine) remove(a *alloc) {
	id := a.spec.ID
	delete(e.allocs, id)
	e.cfg.Reports.Delete(id)
	runs := map[string]int{}
	for name, t := range a.act.Tasks {
		runs[name] = t.Run
	}
	tasks := a.tasks
	e.removing[id] = true
	e.group.Go(func() error {
		e.runner.removeFiles(id, tasks, runs)
		e.cfg.Writer.Remove(id)
		e.post(func() { delete(e.removing, id) })
		return nil
	})
	e.changed.Notify()
}

// noDriver returns the message of a task whose driver the agent no longer has.
func noDriver(name string) string {
	return fmt.Sprintf("this agent no longer has the driver %q: start it with the settings of that driver", name)
}
