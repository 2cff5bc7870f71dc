package global

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxAway bounds the ranges of a job's instances that are away at one region.
const maxAway = 256

// noteAway takes what a region says is away of a job, see place.Away. A
// checkpoint says nothing of that: the nodes may be back. It answers whether more
// is to be planned than before. mu is held.
func (st *state) noteAway(r *regionState, k jobKey, sum *nusav1.JobSummary) bool {
	if st.loading || len(sum.GetAway()) == 0 {
		delete(r.away, k)
		return false
	}
	old, said := r.away[k]
	if r.away == nil {
		r.away = map[jobKey][]*nusav1.AwayInstances{}
	}
	r.away[k] = sum.GetAway()
	st.pending[k] = struct{}{}
	return !said || !slices.EqualFunc(old, sum.GetAway(), func(a, b *nusav1.AwayInstances) bool { return proto.Equal(a, b) })
}

// away is what may still run of a job on lost nodes, as connected regions say:
// only those are asked to give it up. Of slots that have changed meanwhile
// nothing was said. mu is held.
func (st *state) away(j *jobState) []place.Away {
	var out []place.Away
	seen := map[string]bool{}
	for _, s := range j.slots {
		r := st.regions[s.Region]
		if r == nil || r.session == nil || seen[s.Region] {
			continue
		}
		seen[s.Region] = true
		for _, a := range r.away[j.key] {
			if j.holds(s.Region, a) {
				out = append(out, place.Away{
					Group: a.GetGroup(), Region: s.Region, From: int(a.GetFrom()), To: int(a.GetTo()), Generation: a.GetGeneration(), Node: a.GetNode(),
				})
			}
		}
	}
	slices.SortFunc(out, func(a, b place.Away) int { return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.From, b.From)) })
	return out
}

// holds says that a slot is as the region speaks of it.
func (j *jobState) holds(from string, a *nusav1.AwayInstances) bool {
	for _, s := range j.slots {
		if s.Region == from && s.Group == a.GetGroup() && s.Generation == a.GetGeneration() && !s.System &&
			int(a.GetFrom()) >= s.From && int(a.GetTo()) <= s.To && a.GetFrom() < a.GetTo() {
			return true
		}
	}
	return false
}
