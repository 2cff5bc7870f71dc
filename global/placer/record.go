package placer

import (
	"maps"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/reason"
)

// record stores the decisions of a plan about its jobs. It removes the jobs that need nothing more
// from the pending set. full: the plan explains every region. The lock is held.
func (p *Placer) record(plan place.Plan, jobs map[state.JobKey]seen, full bool) {
	st, now := p.st, p.st.Clock()
	unfinished := map[state.JobKey]bool{}
	for _, act := range plan.Actions {
		unfinished[state.JobKey{Namespace: act.Namespace, Name: act.Job}] = true
	}
	p.recordMoves(plan, jobs, now)
	recordLeaves(st, plan, jobs)
	for k := range p.recordRolloutWaits(plan, jobs) {
		unfinished[k] = true
	}
	for k := range p.recordStays(plan, jobs) {
		unfinished[k] = true
	}
	recordUnplaced(st, plan, now)
	for _, g := range plan.Groups {
		k := state.JobKey{Namespace: g.Namespace, Name: g.Job}
		j := st.Jobs[k]
		decided, asked := jobs[k]
		if !asked || j == nil {
			continue
		}
		if g.Unplaced > 0 {
			unfinished[k] = true
		}
		g.Namespace, g.Job = j.Key.Namespace, j.Key.Name
		j.Decisions.Put(state.Decision{GroupExplanation: g, At: now, Full: full, Former: j.Revision != decided.revision})
		p.explained.note(st, k)
		st.JobChanged(j)
	}
	for k, seen := range jobs {
		j := st.Jobs[k]
		if j != nil && !unfinished[k] && len(st.DisconnectedOf(j)) == 0 && !released(st, j) && j.Changes == seen.changes {
			delete(st.Pending, k)
			delete(st.Fresh, k)
		}
	}
}

// awaitsRelease reports whether a region is about to release the instances of a slot. They are then
// placed elsewhere.
func awaitsRelease(s region.Slot) bool {
	return s.Desired == region.DesiredRevoke && !s.Vacant && s.ReturnTo == ""
}

// released reports whether connected regions are about to release instances of a job. Such a job
// stays pending, so that every plan keeps room for these instances. The lock is held.
func released(st *state.State, j *state.Job) bool {
	for s := range j.Slots.All() {
		if r := st.Regions[s.Region]; awaitsRelease(s) && r != nil && r.Session != nil {
			return true
		}
	}
	return false
}

// decided records the decisions that were made with the submits of a transaction. The lock is held.
func (p *Placer) decided(plan place.Plan, done []place.Action, jobs map[state.JobKey]seen, full bool) {
	for k := range jobs {
		j := p.st.Jobs[k]
		if j == nil {
			delete(jobs, k)
			continue
		}
		jobs[k] = seen{j.Changes, j.Revision}
	}
	plan.Actions = nil // the transaction has stored them
	p.record(plan, jobs, full)
	p.ObserveActions(done)
}

// recordUnplaced stores which groups have instances without a region after a plan, and which
// regions the plan asks to hold instances. The lock is held.
func recordUnplaced(st *state.State, plan place.Plan, now time.Duration) {
	for _, g := range plan.Groups {
		if j := st.Jobs[state.JobKey{Namespace: g.Namespace, Name: g.Job}]; j != nil && g.Unplaced > 0 {
			j.RecordUnplaced(g.Group, now)
		}
	}
	for _, a := range plan.Actions {
		if a.Hold != 0 {
			state.NoteHold(st, state.JobKey{Namespace: a.Namespace, Name: a.Job}, a.Group, a.Region, now)
		}
	}
}

// recordMoves stores what a plan decided about sustained breaches. The lock is held.
func (p *Placer) recordMoves(plan place.Plan, jobs map[state.JobKey]seen, now time.Duration) {
	for k := range jobs {
		if j := p.st.Jobs[k]; j != nil && len(j.Notes().Breaches) > 0 {
			notes := j.EditNotes()
			notes.Moves, notes.MovesAt = nil, now
		}
	}
	for _, m := range plan.Moves {
		k := state.JobKey{Namespace: m.Namespace, Name: m.Job}
		if _, asked := jobs[k]; asked && p.st.Jobs[k] != nil {
			notes := p.st.Jobs[k].EditNotes()
			notes.Moves = append(notes.Moves, m)
			p.breached[k] = struct{}{} // the breach may have healed since the snapshot
		}
	}
}

// dueBut begins the text about a due slot that has not moved.
const dueBut = "due to move, but "

// recordStays stores why due slots of lost regions have not moved. It returns the reasons by job
// and slot. The lock is held.
func (p *Placer) recordStays(plan place.Plan, jobs map[state.JobKey]seen) map[state.JobKey]map[string]string {
	stays := map[state.JobKey]map[string]string{}
	for _, s := range plan.Stays {
		k := state.JobKey{Namespace: s.Namespace, Name: s.Job}
		if stays[k] == nil {
			stays[k] = map[string]string{}
		}
		text := dueBut + s.Why
		for i, c := range s.Pending {
			text += [...]string{": ", "; "}[min(i, 1)] + reason.WithMessage(state.ReasonToProto(c.Reason), c.Message)
		}
		stays[k][s.Slot.Key()] = text
	}
	for k := range jobs {
		if j := p.st.Jobs[k]; j != nil && !maps.Equal(j.Notes().Stays, stays[k]) {
			j.EditNotes().Stays = stays[k]
			p.st.SlotsChanged(j)
			p.st.JobChanged(j)
		}
	}
	return stays
}

// recordRolloutWaits stores why regions wait for a new version. It returns the reasons by job and
// region. The lock is held.
func (p *Placer) recordRolloutWaits(plan place.Plan, jobs map[state.JobKey]seen) map[state.JobKey]map[string]string {
	waits := rolloutWaits(plan)
	for k := range jobs {
		if j := p.st.Jobs[k]; j != nil && !maps.Equal(j.Notes().RolloutWaits, waits[k]) {
			j.EditNotes().RolloutWaits = waits[k]
			p.st.JobChanged(j)
		}
	}
	return waits
}

// rolloutWaits returns why regions wait for a job's new version, by job and region.
func rolloutWaits(plan place.Plan) map[state.JobKey]map[string]string {
	waits := map[state.JobKey]map[string]string{}
	for _, s := range plan.RolloutStages {
		k := state.JobKey{Namespace: s.Namespace, Name: s.Job}
		if waits[k] == nil {
			waits[k] = map[string]string{}
		}
		waits[k][s.Region] = s.Why
	}
	return waits
}
