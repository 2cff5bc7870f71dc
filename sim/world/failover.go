package world

import (
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/failover"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
)

// failover declares silent regions lost, and says which slots may move. It is the shell of package
// failover, as global/failover.go is.
func (t *globalTerm) failover() {
	if t.ended() || t.g.old || !t.config().Serving(t.now()) {
		return
	}
	t.outlasts(0, 0)
	snapshot := t.failoverSnapshot()
	if len(snapshot.Regions) == 0 {
		t.noteMassLoss("")
		t.move(map[string][]place.Movable{})
		return
	}
	plan := failover.Decide(snapshot)
	if plan.Paused {
		t.massLoss = t.now()
	}
	t.noteMassLoss(plan.Alarm)
	if plan.Resign != "" {
		t.remember(true, func() { t.c.end("resigns: " + plan.Resign) })
		return
	}
	if plan.Forget {
		t.remember(false, nil)
	}
	movable := map[string][]place.Movable{}
	for _, d := range plan.Regions {
		r := t.region(d.Region)
		for _, s := range d.Slots {
			if s.Now {
				movable[s.Job] = append(movable[s.Job], place.Movable{Group: s.Group, Region: d.Region, From: s.From, To: s.To,
					Generation: s.Generation, Fence: r.rec.Fence, NothingRuns: r.rec.NothingRuns})
			}
		}
	}
	t.move(movable)
	for _, v := range plan.Verdicts {
		t.declare(v.Region, region.Declare{Why: v.Why}, false)
	}
}

// move sets which slots may move.
func (t *globalTerm) move(movable map[string][]place.Movable) {
	if !maps.EqualFunc(t.movable, movable, slices.Equal) {
		t.movable = movable
		t.soft++
	}
}

// remember stores whether a server has resigned because of the present mass loss.
func (t *globalTerm) remember(resigned bool, done func()) {
	t.commit(func() []write {
		rec := t.leadership
		rec.resigned = resigned
		return []write{{key: leadershipKey, value: rec}}
	}, func(ok bool) {
		if ok && done != nil {
			done()
		}
	})
}

// noteMassLoss stores the alarm of a mass loss, or its end, for the next active server.
func (t *globalTerm) noteMassLoss(alarm string) {
	if (alarm == "") == (t.leadership.massLoss == "") {
		return
	}
	t.commit(func() []write {
		rec := t.leadership
		rec.massLoss = alarm
		return []write{{key: leadershipKey, value: rec}}
	}, nil)
}

// declare stores a verdict, unless a message of the region has arrived since the decision.
func (t *globalTerm) declare(name string, d region.Declare, operator bool) {
	r := t.region(name)
	stream, lastSeen := r.life.Stream, r.life.LastSeen
	t.commit(func() []write {
		if r.rec.Lost && !operator || r.life.Stream != stream || r.life.LastSeen != lastSeen {
			return nil
		}
		life := r.life
		life.Record = r.rec.Record
		next, _ := region.Step(t.config(), life, t.now(), d)
		rec := r.rec
		rec.Record = next.Record
		if !operator {
			rec.lostAt = append(slices.Clone(rec.lostAt), t.g.h.wall())
			rec.lostAt = rec.lostAt[max(0, len(rec.lostAt)-8):]
		}
		t.w.watch.declaring(t, name, operator)
		ws := []write{{key: regionPrefix + name, value: rec}}
		if d.NothingRuns && !r.calls {
			ws = append(ws, t.confirmed(name)...)
		}
		return ws
	}, func(ok bool) {
		if ok { // the stored record ended the stream, so leases that were granted meanwhile count
			t.failover()
		}
	})
}

// failoverSnapshot returns the snapshot for the decision about verdicts. It has no regions if no
// plan could decide anything.
func (t *globalTerm) failoverSnapshot() failover.Snapshot {
	now, c := t.now(), t.config()
	out := failover.Snapshot{Lease: c.Lease, LeaseMax: max(c.Lease, c.LeaseMax), Active: now - t.began, Calm: now - t.began,
		OtherServers: t.others, Resigned: t.leadership.resigned, Earlier: t.leadership.massLoss, Unconfirmed: t.leadership.unconfirmed}
	if t.massLoss != 0 {
		out.Calm = now - t.massLoss
	}
	if !out.Resigned && out.Earlier == "" && !slices.ContainsFunc(t.names, func(name string) bool {
		r := t.regions[name]
		return r.rec.Lost || r.life.SilentFor(now) >= out.Quiet()
	}) {
		return out
	}
	for _, name := range t.names {
		r := t.regions[name]
		f := failover.Region{Name: name, Connected: r.session != nil, NeverConnected: r.rec.ClusterID == "",
			Lost: r.rec.Lost, NothingRuns: r.rec.NothingRuns, Silent: r.life.SilentFor(now)}
		if f.Lost || f.Silent >= out.Quiet() {
			f.Slots = t.failoverSlots(name, r)
		}
		out.Regions = append(out.Regions, f)
	}
	return out
}

func (t *globalTerm) failoverSlots(name string, r *globalRegion) []failover.Slot {
	var out []failover.Slot
	for _, key := range sortedKeys(t.slots) {
		s := t.slots[key]
		if s.Region != name || s.Vacant {
			continue
		}
		f := failover.Slot{Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: s.From, To: s.To, Generation: s.Generation,
			Bound: s.Bound, Unbound: s.Unbound, Done: s.State == region.Done, System: s.System}
		j, stop := t.jobs[s.Job], s.StopTime
		var g *groupVersion
		if j != nil {
			g = j.group(s.Group)
		}
		if g != nil {
			f.After, f.Replace, f.Stop = g.region.after, g.region.replace, g.boundByRegion()
			if j.colocate != nil {
				f.Set = "0"
			}
			stop = max(stop, g.kill)
		}
		f.BoundFor = r.life.BoundUntil(stop) - t.now()
		f.Stopping = g == nil || j.stopped || s.Desired == region.DesiredStop || !s.System && s.From >= g.count
		out = append(out, f)
	}
	return out
}

// offeredAgain returns the slots of a region as new offers to another cluster that takes the
// region's name.
func (t *globalTerm) offeredAgain(name string) (out []region.Change) {
	for _, key := range sortedKeys(t.slots) {
		if s := t.slots[key]; s.Region == name {
			out = append(out, region.Change{Slot: s.OfferedAgain()})
		}
	}
	return out
}

// heal returns the changes that say what a returning region may keep of the slots that it lost.
// They are stored before the welcome, as in global/uplink/heal.go.
func (t *globalTerm) heal(name string, level uint32) (out []region.Change) {
	rec := t.region(name).rec
	for _, key := range sortedKeys(t.slots) {
		s := t.slots[key]
		i := slices.IndexFunc(s.Former, func(f region.FormerOwner) bool { return f.Region == name })
		if i < 0 {
			continue
		}
		with := failover.Return{Unsteady: t.unsteady(rec), Holds: level > 0, Draining: rec.draining, Allowed: true,
			Home: s.Home == "", Done: s.State == region.Done}
		j := t.jobs[s.Job]
		var g *groupVersion
		if j != nil {
			g = j.group(s.Group)
		}
		if g == nil || j.stopped || s.Desired == region.DesiredStop || s.From >= g.count {
			with.Stopping = true
		} else {
			with.Stop, with.KeepReplacement = g.boundByRegion() || s.Former[i].Bound, g.keepReplacement
		}
		keep, _ := with.Keep()
		keep = keep && s.Former[i].Fence != 0
		if keep == s.Former[i].Hold {
			continue
		}
		s.Former = slices.Clone(s.Former)
		s.Former[i].Hold = keep
		out = append(out, region.Change{Slot: s})
	}
	return out
}

// unsteady reports whether a region was lost so often that it gets no work back without an
// operator.
func (t *globalTerm) unsteady(rec regionRecord) bool {
	var ago []time.Duration
	for _, at := range rec.lostAt {
		ago = append(ago, time.Duration(t.g.h.wall()-at))
	}
	return failover.Unsteady(ago)
}

// forget drops former owners where, as an operator stated, nothing runs. It also drops the
// slots that such a statement ends. It is a copy of global/placer/former.go and global/failover.go.
func (t *globalTerm) forget() {
	gone := func(name string) bool { return t.region(name).rec.NothingRuns && t.region(name).rec.Lost }
	if !slices.ContainsFunc(t.names, gone) {
		return
	}
	t.commit(func() []write {
		var changes []region.Change
		for _, key := range sortedKeys(t.slots) {
			s := t.slots[key]
			j := t.jobs[s.Job]
			if gone(s.Region) && !s.Vacant && (s.System || j == nil || j.stopped || s.Desired == region.DesiredStop || j.group(s.Group) == nil || s.From >= j.group(s.Group).count) {
				changes = append(changes, region.GiveUp(s))
				continue
			}
			back := s.ReturnTo
			if back != "" && gone(back) {
				s.ReturnTo = ""
			}
			c := s.Without(func(f region.FormerOwner) bool { return gone(f.Region) })
			if c.Delete || len(c.Slot.Former) < len(s.Former) || back != s.ReturnTo {
				changes = append(changes, c)
			}
		}
		return putSlots(changes)
	}, nil)
}
