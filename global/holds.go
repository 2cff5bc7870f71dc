package global

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// triedFor is how long it is remembered who was asked to hold a group.
const triedFor = 24 * time.Hour

// unplaced is what is remembered of a group that has had instances without an owner.
// Soft: a new active server counts anew.
type unplaced struct {
	// since it lacks them: an offer that is given back is no end of it. last is
	// when a plan found that it does.
	since, lastSeen time.Duration
	// triedAt is when regions were asked to hold one, by region; held the latest.
	triedAt    map[string]time.Duration
	reservedAt time.Duration
}

// RecordUnplaced notes which groups a plan left without owners, and what it asks
// regions to hold. mu is held.
func (st *State) RecordUnplaced(plan place.Plan, now time.Duration) {
	for _, g := range plan.Groups {
		j := st.Jobs[JobKey{g.Namespace, g.Job}]
		if j == nil || g.Unplaced == 0 {
			continue
		}
		if j.Unplaced == nil {
			j.Unplaced = map[string]*unplaced{}
		}
		l := j.Unplaced[g.Group]
		if l == nil {
			l = &unplaced{since: now, triedAt: map[string]time.Duration{}}
			j.Unplaced[g.Group] = l
		}
		if now-l.lastSeen > place.HoldAfter {
			l.since = now
		}
		l.lastSeen = now
		maps.DeleteFunc(l.triedAt, func(_ string, at time.Duration) bool { return now-at > triedFor })
	}
	for _, a := range plan.Actions {
		if a.Hold == 0 {
			continue
		}
		if j := st.Jobs[JobKey{a.Namespace, a.Job}]; j != nil && j.Unplaced[a.Group] != nil {
			l := j.Unplaced[a.Group]
			l.reservedAt, l.triedAt[a.Region] = now, now
			l.lastSeen = now
		}
	}
}

// forgetUnplaced forgets what groups lack that the job has no more: one that comes
// back under the name waits anew.
func (j *Job) forgetUnplaced(rec *nusav1.JobRecord) {
	groups := rec.GetJob().GetSpec().GetGroups()
	maps.DeleteFunc(j.Unplaced, func(name string, _ *unplaced) bool { return groups[name] == nil })
}

// Groups are the job's groups with how long they have waited. mu is held.
func (j *Job) Groups(now time.Duration) []place.Group {
	if len(j.Unplaced) == 0 && len(j.Released) == 0 {
		return j.Spec.Groups
	}
	out := slices.Clone(j.Spec.Groups)
	for i := range out {
		for _, f := range j.Released {
			if f.group == out[i].Name && now-f.at < releasedFor {
				out[i].Released = append(out[i].Released, f.Released)
			}
		}
		l := j.Unplaced[out[i].Name]
		if l == nil || now-l.lastSeen > place.HoldAfter {
			continue
		}
		out[i].WaitedFor = now - max(l.since, l.reservedAt)
		for region, at := range l.triedAt {
			out[i].HoldAttempts = append(out[i].HoldAttempts, place.HoldAttempt{Region: region, Ago: now - at})
		}
		slices.SortFunc(out[i].HoldAttempts, func(a, b place.HoldAttempt) int { return cmp.Compare(a.Region, b.Region) })
	}
	return out
}
