package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/health"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// runStarted records that a run has started, and begins its checks.
func (e *Engine) runStarted(id driver.ID, at time.Time) {
	a := e.allocs[id.Alloc]
	if a != nil && a.runStarted(id.Task, id.Run, at, e.cfg.Timeline.Of(at)) {
		e.beginChecks(a, id.Task)
		if a.spec.Binding != lease.None {
			e.renewAlloc(a) // a renewal may have passed while the run had no supervisor yet
		}
	}
}

// runEnded records that a run has ended.
func (e *Engine) runEnded(id driver.ID, r runEnd) {
	a := e.allocs[id.Alloc]
	if a == nil {
		return
	}
	if r.ran {
		e.runStarted(id, r.started) // a short run may end before its start is reported
	}
	if t := a.act.Tasks[id.Task]; t.Run != r.end.Run || t.Phase == reconcile.Ended {
		return
	}
	e.checks.end(id)
	if v := e.verdict(a); r.end.Reason == reconcile.ReasonLeaseExpired && !v.MayStart {
		r.end.Reason = reconcile.Reason(v.Reason) // the supervisor does not know which lease ended
	}
	if r.badOutput != nil {
		r.end.Reason, r.end.Message = reconcile.ReasonOutputInvalid, Clip(r.badOutput.Error())
	}
	a.runEnded(id.Task, r.end, e.cfg.Timeline.Of(r.end.Finished))
	end := a.act.Tasks[id.Task]
	if r.output != "" && a.task(id.Task).Done(a.spec.Batch, end) {
		a.output = r.output
	}
	e.log.Info("task ended", "alloc", id.Alloc, "task", id.Task, "run", id.Run, "exit_code", end.ExitCode, "signal", end.Signal, "reason", end.Reason)
}

// runUncertain records that a run may still begin or may still be running.
func (e *Engine) runUncertain(id driver.ID, why string) {
	if a := e.allocs[id.Alloc]; a != nil && a.runUncertain(id.Task, id.Run, why) {
		e.log.Warn("it is unknown whether a run continues", "run", id, "reason", why)
	}
}

// runResized records the driver's answer to a change of limits. A run that has ended needs none: the next
// run starts with the new limits.
func (e *Engine) runResized(id driver.ID, to reconcile.Limits, message string, err error) {
	a := e.allocs[id.Alloc]
	if a == nil {
		return
	}
	t := a.act.Tasks[id.Task]
	if t.Run != id.Run || !t.Resizing {
		return
	}
	switch {
	case err == nil:
		a.setTask(id.Task, t.Resized(to))
		addEvent(a.detail(id.Task), time.Now(), "resized", message)
		e.log.Info("limits changed", "run", id, "change", message)
	case notNeeded(err):
		a.setTask(id.Task, t.Resized(to))
	default:
		a.setTask(id.Task, t.NotResized(to, Clip(err.Error())))
		addEvent(a.detail(id.Task), time.Now(), "not resized", err.Error())
		e.log.Warn("limits not changed", "run", id, "error", err)
	}
}

// beginChecks begins the checks of a run that is up. If an earlier process of the agent
// began them, they continue from the recorded state.
func (e *Engine) beginChecks(a *alloc, name string) {
	t, k, d, now := a.act.Tasks[name], a.tasks[name].check, a.detail(name), time.Now()
	if k == nil || t.Health == health.Unhealthy {
		return
	}
	s, first := health.Resume(k.Policy, t.Health, d.GetCheck().GetSince().AsTime(), now, rand.Float64())
	if s.Phase == health.Waiting {
		d.State = nusav1.AllocState_ALLOC_STATE_STARTING
	}
	d.Check = checkStateToProto(k, s)
	e.checks.begin(driver.ID{Alloc: a.spec.ID, Task: name, Run: t.Run}, k, s, first)
}

// checkReported records a new state of a run's checks.
func (e *Engine) checkReported(id driver.ID, s healthState) {
	a := e.allocs[id.Alloc]
	if a == nil {
		return
	}
	t, k := a.act.Tasks[id.Task], a.tasks[id.Task].check
	if t.Run != id.Run || t.Phase != reconcile.Up || k == nil {
		return
	}
	d := a.detail(id.Task)
	d.Check, a.dirty = checkStateToProto(k, s), true
	if s.Phase == t.Health {
		return
	}
	message := ""
	switch s.Phase {
	case health.Healthy:
		d.State = nusav1.AllocState_ALLOC_STATE_RUNNING
		message = fmt.Sprintf("after %s: %s", s.Since.Sub(d.GetStarted().AsTime()).Round(time.Millisecond), s.Describe(k.Policy))
	case health.Unhealthy:
		message = health.UnhealthyReason(k.Policy, t.Health, s)
	}
	a.setTask(id.Task, t.WithHealth(s.Phase, message))
	addEvent(d, s.Since, s.Phase.String(), message)
	e.log.Info("task is "+s.Phase.String(), "run", id, "message", message)
}

// RequestLease records that a lease request is sent now. It returns the id of the request
// and the time until the next request. ok is false if ctx ended earlier.
func (e *Engine) RequestLease(ctx context.Context, fallback time.Duration) (id uint64, next time.Duration, ok bool) {
	ok = e.do(ctx, func() {
		id = e.leases.Request(e.cfg.Clock())
		next = e.renewal(fallback)
	})
	return id, next, ok
}

// Renewal returns the time until the next lease request. ok is false if ctx ended earlier.
func (e *Engine) Renewal(ctx context.Context, fallback time.Duration) (next time.Duration, ok bool) {
	ok = e.do(ctx, func() { next = e.renewal(fallback) })
	return next, ok
}

// renewal returns the time until the next lease request.
func (e *Engine) renewal(fallback time.Duration) time.Duration {
	regionBinds := false
	for _, a := range e.allocs {
		regionBinds = regionBinds || a.spec.Binding&lease.Region != 0 && a.act.End == nil
	}
	return e.leases.Renewal(e.cfg.Clock(), fallback, regionBinds)
}

// LeaseGranted records the answer to a request and passes the new deadlines to the
// supervisors. next is the time until the next request. ok is false if ctx ended earlier.
func (e *Engine) LeaseGranted(ctx context.Context, g lease.Grant, fallback time.Duration) (next time.Duration, ok bool) {
	ok = e.do(ctx, func() {
		if e.leases.Granted(g, e.cfg.Clock()) {
			e.renew()
		}
		next = e.renewal(fallback)
	})
	return next, ok
}

// NewSession records that a session with a master begins. With restored, the log of this
// master has another incarnation than the log of the previous master, so the leases end.
// Runs keep their deadlines. NewSession returns false if ctx ended earlier.
func (e *Engine) NewSession(ctx context.Context, restored bool) bool {
	return e.do(ctx, func() {
		e.leases.NewSession()
		if restored {
			e.leases.Forget()
		}
	})
}

// renew passes the present deadlines to the supervisors of all runs that a lease binds.
func (e *Engine) renew() {
	for _, a := range e.allocs {
		if a.spec.Binding != lease.None && a.act.End == nil {
			e.renewAlloc(a)
		}
	}
}

// renewAlloc passes the present deadline of an allocation to its supervisors, also to those
// that are about to begin their command. If the agent holds no lease, the supervisors keep
// their present deadline.
func (e *Engine) renewAlloc(a *alloc) {
	if a.ends() {
		return
	}
	d, held := e.leases.Deadline(a.spec.Binding, e.cfg.Clock())
	if !held {
		return
	}
	for name, t := range a.act.Tasks {
		drv := e.cfg.Drivers[a.tasks[name].driver]
		if drv == nil || t.Phase != reconcile.Up && t.Phase != reconcile.Launching {
			continue
		}
		id := driver.ID{Alloc: a.spec.ID, Task: name, Run: t.Run}
		e.group.Go(func() error {
			e.runner.renew(drv, id, d)
			return nil
		})
	}
}

// deadline returns the present deadline of an allocation. held is false if the leases of
// the allocation have ended, if the allocation is ending, or if ctx ended.
func (e *Engine) deadline(ctx context.Context, id string) (d lease.Deadline, held bool) {
	e.do(ctx, func() {
		if a := e.allocs[id]; a != nil && !a.ends() {
			d, held = e.leases.Deadline(a.spec.Binding, e.cfg.Clock())
		}
	})
	return d, held
}

// verdict returns whether an allocation may start under its leases, and why not.
func (e *Engine) verdict(a *alloc) lease.Verdict {
	if a.spec.Binding == lease.None {
		return lease.Verdict{MayStart: true}
	}
	return lease.Evaluate(a.spec.Binding, e.leases.At(e.cfg.Clock()))
}
