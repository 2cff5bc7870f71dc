package global

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// MaxDisconnected bounds the ranges of a job's instances that are away at one region,
	// and those that regions gave up lately.
	MaxDisconnected = 256
	// releasedFor is how long what a region gave up comes before what others wait
	// for: some reports, if the room that was kept for it is not seen at once.
	releasedFor = time.Minute
)

// released is what a region gave up because it was revoked. Soft: a new active
// server has forgotten what was promised for it.
type released struct {
	place.Released
	group string
	at    time.Duration
}

// RecordReleased remembers that what was revoked is to be placed elsewhere, where room
// was kept for it. Taking the same answer twice does no harm. mu is held.
func (st *State) RecordReleased(from string, answer region.Answer) {
	j, now := st.Jobs[JobKey{answer.Namespace, answer.Job}], st.Clock()
	if j == nil || answer.State != region.Revoked {
		return
	}
	j.Released = slices.DeleteFunc(j.Released, func(f released) bool {
		again := f.group == answer.Group && f.From < answer.To && answer.From < f.To
		return again || now-f.at >= releasedFor
	})
	j.Released = append(j.Released, released{Released: place.Released{Region: from, From: answer.From, To: answer.To}, group: answer.Group, at: now})
	j.Released = j.Released[max(0, len(j.Released)-MaxDisconnected):]
}

// setDisconnected takes what a region says is away of a job, see place.Away. A
// checkpoint says nothing of that: the nodes may be back. It answers whether more
// is to be planned than before. mu is held.
func (st *State) setDisconnected(r *Region, k JobKey, sum *nusav1.JobSummary) bool {
	if st.loading || len(sum.GetDisconnected()) == 0 {
		delete(r.Disconnected, k)
		return false
	}
	old, said := r.Disconnected[k]
	if r.Disconnected == nil {
		r.Disconnected = map[JobKey][]*nusav1.DisconnectedInstances{}
	}
	r.Disconnected[k] = sum.GetDisconnected()
	st.Pending[k] = struct{}{}
	return !said || !slices.EqualFunc(old, sum.GetDisconnected(), func(a, b *nusav1.DisconnectedInstances) bool { return proto.Equal(a, b) })
}

// Disconnected is what may still run of a job on lost nodes, as connected regions say:
// only those are asked to give it up. Of slots that have changed meanwhile
// nothing was said. mu is held.
func (st *State) Disconnected(j *Job) []place.Disconnected {
	var out []place.Disconnected
	seen := map[string]bool{}
	for _, s := range j.Slots {
		r := st.Regions[s.Region]
		if r == nil || r.Session == nil || seen[s.Region] {
			continue
		}
		seen[s.Region] = true
		for _, a := range r.Disconnected[j.Key] {
			if j.owns(s.Region, a) {
				out = append(out, place.Disconnected{
					Group: a.GetGroup(), Region: s.Region, From: int(a.GetFrom()), To: int(a.GetTo()), Generation: a.GetGeneration(), Node: a.GetNode(),
				})
			}
		}
	}
	slices.SortFunc(out, func(a, b place.Disconnected) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.From, b.From))
	})
	return out
}

// owns says that a slot is as the region speaks of it.
func (j *Job) owns(from string, a *nusav1.DisconnectedInstances) bool {
	for _, s := range j.Slots {
		if s.Region == from && s.Group == a.GetGroup() && s.Generation == a.GetGeneration() && !s.System &&
			int(a.GetFrom()) >= s.From && int(a.GetTo()) <= s.To && a.GetFrom() < a.GetTo() {
			return true
		}
	}
	return false
}
