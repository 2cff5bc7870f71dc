package state

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/reason"
)

const (
	// maxRefusals bounds the remembered refusals of one region.
	maxRefusals = 1024
	// refusalRetained is how long a refusal is remembered when no report lifts
	// it.
	refusalRetained = time.Minute
	// maxBackoff is the longest time for which a group is not offered to a region
	// whose agents decline it.
	maxBackoff = 5 * time.Minute
	// reasonDeclined says that agents refused the work although it fits in the
	// region's view of them, so no report will say when to ask again. The same
	// holds for reasonCapability from a region whose version does not count with
	// capabilities, and for reasonNotAllowed.
	reasonDeclined   = "declined"
	reasonCapability = "capability_missing"
	reasonNotAllowed = "not_allowed"
)

// Refusal is a region's latest refusal of a group, which the placer takes into
// account for a while.
type Refusal struct {
	place.Returned
	at time.Duration
	// times counts the refusals in a row, each after another offer.
	times int
	// backoff is how long the group is not offered again, counted from at.
	backoff time.Duration
	// reasonOnly says that only the text of the reason still counts, because the
	// region has begun a new session since.
	reasonOnly bool
}

// RecordRefusal remembers an answer of the region that gives work of a job back.
// The same answer may come twice. interval is how often regions report. The lock
// is held.
func (r *Region) RecordRefusal(j *Job, answer region.Answer, now, interval time.Duration) {
	if answer.State != region.Rejected && answer.State != region.Returned {
		return
	}
	refusal := Refusal{at: now, times: 1, Returned: place.Returned{
		Namespace: answer.Namespace, Job: answer.Job, Group: answer.Group, Region: r.Name,
		Reason: answer.Reason, Message: answer.Message, ReasonText: reason.WithMessage(ReasonToProto(answer.Reason), answer.Message),
		Counts: answer.Counts, ReportSequence: r.Reports,
	}}
	for _, g := range j.PlaceJob.Groups {
		if g.Name == answer.Group {
			refusal.Ask = g.Ask.Hash()
		}
	}
	r.addRefusal(refusal, interval)
}

// addRefusal replaces the remembered refusal of the same group, and doubles the
// backoff of a declined group. The lock is held.
func (r *Region) addRefusal(refusal Refusal, interval time.Duration) {
	same := func(old Refusal) bool {
		return old.Namespace == refusal.Namespace && old.Job == refusal.Job && old.Group == refusal.Group
	}
	if i := slices.IndexFunc(r.Refusals, same); i >= 0 {
		if old := r.Refusals[i]; !old.reasonOnly {
			refusal.times, refusal.backoff = old.times, old.backoff
			// Without a report in between the group was not offered again: the
			// answer is another part of the same refusal.
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

// declined says that the refusal has one of the reasons that no report lifts;
// see reasonDeclined.
func (f Refusal) declined() bool {
	return f.Reason == reasonDeclined || f.Reason == reasonCapability || f.Reason == reasonNotAllowed ||
		slices.ContainsFunc(f.Counts, func(c region.CountedReason) bool { return c.Reason == reasonDeclined })
}

// ExpireRefusals drops the refusals that count no longer and returns whether
// there were any. A group with a backoff has as long again, and a minute, to be
// declined once more. The refusals of pending jobs stay: their text says what the
// job waits for. The lock is held.
func (r *Region) ExpireRefusals(pending JobSet, now time.Duration) (some bool) {
	before := len(r.Refusals)
	r.Refusals = slices.DeleteFunc(r.Refusals, func(f Refusal) bool {
		_, waits := pending[JobKey{f.Namespace, f.Job}]
		return !waits && now-f.at > 2*f.backoff+refusalRetained
	})
	return len(r.Refusals) < before
}

// KeepReasonsOnly forgets refusals except for the texts of their reasons. The
// lock is held.
func (r *Region) KeepReasonsOnly() {
	for i := range r.Refusals {
		r.Refusals[i].reasonOnly = true
	}
}

// ToPlace returns the refusal as it counts now. What agents declined says
// nothing about other jobs that ask for as much: the obstacle was a secret, a
// volume or an image.
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

// forgetRefusals forgets the refusals of a job: another version may fit. The
// lock is held.
func (r *Region) forgetRefusals(k JobKey) {
	r.Refusals = slices.DeleteFunc(r.Refusals, func(f Refusal) bool { return f.Namespace == k.Namespace && f.Job == k.Name })
}
