package world

import (
	"maps"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// zero is the wall time at reading 0 of an agent's timeline.
var zero = time.Unix(1_800_000_000, 0)

// timeline returns the agent's stored timeline, which continues over restarts of the host.
func (a *agent) timeline() time.Time { return zero.Add(time.Duration(a.r.w.Now)) }

// readOrder returns the order in the form that package reconcile takes.
func readOrder(o allocOrder) reconcile.Alloc {
	g := o.spec
	out := reconcile.Alloc{ID: o.id, Batch: g.typ == state.Batch, Ask: reconcile.Ask{CPUMilli: g.cpu, Drivers: []string{"process"}},
		Tasks: []reconcile.Task{{Name: task, KillTimeout: g.kill, Restart: reconcile.Restart{Attempts: 2, Window: time.Minute, Delay: time.Second}}}}
	if o.want == state.Stop {
		out.Want, out.WantReason = reconcile.Stop, reconcile.Reason(o.reason)
	}
	if g.life.retry != nil {
		out.Tasks[0].Restart.Attempts = 0 // the region decides about each failure
	}
	out.Binding = o.binding
	out.Ask.Fenced = o.binding != lease.None
	return out
}

// task is the only task of each group.
const task = "main"

func copyActual(a reconcile.Actual) reconcile.Actual {
	a.Tasks = maps.Clone(a.Tasks)
	return a
}

// ends reports whether the allocation must stop, as in agent/engine.
func (al *agentAlloc) ends() bool { return al.spec.Want != reconcile.Run || al.act.Closing != nil }

func (al *agentAlloc) setTask(t reconcile.TaskActual) {
	if al.act.Tasks == nil {
		al.act.Tasks = map[string]reconcile.TaskActual{}
	}
	al.act.Tasks[task] = t
	al.dirty = true
}

// recover compares an allocation's record with what runs, as the engine does at its start.
func (a *agent) recover(al *agentAlloc) {
	if al.act.End != nil {
		return
	}
	t := al.act.Tasks[task]
	found, isNewer := t.Run, false
	for next := t.Run + 1; next <= t.Run+3; next++ {
		if a.runs[runID{al.order.id, next}] == nil {
			break
		}
		found, isNewer = next, true
	}
	switch {
	case isNewer || t.Phase == reconcile.Launching || t.Phase == reconcile.Up || t.Phase == reconcile.Closing:
		t.Run, t.Phase = found, reconcile.Unknown
		al.act.Accepted = true
		al.setTask(t)
	case t.Run == 0:
		t.Run, t.StartUncertain = 1, true
		al.setTask(t)
	}
}

// advance makes plans and applies them, until it must wait.
func (a *agent) advance() {
	if a.storing {
		a.waiting = append(a.waiting, a.advance)
		return
	}
	if a.advancing {
		return // the loop below is running already, and makes further plans
	}
	a.advancing = true
	defer func() { a.advancing = false }()
	for range 10 {
		plan := reconcile.Make(a.planInput())
		a.decided = verdicts{}
		if len(plan.Actions) == 0 {
			a.noteIdle(plan.Wake)
			if !plan.Wake.IsZero() {
				a.wakeIn(plan.Wake.Sub(a.timeline()))
			}
			break
		}
		for _, do := range plan.Actions {
			a.apply(a.allocs[do.Alloc], do)
		}
	}
	a.publish()
}

func (a *agent) verdicts(held lease.Leases) verdicts {
	out := verdicts{known: true, diskFull: a.h.DiskFull}
	for i, b := range lease.Bindings {
		out.of[i] = lease.Evaluate(b, held)
	}
	return out
}

// noteIdle notes that a plan had no actions.
func (a *agent) noteIdle(wake time.Time) {
	held := a.lease.At(a.h.Clock())
	a.decided, a.due = a.verdicts(held), wake
	for _, id := range a.order {
		if b := a.allocs[id].order.binding; b != lease.None && wake.Equal(a.timeline().Add(held.Of(b).Left)) {
			a.due = time.Time{}
		}
	}
}

// idle reports whether a plan would have no actions and no earlier wake. That is so if the lease
// verdicts and the allocations have not changed, and the latest wake is before the end of every
// lease.
func (a *agent) idle() bool {
	held := a.lease.At(a.h.Clock())
	if a.wakeAt <= a.r.w.Now || a.storing || a.decided != a.verdicts(held) {
		return false
	}
	if due := a.due.Sub(a.timeline()); !a.due.IsZero() && (due <= 0 || a.r.w.Now+int64(a.h.TrueFor(due)) < a.wakeAt) {
		return false
	}
	for _, id := range a.order {
		al := a.allocs[id]
		if al.dirty || al.storing {
			return false
		}
		if b := al.order.binding; b != lease.None && a.r.w.Now+int64(a.h.TrueFor(held.Of(b).Left)) <= a.wakeAt {
			return false
		}
	}
	return true
}

var drivers = map[string]reconcile.Driver{"process": {Fencing: true}}

func (a *agent) planInput() reconcile.Input {
	if a.actual == nil {
		a.actual = map[string]reconcile.Actual{}
	}
	clear(a.actual)
	in := reconcile.Input{Now: a.timeline(), Host: reconcile.Host{CPUMilli: a.cpu, MemoryBytes: 1 << 40, DiskBytes: 1 << 40, MaxStarting: 256,
		Drivers: drivers, Leaving: a.leaving}, Allocs: a.specs[:0], Actual: a.actual}
	if a.h.DiskFull {
		in.Host.DiskProblem = "the disk is full"
	}
	in.Leases = a.lease.At(a.h.Clock())
	for _, id := range a.order {
		if al := a.allocs[id]; !al.storing {
			in.Allocs = append(in.Allocs, al.spec)
			in.Actual[id] = al.act
		}
	}
	a.specs = in.Allocs
	return in
}

func (a *agent) wakeIn(d time.Duration) {
	d = max(d, 10*time.Millisecond)
	at := a.r.w.Now + int64(a.h.TrueFor(d))
	if a.wakeAt > a.r.w.Now && a.wakeAt <= at {
		return
	}
	a.wakeAt = at
	a.p.After(d, func() {
		if a.wakeAt == at {
			a.wakeAt = 0
		}
		a.advance()
	})
}

func (a *agent) apply(al *agentAlloc, do reconcile.Action) {
	al.dirty = true
	id := al.order.id
	if a.r.w.Tracing() {
		a.r.w.Tracef("%s: %s", a.id, do)
	}
	switch do.Kind {
	case reconcile.Accept:
		al.act.Accepted = true
	case reconcile.Decline:
		al.act.End = &reconcile.Outcome{State: do.State, Declined: true, Reason: do.Reason, Message: do.Message}
	case reconcile.Adopt:
		a.adoptRun(al, do)
	case reconcile.Start:
		a.startRun(al, do)
	case reconcile.Close:
		al.act.Closing = &reconcile.Outcome{State: do.State, Reason: do.Reason, Message: do.Message, Failure: do.Failure}
	case reconcile.StopRun:
		a.r.w.watch.stopping(a, al, do.Reason)
		t := al.act.Tasks[task]
		al.setTask(t.Stopping(do.Reason))
		a.stopRun(al, runID{id, do.Run}, do.Grace)
	case reconcile.End:
		al.act.End = &reconcile.Outcome{State: do.State, Reason: do.Reason, Message: do.Message, Failure: do.Failure}
	case reconcile.Remove:
		delete(a.allocs, id)
		a.order = sortedKeys(a.allocs)
		a.reports.Delete(id)
		for run := 1; run <= al.act.Tasks[task].Run; run++ {
			if r := a.runs[runID{id, run}]; r != nil && r.ended {
				delete(a.runs, runID{id, run})
			}
		}
		a.write(func(d *agentDisk) { delete(d.orders, id); delete(d.records, id); delete(d.removed, id) }, nil)
	}
}

func (a *agent) startRun(al *agentAlloc, do reconcile.Action) {
	if al.act.Tasks[task].Lapsed() {
		al.act.Started = time.Time{}
	}
	t := al.act.Tasks[task].Started(al.spec.Tasks[0], do.Run)
	if do.Restart {
		now := a.timeline()
		t.Restarts = append(reconcile.Recent(al.spec.Tasks[0].Restart, t.Restarts, now), now)
		al.restarts++
	}
	al.setTask(t)
	id := runID{al.order.id, do.Run}
	if a.runs[id] != nil { // the run was begun already, and must begin at most once
		a.p.After(time.Millisecond, func() { a.followRun(id) })
		return
	}
	al.setup = do.Run
	captured, _ := a.lease.Deadline(al.order.binding, a.h.Clock())
	// The setup of a task fetches files, so it may take longer than the lease.
	a.p.After(a.r.w.setupTime(al.order.spec), func() {
		if a.allocs[id.alloc] != al || al.setup != do.Run {
			return
		}
		al.setup = 0
		a.launch(al, id, captured)
	})
}

// followRun finds out the state of a run.
func (a *agent) followRun(id runID) {
	r := a.runs[id]
	al := a.allocs[id.alloc]
	if r == nil || al == nil || al.act.Tasks[task].Run != id.run {
		return
	}
	if r.ended {
		a.runEnded(id, r)
		return
	}
	r.follower = a.p.Life
	a.runStarted(id)
}

func (a *agent) adoptRun(al *agentAlloc, do reconcile.Action) {
	t := al.act.Tasks[task]
	id := runID{al.order.id, do.Run}
	r := a.runs[id]
	switch {
	case r == nil:
		t.Phase, t.StartUncertain = reconcile.Waiting, true
		al.setTask(t)
	case r.ended && r.cause == causeStopped && al.spec.Want == reconcile.Run && al.act.Closing == nil && t.Lapse == "":
		al.setTask(reconcile.TaskActual{Phase: reconcile.Waiting, Run: do.Run + 1, Restarts: t.Restarts})
		al.act.Started = time.Time{}
	case r.ended:
		a.runEnded(id, r)
	default:
		a.runStarted(id)
		r.follower = a.p.Life
	}
}

func (a *agent) stopRun(al *agentAlloc, id runID, grace time.Duration) {
	al.setup = 0
	r := a.runs[id]
	if r == nil {
		a.p.After(time.Millisecond, func() {
			if t := al.act.Tasks[task]; t.Run == id.run && t.Phase != reconcile.Ended {
				al.setTask(t.Finish(reconcile.TaskActual{Phase: reconcile.Ended, Run: id.run, Finished: a.timeline(), ExitCode: -1, Reason: reconcile.StoppedByAgent}))
				a.advance()
			}
		})
		return
	}
	r.follower = a.p.Life
	if r.ended {
		a.p.After(time.Millisecond, func() { a.followRun(id) })
		return
	}
	r.p.After(time.Millisecond, func() { r.stop(grace) })
}

func (a *agent) runStarted(id runID) {
	al := a.allocs[id.alloc]
	if al == nil {
		return
	}
	t := al.act.Tasks[task]
	if t.Run != id.run || t.Phase != reconcile.Launching && t.Phase != reconcile.Unknown {
		return
	}
	t.Phase = reconcile.Up
	al.setTask(t)
	if al.act.Started.IsZero() {
		al.act.Started = a.timeline()
	}
	a.renewAlloc(al) // a renewal may have missed the run while it began
}

func (a *agent) runEnded(id runID, r *run) {
	al := a.allocs[id.alloc]
	if al == nil {
		return
	}
	t := al.act.Tasks[task]
	if t.Run != id.run || t.Phase == reconcile.Ended {
		return
	}
	e := reconcile.TaskActual{Phase: reconcile.Ended, Run: id.run, Finished: a.timeline(), ExitCode: r.exit}
	switch r.cause {
	case causeExited:
		if r.exit == exitMemory {
			e.Signal, e.Category = 9, reconcile.CategoryOOM
		}
	case causeStopped:
		e.Reason = reconcile.StoppedByAgent
	case causeLease:
		e.Reason = reconcile.ReasonLeaseExpired
		if v := a.verdict(al); !v.MayStart {
			e.Reason = reconcile.Reason(v.Reason)
		}
	case causePower:
		e.Reason = reconcile.ReasonHostRebooted
	}
	al.setTask(t.Finish(e))
	a.advance()
}

// publish stores changed records, and then reports them. An end is durable before it is reported.
func (a *agent) publish() {
	for _, id := range a.order {
		al := a.allocs[id]
		if !al.dirty || al.storing {
			continue
		}
		al.dirty = false
		al.act.Reached = reconcile.StateOf(al.spec, al.act)
		act := copyActual(al.act)
		if !al.act.Accepted && al.act.End == nil {
			continue
		}
		rep := state.AllocReport{ID: id, State: allocState(al.act.Reached), Restarts: al.restarts}
		if e := al.act.End; e != nil {
			rep.Declined, rep.Reason, rep.Message, rep.Failure = e.Declined, state.Reason(e.Reason), e.Message, failureOf(e)
			if e.Declined {
				rep.State = state.Failed
			}
			al.storing = true
			a.write(func(d *agentDisk) { d.records[id] = act }, func() {
				if a.allocs[id] == al {
					al.storing = false
					a.putReport(rep)
					a.advance()
				}
			})
			continue
		}
		a.write(func(d *agentDisk) { d.records[id] = act }, nil)
		a.putReport(rep)
	}
}

func (a *agent) putReport(rep state.AllocReport) {
	if old, held := a.reports.Get(rep.ID); held && old.State == rep.State && old.Restarts == rep.Restarts && old.Reason == rep.Reason {
		return
	}
	a.reports.Put(rep.ID, rep)
	a.sendReports()
}

func allocState(s reconcile.State) state.AllocState {
	return [...]state.AllocState{state.Pending, state.Starting, state.Running, state.Complete, state.Failed, state.Stopped}[s]
}

type runID struct {
	alloc string
	run   int
}
