package global

import (
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestWaitingJobsHaveTheirPlaces: jobs that no region has room for show their place in the queue of the
// global tier, in the status, in lists and in explanations. A job that is stopped leaves the queue.
func TestWaitingJobsHaveTheirPlaces(t *testing.T) {
	s := newFederation().start(t, "g1")
	s.joined("alpha", func(r *fakeRegion) { r.fits = 0 })
	s.waitReport("alpha")
	submit := func(name string, count int32, priority int32) {
		spec := testJob(name, count)
		spec.Priority = &priority
		s.submit(spec)
		s.waitJob(name, "waits", func(j *nusav1.Job) bool { return len(j.GetStatus().GetGroups()["web"].GetPending()) > 0 })
	}
	submit("low", 1, 10)
	submit("first", 2, 50)
	submit("second", 3, 50)
	submit("high", 4, 90)
	ask := testJob("x", 1).GetGroups()["web"]
	one := &nusav1.Resources{}
	for _, task := range ask.GetTasks() {
		one.CpuMilli += task.GetResources().GetCpuMilli()
		one.MemoryBytes += task.GetResources().GetMemoryBytes()
		one.DiskBytes += task.GetResources().GetDiskBytes()
	}
	place := func(position, groups int32, higher, earlier int64) *nusav1.QueuePlace {
		n := higher + earlier
		return &nusav1.QueuePlace{Position: position, Groups: groups, Higher: higher, Earlier: earlier,
			Asked: &nusav1.Resources{CpuMilli: n * one.GetCpuMilli(), MemoryBytes: n * one.GetMemoryBytes(), DiskBytes: n * one.GetDiskBytes()}}
	}
	check := func(want map[string]*nusav1.QueuePlace) {
		t.Helper()
		list, err := s.jobs().List(t.Context(), &nusav1.ListJobsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range list.GetJobs() {
			name := j.GetSpec().GetName()
			got, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: name}})
			if err != nil {
				t.Fatal(err)
			}
			places := []*nusav1.QueuePlace{j.GetStatus().GetGroups()["web"].GetGlobalQueue(), got.GetStatus().GetGroups()["web"].GetGlobalQueue()}
			for _, p := range places {
				if !proto.Equal(p, want[name]) {
					t.Errorf("%s is at %v, want %v", name, p, want[name])
				}
			}
		}
	}
	check(map[string]*nusav1.QueuePlace{"high": place(1, 4, 0, 0), "first": place(2, 4, 4, 0), "second": place(3, 4, 4, 2), "low": place(4, 4, 9, 0)})
	e, err := s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: "second"}})
	if err != nil || len(e.GetGroups()) != 1 || !proto.Equal(e.GetGroups()[0].GetGlobalQueue(), place(3, 4, 4, 2)) {
		t.Errorf("%v, %v", e, err)
	}
	if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "first"}}); err != nil {
		t.Fatal(err)
	}
	check(map[string]*nusav1.QueuePlace{"high": place(1, 3, 0, 0), "second": place(2, 3, 4, 0), "low": place(3, 3, 7, 0)})
}
