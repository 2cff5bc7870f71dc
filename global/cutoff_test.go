package global

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestCutOffRegionIsNeverShownAsHealthy: lists, status, plan, explain, stop and events say
// which instances are unknown, since when, and why, until the region is back. A short
// reconnect is not shown.
func TestCutOffRegionIsNeverShownAsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := newFederation().start(t, "g1", func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(start) }
			c.ReportInterval = 0 // the default, 5 s
		})
		alpha, tokyo := s.joined("alpha"), s.joined("tokyo")
		job := testJob("api", 6, func(j *nusav1.JobSpec) {
			j.Regions = &nusav1.RegionsSpec{Spread: &nusav1.RegionSpread{Min: 2}, Divide: nusav1.Divide_DIVIDE_EVEN}
		})
		run := s.submit(job).GetRevision()
		says := func(r *fakeRegion, running int32) *nusav1.JobSummary {
			return &nusav1.JobSummary{
				Namespace: "default", Job: "api", Incarnation: 1, Index: 1, Version: 1, Run: run,
				Groups: map[string]*nusav1.InstanceCounts{"web": {Running: running}},
			}
		}
		synctest.Wait()
		alpha.summarize(true, 1, says(alpha, 3))
		tokyo.summarize(true, 1, says(tokyo, 3))
		lease := uint64(0)
		pass := func(d time.Duration, live ...*fakeRegion) {
			for range d / time.Second {
				time.Sleep(time.Second)
				lease++
				for _, r := range live {
					r.mu.Lock()
					granted := uint64(0)
					if n := len(r.grants); n > 0 {
						granted = r.grants[n-1].GetId()
					}
					r.mu.Unlock()
					r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Lease{Lease: &nusav1.LeaseRequest{Id: lease, Granted: granted}}})
				}
				synctest.Wait()
			}
		}
		seen := func() string {
			t.Helper()
			list, err := s.jobs().List(t.Context(), &nusav1.ListJobsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			st := list.GetJobs()[0].GetStatus()
			c := st.GetGroups()["web"].GetCounts()
			text := fmt.Sprintf("%s: %d running, %d unknown: %s", strings.TrimPrefix(st.GetState().String(), "JOB_STATE_"), c.GetRunning(), c.GetUnknown(), st.GetMessage())
			for _, u := range st.GetGroups()["web"].GetUnknown() {
				text += fmt.Sprintf("; %s %d of %d running: %s", u.GetRegion(), u.GetCount(), u.GetLast().GetRunning(), u.GetMessage())
			}
			return text
		}
		check := func(what, got, want string) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		events, end := s.regionEvents(t)
		defer end()
		pass(2*time.Second, alpha, tokyo)
		check("before", seen(), "RUNNING: 6 running, 0 unknown: ")
		tokyo.leave()
		pass(3*time.Second, alpha)
		check("after 3 s", seen(), "RUNNING: 6 running, 0 unknown: ")
		pass(17*time.Second, alpha)
		if now := seen(); !strings.HasPrefix(now, "PENDING: 3 running, 3 unknown: 3 unknown for 20s: tokyo is cut off; tokyo 3 of 3 running: ") {
			t.Errorf("after 20 s: %q", now)
		}
		g := s.groupText(t)
		check("region list", g.region, "DISCONNECTED, silent 20s")
		check("plan", g.plan, "3 unknown for 20s: tokyo is cut off; a change reaches them when the region returns, or when they have moved")
		if !strings.HasPrefix(g.explain, "tokyo: cut off for 20s (last report: 3 running); ") {
			t.Errorf("explain: %q", g.explain)
		}
		check("allocations", g.allocs, "tokyo: cut off for 20s; as last reported, 20s ago: 3 running")

		check("events", events(), "region.disconnected region.silent")
		tokyo = s.join(helloOf("tokyo", 2))
		tokyo.wait("welcome", func() bool { return tokyo.welcome != nil })
		pass(2*time.Second, alpha, tokyo)
		check("back", seen(), "RUNNING: 6 running, 0 unknown: ")
		check("events", events(), "region.disconnected region.silent region.connected region.back")

		tokyo.leave()
		pass(10*time.Second, alpha)
		if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "api"}}); err != nil {
			t.Fatal(err)
		}
		pass(time.Second, alpha)
		stopped := proto.CloneOf(says(alpha, 0))
		stopped.Index = 2
		alpha.summarize(false, 2, stopped)
		if now := seen(); !strings.HasPrefix(now, "STOPPING: 0 running, 3 unknown: 3 cannot be reached: tokyo has been cut off for 11s; they stop when it returns, or `nusa region lose tokyo` if it is gone for good") {
			t.Errorf("stopped: %q", now)
		}
		alpha.leave()
		s.stop()
	})
}

// cutOffTexts are the texts that calls show about a region that is cut off.
type cutOffTexts struct{ region, plan, explain, allocs string }

func (s *testServer) groupText(t *testing.T) (out cutOffTexts) {
	t.Helper()
	ref := &nusav1.JobRef{Name: "api"}
	regions, err := nusav1.NewRegionsClient(s.conn).List(t.Context(), &nusav1.ListRegionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range regions.GetRegions() {
		if r.GetDefinition().GetName() == "tokyo" {
			out.region = fmt.Sprintf("%s, silent %s", strings.TrimPrefix(r.GetState().String(), "REGION_STATE_"), r.GetSilent().AsDuration())
		}
	}
	j, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: ref})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := s.jobs().Plan(t.Context(), &nusav1.PlanRequest{Spec: j.GetSpec()})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range plan.GetWarnings() {
		if strings.Contains(w, "unknown") {
			out.plan += w
		}
	}
	e, err := s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: ref})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range e.GetGroups()[0].GetPending() {
		out.explain += p.GetMessage()
	}
	allocs, err := nusav1.NewAllocationsClient(s.conn).List(t.Context(), &nusav1.ListAllocationsRequest{Job: ref})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range allocs.GetErrors() {
		if e.GetRegion() == "tokyo" {
			out.allocs += e.GetRegion() + ": " + e.GetMessage()
		}
	}
	return out
}

// regionEvents collects the types of the events about regions from now on, until end is called.
func (s *testServer) regionEvents(t *testing.T) (types func() string, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	watch, err := nusav1.NewEventsClient(s.conn).Watch(ctx, &nusav1.WatchEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all []string
	var done sync.WaitGroup
	done.Go(func() {
		for {
			e, err := watch.Recv()
			if err != nil {
				return
			}
			if strings.HasPrefix(e.GetType(), "region.") {
				mu.Lock()
				all = append(all, e.GetType())
				mu.Unlock()
			}
		}
	})
	types = func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(all, " ")
	}
	return types, func() { cancel(); done.Wait() }
}

// awaitHistory waits until the history is read: before, each job may be in it. The federation does not
// have the named job.
func awaitHistory(t *testing.T, s *testServer, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := nusav1.NewAllocationsClient(s.conn).List(ctx, &nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Name: name}})
		if status.Code(err) == codes.NotFound {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the history is not read: %v", err)
		case <-tick.C:
		}
	}
}

// TestListOfAnUnknownJob: a job that the federation does not have is not found, also while a region
// is cut off, because no region can have such a job. A region's own jobs may exist there, though.
func TestListOfAnUnknownJob(t *testing.T) {
	s := newFederation().start(t, "g1")
	s.joined("tokyo").leave()
	s.waitRegion("tokyo", nusav1.RegionState_REGION_STATE_DISCONNECTED)
	awaitHistory(t, s, "be7408e6")
	for _, c := range []struct {
		req  *nusav1.ListAllocationsRequest
		want codes.Code
	}{
		{&nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Name: "be7408e6"}}, codes.NotFound},
		{&nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Name: "be7408e6"}, All: true}, codes.OK},
		{&nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Name: "be7408e6", Region: "tokyo"}}, codes.OK},
		{&nusav1.ListAllocationsRequest{}, codes.OK},
	} {
		list, err := nusav1.NewAllocationsClient(s.conn).List(t.Context(), c.req)
		if status.Code(err) != c.want || err == nil && len(list.GetErrors()) != 1 {
			t.Errorf("%v: %v, %v, want %v", c.req, list, err, c.want)
		}
	}
}
