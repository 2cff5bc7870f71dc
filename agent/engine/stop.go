package engine

import (
	"context"
	"errors"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/agent/retry"
)

const (
	// lateStartLimit is how long the runner looks for a run after a start that may or may
	// not have succeeded. A container engine may start the run after the caller has given
	// up. If the driver does not know the run in all that time, the run will not begin.
	lateStartLimit = 10 * time.Second
	// lateStartPause is the longest pause between two requests for the status of the run.
	lateStartPause = 500 * time.Millisecond
)

// The engine has no separate list of the runs that must be stopped. The record of such a
// task has the phase Launching or Closing, or StartUncertain. So the number of such runs is
// at most the number of tasks, and the runs survive the agent's restart. No further run of
// such a task begins, and its allocation does not end.

// stop tries until a run is stopped. It calls failed with each error. It returns false if
// the engine ended earlier.
func (r *runner) stop(drv driver.Driver, id driver.ID, grace time.Duration, failed func(error)) bool {
	for backOff := retry.New(); ; {
		err := drv.Stop(r.ctx, id, grace)
		switch {
		case r.ctx.Err() != nil:
			return false
		case err == nil:
			return true
		}
		r.log.Error("run not stopped, trying again", "run", id, "error", err)
		failed(err)
		if !retry.Sleep(r.ctx, backOff.NextBackOff()) {
			return false
		}
	}
}

// startFailed ends a run whose start failed, or whose driver broke its contract. It first
// makes sure that nothing of the run is left. uncertain says that the run may have begun or
// may still begin.
func (r *runner) startFailed(drv driver.Driver, id driver.ID, uncertain bool, cause error) {
	end := reconcile.TaskActual{Reason: reconcile.ReasonStartFailed, Message: cause.Error()}
	end.Final = errors.Is(cause, driver.ErrFinal)
	category, _ := driver.CategoryOf(cause)
	end.Category = reconcile.Category(category)
	if errors.Is(cause, errNoLease) {
		end.Reason = reconcile.ReasonLeaseExpired
	}
	if errors.Is(cause, driver.ErrInvalid) || errors.Is(cause, driver.ErrContract) {
		end.Reason = reconcile.ReasonUnsupported
	}
	if uncertain {
		r.stopUncertain(drv, id, 0, end)
		return
	}
	if r.stop(drv, id, 0, func(err error) { r.events.uncertain(id, err.Error()) }) {
		r.neverRan(id, end)
	}
}

// mayStillStart reports whether the run may still begin although the driver's Start
// returned cause.
func mayStillStart(cause error) bool {
	return !errors.Is(cause, driver.ErrStart) && !errors.Is(cause, driver.ErrInvalid) ||
		errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, context.Canceled)
}

// stopUncertain stops a run that may have begun or may still begin. It reports the end once
// the end is certain. end is the result if the run never began.
func (r *runner) stopUncertain(drv driver.Driver, id driver.ID, grace time.Duration, end reconcile.TaskActual) {
	show := func(err error) { r.events.uncertain(id, err.Error()) }
	backOff := retry.New()
	backOff.MaxInterval = lateStartPause
	for unknown := (time.Time{}); ; {
		if !r.stop(drv, id, grace, show) {
			return
		}
		ctx, cancel := context.WithTimeout(r.ctx, StatusLimit)
		found := ask(ctx, drv, id)
		cancel()
		now := time.Now()
		switch {
		case r.ctx.Err() != nil:
			return
		case found.err == nil && found.status.State == driver.Ended:
			if end.Reason == reconcile.StoppedByAgent {
				end.Message = found.status.Message
			}
			r.neverRan(id, end)
			return
		case errors.Is(found.err, driver.ErrContract): // the driver's Stop returned nil
			r.neverRan(id, end)
			return
		case !errors.Is(found.err, driver.ErrNotFound):
			unknown = time.Time{}
			if found.err == nil {
				found.err = errors.New("its driver reports it as " + found.status.State.String())
			}
		case unknown.IsZero():
			unknown = now
		case now.Sub(unknown) >= lateStartLimit:
			r.neverRan(id, end)
			return
		}
		show(found.err)
		if !retry.Sleep(r.ctx, backOff.NextBackOff()) {
			return
		}
	}
}

// neverRan reports the end of a run that counts as never begun.
func (r *runner) neverRan(id driver.ID, end reconcile.TaskActual) {
	end.Phase, end.Run, end.Finished, end.ExitCode = reconcile.Ended, id.Run, time.Now(), -1
	r.events.ended(id, runEnd{end: end})
}
