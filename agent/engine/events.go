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

// runStarted records that a run is up and begins its checks.
func (e *Engine) runStarted(id driver.ID, at time.Time) {
	a := e.allocs[id.Alloc]
	if a != nil && a.runStarted(id.Task, id.Run, at, e.cfg.Timeline.Of(at)) {
		e.beginChecks(a, id.Task)
	}
}

// runEnded records that a run has ended.
func (e *Engine) runEnded(id driver.ID, r runEnd) {
	a := e.allocs[id.Alloc]
	if a == nil {
		return
	}
	if r.ran {
		e.runStarted(id, r.started) // a short run may have ended before its start was reported
	}
	if t := a.act.Tasks[id.Task]; t.Run != r.end.Run || t.Phase == reconcile.Ended {
		return
	}
	e.checks.end(id)
	a.runEnded(id.Task, r.end, e.cfg.Timeline.Of(r.end.Finished))
	end := a.act.Tasks[id.Task]
	e.log.Info("task ended", "alloc", id.Alloc, "task", id.Task, "run", id.Run, "exit_code", end.ExitCode, "signal", end.Signal, "reason", end.Reason)
}

// runUncertain records that a run may still begin or go on.
func (e *Engine) runUncertain(id driver.ID, why string) {
	if a := e.allocs[id.Alloc]; a != nil && a.runUncertain(id.Task, id.Run, why) {
		e.log.Warn("it is not known whether a run goes on", "run", id, "reason", why)
	}
}

// beginChecks begins to check a run that is up, or continues the checks of an earlier
// life of the agent.
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

// checkReported records a state of a run's checks.
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

// RequestLease records that the lease is requested now. It returns the request's id
// and the time until the next request. False: ctx ended earlier.
func (e *Engine) RequestLease(ctx context.Context, fallback time.Duration) (id uint64, next time.Duration, ok bool) {
	ok = e.do(ctx, func() {
		id = e.lease.Request(e.cfg.Clock())
		next = e.lease.Renewal(fallback)
	})
	return id, next, ok
}

// LeaseGranted records the answer to a lease request and passes the new deadline to
// the supervisors. False: ctx ended earlier.
func (e *Engine) LeaseGranted(ctx context.Context, id uint64, d time.Duration) bool {
	return e.do(ctx, func() {
		if e.lease.Granted(id, d) {
			e.renew(e.lease.At(e.cfg.Clock()).Deadline)
		}
	})
}

// renew passes a new lease deadline to the supervisors of the runs that depend on it.
func (e *Engine) renew(deadline time.Duration) {
	for _, a := range e.allocs {
		if a.spec.Lease != lease.Stop {
			continue
		}
		for name, t := range a.act.Tasks {
			if t.Phase != reconcile.Up {
				continue
			}
			id := driver.ID{Alloc: a.spec.ID, Task: name, Run: t.Run}
			drv := e.cfg.Drivers[a.tasks[name].driver]
			e.group.Go(func() error {
				e.runner.renew(drv, id, deadline)
				return nil
			})
		}
	}
}
