package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/health"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// startLimit is how long it may take to start a run: artifacts and an image
	// may have to be fetched.
	startLimit = 10 * time.Minute
	// keptRuns of a task keep their logs: the latest and the one before.
	keptRuns = 2
	// statusLimit is how long a driver may take to say how a run is doing.
	statusLimit = 30 * time.Second
	// adoptLimit is how long an agent that starts waits for what its drivers say of
	// all runs on record; maxAsking is how many each is asked about at a time.
	adoptLimit = 3 * time.Second
	maxAsking  = 16
)

// start begins a run of a task.
func (e *engine) start(a *alloc, do reconcile.Action) {
	now := time.Now()
	t := a.act.Tasks[do.Task]
	task := a.task(do.Task)
	// A driver may have kept nothing of a run that did not start.
	trace := t.Reason != reconcile.ReasonStartFailed
	doubt := t.StartUncertain
	t = t.Started(task, do.Run)
	if do.Restart {
		at := e.line.now()
		t.Restarts = append(reconcile.Recent(task.Restart, t.Restarts, at), at)
	}
	a.setTask(do.Task, t)
	d := a.detail(do.Task)
	d.State = nusav1.AllocState_ALLOC_STATE_STARTING
	if do.Restart {
		d.Restarts++
		noteEvent(d, now, "restarting", do.Message)
	}
	to := a.tasks[do.Task]
	to.task.ID.Run = do.Run
	if a.alloc.Lease == lease.Stop {
		to.task.LeaseDeadline = e.lease.At(e.clock()).Deadline
	}
	drv := e.drivers[to.driver]
	e.tasks.Go(func() error { return e.launch(a, drv, to, trace, doubt) })
}

// launch starts a run and stays with it until it ends. trace: the driver knows
// the run before it. doubt: an agent before this one may have asked for the run,
// so that it may begin yet however this start fails.
func (e *engine) launch(a *alloc, drv driver.Driver, to taskOrder, trace, doubt bool) error {
	id := to.task.ID
	if drv == nil { // it was there before the agent's restart
		end := reconcile.TaskActual{Phase: reconcile.Ended, Run: id.Run, Finished: time.Now(), ExitCode: -1,
			Reason: reconcile.ReasonUnsupported, Message: noDriver(to.driver)}
		e.post(func() { e.over(a, id.Task, end) })
		return nil
	}
	if id.Run > 1 && !e.replace(drv, id, trace) {
		return nil
	}
	asked, err := e.begin(drv, to)
	switch {
	case e.ctx.Err() != nil: // the next agent adopts whatever began
	case err != nil:
		e.notStarted(a, drv, id, doubt || asked && openEnded(err), err)
	default:
		e.follow(a, drv, id)
	}
	return nil
}

// replace has it on record that a task is at a further run, and removes an old
// one. From the run on record a restarted agent looks for later ones: it must
// not be one that is removed, or of which its driver has no trace. False: ctx
// ended before.
func (e *engine) replace(drv driver.Driver, id driver.ID, trace bool) bool {
	for retry := newBackOff(); e.keeper.flush() != nil; {
		e.log.Warn("old run not removed", "run", id, "error", e.keeper.failed())
		if trace {
			return true
		}
		if !sleep(e.ctx, retry.NextBackOff()) {
			return false
		}
	}
	if old := id.Run - keptRuns; old > 0 {
		if err := drv.Remove(e.ctx, driver.ID{Alloc: id.Alloc, Task: id.Task, Run: old}); err != nil {
			e.log.Warn("old run not removed", "run", id, "error", err)
		}
	}
	return true
}

// noDriver is why a task of before the agent's restart ends.
func noDriver(name string) string { return fmt.Sprintf("this agent has no driver %q any more", name) }

// follow reports that a run is up, and then its end.
func (e *engine) follow(a *alloc, drv driver.Driver, id driver.ID) {
	ctx, cancel := context.WithTimeout(e.ctx, statusLimit)
	st, err := drv.Status(ctx, id)
	cancel()
	if err == nil && st.State != driver.Ended {
		started := st.Started
		e.post(func() { e.begun(a, id.Task, id.Run, started) })
	}
	if errors.Is(err, driver.ErrContract) {
		e.notStarted(a, drv, id, true, err)
		return
	}
	retry := newBackOff()
	for {
		st, err := drv.Wait(e.ctx, id)
		if e.ctx.Err() != nil {
			return
		}
		if errors.Is(err, driver.ErrContract) {
			e.notStarted(a, drv, id, true, err)
			return
		}
		if err == nil {
			started := st.Started
			e.post(func() {
				if st.Cause != driver.CauseStartFailed {
					e.begun(a, id.Task, id.Run, started) // may have been too short to be seen
				}
				e.over(a, id.Task, endOf(id.Run, nil, st))
			})
			return
		}
		if errors.Is(err, driver.ErrNotFound) {
			end := reconcile.TaskActual{Phase: reconcile.Ended, Run: id.Run, Finished: time.Now(), ExitCode: -1,
				Reason: reconcile.ReasonKilledBySignal, Message: "its driver no longer knows it"}
			e.post(func() { e.over(a, id.Task, end) })
			return
		}
		e.log.Error("driver cannot wait for a run", "run", id, "error", err)
		if !sleep(e.ctx, retry.NextBackOff()) {
			return
		}
	}
}

// answer of a driver about a run.
type answer struct {
	status driver.Status
	err    error
}

// ask a driver about a run. Silence until ctx ends says nothing about it.
func ask(ctx context.Context, drv driver.Driver, id driver.ID) answer {
	st, err := drv.Status(ctx, id)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: it did not answer in time: %w", driver.ErrUnavailable, err)
	}
	return answer{st, err}
}

// onRecord is the latest run of a task, by its record and its driver.
type onRecord struct {
	alloc *alloc
	id    driver.ID
	ahead bool   // of the record
	said  answer // of the driver, if there is one
}

// recover makes the records of what has not ended agree with the drivers. A
// record is written behind, so a driver may know a run more than it says; what
// a driver knows was accepted. The drivers are asked side by side: one that
// hangs keeps the agent from nothing that the others run.
func (e *engine) recover() {
	ctx, cancel := context.WithTimeout(e.ctx, adoptLimit)
	defer cancel()
	byDriver := map[string][]*onRecord{}
	for _, a := range e.allocs {
		if a.act.End != nil {
			continue
		}
		for name, to := range a.tasks {
			r := &onRecord{alloc: a, id: driver.ID{Alloc: a.alloc.ID, Task: name, Run: a.act.Tasks[name].Run}}
			byDriver[to.driver] = append(byDriver[to.driver], r)
		}
	}
	var asking sync.WaitGroup
	for name, runs := range byDriver {
		if drv := e.drivers[name]; drv != nil {
			for part := range slices.Chunk(runs, (len(runs)+maxAsking-1)/maxAsking) {
				asking.Go(func() {
					for _, r := range part {
						r.ask(ctx, drv)
					}
				})
			}
		}
	}
	asking.Wait()
	for name, runs := range byDriver {
		for _, r := range runs {
			e.recovered(r, e.drivers[name] != nil)
		}
	}
}

// ask the driver which run is the latest, and how it does.
func (r *onRecord) ask(ctx context.Context, drv driver.Driver) {
	if r.id.Run > 0 {
		r.said = ask(ctx, drv, r.id)
	}
	// Records are written before the run is removed that is keptRuns older: a
	// driver that knows more than that knows anything.
	for ahead := 0; ahead <= keptRuns; ahead++ {
		next := r.id
		next.Run++
		said := ask(ctx, drv, next)
		if said.err != nil {
			return
		}
		r.id, r.said, r.ahead = next, said, true
	}
}

// recovered notes what was found out about a run.
func (e *engine) recovered(r *onRecord, asked bool) {
	t := r.alloc.act.Tasks[r.id.Task]
	switch {
	case r.ahead || t.Phase == reconcile.Launching || t.Phase == reconcile.Up || t.Phase == reconcile.Closing:
	case asked && t.Run == 0:
		// An agent may have died after it began the first run and before that was
		// on record.
		t.Run, t.StartUncertain = 1, true
		r.alloc.setTask(r.id.Task, t)
		return
	default:
		return
	}
	if r.ahead {
		t.Run, t.Health = r.id.Run, health.Waiting
	}
	if asked {
		e.answers[r.id] = r.said
	}
	t.Phase = reconcile.Unknown
	r.alloc.act.Accepted = true
	r.alloc.setTask(r.id.Task, t)
}

// knows says whether a driver has begun a run.
func (e *engine) knows(to taskOrder, id driver.ID) bool {
	drv := e.drivers[to.driver]
	if drv == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(e.ctx, statusLimit)
	defer cancel()
	_, err := drv.Status(ctx, id)
	return err == nil
}

// adopt goes on with a run on record as its driver says. It has been asked: the
// engine waits for nobody.
func (e *engine) adopt(a *alloc, do reconcile.Action) {
	t := a.act.Tasks[do.Task]
	to, ok := a.tasks[do.Task]
	drv := e.drivers[to.driver]
	if !ok || drv == nil {
		end := t.Finish(reconcile.TaskActual{Phase: reconcile.Ended, Run: t.Run, Finished: e.line.now(), ExitCode: -1,
			Reason: reconcile.ReasonUnsupported, Message: noDriver(to.driver)})
		a.setTask(do.Task, end)
		return
	}
	id := driver.ID{Alloc: a.alloc.ID, Task: do.Task, Run: do.Run}
	st, err := e.answers[id].status, e.answers[id].err
	delete(e.answers, id)
	switch {
	case errors.Is(err, driver.ErrNotFound):
		t.Phase, t.StartUncertain = reconcile.Waiting, true // not begun, so far
		a.setTask(do.Task, t)
	case errors.Is(err, driver.ErrContract): // as for who follows a run
		t.Phase = reconcile.Launching
		a.setTask(do.Task, t)
		e.tasks.Go(func() error {
			e.notStarted(a, drv, id, true, err)
			return nil
		})
	case err != nil:
		e.adoptLater(a, t, drv, id, err)
	case st.Cause == driver.CauseStopped && a.alloc.Want == reconcile.Run && a.act.Closing == nil && t.Health != health.Unhealthy:
		e.resume(a, do)
	case st.State == driver.Ended:
		e.log.Info("exit was missed", "run", id, "exit_code", st.ExitCode)
		if st.Cause != driver.CauseStartFailed {
			e.begun(a, do.Task, do.Run, st.Started)
		}
		e.over(a, do.Task, endOf(do.Run, t.Restarts, st))
	default:
		e.log.Info("adopted", "run", id, "pid", st.PID)
		e.begun(a, do.Task, do.Run, st.Started)
		e.tasks.Go(func() error {
			e.follow(a, drv, id)
			return nil
		})
	}
}

// told says whether a driver has told what there is to know of a run. What
// else went wrong, an engine that is away or a file that cannot be read, says
// nothing about the run, which may be up: it must be asked again.
func told(err error) bool {
	return err == nil || errors.Is(err, driver.ErrNotFound) || errors.Is(err, driver.ErrContract)
}

// adoptLater has the driver asked until it tells; before that it is not known
// what the run does, which is shown, and nothing is done about it.
func (e *engine) adoptLater(a *alloc, t reconcile.TaskActual, drv driver.Driver, id driver.ID, err error) {
	t.Phase = reconcile.Launching
	a.setTask(id.Task, t)
	e.tasks.Go(func() error {
		said := answer{err: err}
		for retry := newBackOff(); !told(said.err); {
			e.log.Warn("not adopted, its driver is asked again", "run", id, "error", said.err)
			e.tellUnknown(a, id, said.err.Error())
			if !sleep(e.ctx, retry.NextBackOff()) {
				return nil
			}
			ctx, cancel := context.WithTimeout(e.ctx, statusLimit)
			said = ask(ctx, drv, id)
			cancel()
		}
		e.post(func() {
			if t := a.act.Tasks[id.Task]; t.Run == id.Run && t.Phase == reconcile.Launching {
				t.Phase, e.answers[id] = reconcile.Unknown, said
				a.setTask(id.Task, t)
			}
		})
		return nil
	})
}

// resume prepares the next run of a task that an agent stopped although it is
// to run: the agent paused, or was killed before it had noted why it stopped
// it, and then that is decided again. Neither is a failure of the task.
func (e *engine) resume(a *alloc, do reconcile.Action) {
	e.log.Info("runs anew", "alloc", do.Alloc, "task", do.Task, "run", do.Run+1)
	t := a.act.Tasks[do.Task]
	a.setTask(do.Task, reconcile.TaskActual{Phase: reconcile.Waiting, Run: do.Run + 1, Restarts: t.Restarts, RunsSinceHealthy: max(0, t.RunsSinceHealthy-1)})
	a.act.Started = time.Time{} // max_runtime is not of the time in between
	noteEvent(a.detail(do.Task), time.Now(), "restarting", "it was stopped together with the agent")
}

// renew passes a new lease on to the supervisors of what depends on it.
func (e *engine) renew(deadline time.Duration) {
	for _, a := range e.allocs {
		if a.alloc.Lease != lease.Stop {
			continue
		}
		for name, t := range a.act.Tasks {
			if t.Phase != reconcile.Up {
				continue
			}
			id := driver.ID{Alloc: a.alloc.ID, Task: name, Run: t.Run}
			drv := e.drivers[a.tasks[name].driver]
			e.tasks.Go(func() error {
				ctx, cancel := context.WithTimeout(e.ctx, statusLimit)
				defer cancel()
				if err := drv.Renew(ctx, id, deadline); err != nil && e.ctx.Err() == nil {
					e.log.Error("lease not passed on", "run", id, "error", err)
				}
				return nil
			})
		}
	}
}

// begin makes a task ready and asks its driver to start it.
func (e *engine) begin(drv driver.Driver, to taskOrder) (asked bool, err error) {
	ctx, cancel := context.WithTimeout(e.ctx, startLimit)
	defer cancel()
	if to.bad != nil {
		return false, fmt.Errorf("%w: %w", driver.ErrInvalid, to.bad)
	}
	volumes, err := e.node.setup.Volumes(to.task.Volumes)
	if err != nil {
		return false, err
	}
	to.task.Volumes = volumes
	if err := e.node.setup.Prepare(ctx, to.setup); err != nil {
		return false, err
	}
	return true, drv.Start(ctx, to.task)
}

// clean takes the secrets of an allocation that has ended out of memory.
func (e *engine) clean(id string) error {
	if err := e.node.setup.Clean(id); err != nil {
		e.log.Error("secrets not removed", "alloc", id, "error", err)
	}
	return nil
}

// removeFiles deletes everything of an allocation that has ended.
func (e *engine) removeFiles(id string, tasks map[string]taskOrder, runs map[string]int) {
	for name, last := range runs {
		drv := e.drivers[tasks[name].driver]
		for run := last; drv != nil && run > 0 && (run > last-keptRuns || e.knows(tasks[name], driver.ID{Alloc: id, Task: name, Run: run})); run-- {
			if err := drv.Remove(e.ctx, driver.ID{Alloc: id, Task: name, Run: run}); err != nil {
				e.log.Warn("run not removed", "alloc", id, "task", name, "run", run, "error", err)
			}
		}
	}
	if err := e.node.setup.Remove(id); err != nil {
		e.log.Warn("folder not removed", "alloc", id, "error", err)
	}
}

// newBackOff is how retries are spaced: jittered, from 50 ms up to 5 s.
func newBackOff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 50*time.Millisecond, 5*time.Second
	b.Reset()
	return b
}

// sleep waits; false when ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
