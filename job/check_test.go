package job

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestChecksAreValidated: wrong checks of every form, and checks that the driver does not
// support, are refused.
func TestChecksAreValidated(t *testing.T) {
	for _, c := range []struct{ kind, ports, task, want string }{
		{"service", "http: {}", "driver: process, config: {command: x}, check: {http: {port: http}}", ""},
		{"system", "http: {to: 80}", "driver: docker, config: {image: x}, check: {tcp: {port: http}}", ""},
		{"service", "http: {}", "driver: process, config: {command: x}, check: {http: {port: http, path: '/a?b=%20c'}}", ""},
		{"service", "http: {}", "driver: process, config: {command: x}, check: {command: [sh, -c, 'test -e up']}", ""},
		{"service", "http: {to: 80, static: 80}", "driver: docker, config: {image: x, network: host}, check: {tcp: {port: http}}", ""},
		{"service", "http: {}", "driver: incus, config: {image: x, command: y}, check: {command: ['true']}", ""},
		{"service", "http: {}", "driver: incus, config: {image: x}, check: {tcp: {port: http}}", ""},

		{"batch", "http: {}", "driver: process, config: {command: x}, check: {tcp: {port: http}}", "check: is for services: the result of a batch job is its exit code"},
		{"service", "http: {}", "driver: process, config: {command: x}, check: {tcp: {port: htp}}", `check.tcp.port: the group has no port "htp", did you mean "http"?`},
		{"service", "http: {}", "driver: process, config: {command: x}, check: {http: {port: http, path: x}}", `check.http.path: "x" does not start with /`},
		{"service", "http: {}", "driver: process, config: {command: x}, check: {http: {port: http, path: '/a b'}}", `check.http.path: "/a b" is not a path`},
		{"service", "http: {}", "driver: process, config: {command: x}, check: {http: {port: http, path: '//h/x'}}", `check.http.path: "//h/x" is not a path`},
		{"service", "http: {}", "driver: process, config: {command: x}, check: {command: ['']}", "check.command: is empty"},
		{"service", "http: {}", "driver: process, config: {command: x}, check: {tcp: {port: http}, failures: 0}", "failures: "},
		{"service", "http: {}", "driver: process, config: {command: x}, check: {tcp: {port: http}, failures: 101}", "failures: 101 is over the limit of 100"},
		{"service", "http: {}", "driver: process, config: {command: x}, check: {tcp: {port: http}, healthy_deadline: 1ms}", "healthy_deadline: 1ms is less than 1s, the least"},
		{"service", "http: {}", "driver: docker, config: {image: x, network: none}, check: {tcp: {port: http}}", "check.tcp.port: cannot be reached with config.network: none"},
		{"service", "http: {to: 80}", "driver: docker, config: {image: x, network: host}, check: {http: {port: http}}", "check.http.port: cannot be reached at the port's to, 80"},
		{"service", "http: {}", "driver: incus, config: {image: x, type: virtual-machine}, check: {tcp: {port: http}}", "check.tcp.port: cannot be reached in a virtual machine"},
		{"service", "http: {}", "driver: incus, config: {image: x}, check: {command: ['true']}", "check.command: can be run only in a container with config.command"},
	} {
		spec, err := Parse([]byte("name: a\ntype: "+c.kind+"\ngroups: {g: {ports: {"+c.ports+"}, tasks: {t: {"+c.task+"}}}}"), "a.yaml")
		if err == nil {
			Default(spec)
			err = Validate(spec)
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.task, err, c.want)
		}
		if err == nil && Unsupported(spec) != nil {
			t.Errorf("%s: %v", c.task, Unsupported(spec))
		}
	}
}

// TestMissingGPUs: a job that asks for accelerators that nobody has is refused, with what there is.
func TestMissingGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		ask  *nusav1.GPU
		have map[string]int32
		want string
	}{
		"no ask":        {},
		"some device":   {ask: &nusav1.GPU{Count: 1}, have: map[string]int32{"a100": 1}},
		"a part":        {ask: &nusav1.GPU{ShareMilli: 250, Models: []string{"t4", "a100"}}, have: map[string]int32{"a100": 1}},
		"none":          {ask: &nusav1.GPU{Count: 1}, want: "groups.g.tasks.t.resources.gpu: no region has an accelerator (there are none: `nusa node status NODE` shows what a node offers)"},
		"another model": {ask: &nusav1.GPU{ShareMilli: 250, Models: []string{"t4", "h100"}}, have: map[string]int32{"a100": 2, "l4": 1, "t4": 0}, want: "groups.g.tasks.t.resources.gpu: no region has an accelerator t4 or h100 (there are 2 × a100, 1 × l4)"},
	} {
		spec := &nusav1.JobSpec{Groups: map[string]*nusav1.Group{"g": {Tasks: map[string]*nusav1.Task{"t": {Resources: &nusav1.Resources{Gpu: c.ask}}}}}}
		got := ""
		if e := MissingGPUs(spec, c.have, "no region"); len(e) > 0 {
			got = e.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestBrief: a brief spec has everything that a table shows, and nothing that may be large.
func TestBrief(t *testing.T) {
	groups := map[string]*nusav1.Group{"g": {Tasks: map[string]*nusav1.Task{"t": {Driver: "process"}}}}
	schedule, labels := &nusav1.Schedule{Cron: []string{"@daily"}}, map[string]string{"k": "v"}
	for _, c := range []struct{ whole, want *nusav1.JobSpec }{
		{
			&nusav1.JobSpec{Name: "a", Namespace: "n", Type: nusav1.JobType_JOB_TYPE_SERVICE, Priority: proto.Int32(7), Labels: labels, Regions: &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{}}}, Groups: groups},
			&nusav1.JobSpec{Name: "a", Namespace: "n", Type: nusav1.JobType_JOB_TYPE_SERVICE, Priority: proto.Int32(7), Labels: labels},
		},
		{&nusav1.JobSpec{Name: "a", Schedule: schedule, Groups: groups}, &nusav1.JobSpec{Name: "a", Schedule: schedule}},
		{
			&nusav1.JobSpec{Name: "a", Parameterized: &nusav1.Parameterized{}, Colocate: []*nusav1.Colocation{{}}},
			&nusav1.JobSpec{Name: "a", Parameterized: &nusav1.Parameterized{}},
		},
		{
			&nusav1.JobSpec{Name: "a", Workflow: &nusav1.Workflow{Steps: map[string]*nusav1.Step{"s": {Groups: groups}}}},
			&nusav1.JobSpec{Name: "a", Workflow: &nusav1.Workflow{}},
		},
	} {
		if got := Brief(c.whole); !proto.Equal(got, c.want) || IsTemplate(got) != IsTemplate(c.whole) {
			t.Errorf("%v\n got %v\nwant %v", c.whole, got, c.want)
		}
	}
}
