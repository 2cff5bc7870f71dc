package regional_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// checkedSpec returns a job with a health check that runs a command in the task. The job
// needs a driver with the capability exec.
func checkedSpec(name string, count int32) *nusav1.JobSpec {
	s := spec(name, count)
	s.Groups["web"].Tasks["main"].Check = &nusav1.Check{Kind: &nusav1.Check_Command{Command: &nusav1.CommandCheck{Command: []string{"/bin/true"}}}}
	return s
}

// TestMissingCapabilityIsExplained: a node gets no instance if its driver lacks a
// capability that the job needs. Plan, explain and fit count give the same reason.
func TestMissingCapabilityIsExplained(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		g.locked(func() {
			g.shapes = []*nusav1.ShapeSubscription{
				{Ask: 7, Drivers: []string{"process"}, Capabilities: []string{"process/exec"}, Resources: &nusav1.Resources{CpuMilli: 1000}},
				{Ask: 8, Drivers: []string{"process"}, Capabilities: []string{"process/self_fencing"}, Resources: &nusav1.Resources{CpuMilli: 1000}},
			}
		})
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		fit := func(ask uint64) *nusav1.FitCount {
			fits := g.lastReport().GetShape().GetFits()
			i := slices.IndexFunc(fits, func(f *nusav1.FitCount) bool { return f.GetAsk() == ask })
			if i < 0 {
				return nil
			}
			return fits[i]
		}
		const lacks = "driver process lacks exec (n1)"
		w.eventually("the ask that fits is counted", func() bool { return fit(8).GetCount() == 4 })
		if f := fit(7); f.GetCount() != 0 || f.GetReason() != nusav1.Reason_REASON_CAPABILITY_MISSING || f.GetMessage() != lacks {
			t.Errorf("the ask that fits nowhere: %v", f)
		}
		jobs := nusav1.NewJobsClient(w.conn(1))
		ctx, cancel := callCtx()
		defer cancel()
		plan, err := jobs.Plan(ctx, &nusav1.PlanRequest{Spec: checkedSpec("web", 2)})
		if err != nil {
			t.Fatal(err)
		}
		w.submit(1, checkedSpec("web", 2))
		explained := w.explained(ctx, jobs, "web")
		for what, p := range map[string][]*nusav1.CountedReason{"plan": plan.GetExplanation().GetGroups()[0].GetPending(), "explain": explained.GetPending()} {
			if len(p) != 1 || p[0].GetReason() != nusav1.Reason_REASON_CAPABILITY_MISSING || p[0].GetMessage() != lacks || p[0].GetCount() != 1 {
				t.Errorf("%s: %v", what, p)
			}
		}
		w.agent("n2", runs, "exec")
		w.eventually("it runs on n2", func() bool { return w.running(1)["n2"] == 2 })
		for _, n := range w.explained(ctx, jobs, "web").GetNodes() {
			if lacks := n.GetReason() == nusav1.Reason_REASON_CAPABILITY_MISSING && n.GetMessage() == "driver process lacks exec"; lacks != (n.GetNodeName() == "n1") {
				t.Errorf("verdict %v", n)
			}
		}
	})
}

// TestConfigOfAPlugin: a region's own job is refused, and not stored, if each node with its plugin refuses the
// config. A plugin of an earlier version does not say what it takes.
func TestConfigOfAPlugin(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		form := &nusav1.ConfigSchema{Fields: []*nusav1.ConfigField{
			{Name: "image", Type: nusav1.ConfigType_CONFIG_TYPE_TEXT, Required: true, Help: "a disk image"},
			{Name: "later", Type: 99},
		}}
		w.plugins = map[string][]*nusav1.DriverInfo{
			"n1": {{Name: "qemu", Healthy: true, Config: form}, {Name: "old", Healthy: true}, {Name: "unwell", Config: form}},
			"n2": {{Name: "qemu", Healthy: true}},
		}
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		jobs := nusav1.NewJobsClient(w.conn(1))
		ctx, cancel := callCtx()
		defer cancel()
		submit := func(name, driver string, config map[string]any) error {
			s := spec(name, 1)
			task := s.Groups["web"].Tasks["main"]
			task.Driver = driver
			var err error
			task.Config, err = structpb.NewStruct(config)
			if err != nil {
				t.Fatal(err)
			}
			_, err = jobs.Plan(ctx, &nusav1.PlanRequest{Spec: proto.CloneOf(s)})
			_, stored := jobs.Submit(ctx, &nusav1.SubmitRequest{Spec: s})
			if status.Convert(err).Message() != status.Convert(stored).Message() {
				t.Errorf("%s: plan says %v, submit %v", name, err, stored)
			}
			return stored
		}
		registered := func(n int) func() bool {
			return func() bool {
				r, err := nusav1.NewNodesClient(w.conn(1)).List(ctx, &nusav1.ListNodesRequest{})
				return err == nil && len(r.GetNodes()) == n
			}
		}
		w.eventually("the node is registered", registered(1))
		err := submit("bad", "qemu", map[string]any{"imgae": "x", "later": 7})
		const want = `groups.web.tasks.main.config.imgae: unknown field, did you mean "image"? (driver qemu on node n1) (and 1 more)`
		if got := status.Convert(err); got.Code() != codes.InvalidArgument || got.Message() != want {
			t.Errorf("a wrong config: %v, want %s", err, want)
		}
		for driver, config := range map[string]map[string]any{"qemu": {"image": "${NUSA_NODE}.img", "later": []any{7}}, "old": {"x": 1}, "unwell": {"x": 1}, "absent": {"x": 1}} {
			if err := submit("good-"+driver, driver, config); err != nil {
				t.Errorf("%s: %v", driver, err)
			}
		}
		if _, err := jobs.Get(ctx, &nusav1.GetJobRequest{Job: ref("bad")}); status.Code(err) != codes.NotFound {
			t.Errorf("the refused job: %v", err)
		}
		w.agent("n2", runs)
		w.eventually("both nodes are registered", registered(2))
		if err := submit("mixed", "qemu", map[string]any{"imgae": "x"}); err != nil {
			t.Errorf("one node takes it: %v", err)
		}
	})
}

// TestFormsOfPlugins: a region sends the forms of its plugins once, and again only if they change. It sends none
// to a server of an earlier version.
func TestFormsOfPlugins(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		form := func(field string) *nusav1.ConfigSchema {
			return &nusav1.ConfigSchema{Fields: []*nusav1.ConfigField{{Name: field, Type: nusav1.ConfigType_CONFIG_TYPE_TEXT}}}
		}
		w.plugins = map[string][]*nusav1.DriverInfo{
			"n1": {{Name: "qemu", Healthy: true, Config: form("image")}, {Name: "unwell", Config: form("x")}},
			"n2": {{Name: "qemu", Healthy: true, Config: form("image")}},
			"n3": {{Name: "qemu", Healthy: true, Config: form("disk")}, {Name: "old", Healthy: true}},
		}
		zero := uint64(0)
		g.locked(func() { g.hasForms = &zero })
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		sent := func() (texts []string) {
			g.locked(func() {
				for _, m := range g.forms {
					text := ""
					for _, d := range m.GetDrivers() {
						text += fmt.Sprintf("%s any=%v", d.GetDriver(), d.GetAny())
						for _, f := range d.GetForms() {
							text += " " + f.GetFields()[0].GetName()
						}
						text += "; "
					}
					texts = append(texts, text)
				}
			})
			return texts
		}
		w.eventually("the form of n1 is sent", func() bool { return slices.Contains(sent(), "qemu any=false image; ") })
		w.agent("n2", runs)
		time.Sleep(time.Minute)
		w.agent("n3", runs)
		const all = "old any=true; qemu any=false disk image; "
		w.eventually("the forms of n3 are sent", func() bool { return slices.Contains(sent(), all) })
		time.Sleep(time.Minute)
		if got := sent(); len(got) > 3 || got[len(got)-1] != all { // the first may have none, before n1 is ready
			t.Errorf("sent %q", got)
		}
		var hash uint64
		g.locked(func() { hash = job.FormsHash(g.forms[len(g.forms)-1]) })
		for what, has := range map[string]*uint64{"the server has them": &hash, "an earlier server": nil} {
			sessions := 0
			g.update(func() {
				g.hasForms, g.forms, sessions = has, nil, g.sessions
				g.queued = append(g.queued, &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Refused{Refused: &nusav1.Refused{Message: "again"}}})
			})
			w.eventually("another session begins", func() (is bool) {
				g.locked(func() { is = g.sessions > sessions })
				return is
			})
			time.Sleep(time.Minute)
			if got := sent(); len(got) > 0 {
				t.Errorf("%s: sent %q", what, got)
			}
		}
	})
}

// explained returns the explanation of the first group of one of the region's own jobs.
func (w *world) explained(ctx context.Context, jobs nusav1.JobsClient, name string) *nusav1.GroupExplanation {
	w.t.Helper()
	e, err := jobs.Explain(ctx, &nusav1.ExplainRequest{Job: ref(name)})
	if err != nil || len(e.GetGroups()) == 0 {
		w.t.Fatalf("explain %s: %v, %v", name, e, err)
	}
	return e.GetGroups()[0]
}
