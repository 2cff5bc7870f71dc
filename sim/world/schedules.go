package world

import (
	"reflect"
	"time"

	"github.com/nusa-scheduler/nusa/global/schedules/plan"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

func submitSchedule(w *world, name string) {
	e := w.Engine
	period := machine.Pick[time.Duration](e, 13, 20, 30, 45) * time.Second
	rule := &plan.Rule{Job: name, Next: func(after time.Time) (time.Time, bool) { return after.Truncate(period).Add(period), true },
		Jitter: machine.Pick[time.Duration](e, 0, 0, 5) * time.Second, Overlap: machine.Pick(e, plan.Skip, plan.BufferOne, plan.BufferAll, plan.Cancel, plan.Terminate, plan.Allow),
		Buffer: 1 + e.Rng.IntN(3), CatchUp: machine.Pick[time.Duration](e, 20, 60, 600) * time.Second}
	operator{w}.runNow(name)
	put(w, schedulePrefix+name, func(t *globalTerm) any {
		now := time.Unix(t.g.h.Wall()/1e9, 0)
		if w.Tracing() {
			w.Tracef("operator: schedule %s each %s, overlap %s, catch up %s", name, period, rule.Overlap, rule.CatchUp)
		}
		s := plan.State{Decided: now}
		return &scheduleRecord{rule: rule, state: s, wall: now}
	})
}

// stepSchedule makes up to n steps of a schedule.
func (t children) stepSchedule(name string, n int) {
	if next, _ := t.scheduleStep(name, true); next == nil || n == 0 {
		return
	}
	var ws []store.Write
	t.commit(func() []store.Write {
		var next *scheduleRecord
		next, ws = t.scheduleStep(name, false)
		if next == nil {
			return nil
		}
		if plant.Is(plant.RunBeforeRecord) && next.did.Start != nil {
			return ws
		}
		ws = append(ws, store.Write{Key: schedulePrefix + name, Value: next})
		return ws
	}, func(ok bool) {
		if ok {
			t.began(ws)
			t.stepSchedule(name, n-1)
		}
	})
}

// scheduleStep returns the record of a schedule after a step, and the writes to jobs. It returns nil if nothing
// follows. ask: the caller asks only whether something follows.
func (t children) scheduleStep(name string, ask bool) (*scheduleRecord, []store.Write) {
	old := t.schedules[name]
	if old == nil {
		return nil, nil
	}
	now := time.Unix(0, t.g.h.Wall())
	next := old.next(now)
	if old.state.Paused {
		next.wall = old.wall
	}
	runs := t.runsOf(old)
	ws := t.keepActive(next, runs)
	next.did = plan.Step(*old.rule, old.state, now, runs)
	next.state = next.did.State
	if t.w.Now > int64(lastStart) && !next.state.Paused { // an operator pauses it
		next.did = plan.Plan{}
		next.state = old.state
		next.state.Paused = true
	}
	if ask && next.did.Start != nil {
		return next, nil
	}
	if s := next.did.Start; s != nil {
		run := plan.Name(name, s.Time, s.Trigger, func(n string) bool { return t.jobs[n] != nil })
		if t.jobs[run] != nil {
			next.state.Skipped++
			next.did.Skipped = append(next.did.Skipped, plan.Skipped{Time: s.Time, Why: "exists already"})
			next.did.Start = nil
		} else {
			ws = append(ws, t.beginRun(name, next, run))
		}
	}
	for _, s := range next.did.Stop {
		ws = append(ws, t.stop(s.Name, false)...)
	}
	if len(ws) == 0 && next.did.Start == nil && reflect.DeepEqual(next.state, old.state) && len(next.runs) == len(old.runs) {
		return nil, nil
	}
	if t.w.Tracing() && !ask {
		t.w.Tracef("%s: schedule %s: start %v stop %v skipped %d missed %d, %d active", t.g.name, name, next.did.Start, next.did.Stop, len(next.did.Skipped), next.did.Missed, len(next.runs))
	}
	return next, ws
}

// next returns the record for the next step.
func (r *scheduleRecord) next(now time.Time) *scheduleRecord {
	return &scheduleRecord{rule: r.rule, state: r.state, total: r.total, wall: now, backfills: r.backfills, asked: r.asked}
}

// runsOf returns the runs of a schedule that have not ended, as they are now.
func (t children) runsOf(of *scheduleRecord) (runs []plan.Run) {
	for _, r := range of.runs {
		r.State, _ = t.runState(r.Name)
		if j := t.jobs[r.Name]; j != nil {
			r.Stopping = j.stopped
		}
		runs = append(runs, r)
	}
	return runs
}

// keepActive adds the active runs to a record, and returns the writes that forget the others.
func (t children) keepActive(next *scheduleRecord, runs []plan.Run) (ws []store.Write) {
	for _, r := range runs {
		if r.State == plan.Active {
			next.runs = append(next.runs, r)
		} else {
			ws = append(ws, t.stop(r.Name, true)...)
		}
	}
	return ws
}

// beginRun notes the run of a plan in a record, and returns the write that stores its job.
func (t children) beginRun(of string, next *scheduleRecord, run string) store.Write {
	s, rule := next.did.Start, next.rule
	next.runs = append(next.runs, plan.Run{Name: run, Backfill: s.Trigger == plan.Backfill})
	next.total++
	return t.begin(run, kid{of: of, schedule: rule, at: s.Time, trigger: s.Trigger, backfill: next.backfills, neverOverlaps: rule.Overlap != plan.Allow && rule.Overlap != plan.Terminate})
}

// trigger begins a run now, as an operator asks. It stores what plan.Now decides.
func (t children) trigger(name string) {
	var ws []store.Write
	run := ""
	t.commit(func() []store.Write {
		old := t.schedules[name]
		if old == nil || old.state.Paused && t.w.Now > int64(lastStart) {
			return nil
		}
		now := time.Unix(0, t.g.h.Wall())
		next, runs := old.next(now), t.runsOf(old)
		if old.state.Paused {
			next.wall = old.wall
		}
		var why string
		next.did, why = plan.Now(*old.rule, old.state, now, runs)
		ended := t.keepActive(next, runs)
		if why != "" {
			return nil
		}
		run = plan.Name(name, next.did.Start.Time, plan.Manual, func(n string) bool { return t.jobs[n] != nil })
		if t.jobs[run] != nil {
			return nil
		}
		next.state = plan.Count(*old.rule, next.did.State, runs).State
		ws = append(ended, t.beginRun(name, next, run))
		for _, s := range next.did.Stop {
			ws = append(ws, t.stop(s.Name, false)...)
		}
		ws = append(ws, store.Write{Key: schedulePrefix + name, Value: next})
		return ws
	}, func(ok bool) {
		if ok {
			t.began(ws)
			t.w.watch.kids.triggered = append(t.w.watch.kids.triggered, run)
		}
	})
}

// backfill begins runs for times that have passed, as an operator asks.
func (t children) backfill(name string, n int) {
	t.commit(func() []store.Write {
		old := t.schedules[name]
		if old == nil || old.state.Paused {
			return nil
		}
		now := time.Unix(t.g.h.Wall()/1e9, 0)
		next := old.next(old.wall)
		next.runs = old.runs
		first, _ := old.rule.Next(now)
		second, _ := old.rule.Next(first)
		from, ok := now.Add(-time.Duration(n)*second.Sub(first)), false
		n = plan.Between(*old.rule, from, now, 100)
		next.state, ok = plan.Fill(old.state, from, now, n)
		if !ok {
			return nil
		}
		next.asked, next.backfills = n, old.backfills+1
		return []store.Write{{Key: schedulePrefix + name, Value: next}}
	}, nil)
}

// runNow lets operators trigger schedules and fill times in, from time to time.
func (o operator) runNow(name string) {
	o.In(o.Between(20*time.Second, 90*time.Second), func() {
		if t := o.active(); t != nil && t.level() > 0 && o.Now < int64(lastStart) {
			if o.Tracing() {
				o.Tracef("operator: run %s now", name)
			}
			if o.Chance(3) {
				children{t}.backfill(name, 1+o.Rng.IntN(3))
			} else {
				children{t}.trigger(name)
			}
		}
		if o.Now < int64(calm) {
			o.runNow(name)
		}
	})
}
