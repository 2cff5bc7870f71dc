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

// lack is what is remembered of a group that has had instances without an owner.
// Soft: a new active server counts anew.
type lack struct {
	// since it lacks them: an offer that is given back is no end of it. last is
	// when a plan found that it does.
	since, last time.Duration
	// tried is when regions were asked to hold one, by region; held the latest.
	tried map[string]time.Duration
	held  time.Duration
}

// lacking notes which groups a plan left without owners, and what it asks
// regions to hold. mu is held.
func (st *state) lacking(plan place.Plan, now time.Duration) {
	for _, g := range plan.Groups {
		j := st.jobs[jobKey{g.Namespace, g.Job}]
		if j == nil || g.Unplaced == 0 {
			continue
		}
		if j.lacks == nil {
			j.lacks = map[string]*lack{}
		}
		l := j.lacks[g.Group]
		if l == nil {
			l = &lack{since: now, tried: map[string]time.Duration{}}
			j.lacks[g.Group] = l
		}
		if now-l.last > place.HoldAfter {
			l.since = now
		}
		l.last = now
		maps.DeleteFunc(l.tried, func(_ string, at time.Duration) bool { return now-at > triedFor })
	}
	for _, a := range plan.Actions {
		if a.Hold == 0 {
			continue
		}
		if j := st.jobs[jobKey{a.Namespace, a.Job}]; j != nil && j.lacks[a.Group] != nil {
			l := j.lacks[a.Group]
			l.held, l.tried[a.Region] = now, now
			l.last = now
		}
	}
}

// keepLacks forgets what groups lack that the job has no more: one that comes
// back under the name waits anew.
func (j *jobState) keepLacks(rec *nusav1.JobRecord) {
	groups := rec.GetJob().GetSpec().GetGroups()
	maps.DeleteFunc(j.lacks, func(name string, _ *lack) bool { return groups[name] == nil })
}

// waiting are the job's groups with how long they have waited. mu is held.
func (j *jobState) waiting(now time.Duration) []place.Group {
	if len(j.lacks) == 0 && len(j.freed) == 0 {
		return j.plan.Groups
	}
	out := slices.Clone(j.plan.Groups)
	for i := range out {
		for _, f := range j.freed {
			if f.group == out[i].Name && now-f.at < freedFor {
				out[i].Released = append(out[i].Released, f.Released)
			}
		}
		l := j.lacks[out[i].Name]
		if l == nil || now-l.last > place.HoldAfter {
			continue
		}
		out[i].WaitedFor = now - max(l.since, l.held)
		for region, at := range l.tried {
			out[i].HoldAttempts = append(out[i].HoldAttempts, place.HoldAttempt{Region: region, Ago: now - at})
		}
		slices.SortFunc(out[i].HoldAttempts, func(a, b place.HoldAttempt) int { return cmp.Compare(a.Region, b.Region) })
	}
	return out
}
