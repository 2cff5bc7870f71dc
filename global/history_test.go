package global

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// kept makes jobs that have ended leave memory at once.
func kept(c *Config) { c.EndedKept = time.Nanosecond }

// keysOf returns the keys of a job in the store, without their common prefix.
func (s *testServer) keysOf(name string) (out []string) {
	s.t.Helper()
	_, err := s.store.List(s.t.Context(), "/nusa/v1/", func(kv store.KV) error {
		if strings.Contains(kv.Key+"/", "/default/"+name+"/") {
			out = append(out, strings.TrimPrefix(kv.Key, "/nusa/v1/"))
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// waitStore waits until ok returns true. It calls ok again after each change of the store.
func (s *testServer) waitStore(what string, ok func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testWait)
	defer cancel()
	revision, err := s.store.List(ctx, "/nusa/v1/jobs/", func(store.KV) error { return nil })
	if err != nil {
		s.t.Fatal(err)
	}
	done := errors.New("done")
	if ok() {
		return
	}
	if err := s.store.Watch(ctx, "/nusa/v1/", revision, func([]store.Event) error {
		if ok() {
			return done
		}
		return nil
	}); !errors.Is(err, done) {
		s.t.Fatalf("%s: %v", what, err)
	}
}

// ended waits until a job is in the history, and nowhere else in the store.
func (s *testServer) ended(name string) {
	s.t.Helper()
	s.waitStore(name+" in the history", func() bool { return slices.Equal(s.keysOf(name), []string{"history/default/" + name}) })
}

// TestJobsThatHaveEndedLeaveMemory: a job that has ended is in the history. Every request about
// it gets the same response as before, also from another server.
func TestJobsThatHaveEndedLeaveMemory(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1", kept)
	r := s.joined("alpha", func(r *fakeRegion) {
		r.script = func(s *nusav1.Slot) []*nusav1.SlotAnswer {
			return []*nusav1.SlotAnswer{answerTo(s, nusav1.SlotState_SLOT_STATE_ACCEPTED), answerTo(s, nusav1.SlotState_SLOT_STATE_DONE)}
		}
	})
	ref := &nusav1.JobRef{Name: "sum"}
	labelled := func(j *nusav1.JobSpec) { j.Labels = map[string]string{"team": "sea"} }
	first := s.submit(batchJob("sum", 2, labelled))
	r.waitSlot("default/sum/web/0", inState(nusav1.SlotState_SLOT_STATE_DONE))
	r.summarize(true, 1, &nusav1.JobSummary{Namespace: "default", Job: "sum", Index: 1, Version: 1, Run: first.GetRevision(),
		Groups: map[string]*nusav1.InstanceCounts{"web": {Complete: 2}}})
	s.ended("sum")
	r.wait("the end of the order", func() bool { return len(r.slots) == 0 })

	get := func(s *testServer) *nusav1.Job {
		t.Helper()
		j, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: ref})
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	j := get(s)
	g := j.GetStatus().GetGroups()["web"]
	if j.GetRevision() != first.GetRevision() || j.GetRun() != first.GetRevision() || j.GetVersion() != 1 || j.GetSubmitted() == nil ||
		j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_COMPLETE || g.GetDesired() != 2 || g.GetCounts().GetComplete() != 2 || len(j.GetSpec().GetGroups()) != 1 {
		t.Errorf("got %v", j)
	}
	list := func(s *testServer, labels map[string]string) []*nusav1.Job {
		t.Helper()
		page, err := s.jobs().List(t.Context(), &nusav1.ListJobsRequest{Labels: labels})
		if err != nil {
			t.Fatal(err)
		}
		return page.GetJobs()
	}
	for labels, want := range map[string]int{"sea": 1, "land": 0} {
		if jobs := list(s, map[string]string{"team": labels}); len(jobs) != want ||
			want > 0 && (jobs[0].GetSpec().GetName() != "sum" || jobs[0].GetStatus().GetGroups()["web"].GetCounts().GetComplete() != 2 || jobs[0].GetRevision() != j.GetRevision()) {
			t.Errorf("listed by %s: %v", labels, jobs)
		}
	}
	watch, err := s.jobs().Watch(t.Context(), &nusav1.GetJobRequest{Job: ref})
	if err != nil {
		t.Fatal(err)
	}
	if seen, err := watch.Recv(); err != nil || !proto.Equal(seen, j) {
		t.Errorf("watched %v, %v", seen, err)
	}
	if e, err := s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: ref}); err != nil || !strings.Contains(e.GetNote(), "ended") {
		t.Errorf("explained as %v, %v", e, err)
	}
	if same := s.submit(batchJob("sum", 2, labelled)); same.GetChanged() || same.GetRevision() != j.GetRevision() || len(same.GetWarnings()) == 0 {
		t.Errorf("the same once more: %v", same)
	}
	if _, err := s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: batchJob("sum", 3), CheckRevision: 1}); status.Code(err) != codes.Aborted {
		t.Errorf("a wrong revision: %v", err)
	}
	if p, err := s.jobs().Plan(t.Context(), &nusav1.PlanRequest{Spec: batchJob("sum", 3)}); err != nil || p.GetRevision() != j.GetRevision() || len(p.GetDiff()) == 0 {
		t.Errorf("planned %v, %v", p, err)
	}

	// Another server knows the history, too.
	s.stop()
	s = f.start(t, "g2", kept)
	if again := get(s); !proto.Equal(again, j) {
		t.Errorf("after an election %v, want %v", again, j)
	}
	if jobs := list(s, nil); len(jobs) != 1 {
		t.Errorf("listed after an election: %v", jobs)
	}
	r = s.joined("alpha")
	next, err := s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: batchJob("sum", 3), CheckRevision: j.GetRevision()})
	if err != nil || next.GetVersion() != 2 || !next.GetChanged() {
		t.Fatalf("another run: %v, %v", next, err)
	}
	slot := r.waitSlot("default/sum/web/0", accepted)
	if slot.GetRun() != next.GetRevision() || slices.Contains(s.keysOf("sum"), "history/default/sum") {
		t.Errorf("%v runs, the store has %q", slot, s.keysOf("sum"))
	}
	if now := get(s); now.GetVersion() != 2 || now.GetStatus().GetState() == nusav1.JobState_JOB_STATE_COMPLETE {
		t.Errorf("the next run is %v", now)
	}
}

// TestStoppedJobsLeaveMemory: a stopped job in the history can be started again, and purged.
func TestStoppedJobsLeaveMemory(t *testing.T) {
	s := newFederation().start(t, "g1", kept)
	r := s.joined("alpha")
	stop := func(purge bool) {
		t.Helper()
		if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "api"}, Purge: purge}); err != nil {
			t.Fatal(err)
		}
	}
	for version := range int64(2) {
		if resp := s.submit(testJob("api", 2)); resp.GetVersion() != version+1 {
			t.Errorf("version %d, want %d", resp.GetVersion(), version+1)
		}
		r.waitSlot("default/api/web/0", accepted)
		stop(false)
		s.ended("api")
		j, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "api"}})
		if err != nil || !j.GetStopped() || j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_STOPPED {
			t.Errorf("stopped: %v, %v", j, err)
		}
		stop(false) // nothing changes
		s.ended("api")
	}
	stop(true)
	if keys := s.keysOf("api"); len(keys) > 0 {
		t.Errorf("after a purge the store has %q", keys)
	}
	if _, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "api"}}); status.Code(err) != codes.NotFound {
		t.Errorf("purged: %v", err)
	}
}

// TestHistoryIsBounded: the oldest jobs beyond the limit are forgotten. The pages of a list have the
// jobs in memory and in the history in the order of their names.
func TestHistoryIsBounded(t *testing.T) {
	const most = 5
	s := newFederation().start(t, "g1", kept, func(c *Config) { c.HistoryMost = most })
	var names []string
	for i := range 2 * most {
		name := fmt.Sprintf("job-%d", 9-i)
		s.submit(testJob(name, 0))
		if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: name}}); err != nil {
			t.Fatal(err)
		}
		s.ended(name)
		names = append([]string{name}, names...)
		if i%2 == 0 {
			live := fmt.Sprintf("live-%d", i)
			s.submit(testJob(live, 1))
		}
	}
	want := append(names[:most:most], "live-0", "live-2", "live-4", "live-6", "live-8")
	listed := func() (got []string) {
		token := ""
		for {
			page, err := s.jobs().List(t.Context(), &nusav1.ListJobsRequest{Limit: 3, PageToken: token, Namespace: "default"})
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range page.GetJobs() {
				got = append(got, j.GetSpec().GetName())
			}
			token = page.GetNextPageToken()
			if token == "" {
				return got
			}
		}
	}
	s.waitStore("the list", func() bool { return slices.Equal(listed(), want) })
}

// TestLargeJobsLeaveMemory: jobs whose records do not fit into one transaction move one by one.
func TestLargeJobsLeaveMemory(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	for _, name := range []string{"a", "b", "c"} {
		s.submit(testJob(name, 0, func(j *nusav1.JobSpec) {
			for _, task := range j.GetGroups()["web"].GetTasks() {
				task.Env = map[string]string{}
				for i := range 30 {
					var text strings.Builder
					for text.Len() < 30_000 {
						text.WriteString(rand.Text())
					}
					task.Env[fmt.Sprintf("TEXT_%d", i)] = text.String()
				}
			}
		}))
		if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	s.stop()
	s = f.start(t, "g2", kept)
	for _, name := range []string{"a", "b", "c"} {
		s.ended(name)
	}
}
