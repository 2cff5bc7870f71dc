package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/agent/retry"
	"github.com/nusa-scheduler/nusa/agent/setup"
	"github.com/nusa-scheduler/nusa/agent/store"
)

const (
	// startLimit bounds the start of a run, which may have to fetch artifacts and an image.
	startLimit = 10 * time.Minute
	// RetainedRuns is the number of runs of a task whose output is retained: the latest and
	// the previous one.
	RetainedRuns = 2
	// StatusLimit bounds a request about a run to a driver.
	StatusLimit = 30 * time.Second
)

// runner owns the goroutines that start, follow and stop runs. The goroutines report to the
// loop through events.
type runner struct {
	log     *slog.Logger
	ctx     context.Context
	group   *errgroup.Group
	drivers map[string]driver.Driver
	setup   *setup.Setup
	writer  *store.Writer
	events  runEvents
}

// runEvents are the functions that report the results of a runner's goroutines.
type runEvents struct {
	// started reports that the run has been up since the time at, which the driver
	// returned.
	started func(id driver.ID, at time.Time)
	ended   func(id driver.ID, end runEnd)
	// uncertain reports that the run may still begin or may still be running.
	uncertain func(id driver.ID, why string)
	// deadline returns the present deadline of an allocation. The result is false if the
	// leases of the allocation or the engine have ended.
	deadline func(ctx context.Context, alloc string) (lease.Deadline, bool)
}

// runEnd says how a run ended.
type runEnd struct {
	end reconcile.TaskActual
	// ran says that the run was up, from the time started.
	ran     bool
	started time.Time
	// output is what the task wrote for later steps of its workflow. badOutput says why that
	// cannot be used.
	output    string
	badOutput error
}

// errNoLease: a lease that binds the task ended while the task was prepared.
var errNoLease = errors.New("its lease ended before the command was started")

// launch describes a run that must start.
type launch struct {
	order taskOrder
	// binding is the binding of the allocation at the time of the decision to start.
	binding lease.Binding
	// previousKnown says that the driver knows the previous run.
	previousKnown bool
	// uncertain says that an earlier agent may have asked the driver to start the run. Then
	// the run may still begin even if this start fails.
	uncertain bool
}

// launch starts a run and follows it until it ends.
func (r *runner) launch(l launch) error {
	id := l.order.task.ID
	drv := r.drivers[l.order.driver]
	if drv == nil { // the agent had the driver before the agent's restart
		r.events.ended(id, runEnd{end: reconcile.TaskActual{Phase: reconcile.Ended, Run: id.Run, Finished: time.Now(), ExitCode: -1,
			Reason: reconcile.ReasonUnsupported, Message: noDriver(l.order.driver)}})
		return nil
	}
	if id.Run > 1 && !r.replace(drv, id, l.previousKnown) {
		return nil
	}
	asked, err := r.start(drv, l)
	switch {
	case r.ctx.Err() != nil: // the next agent adopts the run
	case err != nil:
		r.startFailed(drv, id, l.uncertain || asked && mayStillStart(err), err)
	default:
		r.follow(drv, id, l.order.output)
	}
	return nil
}

// replace makes the record of a further run durable and then removes an old run. A
// restarted agent looks for runs that are newer than the recorded run. So the driver must
// still know the recorded run. replace returns false if the engine ended earlier.
func (r *runner) replace(drv driver.Driver, id driver.ID, previousKnown bool) bool {
	for backOff := retry.New(); r.writer.Flush() != nil; {
		r.log.Warn("old run not removed", "run", id, "error", r.writer.Err())
		if previousKnown {
			return true
		}
		if !retry.Sleep(r.ctx, backOff.NextBackOff()) {
			return false
		}
	}
	if old := id.Run - RetainedRuns; old > 0 {
		if err := drv.Remove(r.ctx, driver.ID{Alloc: id.Alloc, Task: id.Task, Run: old}); err != nil {
			r.log.Warn("old run not removed", "run", id, "error", err)
		}
	}
	return true
}

// start prepares a task and asks its driver to start the task. asked reports whether the
// driver was asked. The preparation may take longer than a lease, so the deadline is read
// after the preparation.
func (r *runner) start(drv driver.Driver, l launch) (asked bool, err error) {
	to := l.order
	ctx, cancel := context.WithTimeout(r.ctx, startLimit)
	defer cancel()
	if to.bad != nil {
		return false, fmt.Errorf("%w: %w", driver.ErrInvalid, to.bad)
	}
	volumes, err := r.setup.Volumes(to.task.Volumes)
	if err != nil {
		return false, err
	}
	to.task.Volumes = volumes
	if to.output && to.task.ID.Run > 1 {
		if err := r.setup.RemoveOutput(to.task.ID.Alloc, to.task.ID.Task); err != nil {
			return false, err
		}
	}
	if err := r.setup.Prepare(ctx, to.setup); err != nil {
		return false, err
	}
	if l.binding != lease.None {
		d, held := r.events.deadline(ctx, to.task.ID.Alloc)
		if !held {
			return false, errNoLease
		}
		to.task.Lease = d
	}
	return true, drv.Start(ctx, to.task)
}

// follow reports that a run is up, and then reports its end. output says that the task may have
// written an output.
func (r *runner) follow(drv driver.Driver, id driver.ID, output bool) {
	ctx, cancel := context.WithTimeout(r.ctx, StatusLimit)
	st, err := drv.Status(ctx, id)
	cancel()
	if err == nil && st.State != driver.Ended {
		r.events.started(id, st.Started)
	}
	if errors.Is(err, driver.ErrContract) {
		r.startFailed(drv, id, true, err)
		return
	}
	backOff := retry.New()
	for {
		st, err := drv.Wait(r.ctx, id)
		switch {
		case r.ctx.Err() != nil:
			return
		case errors.Is(err, driver.ErrContract):
			r.startFailed(drv, id, true, err)
			return
		case err == nil:
			r.events.ended(id, r.withOutput(id, endOf(id.Run, nil, st), output))
			return
		case errors.Is(err, driver.ErrNotFound):
			r.events.ended(id, goneEnd(id))
			return
		}
		r.log.Error("the driver cannot wait for a run", "run", id, "error", err)
		if !retry.Sleep(r.ctx, backOff.NextBackOff()) {
			return
		}
	}
}

// withOutput adds the output of a task that has succeeded.
func (r *runner) withOutput(id driver.ID, end runEnd, output bool) runEnd {
	if output && end.end.ExitCode == 0 && end.end.Signal == 0 && end.end.Reason == "" {
		end.output, end.badOutput = r.setup.Output(id.Alloc, id.Task)
	}
	return end
}

// askUntilConclusive asks a driver for the status of a run until the result is conclusive.
// err is the latest error. The result is false if the engine ended earlier.
func (r *runner) askUntilConclusive(drv driver.Driver, id driver.ID, err error) (runStatus, bool) {
	found := runStatus{err: err}
	for backOff := retry.New(); !conclusive(found.err); {
		r.log.Warn("run not adopted yet: its driver is asked again", "run", id, "error", found.err)
		r.events.uncertain(id, found.err.Error())
		if !retry.Sleep(r.ctx, backOff.NextBackOff()) {
			return found, false
		}
		ctx, cancel := context.WithTimeout(r.ctx, StatusLimit)
		found = ask(ctx, drv, id)
		cancel()
	}
	return found, true
}

// renew passes a lease deadline to the supervisor of a run. A run that is still being
// prepared may be unknown to the driver, which is no error.
func (r *runner) renew(drv driver.Driver, id driver.ID, d lease.Deadline) {
	ctx, cancel := context.WithTimeout(r.ctx, StatusLimit)
	defer cancel()
	if err := drv.Renew(ctx, id, d); err != nil && r.ctx.Err() == nil && !errors.Is(err, driver.ErrNotFound) {
		r.log.Error("lease not passed to the supervisor", "run", id, "error", err)
	}
}

// cleanUp removes the secrets of an allocation that has ended.
func (r *runner) cleanUp(alloc string) error {
	if err := r.setup.Clean(alloc); err != nil {
		r.log.Error("secrets not removed", "alloc", alloc, "error", err)
	}
	return nil
}

// removeFiles deletes the runs and the folder of an allocation that has ended.
func (r *runner) removeFiles(alloc string, tasks map[string]taskOrder, runs map[string]int) {
	for name, last := range runs {
		drv := r.drivers[tasks[name].driver]
		for run := last; drv != nil && run > 0 && (run > last-RetainedRuns || r.knows(drv, driver.ID{Alloc: alloc, Task: name, Run: run})); run-- {
			if err := drv.Remove(r.ctx, driver.ID{Alloc: alloc, Task: name, Run: run}); err != nil {
				r.log.Warn("run not removed", "alloc", alloc, "task", name, "run", run, "error", err)
			}
		}
	}
	if err := r.setup.Remove(alloc); err != nil {
		r.log.Warn("folder not removed", "alloc", alloc, "error", err)
	}
}

// knows reports whether a driver knows a run.
func (r *runner) knows(drv driver.Driver, id driver.ID) bool {
	ctx, cancel := context.WithTimeout(r.ctx, StatusLimit)
	defer cancel()
	_, err := drv.Status(ctx, id)
	return err == nil
}
