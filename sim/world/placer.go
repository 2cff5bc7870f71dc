package world

import (
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// wakePlacer schedules a plan.
func (t *globalTerm) wakePlacer() {
	if t.placeSoon || t.ended() && t.g.term != nil {
		return
	}
	t.placeSoon = true
	t.g.p.after(50*time.Millisecond, func() {
		t.placeSoon = false
		t.place()
	})
}

// tick does the work that depends only on time.
func (t *globalTerm) tick() {
	for _, name := range t.names { // as global/uplink does
		if s := t.regions[name].session; s != nil && s.level < t.level() {
			s.e.close()
			t.step(name, region.StreamEnded{Stream: s.number})
		}
	}
	if t.config().Serving(t.now()) {
		for _, name := range t.names {
			t.step(name, region.Tick{})
		}
	}
	t.confirmRegions()
	t.failover()
	t.forget()
	t.endReturns()
	t.seconds++
	if t.seconds%5 == 0 {
		t.g.known = max(t.g.known, t.rev)
	}
	if len(t.movable) > 0 || t.seconds%5 == 0 {
		t.place()
	}
}

// resumed makes the silence of all regions count from now on, because this server itself may have
// been cut off.
func (t *globalTerm) resumed() {
	for _, name := range t.names {
		t.step(name, region.Resumed{})
	}
}

// place makes a plan and commits it.
func (t *globalTerm) place() {
	if t.ended() || t.placing || !t.config().Serving(t.now()) {
		return
	}
	t.placing = true
	t.commit(func() []write {
		if t.leadership.conflict {
			return nil
		}
		in := t.planInputs()
		if in == t.idle {
			return nil // the plan would be the same
		}
		t.idle = planInputs{}
		s, work := t.snapshot()
		if !work {
			t.idle = in
			return nil
		}
		plan := place.MakePlan(s)
		if len(plan.Actions) == 0 {
			t.idle = in
		}
		var changes []region.Change
		var compared []write
		for _, a := range plan.Actions {
			if t.w.tracing() {
				t.w.tracef("%s: plan %s", t.g.name, a)
			}
			if a.Kind == place.Takeover && !a.Slot.Vacant { // the write must check that the verdict still holds
				compared = append(compared, write{key: regionPrefix + a.Region, compare: true})
			}
			changes = append(changes, a.Changes()...)
		}
		return append(putSlots(changes), compared...)
	}, func(bool) { t.placing = false })
}

// planInputs has everything that a plan depends on: the revision of the records, a count of the
// changes that are not stored, and the facts about regions that change with time. If a plan changed
// nothing, it is not made again from equal inputs.
type planInputs struct {
	rev     int64
	soft    uint64
	level   int
	regions [8]regionInputs
}

type regionInputs struct {
	connected, lost, never, blocked, behind, unsteady bool
	// reported: a report has arrived since the latest refusal.
	reported bool
	// healthy and silent count the entries of waits that have passed since the region became
	// healthy, or silent.
	healthy, silent int8
}

// waits are the times after which a group moves or returns.
var waits = [...]time.Duration{2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second}

func (t *globalTerm) planInputs() planInputs {
	out := planInputs{rev: t.rev, soft: t.soft, level: t.level()}
	for i, name := range t.names {
		r := t.regions[name]
		in := regionInputs{connected: r.life.Connected(), lost: r.life.Lost, never: r.life.ClusterID == "", blocked: r.life.CommitBlocked > 0,
			behind: r.life.Behind(), unsteady: t.unsteady(r.rec)}
		if n := len(r.refused); n > 0 {
			in.reported = r.reports > r.refused[n-1].ReportSequence
		}
		healthy, silent := r.life.ConnectedFor(t.now()), r.life.SilentFor(t.now())
		for _, d := range waits {
			if healthy >= d {
				in.healthy++
			}
			if !in.connected && silent > d {
				in.silent++
			}
		}
		out.regions[i] = in
	}
	return out
}

// snapshot returns the snapshot of a plan. It returns false if there is no work.
func (t *globalTerm) snapshot() (place.Snapshot, bool) {
	out := place.Snapshot{Terse: true}
	for _, name := range t.names {
		r := t.regions[name]
		pr := place.Region{Name: name, Cordoned: r.rec.cordoned, Draining: r.rec.draining, Connected: r.life.Connected(), Lost: r.life.Lost,
			NeverConnected: r.life.ClusterID == "", DisconnectedFor: r.life.SilentFor(t.now()), CommitBlocked: r.life.CommitBlocked, Behind: r.life.Behind(),
			FeatureLevel: t.levelOf(r.rec), HealthyFor: r.life.ConnectedFor(t.now()), Unsteady: t.unsteady(r.rec), Returning: r.rec.returning}
		if rep := r.report; rep != nil {
			pr.HasReport, pr.ReportSequence, pr.SlotsRevision, pr.Fits = true, r.reports, rep.slotsRevision, rep.fits
			pr.NodesReady, pr.Drivers = rep.ready, []string{"process"}
			pr.Free.CPUMilli = rep.free
		}
		out.Regions = append(out.Regions, &pr)
		out.Returned = append(out.Returned, r.refused...)
	}
	for _, name := range sortedKeys(t.jobs) {
		j := t.jobs[name].toPlace()
		j.Slots, j.Movable = t.slotsOf(name), t.movable[name]
		if t.w.life {
			addSummaries(t, &j)
		}
		j.Down = t.down(&j)
		if t.jobs[name].stopped && len(j.Slots) == 0 {
			continue
		}
		for _, other := range t.names {
			if rep := t.regions[other].report; rep != nil {
				for i, d := range rep.disconnected {
					if rep.jobs[i] == name {
						j.Disconnected = append(j.Disconnected, d)
					}
				}
			}
		}
		out.Jobs = append(out.Jobs, j)
	}
	return out, len(out.Jobs) > 0
}

// down returns, by group, how many instances have an owner and must run, but are reported as
// running by no region.
func (t *globalTerm) down(j *place.Job) map[string]int {
	if len(j.Slots) == 0 {
		return nil
	}
	out := map[string]int{}
	for _, s := range j.Slots {
		if s.Desired == region.DesiredRun && s.State != region.Done {
			out[s.Group] += s.Count()
		}
	}
	for group := range out {
		for _, name := range t.names {
			if rep := t.regions[name].report; rep != nil {
				out[group] -= rep.running[groupName{j.Name, group}]
			}
		}
		out[group] = max(0, out[group])
	}
	return out
}

// returning reports whether slots are returning to a region, or may return to it, as
// global/placer/drain.go does.
func (t *globalTerm) returning(name string) bool {
	for _, s := range t.slots {
		j := t.jobs[s.Job]
		if j == nil || j.stopped {
			continue
		}
		g := j.group(s.Group)
		may := g != nil && j.typ != state.Batch && g.failback != place.FailbackNever
		if s.ReturnTo == name || s.Home == name && may && s.State != region.Done && s.Desired != region.DesiredStop {
			return true
		}
	}
	return false
}

// endReturns ends each failback that operators began, when no slot is left that may return, or when
// the region is lost again.
func (t *globalTerm) endReturns() {
	for _, name := range t.names {
		if rec := t.regions[name].rec; rec.returning && (rec.Lost || !t.returning(name)) {
			t.commit(func() []write {
				rec := t.regions[name].rec
				if !rec.returning {
					return nil
				}
				rec.returning = false
				return []write{{key: regionPrefix + name, value: rec}}
			}, nil)
		}
	}
}

// levelOf is the feature level that the placer sees of a region.
func (t *globalTerm) levelOf(rec regionRecord) int {
	if plant.Is(plant.LevelIgnored) {
		return state.FeatureLevel
	}
	if t.level() == 0 {
		return 0
	}
	return int(rec.Level)
}

// level is the least feature level of the servers that stand for election.
func (t *globalTerm) level() int {
	for _, g := range t.w.globals {
		if g.old && !g.p.unwanted {
			return 0
		}
	}
	return 1
}
