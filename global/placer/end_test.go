package placer

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestResultsFitTheStore: a result can be stored for any number of slots, regions
// and reasons, with the sums.
func TestResultsFitTheStore(t *testing.T) {
	status := func(regions int) *nusav1.JobStatus {
		out := &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_FAILED, Groups: map[string]*nusav1.GroupStatus{}}
		for _, group := range []string{"a", "b", "c"} {
			g := &nusav1.GroupStatus{Counts: &nusav1.InstanceCounts{Failed: int32(regions)}, Regions: map[string]*nusav1.InstanceCounts{}}
			for i := range regions {
				name := fmt.Sprint("region-", i)
				g.Regions[name] = &nusav1.InstanceCounts{Failed: 1}
				g.Slots = append(g.Slots, &nusav1.Slot{Job: "j", Group: group, Region: name, PlacedBecause: strings.Repeat("x", 100)})
				g.Pending = append(g.Pending, &nusav1.CountedReason{Count: 1, Message: strings.Repeat("x", state.MaxMessage)})
			}
			out.Groups[group] = g
		}
		return out
	}
	for _, tc := range []struct{ regions, reasons, counted int }{{1, 1, 1}, {1024, state.MaxCounts, 1024}, {30_000, 1, 0}} {
		got := boundStatus(status(tc.regions))
		if size := proto.Size(got); size > maxResult {
			t.Errorf("%d regions: %d bytes", tc.regions, size)
		}
		for name, g := range got.GetGroups() {
			if g.GetCounts().GetFailed() != int32(tc.regions) || len(g.GetPending()) != tc.reasons || len(g.GetRegions()) != tc.counted || len(g.GetSlots()) > 0 {
				t.Errorf("%d regions, group %s: %v, %d reasons, %d regions, %d slots", tc.regions, name, g.GetCounts(), len(g.GetPending()), len(g.GetRegions()), len(g.GetSlots()))
			}
		}
	}
}
