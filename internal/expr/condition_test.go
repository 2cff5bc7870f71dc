package expr_test

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/internal/expr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// asked is a job with a group web of two tasks, and a group db with a volume.
func asked(t *testing.T) *expr.Job {
	config, err := structpb.NewStruct(map[string]any{"image": "nginx:1", "privileged": true, "args": []any{"-v"}})
	if err != nil {
		t.Fatal(err)
	}
	count := int32(3)
	return expr.JobFromProto(&nusav1.JobSpec{
		Name: "shop", Namespace: "pay", Type: nusav1.JobType_JOB_TYPE_SERVICE, Labels: map[string]string{"team": "pay"},
		Regions: &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Name: "eu"}}},
		Groups: map[string]*nusav1.Group{
			"web": {Count: &count, Pool: "gpu", Ports: map[string]*nusav1.Port{"http": {Static: 80}}, Tasks: map[string]*nusav1.Task{
				"nginx": {Driver: "docker", Config: config, Secrets: []string{"key"}}, "log": {Driver: "process", Resources: &nusav1.Resources{CpuMilli: 500, MemoryBytes: 64 << 20}},
			}},
			"db": {Pool: "default", Volumes: map[string]*nusav1.Volume{"data": {Source: "/srv", ReadOnly: true}}},
		},
	})
}

// TestConditions evaluates conditions about one request and its job.
func TestConditions(t *testing.T) {
	request := &expr.Request{Principal: "operator/jane", Verb: "submit", Kind: "job", Namespace: "pay", Name: "shop"}
	job := asked(t)
	for source, want := range map[string]bool{
		`request.principal == "operator/jane" && request.verb == "submit"`:                                                 true,
		`request.name.startsWith(request.namespace)`:                                                                       false,
		`job.groups.all(g, g.tasks.all(t, t.driver != "process"))`:                                                         false,
		`job.groups.exists(g, g.tasks.exists(t, t.driver == "docker" && has(t.config.privileged) && t.config.privileged))`: true,
		`job.groups.all(g, g.volumes.all(v, v.read_only && v.source.startsWith("/srv")))`:                                  true,
		`job.groups.map(g, g.count).sum() < 10`:                                                                            false, // no such function
		`job.groups[1].count == 3 && job.groups[1].pool == "gpu" && job.groups[1].static_ports == [80]`:                    true,
		`job.labels.team == request.namespace && job.type == "service" && job.name == "shop"`:                              true,
		`job.labels.nobody == ""`:                false,
		`job.groups.all(g, g.regions == ["eu"])`: true,
		`job.groups[1].tasks[0].cpu_cores <= 0.5 && job.groups[1].tasks[0].memory_mib == 64`:                true,
		`job.groups[1].tasks[1].config.image.matches("^nginx:") && "key" in job.groups[1].tasks[1].secrets`: true,
	} {
		c, err := expr.CompileCondition(source)
		if strings.Contains(source, "sum()") {
			if !errors.Is(err, expr.ErrCompile) {
				t.Errorf("%s: %v", source, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got, err := c.Holds(request, job); got != want || err != nil && !strings.Contains(source, "nobody") {
			t.Errorf("%s: %t, %v, want %t", source, got, err, want)
		}
		if reads := strings.Contains(source, "job."); c.ReadsJob != reads {
			t.Errorf("%s: reads the job: %t", source, c.ReadsJob)
		}
		if _, err := c.Holds(request, nil); errors.Is(err, expr.ErrNoJob) != c.ReadsJob {
			t.Errorf("%s without a job: %v", source, err)
		}
	}
}

// TestBadConditions: a condition that is no bool, names what does not exist, or costs too much does not
// compile.
func TestBadConditions(t *testing.T) {
	for source, want := range map[string]string{
		"":                     "empty",
		"1 +":                  "ends too early",
		"request.name":         "must be a bool",
		"request.nothing == 1": `no field "nothing"`,
		"job.nothing == 1":     `no field "nothing"`,
		"node.pool == 'x'":     "undeclared reference",
		`request.name == "` + strings.Repeat("x", expr.MaxCondition) + `"`:                                         "the limit is",
		`job.groups.all(a, job.groups.all(b, a.tasks.all(c, b.tasks.all(d, c.name != d.name))))`:                   "",
		`job.groups.all(a, a.tasks.all(b, b.env.all(k, b.env[k].matches("(a|b|c)+d") && b.env[k].matches("x+"))))`: "",
	} {
		if _, err := expr.CompileCondition(source); !errors.Is(err, expr.ErrCompile) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60s: %v, want %s", source, err, want)
		}
	}
}

// TestACostlyConditionOfAWorkflow: a condition `when` may search in the parts of a parameter, and not often.
func TestACostlyConditionOfAWorkflow(t *testing.T) {
	const search = `params.a.split("").all(c, c != "y")`
	if _, err := expr.CompileWhen(search, []string{"a"}); err != nil {
		t.Error(err)
	}
	_, err := expr.CompileWhen(search+strings.Repeat(" && "+search, 9), []string{"a"})
	if !errors.Is(err, expr.ErrCompile) || !strings.Contains(err.Error(), "steps, the limit is") {
		t.Errorf("ten searches: %v", err)
	}
}
