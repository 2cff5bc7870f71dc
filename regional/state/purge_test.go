package state

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// unusedByAll computes the same as unusedJobs, but reads everything.
func unusedByAll(v *View) []JobVersion {
	used := map[JobVersion]bool{}
	for s := range v.Slots() {
		used[JobVersion{s.Key().JobKey(), s.JobVersion}] = true
	}
	for a := range v.Allocs() {
		used[JobVersion{a.Key().JobKey(), a.JobVersion}] = true
	}
	for l := range v.LocalJobs() {
		used[JobVersion{l.Key(), l.Version}] = true
	}
	var out []JobVersion
	for j := range v.versions() {
		if at := (JobVersion{j.Key, j.Version}); !used[at] {
			out = append(out, at)
		}
	}
	return out
}

// TestUnusedJobsAreThoseWithoutReference: after any sequence of commands, exactly the
// versions without a reference are unused.
func TestUnusedJobsAreThoseWithoutReference(t *testing.T) {
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		st, index, ids := New(), uint64(0), 0
		apply := func(c Command) { // a command that does not fit the state is refused and changes nothing
			index++
			c.NowUnixNano = int64(index) * second
			st.Apply(index, c)
		}
		apply(testNode("n1"))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			version := rapid.Int64Range(1, 3).Draw(t, "version")
			alloc := fmt.Sprint("a", rapid.IntRange(0, ids).Draw(t, "alloc"))
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0:
				apply(testOrder(0, 2, int64(index+1), testJob(version, nil), func(s *Slot) { s.Revision = int64(index + 1) }))
			case 1:
				apply(Command{ApplyOrders: &ApplyOrders{Removed: []string{"default/api/web/0"}}})
			case 2, 3:
				ids++
				apply(testPlace(fmt.Sprint("a", ids), rapid.Int32Range(0, 1).Draw(t, "index"), "n1", version))
			case 4:
				apply(testReport("n1", AllocReport{ID: alloc, State: rapid.SampledFrom([]AllocState{Running, Stopped, Failed}).Draw(t, "state")}))
			case 5:
				local := *testJob(0, nil)
				local.Key, local.Spec = JobKey{"default", "api", true}, fmt.Append(nil, version)
				apply(Command{SubmitLocalJob: &SubmitLocalJob{Job: local}})
			case 6:
				apply(Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "api", Purge: version == 1}})
			default:
				now := int64(index+1) * second
				if c := st.Snapshot().Purgeable(now, now, 1000); c != nil {
					apply(Command{Purge: c})
				}
			}
			v := st.Snapshot()
			got, want := v.unusedJobs(1000), unusedByAll(v)
			if !slices.Equal(got, want) {
				t.Fatalf("unused are %v, want %v", got, want)
			}
			found += len(want)
			if len(v.unusedJobs(1)) != min(1, len(want)) {
				t.Fatal("more than the limit are returned")
			}
		}
	})
	if found == 0 {
		t.Error("none was ever unused")
	}
}
