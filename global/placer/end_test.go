package placer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/region"
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

// TestResultsSayNothingOfTheElection: a job had ended when this server became the active one. Its
// stored result does not say that the counts of its region are from before the election.
func TestResultsSayNothingOfTheElection(t *testing.T) {
	p, j := newEnded(t)
	p.st.Lock()
	sea := p.st.Regions["sea"]
	sea.Life = region.Open(p.st.SessionConfig(), sea.Life.Record, 0) // as after an election
	shown := j.Status(p.st.Sight())
	p.st.Unlock()
	if !strings.Contains(shown.GetMessage(), "from before the election") {
		t.Fatalf("the region is not awaited: %v", shown)
	}
	got := p.newResults()
	if len(got) != 1 || strings.Contains(got[0].record.GetStatus().GetMessage(), "election") {
		t.Errorf("results: %v", got)
	}
}

// TestResultsSayNothingOfTheRollout: an instance of a new version failed while the rollout of the
// version has a deadline. The status shows the rollout; the stored result has none.
func TestResultsSayNothingOfTheRollout(t *testing.T) {
	p, j := newEnded(t)
	if _, err := p.Commit.Do(t.Context(), func(tx *state.Tx) error {
		return tx.PutRollout(j.Key, &nusav1.RolloutRecord{Run: 1, Version: 1})
	}); err != nil {
		t.Fatal(err)
	}
	p.st.Lock()
	j.EditNotes().RolloutDue = 5 * time.Second
	shown := j.Status(p.st.Sight())
	p.st.Unlock()
	if shown.GetRollout() == nil {
		t.Fatalf("the rollout is not shown: %v", shown)
	}
	got := p.newResults()
	if len(got) != 1 || got[0].record.GetStatus().GetRollout() != nil {
		t.Errorf("results: %v", got)
	}
}

// newEnded returns a placer at 1 s that knows one job, whose only instance failed in region sea.
func newEnded(t *testing.T) (*Placer, *state.Job) {
	p := newPlacer(t)
	p.st.Clock = func() time.Duration { return time.Second }
	if _, err := p.Commit.Do(t.Context(), func(tx *state.Tx) error {
		if err := tx.PutRegion("sea", &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "sea"}, ClusterId: "c", FeatureLevel: 1}); err != nil {
			return err
		}
		return putOwned(tx, "job")
	}); err != nil {
		t.Fatal(err)
	}
	k := keyOfName("job")
	if _, err := p.Commit.Do(t.Context(), func(tx *state.Tx) error {
		spec := specOf("job", 1, 100)
		spec.Type = nusav1.JobType_JOB_TYPE_BATCH
		s := p.st.Jobs[k].SortedSlots()[0]
		s.Region, s.State, s.Run = "sea", region.Done, 1
		if err := tx.PutJob(k, &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Run: 1}, Since: map[string]int64{"web": 1}}); err != nil {
			return err
		}
		return tx.ChangeSlots([]region.Change{{Slot: s}})
	}); err != nil {
		t.Fatal(err)
	}
	p.st.Lock()
	defer p.st.Unlock()
	j := p.st.Jobs[k]
	j.Summaries.Put("sea", &nusav1.JobSummary{Version: 1, Run: 1, Groups: map[string]*nusav1.InstanceCounts{"web": {Failed: 1}}})
	p.st.Ended[k] = struct{}{}
	return p, j
}
