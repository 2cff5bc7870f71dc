package placer

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/state"
)

// latest holds the jobs that the latest plans decided about, in the state that the plans saw, and the
// room that the last of these plans left. The zero value says that all pending jobs must be planned.
// The state's lock guards the fields.
type latest struct {
	jobs map[state.JobKey]seen
	left place.Room
	// openings is State.Openings before the first of these plans.
	openings uint64
	// keeps: one of the jobs needs room that only a plan with this job keeps for it.
	keeps bool
}

// add notes that a plan decided about some jobs. opened: since the earlier plans jobs may have got room,
// so what those plans decided does not count. The lock is held.
func (s *latest) add(st *state.State, jobs map[state.JobKey]seen, left place.Room, opened bool) {
	if s.jobs == nil || opened {
		s.jobs = make(map[state.JobKey]seen, len(jobs))
	}
	maps.Copy(s.jobs, jobs)
	if len(s.jobs) > 2*len(st.Pending)+planJobs {
		maps.DeleteFunc(s.jobs, func(k state.JobKey, _ seen) bool { _, pending := st.Pending[k]; return !pending })
	}
	s.left = left
	for k := range jobs {
		s.keeps = s.keeps || keepsRoom(st, k)
	}
}

// keepsRoom reports whether a pending job needs more than room for new instances: it may have room
// reserved for instances that leave a region, or wait for something that only plans with it notice. The
// lock is held.
func keepsRoom(st *state.State, k state.JobKey) bool {
	j := st.Jobs[k]
	if _, pending := st.Pending[k]; !pending || j == nil || j.Record == nil {
		return false
	}
	if j.Record.Stopped() || j.Place().Type == place.System || len(st.Movable[k]) > 0 || len(st.DisconnectedOf(j)) > 0 {
		return true
	}
	if n := j.Notes(); len(n.Breaches)+len(n.Stays)+len(n.RolloutWaits) > 0 {
		return true
	}
	for s := range j.Slots.All() {
		if awaitsRelease(s) {
			return true
		}
	}
	return false
}

// needsAll reports whether the next plan must have all pending jobs. The lock is held.
func needsAll(p *Placer) bool {
	return p.all.Load() || p.latest.jobs == nil || p.latest.keeps || p.latest.openings != p.st.Openings || p.given.paused ||
		len(p.st.Fresh) > planJobs
}

// next returns the jobs of the next plans, the most urgent first, and whether these are all pending
// jobs. If nothing has changed but new jobs, these are the fresh jobs. The others would get the same
// decision again, because new jobs only take room. due is false if all pending jobs must be planned and
// the placer rests. The lock is held.
func next(p *Placer, resting bool) (keys []state.JobKey, all, due bool) {
	st := p.st
	all = needsAll(p)
	if all && resting && !p.given.paused {
		return nil, true, false
	}
	set := st.Fresh
	if all {
		p.all.Store(false)
		set, p.latest = st.Pending, latest{openings: st.Openings}
	}
	keys = byUrgency(st, set)
	clear(st.Fresh)
	return keys, all, true
}

// byUrgency returns jobs by priority, then age. The lock is held.
func byUrgency(st *state.State, set state.JobSet) []state.JobKey {
	type pending struct {
		key      state.JobKey
		priority int
		revision int64
	}
	jobs := make([]pending, 0, len(set))
	for k := range set {
		of := pending{key: k}
		if j := st.Jobs[k]; j != nil {
			of.priority, of.revision = j.Place().Priority, j.Revision
		}
		jobs = append(jobs, of)
	}
	slices.SortFunc(jobs, func(a, b pending) int {
		if c := cmp.Or(b.priority-a.priority, cmp.Compare(a.revision, b.revision)); c != 0 {
			return c
		}
		return cmp.Or(strings.Compare(a.key.Namespace, b.key.Namespace), strings.Compare(a.key.Name, b.key.Name))
	})
	keys := make([]state.JobKey, len(jobs))
	for i := range jobs {
		keys[i] = jobs[i].key
	}
	return keys
}

// has reports whether a plan decided about a job in its present state. For a job with instances that a
// region is about to release it returns false, because such a job waits for the room that plans keep.
func (s *latest) has(k state.JobKey, j *state.Job) bool {
	if was, known := s.jobs[k]; !known || was != (seen{j.Changes, j.Revision}) {
		return false
	}
	for slot := range j.Slots.All() {
		if awaitsRelease(slot) {
			return false
		}
	}
	return true
}

// wanted reports whether a waiting group would fit into the region to which an action offers
// instances.
func (s *latest) wanted(room place.Room, a place.Action, rivals []place.Rival) bool {
	return slices.ContainsFunc(rivals, func(v place.Rival) bool { return room.Wants(a.Region, v, s.left) })
}
