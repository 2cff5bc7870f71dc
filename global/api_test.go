package global

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRefusals: a wrong request gets the right code with the name of the field,
// and changes nothing.
func TestRefusals(t *testing.T) {
	s := newFederation().start(t, "g1")
	s.joined("alpha")
	s.submit(testJob("there", 1))
	ctx := t.Context()
	jobs, allocs := s.jobs(), nusav1.NewAllocationsClient(s.conn)
	regions, topo := nusav1.NewRegionsClient(s.conn), nusav1.NewTopologyClient(s.conn)
	submit := func(req *nusav1.SubmitRequest) func() error {
		return func() error { _, err := jobs.Submit(ctx, req); return err }
	}
	bad := func(change func(*nusav1.JobSpec)) func() error {
		return submit(&nusav1.SubmitRequest{Spec: testJob("bad", 1, change)})
	}
	for _, c := range []struct {
		name string
		call func() error
		code codes.Code
		text string
	}{
		{"no spec", submit(&nusav1.SubmitRequest{}), codes.InvalidArgument, "spec"},
		{"bad name", bad(func(j *nusav1.JobSpec) { j.Name = "No Name" }), codes.InvalidArgument, "name"},
		{"count", bad(func(j *nusav1.JobSpec) { j.Groups["web"].Count = proto.Int32(-1) }), codes.InvalidArgument, "groups.web.count"},
		{"constraint", bad(func(j *nusav1.JobSpec) { j.Groups["web"].Constraints = []string{"node.nothing > 1"} }), codes.InvalidArgument, "groups.web.constraints"},
		{"unknown region", bad(func(j *nusav1.JobSpec) {
			j.Regions = &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Name: "alhpa"}}}
		}), codes.InvalidArgument, "regions.allow[0].name: there is no region \"alhpa\""},
		{"known regions are listed", bad(func(j *nusav1.JobSpec) {
			j.Regions = &nusav1.RegionsSpec{Near: []*nusav1.Near{{Selector: &nusav1.RegionSelector{Name: "zzz"}, MaxRtt: durationpb.New(1e9)}}}
		}), codes.InvalidArgument, "(regions: alpha)"},
		{"too large", bad(func(j *nusav1.JobSpec) { j.Labels = map[string]string{"a": strings.Repeat("x", 1<<20)} }), codes.InvalidArgument, "at most 1048576"},
		{"idempotency key", submit(&nusav1.SubmitRequest{Spec: testJob("bad", 1), IdempotencyKey: strings.Repeat("k", 129)}), codes.InvalidArgument, "idempotency_key"},
		{"must not exist", submit(&nusav1.SubmitRequest{Spec: testJob("there", 2), CheckRevision: -1}), codes.Aborted, "exists already"},
		{"stale check", submit(&nusav1.SubmitRequest{Spec: testJob("there", 2), CheckRevision: 1}), codes.Aborted, "it was changed meanwhile"},
		{"check of nothing", submit(&nusav1.SubmitRequest{Spec: testJob("bad", 2), CheckRevision: 5}), codes.Aborted, "does not exist"},
		{"get nothing", func() error {
			_, err := jobs.Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "none"}})
			return err
		}, codes.NotFound, "default/none"},
		{"get no name", func() error { _, err := jobs.Get(ctx, &nusav1.GetJobRequest{}); return err }, codes.InvalidArgument, "job.name"},
		{"stop nothing", func() error {
			_, err := jobs.Stop(ctx, &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "none"}})
			return err
		}, codes.NotFound, "default/none"},
		{"explain an unknown group", func() error {
			_, err := jobs.Explain(ctx, &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: "there"}, Group: "db"})
			return err
		}, codes.InvalidArgument, "group"},
		{"job of an unknown region", func() error {
			_, err := jobs.Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "a", Region: "mars"}})
			return err
		}, codes.InvalidArgument, "\"mars\" does not exist; there are alpha"},
		{"list limit", func() error { _, err := jobs.List(ctx, &nusav1.ListJobsRequest{Limit: 5000}); return err }, codes.InvalidArgument, "limit"},
		{"short allocation", func() error { _, err := allocs.Get(ctx, &nusav1.GetAllocationRequest{Id: "ab"}); return err }, codes.InvalidArgument, "id"},
		{"allocations of an unknown region", func() error {
			_, err := allocs.List(ctx, &nusav1.ListAllocationsRequest{Region: "mars"})
			return err
		}, codes.InvalidArgument, "region"},
		{"region name", func() error {
			_, err := regions.Define(ctx, &nusav1.DefineRegionRequest{Definition: &nusav1.RegionDefinition{Name: "A B"}})
			return err
		}, codes.InvalidArgument, "name"},
		{"unknown region", func() error { _, err := regions.Get(ctx, &nusav1.GetRegionRequest{Name: "mars"}); return err }, codes.NotFound, "alpha"},
		{"remove a connected region", func() error {
			_, err := regions.Remove(ctx, &nusav1.GetRegionRequest{Name: "alpha"})
			return err
		}, codes.FailedPrecondition, "alpha"},
		{"path", func() error { _, err := topo.Path(ctx, &nusav1.PathRequest{From: "alpha", To: "mars"}); return err }, codes.InvalidArgument, "to"},
		{"percentile", func() error {
			_, err := topo.Nearest(ctx, &nusav1.NearestRequest{Region: "alpha", Percentile: 42})
			return err
		}, codes.InvalidArgument, "percentile"},
		{"nearest to nothing", func() error { _, err := topo.Nearest(ctx, &nusav1.NearestRequest{}); return err }, codes.InvalidArgument, "region"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.call()
			text := status.Convert(err).Message()
			for _, p := range rpcerr.Problems(err) {
				text += "; " + p.GetField() + ": " + p.GetMessage()
			}
			if status.Code(err) != c.code || !strings.Contains(text, c.text) {
				t.Errorf("got %s %q, want %s with %q", status.Code(err), text, c.code, c.text)
			}
		})
	}
	list, err := jobs.List(ctx, &nusav1.ListJobsRequest{})
	if err != nil || len(list.GetJobs()) != 1 || list.GetJobs()[0].GetVersion() != 1 {
		t.Errorf("after all refusals: %v, %v", list, err)
	}
}

func TestRepeatedSubmit(t *testing.T) {
	s := newFederation().start(t, "g1")
	one := s.submit(testJob("api", 1))
	if same := s.submit(testJob("api", 1)); same.GetChanged() || same.GetVersion() != 1 || same.GetRevision() != one.GetRevision() {
		t.Errorf("the same spec: %v, first %v", same, one)
	}
	if two := s.submit(testJob("api", 2)); !two.GetChanged() || two.GetVersion() != 2 || two.GetRevision() <= one.GetRevision() {
		t.Errorf("another spec: %v", two)
	}
	req := &nusav1.SubmitRequest{Spec: testJob("keyed", 1), IdempotencyKey: "k1"}
	first, err := s.jobs().Submit(t.Context(), proto.CloneOf(req))
	if err != nil {
		t.Fatal(err)
	}
	s.submit(testJob("keyed", 7)) // another client changes the job meanwhile
	retry, err := s.jobs().Submit(t.Context(), proto.CloneOf(req))
	if err != nil || retry.GetVersion() != 1 || retry.GetRevision() != first.GetRevision() || !retry.GetChanged() {
		t.Errorf("retry: %v, %v, first %v", retry, err, first)
	}
	req.Spec = testJob("keyed", 2)
	if _, err := s.jobs().Submit(t.Context(), req); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the key for another request: %v", err)
	}
	// The store drops keys after a day: then the key is new.
	if _, err := s.store.Txn(t.Context(), nil, []store.Op{store.Delete("/nusa/v1/idempotency/k1")}); err != nil {
		t.Fatal(err)
	}
	if again, err := s.jobs().Submit(t.Context(), req); err != nil || again.GetVersion() != 3 {
		t.Errorf("an expired key: %v, %v", again, err)
	}
}

// TestIdempotencyRace: requests with the same key at the same time are one submit.
func TestIdempotencyRace(t *testing.T) {
	s := newFederation().start(t, "g1")
	answers := make([]*nusav1.SubmitResponse, 16)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			resp, err := s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: testJob("api", 1), IdempotencyKey: "same"})
			if err != nil {
				t.Errorf("submit %d: %v", i, err)
			}
			answers[i] = resp
		})
	}
	wg.Wait()
	for i, a := range answers {
		if a.GetVersion() != 1 || !a.GetChanged() || a.GetRevision() != answers[0].GetRevision() {
			t.Errorf("answer %d is %v, the first %v", i, a, answers[0])
		}
	}
}

func TestSubmitMany(t *testing.T) {
	s := newFederation().start(t, "g1")
	stream, err := s.jobs().SubmitMany(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const n = 600
	go func() {
		for i := range n {
			spec := testJob(fmt.Sprintf("j%d", i), 1)
			switch {
			case i == 100:
				spec.Name = "Bad Name"
			case i >= n-2: // the versions of one job keep their order
				spec = testJob("same", int32(i))
			}
			if stream.Send(&nusav1.SubmitRequest{Spec: spec}) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	for i := range n {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		if i == 100 {
			if codes.Code(resp.GetCode()) != codes.InvalidArgument || len(resp.GetProblems()) == 0 || resp.GetError() == "" {
				t.Errorf("the bad one: %v", resp)
			}
			continue
		}
		want := int64(1)
		if i == n-1 {
			want = 2
		}
		if resp.GetCode() != 0 || resp.GetResponse().GetVersion() != want {
			t.Errorf("answer %d: %v", i, resp)
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	var names []string
	for token := ""; ; {
		page, err := s.jobs().List(t.Context(), &nusav1.ListJobsRequest{Limit: 250, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page.GetJobs() {
			names = append(names, j.GetSpec().GetName())
		}
		token = page.GetNextPageToken()
		if token == "" {
			break
		}
	}
	if len(names) != n-2 {
		t.Errorf("%d jobs are listed, want %d", len(names), n-2)
	}
}

// TestPagesAreBoundedInBytes as well as in jobs.
func TestPagesAreBoundedInBytes(t *testing.T) {
	s := newFederation().start(t, "g1")
	const large = 40
	for i := range large {
		j := testJob(fmt.Sprintf("large%02d", i), 0)
		for _, g := range j.GetGroups() {
			for _, task := range g.GetTasks() {
				task.Env = map[string]string{"A": strings.Repeat("a", 100<<10), "B": strings.Repeat("b", 100<<10)}
			}
		}
		s.submit(j)
	}
	listed, pages := 0, 0
	for token := ""; pages == 0 || token != ""; pages++ {
		page, err := s.jobs().List(t.Context(), &nusav1.ListJobsRequest{PageToken: token})
		if err != nil || proto.Size(page) > 3<<20 {
			t.Fatalf("page %d of %d bytes: %v", pages, proto.Size(page), err)
		}
		listed += len(page.GetJobs())
		token = page.GetNextPageToken()
	}
	if listed != large || pages < 2 {
		t.Errorf("%d jobs on %d pages", listed, pages)
	}
	page, err := s.jobs().List(t.Context(), &nusav1.ListJobsRequest{Brief: true})
	if err != nil || len(page.GetJobs()) != large || page.GetNextPageToken() != "" {
		t.Fatalf("%d brief jobs: %v", len(page.GetJobs()), err)
	}
	for _, j := range page.GetJobs() {
		whole, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: j.GetSpec().GetName()}})
		if err != nil {
			t.Fatal(err)
		}
		if want := job.Brief(whole.GetSpec()); !proto.Equal(j.GetSpec(), want) || len(whole.GetSpec().GetGroups()) == 0 || !proto.Equal(j.GetStatus(), whole.GetStatus()) {
			t.Errorf("brief: %v\n want: %v", j, want)
		}
	}
}

func TestUpdateAndScale(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	s.submit(testJob("api", 4))
	old := r.waitSlot("default/api/web/0", accepted)
	plan, err := s.jobs().Plan(t.Context(), &nusav1.PlanRequest{Spec: testJob("api", 2)})
	if err != nil || len(plan.GetDiff()) != 1 || plan.GetRevision() == 0 || len(plan.GetExplanation().GetGroups()) == 0 {
		t.Fatalf("plan %v, %v", plan, err)
	}
	s.submit(testJob("api", 2))
	next := r.waitSlot("default/api/web/0", func(s *nusav1.Slot) bool { return s.GetTo() == 2 && s.GetJobVersion() == 2 })
	if next.GetGeneration() <= old.GetGeneration() {
		t.Errorf("version 2 has generation %d, version 1 had %d", next.GetGeneration(), old.GetGeneration())
	}
	r.wait("removal of the surplus slot", func() bool { return len(r.slots) == 1 })
	s.submit(testJob("api", 3))
	s.waitJob("api", "three again", func(j *nusav1.Job) bool {
		return j.GetVersion() == 3 && j.GetStatus().GetGroups()["web"].GetUnowned() == 0
	})
}

// TestPlanSaysWhatRestarts: another version of the same work restarts when other leases bind it.
func TestPlanSaysWhatRestarts(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	s.submit(testJob("api", 2))
	r.waitSlot("default/api/web/0", accepted)
	stop := func(j *nusav1.JobSpec) {
		j.Groups["web"].Disconnect = &nusav1.Disconnect{Node: &nusav1.DisconnectLevel{Running: nusav1.Running_RUNNING_STOP}, Region: &nusav1.DisconnectLevel{Running: nusav1.Running_RUNNING_STOP}}
	}
	longer := func(j *nusav1.JobSpec) {
		j.Groups["web"].Disconnect = &nusav1.Disconnect{Region: &nusav1.DisconnectLevel{After: durationpb.New(2 * time.Minute)}}
	}
	more := func(j *nusav1.JobSpec) { j.Groups["web"].Tasks["server"].Resources.MemoryBytes *= 2 }
	for want, change := range map[string]func(*nusav1.JobSpec){"true where the node": more, "false more than": otherWork, "": longer} {
		plan, err := s.jobs().Plan(t.Context(), &nusav1.PlanRequest{Spec: testJob("api", 3, change)})
		got := ""
		for _, c := range plan.GetChanges() {
			got += fmt.Sprintf("%s[%s] %t %s", c.GetGroup(), c.GetInstances(), c.GetInPlace(), c.GetMessage())
		}
		if err != nil || want == "" && got != "" || want != "" && !strings.HasPrefix(got, "web[0-1] "+want) {
			t.Errorf("changes %q, want %q: %v", got, want, err)
		}
	}
	for says, change := range map[string]func(*nusav1.JobSpec){"the leases of the node and the region bind it": stop, "": longer} {
		plan, err := s.jobs().Plan(t.Context(), &nusav1.PlanRequest{Spec: testJob("api", 2, change)})
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(plan.GetWarnings(), "\n")
		if says != "" && !strings.Contains(text, "groups.web restarts its instances, because "+says) || says == "" && strings.Contains(text, "restarts") {
			t.Errorf("warnings %q, want %q", text, says)
		}
	}
}

func TestPlanOfANewJobChangesNothing(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	r.wait("first report", func() bool { return r.sequence > 0 })
	s.waitReport("alpha")
	plan, err := s.jobs().Plan(t.Context(), &nusav1.PlanRequest{Spec: testJob("api", 2)})
	if err != nil || len(plan.GetDiff()) == 0 || plan.GetRevision() != 0 || len(plan.GetSlots()) != 1 || plan.GetSlots()[0].GetRegion() != "alpha" {
		t.Errorf("plan %v, %v", plan, err)
	}
	if list, err := s.jobs().List(t.Context(), &nusav1.ListJobsRequest{}); err != nil || len(list.GetJobs()) != 0 {
		t.Errorf("a plan stored %v, %v", list, err)
	}
}

// waitReport waits until the region's first report has come.
func (s *testServer) waitReport(name string) {
	s.t.Helper()
	watch, err := nusav1.NewRegionsClient(s.conn).Watch(s.t.Context(), &nusav1.ListRegionsRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	for {
		r, err := watch.Recv()
		if err != nil {
			s.t.Fatal(err)
		}
		if r.GetDefinition().GetName() == name && r.GetReport() != nil {
			return
		}
	}
}

func TestPendingJobHasReasonAndIsPlacedLater(t *testing.T) {
	s := newFederation().start(t, "g1")
	full := s.joined("alpha", func(r *fakeRegion) { r.fits = 0 })
	s.waitReport("alpha")
	s.submit(testJob("api", 2))
	j := s.waitJob("api", "pending with a reason", func(j *nusav1.Job) bool {
		g := j.GetStatus().GetGroups()["web"]
		return g.GetUnowned() == 2 && len(g.GetPending()) > 0
	})
	if got := j.GetStatus().GetGroups()["web"].GetPending()[0]; got.GetReason() != nusav1.Reason_REASON_NO_CAPACITY {
		t.Errorf("pending for %v", got)
	}
	e, err := s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: "api"}})
	if err != nil || len(e.GetGroups()) != 1 || len(e.GetGroups()[0].GetRegions()) != 1 ||
		e.GetGroups()[0].GetRegions()[0].GetReason() != nusav1.Reason_REASON_NO_CAPACITY {
		t.Errorf("explanation %v, %v", e, err)
	}
	full.mu.Lock()
	full.fits = 10
	rep := full.report()
	full.mu.Unlock()
	full.send(rep) // the region has room again
	full.waitSlot("default/api/web/0", accepted)
	e, err = s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: "api"}})
	if err != nil || e.GetGroups()[0].GetRegions()[0].GetTaken() != 2 || len(e.GetGroups()[0].GetRegions()[0].GetTerms()) == 0 {
		t.Errorf("explanation of the decision %v, %v", e, err)
	}
}

func TestStopPurges(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	s.submit(testJob("api", 1))
	r.waitSlot("default/api/web/0", accepted)
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	watch, err := s.jobs().Watch(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "api"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.jobs().Stop(ctx, &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "api"}, Purge: true}); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = watch.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("the watch of a purged job ended with %v", err)
	}
	if _, err := s.jobs().Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "api"}}); status.Code(err) != codes.NotFound {
		t.Errorf("a purged job: %v", err)
	}
	again := s.submit(testJob("api", 1))
	if again.GetVersion() != 1 {
		t.Errorf("the next job of that name: %v", again)
	}
}

func TestRegionsDefinedCordonedRemoved(t *testing.T) {
	s := newFederation().start(t, "g1")
	regions := nusav1.NewRegionsClient(s.conn)
	ctx := t.Context()
	def := &nusav1.RegionDefinition{Name: "alpha", Labels: map[string]string{"tier": "gold"}, Location: &nusav1.Location{Latitude: 1, Longitude: 103}}
	got, err := regions.Define(ctx, &nusav1.DefineRegionRequest{Definition: def})
	if err != nil || got.GetState() != nusav1.RegionState_REGION_STATE_DEFINED || !got.GetDefinedByOperator() || got.GetRevision() == 0 {
		t.Fatalf("defined: %v, %v", got, err)
	}
	r := s.joined("alpha") // the hello has no labels: the labels that the operator set stay
	got = s.waitRegion("alpha", nusav1.RegionState_REGION_STATE_CONNECTED)
	if got.GetDefinition().GetLabels()["tier"] != "gold" || got.GetClusterId() != "cluster-alpha" || got.GetMaster() != "alpha-1" {
		t.Errorf("connected: %v", got)
	}
	got, err = regions.Cordon(ctx, &nusav1.CordonRegionRequest{Name: "alpha", Cordon: true})
	if err != nil || !got.GetCordoned() {
		t.Fatalf("cordoned: %v, %v", got, err)
	}
	s.submit(testJob("api", 1))
	s.waitJob("api", "held back by the cordon", func(j *nusav1.Job) bool {
		p := j.GetStatus().GetGroups()["web"].GetPending()
		return len(p) > 0 && p[0].GetReason() == nusav1.Reason_REASON_REGION_CORDONED
	})
	if _, err := regions.Cordon(ctx, &nusav1.CordonRegionRequest{Name: "alpha"}); err != nil {
		t.Fatal(err)
	}
	r.waitSlot("default/api/web/0", accepted)
	r.leave()
	s.waitRegion("alpha", nusav1.RegionState_REGION_STATE_DISCONNECTED)
	if _, err := regions.Remove(ctx, &nusav1.GetRegionRequest{Name: "alpha"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("removed although it owns a slot: %v", err)
	}
	if _, err := regions.Define(ctx, &nusav1.DefineRegionRequest{Definition: &nusav1.RegionDefinition{Name: "beta"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := regions.Remove(ctx, &nusav1.GetRegionRequest{Name: "beta"}); err != nil {
		t.Errorf("remove an empty region: %v", err)
	}
	list, err := regions.List(ctx, &nusav1.ListRegionsRequest{})
	if err != nil || len(list.GetRegions()) != 1 {
		t.Errorf("regions %v, %v", list, err)
	}
}

// TestKnownSpecsAreCheckedAgainstTheRegions: a spec that was submitted before is refused once a
// region that it names is gone, whatever the name of the job is.
func TestKnownSpecsAreCheckedAgainstTheRegions(t *testing.T) {
	s := newFederation().start(t, "g1")
	regions := nusav1.NewRegionsClient(s.conn)
	_, err := regions.Define(t.Context(), &nusav1.DefineRegionRequest{Definition: &nusav1.RegionDefinition{Name: "alpha"}})
	if err != nil {
		t.Fatal(err)
	}
	in := func(spec *nusav1.JobSpec) {
		spec.Regions = &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Name: "alpha"}}}
	}
	s.submit(testJob("one", 1, in))
	s.submit(testJob("two", 1, in))
	if _, err := regions.Remove(t.Context(), &nusav1.GetRegionRequest{Name: "alpha"}); err != nil {
		t.Fatal(err)
	}
	_, err = s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: testJob("three", 1, in)})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `there is no region "alpha"`) {
		t.Errorf("a job in a region that is gone: %v", err)
	}
}
