package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/filter"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// groupTotals holds sums over all groups of a job.
type groupTotals struct {
	*nusav1.InstanceCounts
	desired, unowned int32
}

// rollout says how many instances have the new version. It is "" if all have the new
// version.
func (t groupTotals) rollout() string {
	if t.Outdated == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d updated", max(t.Starting+t.Running+t.Complete-t.Outdated, 0), t.desired)
}

// partial is the state of a job when some of its instances run and others wait. The API calls
// such a job pending.
const partial = "partial"

// stateText returns the state of a job in words.
func stateText(s *nusav1.JobStatus) string {
	if filter.IsPartial(s) {
		return partial
	}
	return term.Word(s.GetState())
}

// runningOrComplete counts the instances that are running or have completed.
func (t groupTotals) runningOrComplete() int32 { return t.Running + t.Complete }

// totalsOf returns the sums over all groups, and a text with the number of instances in
// each region, for example "japaneast 1, southeastasia 3, tokyo 2 unknown".
func totalsOf(s *nusav1.JobStatus) (groupTotals, string) {
	sum := groupTotals{InstanceCounts: &nusav1.InstanceCounts{}}
	regions, unknown, held := map[string]int32{}, map[string]int32{}, map[string]int32{}
	for _, g := range s.GetGroups() {
		sum.desired += g.GetDesired()
		sum.unowned += g.GetUnowned()
		counts.Add(sum.InstanceCounts, g.GetCounts())
		for name, c := range g.GetRegions() {
			regions[name] += c.GetPending() + c.GetStarting() + c.GetRunning() + c.GetComplete()
			unknown[name] += c.GetUnknown()
			held[name] += c.GetHeld()
		}
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(regions)) {
		if regions[name] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, regions[name]))
		}
		if unknown[name] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d unknown", name, unknown[name]))
		}
		if held[name] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d held", name, held[name]))
		}
	}
	return sum, strings.Join(parts, ", ")
}
