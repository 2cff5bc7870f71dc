package placer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxDestinations bounds the regions that one line names.
const maxDestinations = 3

// AddDestinations adds to a job's status where the instances of regions that are cut off would
// move, if a plan decided now, or why they find no room.
func AddDestinations(st *state.State, k state.JobKey, s *nusav1.JobStatus) {
	var waiting []*nusav1.UnknownInstances
	for _, g := range s.GetGroups() {
		for _, u := range g.GetUnknown() {
			if u.GetMoveDue() != nil && !u.GetFormer() {
				waiting = append(waiting, u)
			}
		}
	}
	if len(waiting) == 0 {
		return
	}
	snapshot, ok := asIfLost(st, k)
	if !ok {
		return
	}
	plan := place.MakePlan(snapshot)
	for name, g := range s.GetGroups() {
		for _, u := range g.GetUnknown() {
			if slices.Contains(waiting, u) {
				addDestination(plan, k, name, u)
			}
		}
	}
}

// asIfLost returns a snapshot in which the slots of a job that will move later may move now. It
// returns false if there are none.
func asIfLost(st *state.State, k state.JobKey) (place.Snapshot, bool) {
	st.Lock()
	defer st.Unlock()
	j := st.Jobs[k]
	if j == nil || j.Record == nil {
		return place.Snapshot{}, false
	}
	job := j.ToPlace(st.Sight())
	lost := map[string]bool{}
	for _, slot := range j.SortedSlots() {
		r := st.Regions[slot.Region]
		if r == nil || r.Failover == nil || !r.Failover.Slots[slot.Key()].Moves {
			continue
		}
		lost[slot.Region] = true
		job.Movable = append(job.Movable, place.Movable{
			Group: slot.Group, Region: slot.Region, From: slot.From, To: slot.To, Generation: slot.Generation, Fence: r.Record.GetFence(),
		})
	}
	if len(lost) == 0 {
		return place.Snapshot{}, false
	}
	out := explainSnapshot(st, job)
	for i, r := range out.Regions {
		if lost[r.Name] {
			copyRegion(&out, i).Lost = true
		}
	}
	return out, true
}

// addDestination adds where a plan would move the instances of a group from one region.
func addDestination(plan place.Plan, k state.JobKey, group string, u *nusav1.UnknownInstances) {
	var to []string
	for _, a := range plan.Actions {
		if a.Kind != place.Takeover || a.Namespace != k.Namespace || a.Job != k.Name || a.Group != group || a.Region != u.GetRegion() {
			continue
		}
		for _, p := range a.Parts {
			to = append(to, p.Region)
		}
	}
	slices.Sort(to)
	to = slices.Compact(to)
	if n := len(to) - maxDestinations; n > 0 {
		to = append(to[:maxDestinations], fmt.Sprintf("%d more", n))
	}
	due := u.GetMoveDue().AsDuration()
	u.Message = jobstatus.Outlook{Moves: true, Due: due, To: strings.Join(to, ", "), Why: u.GetMessage()}.Text(u.GetRegion())
	if strings.HasPrefix(u.GetMessage(), dueBut) {
		return // the message already gives the reason
	}
	for _, s := range plan.Stays {
		if s.Namespace == k.Namespace && s.Job == k.Name && s.Slot.Group == group && s.Slot.Region == u.GetRegion() {
			u.Message += "; now " + stayText(s)
			return
		}
	}
}

// stayText returns why a slot finds no other region.
func stayText(s place.Stay) string {
	text := s.Why
	for i, c := range s.Pending {
		if i == maxDestinations {
			break
		}
		text += fmt.Sprintf(", %d %s: %s", c.Count, plural(c), reason.WithMessage(state.ReasonToProto(c.Reason), cmp.Or(c.Brief, c.Message)))
	}
	return text
}

func plural(c region.CountedReason) string {
	what := cmp.Or(c.What, "instance")
	if c.Count == 1 {
		return what
	}
	return what + "s"
}
