package state

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRemovedGroupsStopWaiting: a group that is added again under the same name starts to wait
// again.
func TestRemovedGroupsStopWaiting(t *testing.T) {
	j := &Job{notes: &Notes{unplaced: map[string]*unplacedGroup{"web": {}, "db": {}}}}
	j.forgetUnplaced(recordOfMessage(&nusav1.JobRecord{Job: &nusav1.Job{Spec: &nusav1.JobSpec{Groups: map[string]*nusav1.Group{"web": {}}}}}))
	if got := slices.Collect(maps.Keys(j.Notes().unplaced)); !slices.Equal(got, []string{"web"}) {
		t.Errorf("kept of %v", got)
	}
	if j.forgetUnplaced(nil); len(j.Notes().unplaced) > 0 {
		t.Errorf("kept of %v", j.Notes().unplaced)
	}
}

// TestReleasedInstancesComeFirst: released instances are placed first for a while. Only revoked
// instances are released, the latest answer for each index counts, and the list is bounded.
func TestReleasedInstancesComeFirst(t *testing.T) {
	now := time.Duration(0)
	j := &Job{Record: &Record{spec: &Spec{job: place.Job{Groups: []place.Group{{Name: "web"}, {Name: "db"}}}}}}
	says := func(from string, state region.SlotState, a, b int) {
		j.RecordReleased(from, region.Answer{Namespace: "default", Job: "api", Group: "web", From: a, To: b, State: state}, 0, now)
	}
	expect := func(want ...place.Released) {
		t.Helper()
		groups := j.Groups(now)
		if !slices.Equal(groups[0].Released, want) || groups[1].Released != nil {
			t.Errorf("%+v, want %+v", groups, want)
		}
		if j.Place().Groups[0].Released != nil {
			t.Error("the job's own record was written to")
		}
	}
	says("a", region.Returned, 0, 1)
	expect()
	says("a", region.Revoked, 0, 2)
	now += releasedFor / 2
	says("b", region.Revoked, 2, 3)
	expect(place.Released{Region: "a", From: 0, To: 2}, place.Released{Region: "b", From: 2, To: 3})
	says("b", region.Revoked, 2, 3) // the same answer again
	now += releasedFor / 2
	expect(place.Released{Region: "b", From: 2, To: 3})
	now += releasedFor
	expect()
	for i := range MaxDisconnected + 2 {
		says("a", region.Revoked, i, i+1)
	}
	if got := j.Groups(now)[0].Released; len(got) != MaxDisconnected || got[0].From != 2 || len(j.Notes().released) != MaxDisconnected {
		t.Errorf("%d ranges from %v, %d remembered", len(got), got[0], len(j.Notes().released))
	}
}
