package global

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
	// refusalRetained is how long a refusal is remembered when no report lifts it.
	refusalRetained = time.Minute
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

// Refusal is a region's latest refusal of a group, which the placer remembers
// for a while.
type Refusal struct {
	place.Returned
	at time.Duration
	// Times it was refused in a row, each time after another offer.
	Times int
	// HoldFor is how long the group is held back, counted from at.
	HoldFor time.Duration
	// words: only what was said counts, the region began a new session since.
	ReasonOnly bool
}

// RecordRefusal remembers an answer that gives work back, for the placer; taking the
// same answer twice changes nothing. mu is held.
func (st *State) RecordRefusal(from string, answer region.Answer, interval time.Duration) {
	r := st.Regions[from]
	if r == nil || answer.State != region.Rejected && answer.State != region.Returned {
		return
	}
	ret := Refusal{at: st.Clock(), Times: 1, Returned: place.Returned{
		Namespace: answer.Namespace, Job: answer.Job, Group: answer.Group, Region: from,
		Reason: answer.Reason, Message: answer.Message, ReasonText: reason.WithMessage(ReasonToProto(answer.Reason), answer.Message),
		Counts: answer.Counts, ReportSequence: r.Reports,
	}}
	if j := st.Jobs[JobKey{answer.Namespace, answer.Job}]; j != nil {
		for _, g := range j.Spec.Groups {
			if g.Name == answer.Group {
				ret.Ask = g.Ask.Hash()
			}
		}
	}
	r.addRefusal(ret, interval)
}

// addRefusal takes a refusal in place of what is remembered of the same group,
// and doubles how long a declined group is held back. mu is held.
func (r *Region) addRefusal(ret Refusal, interval time.Duration) {
	same := func(old Refusal) bool {
		return old.Namespace == ret.Namespace && old.Job == ret.Job && old.Group == ret.Group
	}
	if i := slices.IndexFunc(r.Refusals, same); i >= 0 {
		if old := r.Refusals[i]; !old.ReasonOnly {
			ret.Times, ret.HoldFor = old.Times, old.HoldFor
			// Without a report since it was not offered again: another part of the
			// same refusal.
			if ret.ReportSequence > old.ReportSequence {
				ret.Times++
			}
		}
		r.Refusals = slices.Delete(r.Refusals, i, i+1)
	}
	if ret.declined() {
		ret.HoldFor = min(maxHold, interval<<min(ret.Times-1, 16))
	}
	r.Refusals = append(r.Refusals, ret)
	if len(r.Refusals) > maxRefusals {
		r.Refusals = slices.Delete(r.Refusals, 0, len(r.Refusals)-maxRefusals)
	}
}

// declined: see reasonDeclined.
func (r Refusal) declined() bool {
	return r.Reason == reasonDeclined || r.Reason == reasonCapability || r.Reason == reasonNotAllowed ||
		slices.ContainsFunc(r.Counts, func(c region.CountedReason) bool { return c.Reason == reasonDeclined })
}

// forgotten: a group that was held back has as long again, and a minute, to be
// declined once more. The words are kept while the job waits: nobody else says
// what it waits for.
func (st *State) RefusalExpired(r Refusal, now time.Duration) bool {
	_, pending := st.Pending[JobKey{r.Namespace, r.Job}]
	return !pending && now-r.at > 2*r.HoldFor+refusalRetained
}

// KeepReasonsOnly forgets refusals but for their words. mu is held.
func (r *Region) KeepReasonsOnly() {
	for i := range r.Refusals {
		r.Refusals[i].ReasonOnly = true
	}
}

// ForPlacer is the refusal as it counts now. What agents declined says nothing
// of other jobs that ask for as much: it was a secret, a volume, an image.
func (r Refusal) ForPlacer(now time.Duration) place.Returned {
	out := r.Returned
	out.Backoff = max(0, r.HoldFor-(now-r.at))
	if r.ReasonOnly || r.Reason == reasonDeclined || now-r.at > refusalRetained {
		out.Ask = 0
	}
	if r.ReasonOnly {
		out.Backoff = 0
	}
	return out
}

// forgetRefusals forgets what was refused of a job: another version of it may do. mu
// is held.
func (st *State) forgetRefusals(k JobKey) {
	for _, r := range st.Regions {
		r.Refusals = slices.DeleteFunc(r.Refusals, func(ret Refusal) bool { return ret.Namespace == k.Namespace && ret.Job == k.Name })
	}
}
