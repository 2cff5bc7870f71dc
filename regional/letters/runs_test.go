package letters

import (
	"slices"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// TestAttemptsOfEarlierJobs: a letter has only the attempts of its own run and version. The region still stores the
// attempts of a purged job of the same name, and of earlier versions.
func TestAttemptsOfEarlierJobs(t *testing.T) {
	st, index, now := state.New(), uint64(0), int64(time.Hour)
	apply := func(c state.Command) {
		t.Helper()
		index, now = index+1, now+int64(time.Minute)
		c.NowUnixNano = now
		if r := st.Apply(index, c); r.Err != nil || len(r.Skipped) > 0 {
			t.Fatalf("%v, skipped %v", r.Err, r.Skipped)
		}
	}
	key := state.GroupKey{Namespace: "default", Job: "m2", Group: "main"}
	submit := func(generation, run, version int64) {
		t.Helper()
		job := &state.Job{Version: version, Type: state.Batch, Spec: []byte("spec"), Groups: []state.Group{{
			Name: "main", Hash: 1, Ask: state.Ask{Resources: state.Resources{CPUMilli: 100, MemoryBytes: 1 << 20}, Pool: "default"},
			Reschedule: state.Reschedule{Attempts: 1, From: time.Second, To: time.Second},
		}}}
		apply(state.Command{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{Job: job, Slot: state.Slot{
			Namespace: key.Namespace, Job: key.Job, Group: key.Group, To: 1, Generation: generation, Revision: generation, Run: run,
			JobVersion: version, Desired: state.Run, State: state.SlotOffered,
		}}}}})
	}
	fail := func(version int64, ids ...string) {
		t.Helper()
		for _, id := range ids {
			apply(state.Command{ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{{
				Key: key, JobVersion: version, Allocs: []state.PlaceAlloc{{ID: id, NodeID: "n1", Why: "test"}},
			}}}})
			apply(state.Command{AgentReports: &state.AgentReports{NodeID: "n1", Reports: []state.AllocReport{{
				ID: id, State: state.Failed, Reason: "start_failed", Message: "no such file", Failure: &retry.Failure{Category: retry.Start},
			}}}})
		}
	}
	check := func(what string, want ...string) {
		t.Helper()
		s := &Service{View: func() *state.View { return st.Snapshot() }, Region: "alpha"}
		resp, err := s.Collect(t.Context(), &nusav1.CollectRequest{Jobs: []*nusav1.CollectJob{{Namespace: key.Namespace, Name: key.Job}}})
		if err != nil || len(resp.GetInstances()) != 1 {
			t.Fatalf("%s: %v, %v", what, resp, err)
		}
		var got []string
		for _, a := range resp.GetInstances()[0].GetAttempts() {
			got = append(got, a.GetAllocation())
		}
		if n := resp.GetInstances()[0].GetAttemptCount(); !slices.Equal(got, want) || int(n) != len(want) {
			t.Errorf("%s: %d attempts, those of %v, want %v", what, n, got, want)
		}
	}
	apply(state.Command{Bootstrap: &state.Bootstrap{ClusterID: "c", Region: "alpha"}})
	apply(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{
		ID: "n1", Name: "n1", Pool: "default", PortMin: 20000, PortMax: 20009, Capacity: state.Resources{CPUMilli: 4000, MemoryBytes: 8 << 30, DiskBytes: 100 << 30},
	}}})
	submit(10, 10, 1)
	fail(1, "a1", "a2")
	check("the first run", "a1", "a2")
	apply(state.Command{ApplyOrders: &state.ApplyOrders{Removed: []string{state.SlotID(key.Namespace, key.Job, key.Group, 0)}}})
	submit(20, 20, 1)
	fail(1, "b1", "b2")
	check("purged and run again", "b1", "b2")
	submit(30, 20, 2)
	fail(2, "c1", "c2")
	check("another version", "c1", "c2")
}
