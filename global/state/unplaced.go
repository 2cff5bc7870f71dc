package state

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
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
// reserved for them. version is that of their slots. The same answer may come twice. The lock is held.
func (j *Job) RecordReleased(from string, answer region.Answer, version int64, now time.Duration) {
	if answer.State != region.Revoked {
		return
	}
	notes := j.EditNotes()
	notes.released = slices.DeleteFunc(notes.released, func(f releasedInstances) bool {
		again := f.group == answer.Group && f.From < answer.To && answer.From < f.To
		return again || now-f.at >= releasedFor
	})
	notes.released = append(notes.released, releasedInstances{
		Released: place.Released{Region: from, From: answer.From, To: answer.To, Version: version}, group: answer.Group, at: now,
	})
	notes.released = notes.released[max(0, len(notes.released)-MaxDisconnected):]
}

const (
	// maxAttempts bounds the instances in an order, maxStoredAttempts those in a record.
	maxAttempts, maxStoredAttempts = 1024, 4096
	// maxRuleCounts bounds the rules of an instance.
	maxRuleCounts = job.MaxRetryRules
)

// applyAttempts changes the state for a stored or removed record of attempts. name is "namespace/job/group".
// The lock is held.
func applyAttempts(st *State, name string, rec *nusav1.AttemptsRecord) {
	at := strings.LastIndexByte(name, '/')
	if at < 0 {
		return
	}
	k, group := jobOfKey(name[:at], ""), name[at+1:]
	groups := st.attempts[k]
	_, had := groups[group]
	st.Room.Count(had, rec != nil)
	switch {
	case rec == nil:
		delete(groups, group)
		if len(groups) == 0 {
			delete(st.attempts, k)
		}
	case groups == nil:
		st.attempts[k] = map[string]*nusav1.AttemptsRecord{group: rec}
	default:
		groups[group] = rec
	}
}

// forgetAttempts removes the records of attempts of a job.
func forgetAttempts(t *Tx, k JobKey) error {
	for _, group := range slices.Sorted(maps.Keys(t.State.attempts[k])) {
		if err := t.deleteUnchecked(k.attemptsKey(group)); err != nil {
			return err
		}
	}
	return nil
}

// PutAttempts stores what the instances from ≤ i < to of a slot have used of their retry policy, when the
// slot leaves its region. Without a record and without used attempts it stores nothing.
func PutAttempts(t *Tx, s *region.Slot, from, to int, used []*nusav1.InstanceAttempts) error {
	k := jobOfSlot(s)
	var was *nusav1.AttemptsRecord
	if ch, ok := t.find(k.attemptsKey(s.Group)); ok {
		was, _ = ch.msg.(*nusav1.AttemptsRecord)
	} else {
		was = t.State.attempts[k][s.Group]
	}
	if out := MergeAttempts(was, s, from, to, used); out != nil {
		return t.putUnchecked(k.attemptsKey(s.Group), out)
	}
	return nil
}

// MergeAttempts returns the record of a group after the instances from ≤ i < to of a slot have left its region. was
// is the record before, or nil. It returns nil if nothing changes.
func MergeAttempts(was *nusav1.AttemptsRecord, s *region.Slot, from, to int, used []*nusav1.InstanceAttempts) *nusav1.AttemptsRecord {
	if was.GetRun() > s.Run || was.GetRun() == s.Run && was.GetVersion() > s.JobVersion {
		return nil // the slot is of an earlier version, whose attempts do not count any more
	}
	out := &nusav1.AttemptsRecord{Run: s.Run, Version: s.JobVersion}
	within := func(a *nusav1.InstanceAttempts) bool { return int(a.GetIndex()) >= from && int(a.GetIndex()) < to }
	if was.GetRun() == s.Run && was.GetVersion() == s.JobVersion {
		for _, a := range was.GetInstances() {
			if !within(a) {
				out.Instances = append(out.Instances, a)
			}
		}
	}
	kept := len(out.Instances)
	for _, a := range used {
		if within(a) && a.GetFailures() >= 0 && a.GetMemoryBytes() >= 0 && len(a.GetByRule()) <= maxRuleCounts {
			out.Instances = append(out.Instances, a)
		}
	}
	if len(out.Instances) == kept && kept == len(was.GetInstances()) {
		return nil // it changes nothing, or there is nothing
	}
	slices.SortStableFunc(out.Instances, func(a, b *nusav1.InstanceAttempts) int { return cmp.Compare(b.GetFailures(), a.GetFailures()) })
	out.Instances = out.Instances[:min(len(out.Instances), maxStoredAttempts)]
	slices.SortStableFunc(out.Instances, func(a, b *nusav1.InstanceAttempts) int { return cmp.Compare(a.GetIndex(), b.GetIndex()) })
	return out
}

// PutLostAttempts is PutAttempts for a slot of a lost region, as far as the region has reported.
func PutLostAttempts(t *Tx, s *region.Slot) error {
	j := t.State.Jobs[jobOfSlot(s)]
	if j == nil {
		return nil
	}
	sum := j.Summaries.Get(s.Region)
	if used := sum.GetAttempts()[s.Group].GetInstances(); len(used) > 0 && sum.GetVersion() == s.JobVersion && sum.GetRun() == s.Run {
		return PutAttempts(t, s, s.From, s.To, used)
	}
	return nil
}

// attemptsFor returns what instances of a slot used in other regions, for the order about it. The lock is
// held.
func attemptsFor(st *State, s *region.Slot) []*nusav1.InstanceAttempts {
	return AttemptsIn(st.attempts[jobOfSlot(s)][s.Group], s)
}

// AttemptsIn returns what a record says about the instances of a slot. The record may be nil.
func AttemptsIn(rec *nusav1.AttemptsRecord, s *region.Slot) (out []*nusav1.InstanceAttempts) {
	if rec == nil || rec.GetRun() != s.Run || rec.GetVersion() != s.JobVersion || s.Desired != region.DesiredRun {
		return nil
	}
	for _, a := range rec.GetInstances() {
		if int(a.GetIndex()) >= s.From && int(a.GetIndex()) < s.To && len(out) < maxAttempts {
			out = append(out, a)
		}
	}
	return out
}

const (
	// otherRegionBackoff is how long a group is not offered again to a region from which its retry policy moves
	// an instance. It doubles up to maxBackoff.
	otherRegionBackoff = time.Minute
	// maxRefusals bounds the stored refusals of one region.
	maxRefusals = 1024
	// refusalRetained is how long a refusal counts when no report makes it obsolete.
	refusalRetained = time.Minute
	// maxBackoff is the longest backoff of a group in a region whose agents decline the group.
	maxBackoff = 5 * time.Minute
	// With these reasons no later report of the region tells when to offer the work again.
	// reasonDeclined: agents refused work that fits according to the region's report.
	// reasonCapability: no node has the capability, and a region of an earlier version does not
	// report that.
	reasonDeclined   = "declined"
	reasonCapability = "capability_missing"
	reasonNotAllowed = "not_allowed"
	// reasonOtherRegion: the retry policy of the group asks for another region.
	reasonOtherRegion = "other_region"
)

// Refusal is a region's latest refusal of a group. The placer considers it for a while.
type Refusal struct {
	place.Returned
	at time.Duration
	// times is the number of refusals in a row, each after another offer.
	times int
	// backoff is how long the group is not offered again, counted from the field at.
	backoff time.Duration
	// reasonOnly: the region has begun a new session since, so only the text of the reason still
	// counts.
	reasonOnly bool
}

// RecordRefusal stores an answer by which the region gives work of a job back. The same answer may
// come twice. interval is how often regions report. The lock is held.
func (r *Region) RecordRefusal(j *Job, answer region.Answer, now, interval time.Duration) {
	if answer.State != region.Rejected && answer.State != region.Returned {
		return
	}
	refusal := Refusal{at: now, times: 1, Returned: place.Returned{
		Namespace: answer.Namespace, Job: answer.Job, Group: answer.Group, Region: r.Name,
		Reason: answer.Reason, Message: answer.Message, ReasonText: reason.WithMessage(ReasonToProto(answer.Reason), answer.Message),
		Counts: answer.Counts, ReportSequence: r.Reports,
	}}
	for _, g := range j.Place().Groups {
		if g.Name == answer.Group {
			refusal.Ask = g.Ask.Hash()
		}
	}
	r.addRefusal(refusal, interval)
}

// addRefusal replaces the stored refusal of the same group, and doubles the backoff of a declined
// group. The lock is held.
func (r *Region) addRefusal(refusal Refusal, interval time.Duration) {
	same := func(old Refusal) bool {
		return old.Namespace == refusal.Namespace && old.Job == refusal.Job && old.Group == refusal.Group
	}
	if i := slices.IndexFunc(r.Refusals, same); i >= 0 {
		if old := r.Refusals[i]; !old.reasonOnly {
			refusal.times, refusal.backoff = old.times, old.backoff
			// Without a report in between, the group was not offered again. So the answer is
			// another part of the same refusal.
			if refusal.ReportSequence > old.ReportSequence {
				refusal.times++
			}
		}
		r.Refusals = slices.Delete(r.Refusals, i, i+1)
	}
	if refusal.Reason == reasonOtherRegion {
		refusal.backoff = min(maxBackoff, otherRegionBackoff<<min(refusal.times-1, 16))
	}
	if refusal.declined() {
		refusal.backoff = min(maxBackoff, interval<<min(refusal.times-1, 16))
	}
	r.Refusals = append(r.Refusals, refusal)
	r.Touch()
	if len(r.Refusals) > maxRefusals {
		r.Refusals = slices.Delete(r.Refusals, 0, len(r.Refusals)-maxRefusals)
	}
}

// declined reports whether no report can make the refusal obsolete: see reasonDeclined.
func (f Refusal) declined() bool {
	return f.Reason == reasonDeclined || f.Reason == reasonCapability || f.Reason == reasonNotAllowed ||
		slices.ContainsFunc(f.Counts, func(c region.CountedReason) bool { return c.Reason == reasonDeclined })
}

// ExpireRefusals drops the refusals that no longer count, and reports whether it dropped any. A
// refusal with a backoff is kept for twice the backoff and a minute, so that the next refusal of
// the group can double the backoff. The refusals of pending jobs stay, because their texts say what
// the jobs wait for. The lock is held.
func (r *Region) ExpireRefusals(pending JobSet, now time.Duration) (some bool) {
	before := len(r.Refusals)
	r.Refusals = slices.DeleteFunc(r.Refusals, func(f Refusal) bool {
		_, waits := pending[JobKey{f.Namespace, f.Job}]
		return !waits && now-f.at > 2*f.backoff+refusalRetained
	})
	return len(r.Refusals) < before
}

// CountedAgain notes that a report has exact fit counts of some asks. These counts are newer than
// the refusals of the same asks, so these refusals no longer keep the region from getting work that
// fits. The lock is held.
func (r *Region) CountedAgain(fits []*nusav1.FitCount) {
	for i := range r.Refusals {
		if slices.ContainsFunc(fits, func(f *nusav1.FitCount) bool { return f.GetAsk() == r.Refusals[i].Ask }) {
			r.Refusals[i].ReportSequence = 0
		}
	}
}

// KeepReasonsOnly makes only the texts of the refusals' reasons count. The lock is held.
func (r *Region) KeepReasonsOnly() {
	for i := range r.Refusals {
		r.Refusals[i].reasonOnly = true
	}
}

// ToPlace returns the refusal as it counts now. Work that agents declined says nothing about other
// jobs with the same ask, because the obstacle was a secret, a volume or an image.
func (f Refusal) ToPlace(now time.Duration) place.Returned {
	out := f.Returned
	out.Backoff = max(0, f.backoff-(now-f.at))
	if f.reasonOnly || f.Reason == reasonDeclined || f.Reason == reasonOtherRegion || now-f.at > refusalRetained {
		out.Ask = 0
	}
	if f.reasonOnly {
		out.Backoff = 0
	}
	return out
}

// forgetRefusals drops the refusals of a job, because another version may fit. The lock is held.
func (r *Region) forgetRefusals(k JobKey) {
	r.Refusals = slices.DeleteFunc(r.Refusals, func(f Refusal) bool { return f.Namespace == k.Namespace && f.Job == k.Name })
}

// Decision is the placer's latest decision about a group. A decision that placed instances stays
// until the next decision, so that users can ask about it.
type Decision struct {
	place.GroupExplanation
	At time.Duration
	// Full: the decision explains every region.
	Full bool
	// Former: the job has had a version since that asks for other regions or resources for the group.
	Former bool
}

// Decisions has at most one decision for each group. It lacks those that say nothing: they placed every
// instance, and have no verdicts about regions.
type Decisions []Decision

// says reports whether a decision says anything that the slots do not say.
func (d *Decision) says() bool { return d.Full || d.Unplaced > 0 || len(d.Pending) > 0 }

// Of returns the decision about a group, or the zero decision if there is none.
func (d Decisions) Of(group string) Decision {
	for i := range d {
		if d[i].Group == group {
			return d[i]
		}
	}
	return Decision{}
}

// Put sets the decision about a group.
func (d *Decisions) Put(next Decision) {
	for i := range *d {
		if (*d)[i].Group == next.Group {
			(*d)[i] = next
			d.Trim()
			return
		}
	}
	if next.says() {
		*d = append(*d, next)
	}
}

// Trim removes the decisions that say nothing.
func (d *Decisions) Trim() {
	*d = slices.DeleteFunc(*d, func(x Decision) bool { return !x.says() })
	if len(*d) == 0 {
		*d = nil
	}
}

// keepDecisions removes the decisions about groups that a new record does not have. The other
// decisions explain where the present instances are, so they stay. Their reasons why instances wait
// are removed, because the next plan decides about them. was is the former version of the job.
func (j *Job) keepDecisions(was *place.Job, rec *Record) {
	j.Decisions = slices.DeleteFunc(j.Decisions, func(d Decision) bool { return !rec.HasGroup(d.Group) })
	anyOther := false
	for i := range j.Decisions {
		d := &j.Decisions[i]
		other := otherRules(was, &rec.spec.job, d.Group)
		d.Pending, d.Former, anyOther = nil, d.Former || other, anyOther || other
	}
	for i := range j.Decisions { // the groups of a set are decided together
		j.Decisions[i].Former = j.Decisions[i].Former || anyOther && len(rec.spec.job.Colocate) > 0
	}
	j.Decisions.Trim()
}

// otherRules reports whether two versions of a job ask for other regions or resources for a group.
func otherRules(before, after *place.Job, group string) bool {
	a, b := before.Group(group), after.Group(group)
	return a == nil || b == nil || a.AskHash != b.AskHash || a.Level != b.Level || a.Bound != b.Bound || before.Type != after.Type ||
		!reflect.DeepEqual(a.Regions, b.Regions) || !reflect.DeepEqual(before.Colocate, after.Colocate)
}
