package global

import (
	"fmt"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestHistorySaysWhatChangedInPlace: the history of a job has what a version changed in place, as the regions
// reported it. A later version that changes only the count does not claim it.
func TestHistorySaysWhatChangedInPlace(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	s.waitReport("alpha")
	sized := func(cpu int64, count int32) *nusav1.JobSpec {
		return testJob("api", count, func(spec *nusav1.JobSpec) { spec.Groups["web"].Tasks["server"].Resources.CpuMilli = cpu })
	}
	s.submit(sized(100, 3))
	slot := r.waitSlot("default/api/web/0", accepted)
	sequence := uint64(0)
	says := func(version int64, c *nusav1.InstanceCounts, inPlace int32) {
		sequence++
		sum := &nusav1.JobSummary{Namespace: "default", Job: "api", Incarnation: 1, Index: sequence, Version: version, Run: slot.GetRun(),
			Groups: map[string]*nusav1.InstanceCounts{"web": c}}
		if inPlace > 0 {
			sum.InPlace = map[string]int32{"web": inPlace}
		}
		r.summarize(sequence == 1, sequence, sum)
	}
	history := func() (out string) {
		h, err := nusav1.NewRolloutsClient(s.conn).History(t.Context(), &nusav1.JobHistoryRequest{Job: &nusav1.JobRef{Name: "api"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range h.GetVersions() {
			out += fmt.Sprintf("v%d", v.GetVersion())
			for _, c := range v.GetInPlace() {
				out += fmt.Sprintf(" %s %d, %d started", c.GetGroup(), c.GetInstances(), c.GetStarted())
			}
			out += "; "
		}
		return out
	}
	await := func(want string) {
		t.Helper()
		s.waitJob("api", want, func(*nusav1.Job) bool { return history() == want })
	}
	says(1, &nusav1.InstanceCounts{Running: 3}, 0)
	await("v1; ")
	s.submit(sized(200, 3))
	r.waitSlot("default/api/web/0", func(s *nusav1.Slot) bool { return s.GetJobVersion() == 2 })
	says(2, &nusav1.InstanceCounts{Running: 3, Outdated: 2}, 1)
	await("v2 web 1, 0 started; v1; ")
	says(2, &nusav1.InstanceCounts{Running: 3}, 2)
	s.waitJob("api", "version 2 is done", func(j *nusav1.Job) bool { return j.GetStatus().GetRollout() == nil })
	const done = "v2 web 2, 1 started; v1; "
	await(done)
	says(2, &nusav1.InstanceCounts{Running: 3}, 0) // the instances were replaced since
	if got := history(); got != done {
		t.Errorf("after replacements: %s", got)
	}
	s.submit(sized(200, 4))
	says(3, &nusav1.InstanceCounts{Running: 4}, 2)
	await("v3; " + done)
	s.submit(sized(300, 4)) // replaced before its regions reported anything
	s.submit(sized(400, 4))
	await("v5; v4; v3; " + done)
}
