package global

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/reason"
)

const (
	// returnedKept bounds the remembered refusals of one region.
	returnedKept = 1024
	// returnedFor is how long a refusal is remembered when no report lifts it.
	returnedFor = time.Minute
	// maxHold is the longest that a group is held back from a region whose
	// agents decline it.
	maxHold = 5 * time.Minute
	// reasonDeclined: agents refused the work although the region's view of them
	// says that it fits, so no report will tell when to ask again. It is the same
	// with reasonCapability from a region whose version counts without them, and
	// with reasonNotAllowed.
	reasonDeclined   = "declined"
	reasonCapability = "capability_missing"
	reasonNotAllowed = "not_allowed"
)

// returned is a region's latest refusal of a group, which the placer remembers
// for a while.
type returned struct {
	place.Returned
	at time.Duration
	// times it was refused in a row, each time after another offer.
	times int
	// hold is how long the group is held back, counted from at.
	hold time.Duration
	// words: only what was said counts, the region began a new session since.
	words bool
}

// refused remembers an answer that gives work back, for the placer; taking the
// same answer twice changes nothing. mu is held.
func (st *state) refused(from string, answer region.Answer, interval time.Duration) {
	r := st.regions[from]
	if r == nil || answer.State != region.Rejected && answer.State != region.Returned {
		return
	}
	ret := returned{at: st.clock(), times: 1, Returned: place.Returned{
		Namespace: answer.Namespace, Job: answer.Job, Group: answer.Group, Region: from,
		Reason: answer.Reason, Message: answer.Message, ReasonText: reason.WithMessage(reasonEnum(answer.Reason), answer.Message),
		Counts: answer.Counts, ReportSequence: r.reportNum,
	}}
	if j := st.jobs[jobKey{answer.Namespace, answer.Job}]; j != nil {
		for _, g := range j.plan.Groups {
			if g.Name == answer.Group {
				ret.Ask = g.Ask.Hash()
			}
		}
	}
	r.remember(ret, interval)
}

// remember takes a refusal in place of what is remembered of the same group,
// and doubles how long a declined group is held back. mu is held.
func (r *regionState) remember(ret returned, interval time.Duration) {
	same := func(old returned) bool {
		return old.Namespace == ret.Namespace && old.Job == ret.Job && old.Group == ret.Group
	}
	if i := slices.IndexFunc(r.returned, same); i >= 0 {
		if old := r.returned[i]; !old.words {
			ret.times, ret.hold = old.times, old.hold
			// Without a report since it was not offered again: another part of the
			// same refusal.
			if ret.ReportSequence > old.ReportSequence {
				ret.times++
			}
		}
		r.returned = slices.Delete(r.returned, i, i+1)
	}
	if ret.declined() {
		ret.hold = min(maxHold, interval<<min(ret.times-1, 16))
	}
	r.returned = append(r.returned, ret)
	if len(r.returned) > returnedKept {
		r.returned = slices.Delete(r.returned, 0, len(r.returned)-returnedKept)
	}
}

// declined: see reasonDeclined.
func (r returned) declined() bool {
	return r.Reason == reasonDeclined || r.Reason == reasonCapability || r.Reason == reasonNotAllowed ||
		slices.ContainsFunc(r.Counts, func(c region.CountedReason) bool { return c.Reason == reasonDeclined })
}

// forgotten: a group that was held back has as long again, and a minute, to be
// declined once more. The words are kept while the job waits: nobody else says
// what it waits for.
func (st *state) forgotten(r returned, now time.Duration) bool {
	_, pending := st.pending[jobKey{r.Namespace, r.Job}]
	return !pending && now-r.at > 2*r.hold+returnedFor
}

// onlyWords forgets refusals but for their words. mu is held.
func (r *regionState) onlyWords() {
	for i := range r.returned {
		r.returned[i].words = true
	}
}

// forPlacer is the refusal as it counts now. What agents declined says nothing
// of other jobs that ask for as much: it was a secret, a volume, an image.
func (r returned) forPlacer(now time.Duration) place.Returned {
	out := r.Returned
	out.Backoff = max(0, r.hold-(now-r.at))
	if r.words || r.Reason == reasonDeclined || now-r.at > returnedFor {
		out.Ask = 0
	}
	if r.words {
		out.Backoff = 0
	}
	return out
}

// forgive forgets what was refused of a job: another version of it may do. mu
// is held.
func (st *state) forgive(k jobKey) {
	for _, r := range st.regions {
		r.returned = slices.DeleteFunc(r.returned, func(ret returned) bool { return ret.Namespace == k.namespace && ret.Job == k.name })
	}
}
