package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
)

const (
	// lateLimit is how long a run whose start has no known outcome is looked for:
	// an engine may carry out what it was asked after who asked has gone. A
	// driver that knows nothing of the run all that time will not begin it.
	lateLimit = 10 * time.Second
	// lateLook is the most between two looks at it.
	lateLook = 500 * time.Millisecond
)

// Runs that are still to be stopped are no list of their own: a task whose run
// is not known to have ended is Launching or Closing in its allocation's record,
// or has the mark Doubt. So there are at most as many as there are tasks, they
// outlast the agent, no further run of the task begins, and the allocation does
// not end.

// halt stops a run; its end is reported by who follows it.
func (e *engine) halt(a *alloc, do reconcile.Action) {
	t := a.act.Tasks[do.Task]
	a.setTask(do.Task, t.Stopping())
	message := fmt.Sprintf("within %s", do.Grace)
	if do.Reason != reconcile.ReasonUnhealthy { // that was said before
		message += ": " + do.Message
	}
	noteEvent(a.detail(do.Task), time.Now(), "stopping", message)
	id := driver.ID{Alloc: do.Alloc, Task: do.Task, Run: do.Run}
	e.checks.end(id)
	drv := e.drivers[a.tasks[do.Task].driver]
	switch {
	case drv == nil: // it was there before the agent's restart
		e.over(a, do.Task, reconcile.TaskActual{Phase: reconcile.Ended, Run: do.Run, Finished: time.Now(), ExitCode: -1,
			Reason: reconcile.ReasonUnsupported, Message: noDriver(a.tasks[do.Task].driver)})
	case t.StartUncertain:
		e.tasks.Go(func() error {
			e.stopUnknown(a, drv, id, do.Grace, reconcile.TaskActual{Reason: reconcile.StoppedByAgent, Message: "it did not begin"})
			return nil
		})
	default:
		e.tasks.Go(func() error {
			e.stop(drv, id, do.Grace, func(error) {})
			return nil
		})
	}
}

// stop tries until a run is stopped; failed is told why it is not yet. False:
// ctx ended before.
func (e *engine) stop(drv driver.Driver, id driver.ID, grace time.Duration, failed func(error)) bool {
	for retry := newBackOff(); ; {
		err := drv.Stop(e.ctx, id, grace)
		switch {
		case e.ctx.Err() != nil:
			return false
		case err == nil:
			return true
		}
		e.log.Error("run not stopped, trying again", "run", id, "error", err)
		failed(err)
		if !sleep(e.ctx, retry.NextBackOff()) {
			return false
		}
	}
}

// notStarted makes sure that nothing of a failed start is left, or of a run of
// which its driver says what no driver may, before the run counts as ended.
// open: it may begin yet, or has.
func (e *engine) notStarted(a *alloc, drv driver.Driver, id driver.ID, open bool, cause error) {
	end := reconcile.TaskActual{Reason: reconcile.ReasonStartFailed, Message: cause.Error()}
	end.Final = errors.Is(cause, driver.ErrFinal)
	if errors.Is(cause, driver.ErrInvalid) || errors.Is(cause, driver.ErrContract) {
		end.Reason = reconcile.ReasonUnsupported
	}
	if !open {
		if e.stop(drv, id, 0, func(err error) { e.tellUnknown(a, id, err.Error()) }) {
			e.notRun(a, id, end)
		}
		return
	}
	e.stopUnknown(a, drv, id, 0, end)
}

// openEnded says whether a start that a driver says has failed may succeed yet.
func openEnded(cause error) bool {
	return !errors.Is(cause, driver.ErrStart) && !errors.Is(cause, driver.ErrInvalid) ||
		errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, context.Canceled)
}

// stopUnknown stops a run of which it is not known whether it began, or will.
// Once that is certain it is over, as end says if it never began.
func (e *engine) stopUnknown(a *alloc, drv driver.Driver, id driver.ID, grace time.Duration, end reconcile.TaskActual) {
	tell := func(err error) { e.tellUnknown(a, id, err.Error()) }
	retry := newBackOff()
	retry.MaxInterval = lateLook
	for unknown := (time.Time{}); ; {
		if !e.stop(drv, id, grace, tell) {
			return
		}
		ctx, cancel := context.WithTimeout(e.ctx, statusLimit)
		said := ask(ctx, drv, id)
		cancel()
		now := time.Now()
		switch {
		case e.ctx.Err() != nil:
			return
		case said.err == nil && said.status.State == driver.Ended:
			if end.Reason == reconcile.StoppedByAgent {
				end.Message = said.status.Message
			}
			e.notRun(a, id, end)
			return
		case errors.Is(said.err, driver.ErrContract): // it has stopped, by its own word
			e.notRun(a, id, end)
			return
		case !errors.Is(said.err, driver.ErrNotFound):
			unknown = time.Time{}
			if said.err == nil {
				said.err = errors.New("its driver has it " + said.status.State.String())
			}
		case unknown.IsZero():
			unknown = now
		case now.Sub(unknown) >= lateLimit:
			e.notRun(a, id, end)
			return
		}
		tell(said.err)
		if !sleep(e.ctx, retry.NextBackOff()) {
			return
		}
	}
}

// notRun ends a run that counts as never begun.
func (e *engine) notRun(a *alloc, id driver.ID, end reconcile.TaskActual) {
	end.Phase, end.Run, end.Finished, end.ExitCode = reconcile.Ended, id.Run, time.Now(), -1
	e.post(func() { e.over(a, id.Task, end) })
}

// tellUnknown shows, once, that a run is waited for, and why.
func (e *engine) tellUnknown(a *alloc, id driver.ID, why string) {
	e.post(func() {
		if t := a.act.Tasks[id.Task]; t.Run != id.Run || t.Phase == reconcile.Ended {
			return
		}
		d := a.detail(id.Task)
		for _, ev := range d.GetEvents() {
			if ev.GetType() == unknownEvent && ev.GetMessage() == unknownMessage(id.Run) {
				return
			}
		}
		e.log.Warn("it is not known whether a run goes on", "run", id, "reason", why)
		d.Message = clip(unknownMessage(id.Run) + ": " + why)
		noteEvent(d, time.Now(), unknownEvent, unknownMessage(id.Run))
		a.dirty = true
	})
}

// unknownEvent is the type of the event of a run that may go on.
const unknownEvent = "uncertain"

func unknownMessage(run int) string {
	return fmt.Sprintf("run %d may have begun or begin yet: nothing else of this task starts before it is known to have ended", run)
}
