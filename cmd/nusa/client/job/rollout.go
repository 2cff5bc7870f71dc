package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// regionsShown bounds the regions of each kind that one line names.
const regionsShown = 5

// rolloutLine describes an update that goes from region to region, for example "version 3:
// done in nagoya; now in kobe; not yet in osaka, tokyo". It is "" for a job in one region,
// and if no update is in progress.
func rolloutLine(j *nusav1.Job) string {
	if j.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH || j.GetStatus().GetState() == nusav1.JobState_JOB_STATE_STOPPING {
		return ""
	}
	const done, now, failed, notYet = "done in", "now in", "failed in", "not yet in"
	order := []string{done, failed, now, notYet} // the last kind that applies to one of a region's slots counts for the region
	at, rolls := map[string]int{}, false
	for _, g := range j.GetStatus().GetGroups() {
		for _, s := range g.GetSlots() {
			if s.GetDesired() != nusav1.SlotDesired_SLOT_DESIRED_RUN {
				continue
			}
			is, c := done, g.GetRegions()[s.GetRegion()]
			switch {
			case s.GetJobVersion() < j.GetVersion():
				is = notYet
			case c.GetStarting()+c.GetPending()+c.GetOutdated() > 0:
				is = now
			case c.GetFailed() > 0:
				is = failed
			}
			rolls = rolls || is == notYet || c.GetOutdated() > 0
			at[s.GetRegion()] = max(at[s.GetRegion()], slices.Index(order, is))
		}
	}
	if !rolls || len(at) < 2 {
		return ""
	}
	var parts []string
	for i, what := range order {
		in := slices.DeleteFunc(slices.Sorted(maps.Keys(at)), func(r string) bool { return at[r] != i })
		if len(in) > 0 {
			parts = append(parts, what+" "+listSome(in, regionsShown))
		}
	}
	return fmt.Sprintf("version %d: %s", j.GetVersion(), strings.Join(parts, "; "))
}

// listSome lists the first names and the number of the other names.
func listSome(names []string, most int) string {
	if more := len(names) - most; more > 1 {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}

// waitsForRegion reports whether a slot of a plan waits until other regions have finished
// the update.
func waitsForRegion(s *nusav1.Slot) bool {
	return s.GetMessage() != "" && s.GetReason() == nusav1.Reason_REASON_UNSPECIFIED && !beingRemoved(s)
}

// orderNote names the limit that makes the regions of a plan wait for each other. It is ""
// if no region waits.
func orderNote(p *nusav1.PlanResponse, spec *nusav1.JobSpec) string {
	full := proto.CloneOf(spec)
	job.Default(full)
	most := map[string]bool{}
	for _, s := range p.GetSlots() {
		if waitsForRegion(s) {
			most[fmt.Sprintf("%s %d", s.GetGroup(), max(1, full.GetGroups()[s.GetGroup()].GetUpdate().GetMaxParallel()))] = true
		}
	}
	if len(most) == 0 {
		return ""
	}
	if of, _ := job.UpdateRegions(full); of != nil {
		text := fmt.Sprintf("regions are updated in turn: %d at a time (update.regions)", max(1, of.GetMaxParallel()))
		if len(of.GetOrder()) > 0 {
			text += ", first " + listSome(of.GetOrder(), regionsShown)
		}
		if d := of.GetPauseBetween().AsDuration(); d > 0 {
			text += ", with a pause of " + job.FormatDuration(d) + " after each"
		}
		return text
	}
	return fmt.Sprintf("regions are updated in turn: update.max_parallel (%s) counts for all together", strings.Join(slices.Sorted(maps.Keys(most)), ", "))
}
