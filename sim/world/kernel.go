package world

import (
	"cmp"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
)

// run is one run of a task: its supervisor with the shipped guard, and the command that the
// supervisor forks and reaps. The supervisor survives the end of the agent's process, but not a
// loss of the host's power.
type run struct {
	a       *agent
	p       *machine.Proc
	id      runID
	o       allocOrder
	guard   lease.Guard
	alarmed time.Duration
	// alarm is set for the clock reading armed.
	alarm *machine.Alarm
	armed time.Duration
	// newest is the latest deadline that was sent to the supervisor, by the numbers of the
	// renewals. The watch compares with it, independently of the guard.
	newest lease.Deadline
	at     int64 // true time of the fork

	forked, ended, asked bool
	cause                endCause
	// givenUp: a region of the level before gave the allocation up.
	givenUp  bool
	exit     int
	follower int // life of the agent's process that follows the run
}

type endCause int

const (
	causeExited endCause = iota
	causeStopped
	causeLease
	causePower
)

// launch begins a run after its setup, with the deadline at that time.
func (a *agent) launch(al *agentAlloc, id runID, captured lease.Deadline) {
	w := a.r.w
	o := al.order
	r := &run{a: a, id: id, o: o, follower: a.p.Life}
	d, held := a.lease.Deadline(o.binding, a.h.Clock())
	if plant.Is(plant.LateStart) && captured.At != 0 {
		d, held = captured, true
	}
	a.runs[id] = r
	r.p = a.h.NewProc("run")
	r.p.OnStart, r.p.OnKill = func() {}, func(bool) { r.lostPower() } // only the host ends the process
	r.p.Up, r.p.Life = true, 1
	if o.binding != lease.None && (!held || al.ends()) {
		r.finish(causeLease, -1)
		return
	}
	r.newest = d
	r.guard = lease.NewGuard(d, o.spec.kill)
	r.p.After(w.Between(time.Millisecond, 5*time.Millisecond), func() {
		if !r.guard.MayFork(a.h.Clock()) {
			r.finish(causeLease, -1)
			return
		}
		r.fork()
	})
}

func (r *run) fork() {
	w := r.a.r.w
	r.forked, r.at = true, w.Now
	w.watch.fork(r)
	if w.Tracing() {
		w.Tracef("%s: fork %s/%d %s", r.a.id, r.id.alloc, r.id.run, r.o.instance)
	}
	r.effect(r.guard.Forked(r.a.h.Clock()))
	r.tell(func() { r.a.runStarted(r.id); r.a.advance() })
	g := r.o.spec
	switch {
	case g.runs > 0:
		r.p.After(g.runs, func() {
			if code := g.life.exit(w); code != 0 {
				r.finish(causeExited, code)
				return
			}
			r.finish(causeExited, 0)
		})
	case g.life.broken:
		r.p.After(w.Between(100*time.Millisecond, 2*time.Second), func() { r.finish(causeExited, exitFailed) })
	case w.Chance(40):
		r.p.After(w.Between(time.Second, 2*time.Minute), func() { r.finish(causeExited, 1) })
	}
}

// effect carries out an effect of the guard, and sets the alarm for the guard's next tick.
func (r *run) effect(e lease.Effect) {
	if r.ended || !r.forked {
		return
	}
	switch e {
	case lease.Kill:
		r.finish(r.guardCause(), 137)
		return
	case lease.Term:
		r.a.r.w.watch.asked(r)
		r.term()
	}
	at := r.guard.Wake()
	if at == 0 || at == r.alarmed {
		return
	}
	r.alarmed = at
	if plant.Is(plant.SuspendedKill) && r.asked {
		r.p.After(at-r.a.h.Clock(), func() {
			if r.alarmed == at {
				r.tick()
			}
		})
		return
	}
	r.setAlarm(at)
}

func (r *run) tick() {
	r.alarmed = 0
	r.effect(r.guard.Tick(r.a.h.Clock()))
}

func (r *run) guardCause() endCause {
	if r.guard.Cause() == lease.Stopped {
		return causeStopped
	}
	return causeLease
}

// term asks the command to end. Some commands ignore the request.
func (r *run) term() {
	w := r.a.r.w
	if r.asked {
		return
	}
	r.asked = true
	if w.Tracing() {
		w.Tracef("%s: stop %s/%d %s: %s", r.a.id, r.id.alloc, r.id.run, r.o.instance, r.guard.Cause())
	}
	if !w.Chance(3) {
		r.p.After(time.Duration(w.Rng.Int64N(int64(r.o.spec.kill)+1)), func() {
			r.guard.Exited()
			r.finish(r.guardCause(), 143)
		})
	}
}

// setAlarm makes the guard tick when CLOCK_BOOTTIME has reached a reading. If the host is suspended
// then, the guard ticks when the host resumes.
func (r *run) setAlarm(at time.Duration) {
	h, w := r.a.h, r.a.r.w
	if r.alarm == nil {
		life := r.p.Life
		r.alarm = w.NewAlarm(func() {
			due := r.armed
			if r.alarmed != due {
				return
			}
			if r.p.Up && r.p.Life == life && !r.p.Stalled() {
				r.tick()
				return
			}
			r.p.Then(life, func() {
				if r.alarmed == due {
					r.tick()
				}
			})
		})
	}
	r.armed = at
	r.alarm.Set(w.Now + int64(h.TrueFor(at-h.Clock())))
}

// renew passes a deadline to the supervisor.
func (r *run) renew(d lease.Deadline, b lease.Binding) {
	if r.ended {
		return
	}
	if d.Number > r.newest.Number {
		r.newest = d
	}
	r.guard.Renew(d)
	r.effect(lease.Nothing)
}

// stop asks the command to end, and kills it after the grace time.
func (r *run) stop(grace time.Duration) {
	if !r.ended && r.forked {
		r.effect(r.guard.Stop(r.a.h.Clock(), grace))
	}
}

// finish reaps the command.
func (r *run) finish(cause endCause, code int) {
	if r.ended {
		return
	}
	r.ended, r.exit, r.cause = true, code, cause
	if r.asked && cause == causeExited {
		r.cause = r.guardCause()
	}
	if r.forked {
		r.a.r.w.watch.reap(r)
	}
	r.a.h.DropProc(r.p)
	if r.a.r.w.Tracing() {
		r.a.r.w.Tracef("%s: end %s/%d %s code %d cause %d", r.a.id, r.id.alloc, r.id.run, r.o.instance, code, r.cause)
	}
	r.tell(func() { r.a.runEnded(r.id, r) })
}

func (r *run) lostPower() {
	if !r.ended {
		r.follower = -1
		r.finish(causePower, 137)
	}
}

// tell runs do in the agent's process, if that process still lives.
func (r *run) tell(do func()) {
	life := r.follower
	r.a.r.w.In(time.Millisecond, func() { r.a.p.Then(life, do) })
}

// renewRuns passes the present deadlines to all supervisors.
func (a *agent) renewRuns() {
	for _, id := range a.order {
		a.renewAlloc(a.allocs[id])
	}
}

// renewAlloc passes the present deadline of an allocation to its supervisor.
func (a *agent) renewAlloc(al *agentAlloc) {
	t := al.act.Tasks[task]
	if al.act.End != nil || al.ends() || t.Phase != reconcile.Up && t.Phase != reconcile.Launching {
		return
	}
	r := a.runs[runID{al.order.id, t.Run}]
	if r == nil || r.ended {
		return
	}
	d, held := a.lease.Deadline(al.order.binding, a.h.Clock())
	if !held {
		return
	}
	b := al.order.binding
	// Connections to the supervisor are not ordered, so an older renewal may arrive later.
	late := a.r.w.Between(100*time.Microsecond, 3*time.Millisecond)
	if a.r.w.Now < int64(calm) && a.r.w.Chance(cmp.Or(a.r.w.lateRenewals, 20)) {
		late = a.r.w.Between(0, 8*time.Second)
	}
	r.p.After(late, func() { r.renew(d, b) })
}

// verdict returns whether an allocation may run under its leases.
func (a *agent) verdict(al *agentAlloc) lease.Verdict {
	return lease.Evaluate(al.order.binding, a.lease.At(a.h.Clock()))
}
