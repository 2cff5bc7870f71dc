package placer

import (
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/topology"
)

// replanBreach is how often a job with a sustained breach is planned again while no region is
// better. The distance to another region may have become shorter, or another region may have room
// now.
const replanBreach = time.Minute

// nearChunk bounds the jobs whose breaches are followed together, and so the memory for them.
const nearChunk = 1024

// updateProbeDemand computes which pairs of regions the near rules of jobs ask about. It sends the
// demand to the regions for which it has changed. The lock is held.
func (p *Placer) updateProbeDemand() {
	st := p.st
	st.ProbeDemandStale = false
	next := place.ProbeDemand(nearSnapshot(st, st.Latency.Present(st.Clock()), nearRegions(st), st.Bounds.Snapshot()...))
	for name, r := range st.Regions {
		if r.Session != nil && !maps.Equal(st.ProbeDemand[name], next[name]) {
			r.Session.Unsent.Demand = true
			r.Session.Wake()
		}
	}
	st.ProbeDemand = next
}

// followBreaches compares the near rules of jobs with the present round trips. Jobs with a
// sustained breach become pending. It takes the lock for some jobs at a time, so that nothing waits for all of them.
func (p *Placer) followBreaches() {
	used, now, passed := p.usedBounds()
	broken := map[state.BoundAt]bool{}
	for some := range slices.Chunk(used, nearChunk) {
		p.addBroken(broken, some, passed)
	}
	for some := range slices.Chunk(p.boundedJobs(broken), nearChunk) {
		p.followBreachesOf(some, now, passed)
	}
}

// usedBounds returns the bounds that slots have to keep, the time, and the time since they were followed last.
func (p *Placer) usedBounds() (used []state.BoundAt, now, passed time.Duration) {
	p.st.Lock()
	defer p.st.Unlock()
	now = p.st.Clock()
	if p.breachesAt > 0 {
		passed = now - p.breachesAt
	}
	p.breachesAt = now
	return slices.Collect(maps.Keys(p.st.Bounds.Slots)), now, passed
}

// addBroken adds the bounds that are broken now.
func (p *Placer) addBroken(broken map[state.BoundAt]bool, used []state.BoundAt, passed time.Duration) {
	st := p.st
	st.Lock()
	defer st.Unlock()
	snapshot := nearSnapshot(st, st.Latency.Present(st.Clock()), nearRegions(st))
	snapshot.Origins = map[string][]string{}
	for _, at := range used {
		if domain := at.Near.Domain; domain != "" && snapshot.Origins[domain] == nil {
			snapshot.Origins[domain] = st.Origins.Table.ServingRegions(domain)
		}
	}
	tracker := place.NewBoundTracker(snapshot)
	for _, at := range used {
		if tracker.Breaks(at.Near, at.Region, passed) {
			broken[at] = true
		}
	}
}

// boundedJobs returns the jobs whose breaches must be followed: those with a breach, and those with a slot that has
// to keep a broken bound. For all others there is nothing to note. It looks at all jobs with near rules only if a
// broken bound has slots of other jobs than those with a breach.
func (p *Placer) boundedJobs(broken map[state.BoundAt]bool) (keys []state.JobKey) {
	st := p.st
	st.Lock()
	defer st.Unlock()
	others := 0
	for at := range broken {
		others += st.Bounds.Slots[at]
	}
	brokenSlots := func(j *state.Job) (n int) {
		for s := range j.Slots.All() {
			for near := range j.Place().BoundsOf(&s) {
				if broken[state.BoundAt{Near: near, Region: s.Region}] {
					n++
				}
			}
		}
		return n
	}
	for k := range p.breached {
		j := st.Jobs[k]
		if j == nil || len(j.Notes().Breaches) == 0 && j.Notes().Moves == nil {
			delete(p.breached, k) // another job of this name
			continue
		}
		if _, near := st.Near[k]; near && (j.Place().HasBound() || len(j.Notes().Breaches) > 0) {
			keys = append(keys, k)
			others -= brokenSlots(j)
		}
	}
	if others <= 0 {
		return keys
	}
	for k := range st.Near {
		if _, known := p.breached[k]; !known && brokenSlots(st.Jobs[k]) > 0 {
			keys = append(keys, k)
		}
	}
	return keys
}

// followBreachesOf is followBreaches for some jobs.
func (p *Placer) followBreachesOf(keys []state.JobKey, now, passed time.Duration) {
	st := p.st
	st.Lock()
	defer st.Unlock()
	snapshot := nearSnapshot(st, st.Latency.Present(st.Clock()), nearRegions(st), nearJobs(st, keys)...)
	tracker := place.NewBoundTracker(snapshot)
	var slots []region.Slot
	for i := range snapshot.Jobs {
		job := &snapshot.Jobs[i]
		k := state.JobKey{Namespace: job.Namespace, Name: job.Name}
		j := st.Jobs[k]
		slots = slices.AppendSeq(slots[:0], j.Slots.All())
		job.Slots, job.Breaches = slots, j.Notes().Breaches
		next := tracker.Step(job, passed)
		changed := addBreachEvents(st.Events, k, j.Notes().Breaches, next)
		if len(next)+len(j.Notes().Breaches) > 0 {
			j.EditNotes().Breaches = next
		}
		if delete(p.breached, k); len(next) > 0 {
			p.breached[k] = struct{}{}
		}
		if !state.Sustained(next) {
			if j.Notes().Moves != nil {
				j.EditNotes().Moves = nil
			}
			continue
		}
		moving := slices.ContainsFunc(j.Notes().Moves, func(m place.Move) bool { return m.InProgress })
		if changed || moving || now-j.Notes().MovesAt >= replanBreach {
			st.Pend(k)
		}
	}
}

// addBreachEvents adds an event for each breach that has become sustained, and for each that is no
// longer sustained. It reports whether it added any.
func addBreachEvents(events state.Events, k state.JobKey, was, is []place.Breach) (changed bool) {
	has := func(in []place.Breach, b place.Breach) bool {
		return slices.ContainsFunc(in, func(o place.Breach) bool {
			return o.Group == b.Group && o.Region == b.Region && o.Near == b.Near && o.State == topology.Sustained
		})
	}
	for _, b := range is {
		if b.State == topology.Sustained && !has(was, b) {
			changed = true
			events.AddAt(b.Region, "latency.breached", k.String(), "%s at %s, %s: %s", b.Group, b.Region, b.Near, b)
		}
	}
	for _, b := range was {
		if b.State == topology.Sustained && !has(is, b) {
			changed = true
			events.AddAt(b.Region, "latency.kept", k.String(), "%s at %s, %s: the bound holds again, or the round trip is not known any more", b.Group, b.Region, b.Near)
		}
	}
	return changed
}
