package global

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// formsOf returns the message of a region whose driver vm has these fields, all of them text.
func formsOf(fields ...string) *nusav1.RegionMessage {
	form := &nusav1.ConfigSchema{}
	for _, name := range fields {
		form.Fields = append(form.Fields, &nusav1.ConfigField{Name: name, Type: nusav1.ConfigType_CONFIG_TYPE_TEXT})
	}
	return &nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Forms{Forms: &nusav1.DriverForms{
		Drivers: []*nusav1.DriverForm{{Driver: "vm", Forms: []*nusav1.ConfigSchema{form}}}}}}
}

// eventually waits until ok, which calls the server.
func (s *testServer) eventually(what string, ok func() bool) {
	s.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(testWait); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %s: %s", testWait, what)
		}
	}
}

// TestConfigOfPlugins: a job is refused, and not stored, if each region that it allows and that has its plugin
// refuses the config. A region that refuses it gets no instance, and explain says why.
func TestConfigOfPlugins(t *testing.T) {
	s := newFederation().start(t, "g1")
	spec := func(name string, config map[string]any) *nusav1.JobSpec {
		out := testJob(name, 2)
		task := out.Groups["web"].Tasks["server"]
		task.Driver = "vm"
		var err error
		if task.Config, err = structpb.NewStruct(config); err != nil {
			t.Fatal(err)
		}
		return out
	}
	submit := func(spec *nusav1.JobSpec) (*nusav1.SubmitResponse, error) {
		return s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: spec})
	}
	with := func(drivers ...string) func(*fakeRegion) { return func(r *fakeRegion) { r.drivers = drivers } }

	alpha := s.joined("alpha", with("process"), func(r *fakeRegion) { r.fits = 0 })
	s.waitReport("alpha")
	got, err := submit(spec("early", map[string]any{"imgae": "x"}))
	const missing = "no region has driver vm: group web waits until a node offers it (drivers there: process)"
	if err != nil || strings.Join(got.GetWarnings(), "\n") != missing {
		t.Errorf("no region has the plugin: %v, %v", got, err)
	}
	two := spec("two", nil)
	two.Groups["db"] = two.Groups["web"]
	got, err = submit(two)
	const both = "no region has driver vm: groups db, web wait until a node offers it (drivers there: process)"
	if err != nil || strings.Join(got.GetWarnings(), "\n") != both {
		t.Errorf("two groups without the plugin: %v, %v", got, err)
	}
	alpha.mu.Lock()
	alpha.moreDrivers = true
	rep := alpha.report()
	alpha.moreDrivers = false
	alpha.mu.Unlock()
	alpha.send(rep)
	s.eventually("a region that does not list all its drivers may have the plugin", func() bool {
		got, err := submit(spec("more", map[string]any{"imgae": "x"}))
		return err == nil && len(got.GetWarnings()) == 0
	})
	if alpha.welcome.Forms == nil || alpha.welcome.GetForms() != 0 {
		t.Errorf("the welcome: %v", alpha.welcome)
	}
	alpha.mu.Lock()
	alpha.drivers, alpha.fits = []string{"process", "vm"}, 100
	rep = alpha.report()
	alpha.mu.Unlock()
	alpha.send(formsOf("image"))
	alpha.send(rep)
	bad := spec("bad", map[string]any{"imgae": "x", "image": 7})
	s.eventually("what was accepted before the plugin came is refused", func() bool {
		_, err = submit(spec("early", map[string]any{"imgae": "x"}))
		return status.Code(err) == codes.InvalidArgument
	})
	if _, err := s.jobs().Plan(t.Context(), &nusav1.PlanRequest{Spec: bad}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("plan: %v", err)
	}
	_, err = submit(bad)
	const want = `groups.web.tasks.server.config.image: must be text: write it in quotes (driver vm in region alpha) (and 1 more)`
	if got := status.Convert(err).Message(); got != want {
		t.Errorf("refused with %q, want %q", got, want)
	}
	if _, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "bad"}}); status.Code(err) != codes.NotFound {
		t.Errorf("the refused job: %v", err)
	}

	// The same holds for the steps of a workflow, also inline.
	steps := func(groups map[string]*nusav1.Group) map[string]*nusav1.Step {
		return map[string]*nusav1.Step{"fetch": {Groups: groups}, "all": {Inline: &nusav1.Workflow{Steps: map[string]*nusav1.Step{"train": {Groups: groups}}}}}
	}
	flow := func(name string, config map[string]any) error {
		groups := spec(name, config).GetGroups()
		groups["web"].Count = proto.Int32(1)
		_, err := submit(&nusav1.JobSpec{Name: name, Type: nusav1.JobType_JOB_TYPE_WORKFLOW, Workflow: &nusav1.Workflow{Steps: steps(groups)}})
		return err
	}
	err = flow("flow", map[string]any{"imgae": "x"})
	const inSteps = `workflow.steps.fetch.groups.web.tasks.server.config.imgae: unknown field, did you mean "image"? (driver vm in region alpha) (and 1 more)`
	if got := status.Convert(err).Message(); got != inSteps {
		t.Errorf("a workflow is refused with %q, want %q", got, inSteps)
	}
	if err := flow("flow", map[string]any{"image": "x"}); err != nil {
		t.Errorf("a workflow is refused: %v", err)
	}

	// Beta has another version of the plugin, which accepts what alpha refuses.
	beta := s.joined("beta", with("process", "vm"))
	beta.send(formsOf("imgae"))
	s.waitReport("beta")
	s.eventually("the job is accepted", func() bool {
		_, err = submit(spec("mixed", map[string]any{"imgae": "x"}))
		return err == nil
	})
	beta.waitSlot("default/mixed/web/0", accepted)
	beta.waitSlot("default/early/web/0", accepted) // it waited for a region that accepts its config
	e, err := s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: "mixed"}})
	if err != nil || len(e.GetGroups()) != 1 || len(e.GetGroups()[0].GetRegions()) != 2 {
		t.Fatalf("explain: %v, %v", e, err)
	}
	const why = `driver vm of its nodes does not accept groups.web.tasks.server.config.imgae: unknown field, did you mean "image"?`
	for _, v := range e.GetGroups()[0].GetRegions() {
		if v.GetRegion() == "beta" && v.GetTaken() != 2 || v.GetRegion() == "alpha" && (v.GetReason() != nusav1.Reason_REASON_CONFIG_INVALID || v.GetMessage() != why) {
			t.Errorf("verdict %v", v)
		}
	}
	only := spec("only", map[string]any{"imgae": "x"})
	only.Regions = &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Name: "alpha"}}}
	if _, err := submit(only); status.Code(err) != codes.InvalidArgument {
		t.Errorf("only alpha is allowed: %v", err)
	}
	refusedVersion(t, s, beta, spec("mixed", map[string]any{"image": "x"}))
	alpha.leave()
	again := s.join(helloOf("alpha", 2))
	again.wait("welcome", func() bool { return again.welcome != nil })
	if again.welcome.GetForms() == 0 {
		t.Error("a new session does not learn that the server has the forms")
	}
	again.leave()
	other := helloOf("alpha", 3)
	other.Version = "another" // it may be an earlier one, which sends no forms
	last := s.join(other)
	last.wait("welcome", func() bool { return last.welcome != nil })
	if last.welcome.GetForms() != 0 {
		t.Error("a master of another version relies on the forms of the earlier one")
	}
}

// refusedVersion submits a version of a job that runs in a region which refuses the version: the region keeps the
// earlier version, and the rollout says why, until the plugin there accepts the config.
func refusedVersion(t *testing.T, s *testServer, r *fakeRegion, next *nusav1.JobSpec) {
	t.Helper()
	got, err := s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: next})
	if err != nil {
		t.Fatal(err)
	}
	r.summarize(true, 1, &nusav1.JobSummary{Namespace: "default", Job: next.GetName(), Incarnation: 1, Index: 1, Version: 1, Groups: map[string]*nusav1.InstanceCounts{"web": {Running: 2}}})
	waits := func() string {
		j, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: next.GetName()}})
		if err != nil {
			t.Fatal(err)
		}
		return j.GetStatus().GetMessage()
	}
	key := "default/" + next.GetName() + "/web/0"
	const why = `region beta: version 2 cannot run there: driver vm of its nodes does not accept groups.web.tasks.server.config.image: unknown field, did you mean "imgae"?`
	s.eventually("the rollout says why the region waits", func() bool { return strings.HasSuffix(waits(), why) })
	if slot := r.waitSlot(key, accepted); slot.GetJobVersion() != 1 || got.GetVersion() != 2 {
		t.Errorf("the region has version %d of %d", slot.GetJobVersion(), got.GetVersion())
	}
	r.send(formsOf("image"))
	r.waitSlot(key, func(s *nusav1.Slot) bool { return s.GetJobVersion() == 2 })
	s.eventually("the region waits no more", func() bool { return !strings.Contains(waits(), why) })
}
