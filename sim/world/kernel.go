package world

import (
	"cmp"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/plant"
)

// run is one run of a task: its supervisor with the shipped guard, and the command that the
// supervisor forks and reaps. The supervisor survives the end of the agent's process, but not a
// loss of the host's power.
type run struct {
	a       *agent
	p       *proc
	id      runID
	o       allocOrder
	guard   lease.Guard
	alarmed time.Duration
	// alarm is set for the clock reading armed.
	alarm *alarm
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
	r := &run{a: a, id: id, o: o, follower: a.p.life}
	d, held := a.lease.Deadline(o.binding, a.h.clock())
	if plant.Is(plant.LateStart) && captured.At != 0 {
		d, held = captured, true
	}
	a.runs[id] = r
	r.p = a.h.newProc("run")
	r.p.onStart, r.p.onKill = func() {}, func(bool) { r.lostPower() } // only the host ends the process
	r.p.up, r.p.life = true, 1
	if o.binding != lease.None && (!held || al.ends()) {
		r.finish(causeLease, -1)
		return
	}
	r.newest = d
	r.guard = lease.NewGuard(d, o.spec.kill)
	r.p.after(w.between(time.Millisecond, 5*time.Millisecond), func() {
		if !r.guard.MayFork(a.h.clock()) {
			r.finish(causeLease, -1)
			return
		}
		r.fork()
	})
}

func (r *run) fork() {
	w := r.a.r.w
	r.forked, r.at = true, w.now
	w.watch.fork(r)
	if w.tracing() {
		w.tracef("%s: fork %s/%d %s", r.a.id, r.id.alloc, r.id.run, r.o.instance)
	}
	r.effect(r.guard.Forked(r.a.h.clock()))
	r.tell(func() { r.a.runStarted(r.id); r.a.advance() })
	g := r.o.spec
	switch {
	case g.runs > 0:
		r.p.after(g.runs, func() {
			if code := g.life.exit(w); code != 0 {
				r.finish(causeExited, code)
				return
			}
			r.finish(causeExited, 0)
		})
	case w.chance(40):
		r.p.after(w.between(time.Second, 2*time.Minute), func() { r.finish(causeExited, 1) })
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
		r.p.after(at-r.a.h.clock(), func() {
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
	r.effect(r.guard.Tick(r.a.h.clock()))
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
	if w.tracing() {
		w.tracef("%s: stop %s/%d %s: %s", r.a.id, r.id.alloc, r.id.run, r.o.instance, r.guard.Cause())
	}
	if !w.chance(3) {
		r.p.after(time.Duration(w.rng.Int64N(int64(r.o.spec.kill)+1)), func() {
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
		life := r.p.life
		r.alarm = newAlarm(w, func() {
			due := r.armed
			if r.alarmed != due {
				return
			}
			if r.p.up && r.p.life == life && !r.p.stalled() {
				r.tick()
				return
			}
			r.p.then(life, func() {
				if r.alarmed == due {
					r.tick()
				}
			})
		})
	}
	r.armed = at
	r.alarm.set(w.now + int64(h.trueFor(at-h.clock())))
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
		r.effect(r.guard.Stop(r.a.h.clock(), grace))
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
	r.a.h.dropProc(r.p)
	if r.a.r.w.tracing() {
		r.a.r.w.tracef("%s: end %s/%d %s code %d cause %d", r.a.id, r.id.alloc, r.id.run, r.o.instance, code, r.cause)
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
	r.a.r.w.in(time.Millisecond, func() { r.a.p.then(life, do) })
}

func (h *host) dropProc(p *proc) {
	p.up = false
	p.life++
	for i, o := range h.procs {
		if o == p {
			h.procs = append(h.procs[:i], h.procs[i+1:]...)
			return
		}
	}
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
	d, held := a.lease.Deadline(al.order.binding, a.h.clock())
	if !held {
		return
	}
	b := al.order.binding
	// Connections to the supervisor are not ordered, so an older renewal may arrive later.
	late := a.r.w.between(100*time.Microsecond, 3*time.Millisecond)
	if a.r.w.now < int64(calm) && a.r.w.chance(cmp.Or(a.r.w.lateRenewals, 20)) {
		late = a.r.w.between(0, 8*time.Second)
	}
	r.p.after(late, func() { r.renew(d, b) })
}

// verdict returns whether an allocation may run under its leases.
func (a *agent) verdict(al *agentAlloc) lease.Verdict {
	return lease.Evaluate(al.order.binding, a.lease.At(a.h.clock()))
}
