package world

import (
	"slices"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// converged checks that each wanted index runs once, or has a stated reason.
func (w *world) converged() {
	t := w.active()
	if t == nil {
		w.watch.fail(9, "no global server is active")
		return
	}
	for _, name := range sortedKeys(t.jobs) {
		j := t.jobs[name]
		for _, g := range j.groups {
			if w.systemJobs[name] {
				continue
			}
			w.groupConverged(t, j, g)
		}
	}
	w.nothingWaits(t)
	for _, r := range w.regions {
		w.ownConverged(r)
	}
}

// ownConverged checks the region's own jobs.
func (w *world) ownConverged(r *regionSim) {
	m := r.master()
	if m == nil {
		w.watch.fail(9, "%s has no master", r.name)
		return
	}
	for g := range m.view().Groups() {
		if !g.Key.Local || len(g.Slots) == 0 {
			continue
		}
		j, ok := m.view().Job(g.Key.JobKey(), g.Slots[0].JobVersion)
		if !ok || j.Type == state.System {
			continue
		}
		for i := range int32(8) {
			inst := instance{job: g.Key.Job, group: g.Key.Group, index: i, scope: r.name, own: true}
			want := slices.ContainsFunc(g.Slots, func(s *state.Slot) bool { return s.Desired == state.Run && s.From <= i && i < s.To })
			live := len(w.watch.live[inst])
			switch {
			case want && live == 1, !want && live == 0:
			case w.excused(nil, inst, owned{region: r.name}):
				w.watch.stats.Reasons++
			default:
				w.watch.fail(9, "%s runs %d times, wanted %v", inst, live, want)
			}
		}
	}
}

// nothingWaits checks that no change is in progress: every region is connected, every former owner
// has confirmed, and no slot is being given up.
func (w *world) nothingWaits(t *globalTerm) {
	for _, r := range w.regions {
		if have := t.regions[r.name]; have == nil || !have.life.Connected() {
			w.watch.fail(9, "%s is not connected", r.name)
		}
	}
	for _, key := range sortedKeys(t.slots) {
		s := t.slots[key]
		if len(s.Former) > 0 {
			w.watch.fail(9, "%s has former owners: %v", s, s.Former)
		}
		if s.Desired != region.DesiredRun || s.State == region.Offered {
			w.watch.fail(9, "%s is %s %s", s, s.State, s.Desired)
		}
	}
}

func (w *world) groupConverged(t *globalTerm, j *jobRecord, g *groupVersion) {
	owners := w.watch.owners[groupName{j.name, g.group}]
	for i := range g.count + 4 {
		inst := instance{job: j.name, group: g.group, index: int32(i)}
		live := w.watch.live[inst]
		o, has := owners[i]
		want := !j.stopped && i < g.count
		switch {
		case !want && len(live) == 0:
		case !want:
			if w.excused(t, inst, o) {
				w.watch.stats.Reasons++
				continue
			}
			w.watch.fail(9, "%s is not wanted and runs on %s", inst, live[0].a.id)
		case has && o.state == region.Done && len(live) == 0:
		case len(live) == 1 && has && live[0].a.r.name == o.region:
		case w.excused(t, inst, o):
			w.watch.stats.Reasons++
		default:
			where := ""
			for _, r := range live {
				where += " " + r.a.id
			}
			w.watch.fail(9, "%s is owned by %q (%s %s) and runs on%s", inst, o.region, o.state, o.desired, where)
		}
	}
}

// excused reports whether an index has a stated reason not to run exactly once: its owner waits for
// a node, for the end of a back-off, or for a lease.
func (w *world) excused(t *globalTerm, i instance, o owned) bool {
	if o.region == "" {
		return w.noRoom(t, i)
	}
	r := w.regionNamed(o.region)
	m := r.master()
	if m == nil || m.plan == nil {
		return false
	}
	key := state.GroupKey{Namespace: "default", Job: i.job, Group: i.group, Local: i.own}
	if in := m.view().Instance(key, i.index); in.Finished() {
		return true
	}
	for _, u := range m.plan.Unplaced {
		if u.Key == key {
			return true
		}
	}
	for _, u := range m.plan.Waiting {
		if u.Key == key {
			return true
		}
	}
	// A run that has failed starts again after a second and a setup of up to 40 seconds.
	if at, ended := w.watch.exited[i]; ended && len(w.watch.live[i]) == 0 && w.now-at < 45e9 {
		return true
	}
	for a := range m.view().Allocs() {
		if a.Key() == key && a.Index == i.index && a.Live() && a.ModifiedUnixNano > m.srv.h.wall()-45e9 {
			return true // the instance starts, or restarts after a failure
		}
	}
	return false
}

// noRoom reports whether the placer gives a reason why an index has no owner.
func (w *world) noRoom(t *globalTerm, i instance) bool {
	s, _ := t.snapshot()
	for _, g := range place.MakePlan(s).Groups {
		if g.Job == i.job && g.Group == i.group && g.Unplaced > 0 && len(g.Pending) > 0 {
			return true
		}
	}
	return false
}

func (w *world) regionNamed(name string) *regionSim {
	for _, r := range w.regions {
		if r.name == name {
			return r
		}
	}
	return nil
}

// master returns the master of the present term, or nil.
func (r *regionSim) master() *master {
	if l := r.raft.leader; l != nil && !l.ended && l.srv.lead != nil && l.srv.lead.l == l {
		return l.srv.lead
	}
	return nil
}
