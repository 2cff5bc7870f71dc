package job

import (
	"strings"
	"testing"
)

// TestOrderOfTasks: a group has a main task, at most one leader, and hooks that can work.
func TestOrderOfTasks(t *testing.T) {
	const job = "name: a\ntype: service\ngroups: {g: {%GROUP tasks: {%TASKS}}}"
	const main = "m: {driver: process, config: {command: x}}"
	task := func(name, more string) string {
		return name + ": {driver: process, config: {command: x}, " + more + "}"
	}
	for _, c := range []struct{ group, tasks, want string }{
		{"", main + ", " + task("p", "lifecycle: {hook: prestart}"), ""},
		{"", main + ", " + task("p", "lifecycle: {hook: poststart, sidecar: true}, shutdown_delay: 1s, kill_signal: SIGHUP"), ""},
		{"", task("m", "leader: true") + ", " + task("p", "lifecycle: {hook: poststop}"), ""},
		{"", task("p", "lifecycle: {hook: prestart}"), "groups.g.tasks: no main task: at least one task has no lifecycle"},
		{"", main + ", " + task("p", "lifecycle: {sidecar: true}"), "groups.g.tasks.p.lifecycle.hook: is missing: prestart, poststart or poststop"},
		{"", main + ", " + task("p", "lifecycle: {hook: poststop, sidecar: true}"), "groups.g.tasks.p.lifecycle.sidecar: a poststop task ends by itself: leave sidecar out"},
		{"singleton: true,", main + ", " + task("p", "lifecycle: {hook: poststop}"), "groups.g.tasks.p.lifecycle.hook: poststop is not possible with singleton: when the lease has ended nothing may run here"},
		{"", main + ", " + task("p", "lifecycle: {hook: prestart}, check: {command: [x]}"), "groups.g.tasks.p.check: a task that ends by itself has no check: its exit code is its result"},
		{"", main + ", " + task("p", "lifecycle: {hook: prestart}, shutdown_delay: 1s"), "groups.g.tasks.p.shutdown_delay: nobody calls a task that ends by itself: leave it out"},
		{"", main + ", " + task("p", "lifecycle: {hook: prestart}, leader: true"), "groups.g.tasks.p.leader: a task with a lifecycle cannot lead: the leader is a main task"},
		{"", task("m", "leader: true") + ", " + task("n", "leader: true"), "groups.g.tasks.n.leader: m leads already"},
		{"", task("m", "kill_signal: HUP"), `groups.g.tasks.m.kill_signal: "HUP" is not one of SIGABRT`},
		{"", task("m", "shutdown_delay: 11m"), "groups.g.tasks.m.shutdown_delay: 11m is over the limit of 10m"},
		{"", task("m", "resources: {gpu: {count: 1}}") + ", " + task("n", "resources: {gpu: {count: 1}}"), "groups.g.tasks.n.resources.gpu: m has the accelerators of the instance already: one task of a group can have them"},
	} {
		got := ""
		if _, err := Parse([]byte(strings.NewReplacer("%GROUP", c.group, "%TASKS", c.tasks).Replace(job)), "test.yaml"); err != nil {
			got = err.Error()
		}
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s %s:\n%s\nwant\n%s", c.group, c.tasks, got, c.want)
		}
	}
}

// TestOrderNeedsCapabilities: a job that relies on the order of its tasks, on a stop signal or on
// accelerators needs nodes whose agents and drivers say that they can.
func TestOrderNeedsCapabilities(t *testing.T) {
	for more, want := range map[string]string{
		"kill_timeout: 3s":                                 "",
		"leader: true":                                     "process/lifecycle",
		"shutdown_delay: 1s":                               "process/lifecycle",
		"lifecycle: {hook: prestart}":                      "process/lifecycle",
		"kill_signal: SIGINT":                              "process/kill_signal",
		"resources: {gpu: {count: 2}}":                     "process/gpu",
		"resources: {gpu: {share: 1000m}}":                 "process/gpu",
		"resources: {gpu: {share: 500m}}":                  "process/gpu_share",
		"resources: {gpu: {count: 1, share: 500m}}":        "process/gpu_share",
		"kill_signal: SIGINT, lifecycle: {hook: poststop}": "process/kill_signal process/lifecycle",
	} {
		spec := mustParse(t, "name: a\ngroups: {g: {tasks: {m: {driver: docker, config: {image: x}}, t: {driver: process, config: {command: x}, "+more+"}}}}")
		Default(spec)
		if got := strings.Join(AskOf(spec.GetGroups()["g"]).Capabilities(), " "); got != want {
			t.Errorf("%s needs %q, want %q", more, got, want)
		}
	}
}
