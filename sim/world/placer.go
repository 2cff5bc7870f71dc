package world

import (
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/failover"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

// wakePlacer schedules a plan.
func (t *globalTerm) wakePlacer() {
	if t.placeSoon || t.ended() && t.g.term != nil {
		return
	}
	t.placeSoon = true
	t.g.p.After(50*time.Millisecond, func() {
		t.placeSoon = false
		t.place()
	})
}

// tick does the work that depends only on time.
func (t *globalTerm) tick() {
	for _, name := range t.names { // as global/uplink does
		if s := t.regions[name].session; s != nil && s.level < t.level() {
			s.e.Close()
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
	children{t}.tick()
	rollouts{t}.tick()
	rollouts{t}.takeBack()
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
	var ends []place.RegionEnd
	t.commit(func() []store.Write {
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
		ends = plan.RegionEnds
		if len(plan.Actions) == 0 {
			t.idle = in
		}
		var changes []region.Change
		var compared []store.Write
		var lost []region.Slot
		for _, a := range plan.Actions {
			if t.w.Tracing() {
				t.w.Tracef("%s: plan %s", t.g.name, a)
			}
			if a.Kind == place.Takeover && !a.Slot.Vacant { // the write must check that the verdict still holds
				compared = append(compared, store.Write{Key: regionPrefix + a.Region, Compare: true})
				lost = append(lost, a.Slot)
			}
			changes = append(changes, a.Changes()...)
		}
		return slices.Concat(putSlots(changes), compared, retries{t}.takenOver(lost))
	}, func(bool) {
		t.placing = false
		rollouts{t}.storeEnds(ends)
	})
}

// planInputs has everything that a plan depends on: the revision of the records, a count of the
// changes that are not stored, and the facts about regions that change with time. If a plan changed
// nothing, it is not made again from equal inputs.
type planInputs struct {
	rev     int64
	soft    uint64
	level   int
	pauses  int // of rollouts between two regions
	regions [8]regionInputs
}

type regionInputs struct {
	connected, lost, never, blocked, behind, unsteady bool
	// reported: a report has arrived since the latest refusal.
	reported bool
	// healthy and silent count the entries of waits that have passed since the region became
	// healthy, or silent.
	healthy, silent int8
	barred          int8 // the groups that it does not get now
}

// waits are the times after which a group moves or returns.
var waits = [...]time.Duration{2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second}

func (t *globalTerm) planInputs() planInputs {
	out := planInputs{rev: t.rev, soft: t.soft, level: t.level(), pauses: rollouts{t}.pauses()}
	for i, name := range t.names {
		r := t.regions[name]
		in := regionInputs{connected: r.life.Connected(), lost: r.life.Lost, never: r.life.ClusterID == "", blocked: r.life.CommitBlocked > 0,
			behind: r.life.Behind(), unsteady: t.unsteady(r.rec), barred: int8(len(barredNow(t, name)))}
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
		out.Returned = append(append(out.Returned, r.refused...), barredNow(t, name)...)
	}
	for _, name := range sortedKeys(t.jobs) {
		j := rollouts{t}.toPlace(t.jobs[name])
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
			t.commit(func() []store.Write {
				rec := t.regions[name].rec
				if !rec.returning {
					return nil
				}
				rec.returning = false
				return []store.Write{{Key: regionPrefix + name, Value: rec}}
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
		if g.old && !g.p.Unwanted {
			return 0
		}
	}
	return 1
}

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
	t.commit(func() []store.Write {
		rec := t.leadership
		rec.resigned = resigned
		return []store.Write{{Key: leadershipKey, Value: rec}}
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
	t.commit(func() []store.Write {
		rec := t.leadership
		rec.massLoss = alarm
		return []store.Write{{Key: leadershipKey, Value: rec}}
	}, nil)
}

// declare stores a verdict, unless a message of the region has arrived since the decision.
func (t *globalTerm) declare(name string, d region.Declare, operator bool) {
	r := t.region(name)
	stream, lastSeen := r.life.Stream, r.life.LastSeen
	t.commit(func() []store.Write {
		if r.rec.Lost && !operator || r.life.Stream != stream || r.life.LastSeen != lastSeen {
			return nil
		}
		life := r.life
		life.Record = r.rec.Record
		next, _ := region.Step(t.config(), life, t.now(), d)
		rec := r.rec
		rec.Record = next.Record
		if !operator {
			rec.lostAt = append(slices.Clone(rec.lostAt), t.g.h.Wall())
			rec.lostAt = rec.lostAt[max(0, len(rec.lostAt)-8):]
		}
		t.w.watch.declaring(t, name, operator)
		ws := []store.Write{{Key: regionPrefix + name, Value: rec}}
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
		f.Stopping = g == nil || j.stopped || s.Desired == region.DesiredStop || !s.System && s.From >= rollouts{t}.count(j, g)
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
		if g == nil || j.stopped || s.Desired == region.DesiredStop || s.From >= (rollouts{t}).count(j, g) {
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
		ago = append(ago, time.Duration(t.g.h.Wall()-at))
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
	t.commit(func() []store.Write {
		var changes []region.Change
		for _, key := range sortedKeys(t.slots) {
			s := t.slots[key]
			j := t.jobs[s.Job]
			if gone(s.Region) && !s.Vacant && (s.System || j == nil || j.stopped || s.Desired == region.DesiredStop || j.group(s.Group) == nil || s.From >= rollouts{t}.count(j, j.group(s.Group))) {
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
