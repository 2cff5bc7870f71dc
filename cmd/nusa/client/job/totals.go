package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/counts"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// groupTotals sums a job's groups up.
type groupTotals struct {
	*nusav1.InstanceCounts
	desired, unowned int32
}

// rollout is how far an update has come, "" when every instance has it.
func (t groupTotals) rollout() string {
	if t.Outdated == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d updated", max(t.Starting+t.Running+t.Complete-t.Outdated, 0), t.desired)
}

// runningOrComplete are instances that run or have done their work.
func (t groupTotals) runningOrComplete() int32 { return t.Running + t.Complete }

// totalsOf are the counts of all groups, and how many instances each region has:
// "japaneast 1, southeastasia 3".
func totalsOf(s *nusav1.JobStatus) (groupTotals, string) {
	sum := groupTotals{InstanceCounts: &nusav1.InstanceCounts{}}
	regions := map[string]int32{}
	for _, g := range s.GetGroups() {
		sum.desired += g.GetDesired()
		sum.unowned += g.GetUnowned()
		counts.Add(sum.InstanceCounts, g.GetCounts())
		for name, c := range g.GetRegions() {
			regions[name] += c.GetPending() + c.GetStarting() + c.GetRunning() + c.GetComplete()
		}
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(regions)) {
		if regions[name] == 0 {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %d", name, regions[name]))
	}
	return sum, strings.Join(parts, ", ")
}
