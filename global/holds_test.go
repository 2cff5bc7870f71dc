package global

import (
	"maps"
	"slices"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestLacksOfRemovedGroups are forgotten: a group that comes back under the name
// waits anew.
func TestLacksOfRemovedGroups(t *testing.T) {
	j := &Job{Unplaced: map[string]*unplaced{"web": {}, "db": {}}}
	j.forgetUnplaced(&nusav1.JobRecord{Job: &nusav1.Job{Spec: &nusav1.JobSpec{Groups: map[string]*nusav1.Group{"web": {}}}}})
	if got := slices.Collect(maps.Keys(j.Unplaced)); !slices.Equal(got, []string{"web"}) {
		t.Errorf("kept of %v", got)
	}
	if j.forgetUnplaced(nil); len(j.Unplaced) > 0 {
		t.Errorf("kept of %v", j.Unplaced)
	}
}
