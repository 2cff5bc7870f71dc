package state

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
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
	if refusal.declined() {
		refusal.backoff = min(maxBackoff, interval<<min(refusal.times-1, 16))
	}
	r.Refusals = append(r.Refusals, refusal)
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
	if f.reasonOnly || f.Reason == reasonDeclined || now-f.at > refusalRetained {
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
