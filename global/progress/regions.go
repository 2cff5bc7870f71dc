package progress

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Reach says, by region, whether a version has reached every slot of the region that takes part in its
// rollout. Add each slot that a region must run.
type Reach map[string]bool

// Add adds a slot. outdated: the slot has an earlier version than its group needs. changed: the version that is
// rolled out changed the work of the slot's group.
func (r Reach) Add(region string, outdated, changed bool) {
	if region == "" || !outdated && !changed {
		return
	}
	was, known := r[region]
	r[region] = !outdated && (was || !known)
}

// Part is a region that takes part in a rollout.
type Part struct {
	Name string
	// Reached: every slot has the version.
	Reached bool
	// Ended is when the rollout ended there, as it is stored; the zero time: it has not ended. FailedBecause says why
	// the version failed there.
	Ended         time.Time
	FailedBecause string
	// Reported: the region's latest summary is about the version. Complete: every instance runs, by the summary. Failed
	// is how many instances have failed for good, by the summary.
	Reported, Complete bool
	Failed             int
}

// Regions are the regions of a rollout, by how far they are. Each list is sorted.
type Regions struct {
	// Updating have the version, and its rollout has not ended there. Waiting have not got it yet.
	Updating, Waiting []string
	// Failing says, by region, why the version has failed in regions of Updating for good.
	Failing map[string]string
	// Failed are the regions in which the version has failed, each with the reason.
	Failed []string
}

// Divide divides the regions of a rollout by how far they are. As long as another region waits, two more regions are
// being updated: one in which everything runs, until its end is stored, which a plan will find; and one in which
// the rollout has ended, and whose instances do not all run any more. The next region waits for both.
func Divide(parts []Part) (out Regions) {
	var open []string
	for _, p := range slices.SortedFunc(slices.Values(parts), func(a, b Part) int { return cmp.Compare(a.Name, b.Name) }) {
		switch {
		case !p.Reached:
			out.Waiting = append(out.Waiting, p.Name)
		case p.FailedBecause != "":
			out.Failed = append(out.Failed, p.Name+": "+p.FailedBecause)
		case !p.Ended.IsZero() && (p.Complete || !p.Reported):
		case !p.Ended.IsZero(), p.Reported && p.Complete:
			open = append(open, p.Name)
		default:
			out.Updating = append(out.Updating, p.Name)
			if p.Failed > 0 && p.Reported {
				if out.Failing == nil {
					out.Failing = map[string]string{}
				}
				out.Failing[p.Name] = fmt.Sprintf("%d instances failed", p.Failed)
			}
		}
	}
	if len(out.Waiting) > 0 {
		out.Updating = append(out.Updating, open...)
		slices.Sort(out.Updating)
	}
	return out
}

// PauseLeft returns how long a rollout waits before the next region gets the version, and after which region. pause
// is the time from the end in one region to the start in the next one. ended has the stored ends, by region. Ends up
// to unpaused do not count: an operator has resumed the rollout then, or it is the zero time.
func PauseLeft(pause time.Duration, ended map[string]time.Time, unpaused, now time.Time) (left time.Duration, after string) {
	if pause <= 0 {
		return 0, ""
	}
	var latest time.Time
	for name, at := range ended {
		if !unpaused.IsZero() && !at.After(unpaused) {
			continue
		}
		if c := at.Compare(latest); after == "" || c > 0 || c == 0 && name < after {
			latest, after = at, name
		}
	}
	if after == "" {
		return 0, ""
	}
	return max(0, pause-now.Sub(latest)), after
}
