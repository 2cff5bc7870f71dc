package state

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
)

const (
	// attemptsRetained is how long the state remembers that a region was asked to hold an instance
	// of a group.
	attemptsRetained = 24 * time.Hour
	// MaxDisconnected bounds the ranges of a job's disconnected instances in one region. It also
	// bounds the ranges that regions gave up recently.
	MaxDisconnected = 256
	// releasedFor is how long instances that a region gave up have precedence over other waiting
	// instances. It is as long as several reports, because a report may show the reserved room
	// late.
	releasedFor = time.Minute
)

// unplacedGroup describes a group that has instances without a region. It is soft: a new active
// server starts without it.
type unplacedGroup struct {
	// since is when the group began to have such instances. An offer that is given back does not
	// reset it. lastSeen is when a plan last found such instances.
	since, lastSeen time.Duration
	// triedAt is, by region, when the region was asked to hold an instance. reservedAt is the
	// latest of these times.
	triedAt    map[string]time.Duration
	reservedAt time.Duration
}

// RecordUnplaced notes that a plan left instances of a group without a region. The lock is held.
func (j *Job) RecordUnplaced(group string, now time.Duration) {
	notes := j.EditNotes()
	if notes.unplaced == nil {
		notes.unplaced = map[string]*unplacedGroup{}
	}
	u := notes.unplaced[group]
	if u == nil {
		u = &unplacedGroup{since: now, triedAt: map[string]time.Duration{}}
		notes.unplaced[group] = u
	}
	if now-u.lastSeen > place.HoldAfter {
		u.since = now
	}
	u.lastSeen = now
	maps.DeleteFunc(u.triedAt, func(_ string, at time.Duration) bool { return now-at > attemptsRetained })
}

// RecordHold notes that a plan asks a region to hold an instance of a group with unplaced
// instances. The lock is held.
func (j *Job) RecordHold(group, region string, now time.Duration) {
	if u := j.Notes().unplaced[group]; u != nil {
		u.reservedAt, u.triedAt[region] = now, now
		u.lastSeen = now
	}
}

// holding is an instance that a region was asked to hold.
type holding struct {
	job   JobKey
	group string
	at    time.Duration
}

// NoteHold notes that a region is asked to hold an instance of a job. The lock is held.
func NoteHold(st *State, k JobKey, group, region string, now time.Duration) {
	if j := st.Jobs[k]; j != nil {
		j.RecordHold(group, region, now)
		st.holds[region] = append(st.holds[region], holding{k, group, now})
	}
}

// Held returns, by region, how many instances the region holds that wait for a node there. The
// count is soft: a new active server does not know the holds of earlier terms. The lock is held.
func Held(st *State) map[string]int {
	now, out := st.Clock(), map[string]int{}
	for name, all := range st.holds {
		all = slices.DeleteFunc(all, func(h holding) bool { return now-h.at > place.HoldFor || !st.Jobs[h.job].waitsAt(name, h, now) })
		st.holds[name], out[name] = all, len(all)
		if len(all) == 0 {
			delete(st.holds, name)
			delete(out, name)
		}
	}
	return out
}

// waitsAt reports whether a region still holds an instance that waits for a node there.
func (j *Job) waitsAt(name string, h holding, now time.Duration) bool {
	const stored = 10 * time.Second // the time in which an offer may not be stored yet
	if j == nil {
		return false
	}
	held := slices.ContainsFunc(j.SortedSlots(), func(s region.Slot) bool {
		return s.Region == name && s.Group == h.group && s.Hold > 0
	})
	sum := j.Summaries.Get(name)
	return !held && now-h.at < stored || held && (sum == nil || sum.GetGroups()[h.group].GetPending() > 0)
}

// forgetUnplaced drops the groups that a new record does not have. A group that comes back under
// the same name starts to wait again.
func (j *Job) forgetUnplaced(rec *Record) {
	maps.DeleteFunc(j.Notes().unplaced, func(name string, _ *unplacedGroup) bool { return !rec.HasGroup(name) })
}

// Groups returns the job's groups, each with how long it has waited. The lock is held.
func (j *Job) Groups(now time.Duration) []place.Group {
	notes := j.Notes()
	if len(notes.unplaced) == 0 && len(notes.released) == 0 {
		return j.Place().Groups
	}
	out := slices.Clone(j.Place().Groups)
	for i := range out {
		for _, f := range notes.released {
			if f.group == out[i].Name && now-f.at < releasedFor {
				out[i].Released = append(out[i].Released, f.Released)
			}
		}
		u := notes.unplaced[out[i].Name]
		if u == nil || now-u.lastSeen > place.HoldAfter {
			continue
		}
		out[i].WaitedFor = now - max(u.since, u.reservedAt)
		for region, at := range u.triedAt {
			out[i].HoldAttempts = append(out[i].HoldAttempts, place.HoldAttempt{Region: region, Ago: now - at})
		}
		slices.SortFunc(out[i].HoldAttempts, func(a, b place.HoldAttempt) int { return cmp.Compare(a.Region, b.Region) })
	}
	return out
}

// releasedInstances is a range of instances that a region gave up because they were revoked. It is
// soft: a new active server does not know what was reserved for them.
type releasedInstances struct {
	place.Released
	group string
	at    time.Duration
}

// RecordReleased notes that revoked instances are to be placed in another region, where room was
// reserved for them. The same answer may come twice. The lock is held.
func (j *Job) RecordReleased(from string, answer region.Answer, now time.Duration) {
	if answer.State != region.Revoked {
		return
	}
	notes := j.EditNotes()
	notes.released = slices.DeleteFunc(notes.released, func(f releasedInstances) bool {
		again := f.group == answer.Group && f.From < answer.To && answer.From < f.To
		return again || now-f.at >= releasedFor
	})
	notes.released = append(notes.released, releasedInstances{
		Released: place.Released{Region: from, From: answer.From, To: answer.To}, group: answer.Group, at: now,
	})
	notes.released = notes.released[max(0, len(notes.released)-MaxDisconnected):]
}
