//go:build integration

package local_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lxc/incus/v6/shared/api"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestEngines: one job on Incus, Docker and processes in two regions. A missing engine is left out
// and logged. Other tests must not run at the same time: threads that were in a network namespace end, and
// the kernel then kills the processes that those threads began (report.Process).
func TestEngines(t *testing.T) {
	f := startFleet(t)
	name := f.jobFile()
	out := f.must("job", "run", "--timeout", "3m", name)
	want := map[string][]string{"processes[0]": nil}
	if len(f.incus) > 0 {
		want["containers[0]"], want["containers[1]"] = []string{"jkt-incus", "fra-incus"}, []string{"jkt-incus", "fra-incus"}
	}
	if f.docker != nil {
		want["docker[0]"] = []string{"jkt-docker"}
	}
	status := f.must("job", "status", "engines")
	before := f.allocs("engines")
	var regions []string
	for key, nodes := range want {
		a := before[key]
		if a.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING || nodes != nil && !slices.Contains(nodes, a.GetNodeName()) {
			t.Errorf("%s is %s on %q, want one of %v\n%s", key, a.GetState(), a.GetNodeName(), nodes, out)
			continue
		}
		if !strings.Contains(status, a.GetId()[:8]) || !strings.Contains(status, a.GetNodeName()) {
			t.Errorf("job status does not show %s on %s:\n%s", key, a.GetNodeName(), status)
		}
		if a.GetGroup() == "containers" {
			regions = append(regions, a.GetRegion())
		}
		said := fmt.Sprintf("%s %d in %s\n", a.GetGroup(), a.GetIndex(), a.GetRegion())
		f.eventually(key+" prints", func(context.Context) error { // a task runs before it prints
			if logs := f.must("alloc", "logs", a.GetId()[:8]); logs != said {
				return fmt.Errorf("%s logged %q, want %q", key, logs, said)
			}
			return nil
		})
		if got, _, code := f.nusa("alloc", "exec", a.GetId()[:8], "--", "/bin/sh", "-c", `echo "$NUSA_ALLOC_ID"; exit 3`); code != 3 || got != a.GetId()+"\n" {
			t.Errorf("%s: exec printed %q and ended with %d", key, got, code)
		}
	}
	if len(want) != len(before) {
		t.Errorf("there are %d allocations, want %d:\n%s", len(before), len(want), status)
	}
	if slices.Sort(regions); len(regions) > 0 && !slices.Equal(regions, []string{"frankfurt", "jakarta"}) {
		t.Errorf("the containers are in %v", regions)
	}
	f.part("agents killed", func() { f.agentsKilled(before) })
	f.part("engines killed", func() { f.enginesKilled(before) })
	f.part("exits while no agent is there", f.missedExits)
	f.part("outputs of steps", f.outputs)
	f.part("bad input", func() { f.badInput(before) })
	f.part("features", f.features)
	f.part("stop", func() {
		f.must("job", "stop", "engines")
		f.nothingLeft()
	})
}

// part runs a part of the test on the same federation. After a failed part the test ends, because
// later parts would fail for the same reason.
func (f *fleet) part(name string, what func()) {
	whole := f.t
	if !whole.Run(name, func(t *testing.T) {
		f.t = t
		defer func() { f.t = whole }()
		what()
	}) {
		whole.FailNow()
	}
}

// jobFile returns the example without the groups of missing engines.
func (f *fleet) jobFile() string {
	text, err := os.ReadFile("../../examples/engines.yaml")
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	skip := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "  ") && !strings.HasPrefix(line, "   ") {
			skip = len(f.incus) == 0 && line == "  containers:\n" || f.docker == nil && line == "  docker:\n"
		}
		if !skip {
			out = append(out, line)
		}
	}
	path := filepath.Join(f.dir, "engines.yaml")
	if err := os.WriteFile(path, []byte(strings.Join(out, "")), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// inside lists what the engines run: the instances of each Incus, and the running containers of Docker
// with their main processes. Ended containers are left out: Docker retains them for their logs.
func (f *fleet) inside(ctx context.Context) (out []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, i := range f.incus {
		all, err := i.Instances(ctx)
		if err != nil {
			return nil, err
		}
		for _, inst := range all {
			var state api.InstanceState
			if err := i.Ask(ctx, http.MethodGet, "/1.0/instances/"+inst.Name+"/state", nil, &state); err != nil {
				return nil, err
			}
			out = append(out, fmt.Sprintf("incus %s, process %d", inst.Name, state.Pid))
		}
	}
	if f.docker != nil {
		cli, err := client.New(client.WithHost(f.docker.Host()))
		if err != nil {
			return nil, err
		}
		defer cli.Close()
		list, err := cli.ContainerList(ctx, client.ContainerListOptions{})
		if err != nil {
			return nil, err
		}
		for _, c := range list.Items {
			got, err := cli.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
			if err != nil {
				return nil, err
			}
			out = append(out, fmt.Sprintf("docker %s, process %d", c.ID[:12], got.Container.State.Pid))
		}
	}
	return out, nil
}

// agentsKilled: every agent is killed with -9 and started again. Allocations, containers and their
// processes stay the same.
func (f *fleet) agentsKilled(before map[string]*nusav1.Allocation) {
	there, err := f.inside(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, a := range before {
		if f.procs[a.GetNodeName()] != nil {
			f.kill(a.GetNodeName())
		}
	}
	for _, a := range before {
		f.launch(a.GetNodeName())
	}
	for key, a := range before {
		// A response of exec comes from the restarted agent.
		f.eventually(key+" answers again", func(context.Context) error {
			if _, errs, code := f.nusa("alloc", "exec", a.GetId()[:8], "--", "/bin/sh", "-c", "exit 5"); code != 5 {
				return fmt.Errorf("exit code %d: %s", code, errs)
			}
			return nil
		})
	}
	f.same(before)
	if now, err := f.inside(f.t.Context()); err != nil || !slices.Equal(now, there) {
		f.t.Errorf("the engines now have %v, before %v: %v", now, there, err)
	}
}

// same checks that the allocations are the earlier ones and none was restarted.
func (f *fleet) same(before map[string]*nusav1.Allocation) {
	f.t.Helper()
	f.eventually("the same run", func(context.Context) error { // a returning node may not be ready yet
		after := f.allocs("engines")
		for key, b := range before {
			a := after[key]
			if a.GetId() != b.GetId() || a.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING || a.GetTasks()["main"].GetRestarts() != b.GetTasks()["main"].GetRestarts() {
				return fmt.Errorf("%s was %s, is %s, %s, %d restarts", key, b.GetId(), a.GetId(), a.GetState(), a.GetTasks()["main"].GetRestarts())
			}
		}
		return nil
	})
}

// enginesKilled: every engine's daemon is killed with -9 and started again. Its containers go on.
func (f *fleet) enginesKilled(before map[string]*nusav1.Allocation) {
	there, err := f.inside(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, i := range f.incus {
		i.Kill()
		if err := i.Start(); err != nil {
			f.t.Fatal(err)
		}
	}
	if f.docker != nil {
		if err := errors.Join(f.docker.Stop(unix.SIGKILL), f.docker.Start()); err != nil {
			f.t.Fatal(err)
		}
	}
	for key, a := range before {
		f.eventually(key+" answers", func(context.Context) error {
			if _, errs, code := f.nusa("alloc", "exec", a.GetId()[:8], "--", "/bin/sh", "-c", "exit 6"); code != 6 {
				return fmt.Errorf("exit code %d: %s", code, errs)
			}
			return nil
		})
	}
	f.same(before)
	if now, err := f.inside(f.t.Context()); err != nil || !slices.Equal(now, there) {
		f.t.Errorf("the engines now have %v, before %v: %v", now, there, err)
	}
}

// onEngines returns a batch job with a group for each available driver, on a node that has that
// driver. tasks holds the lines below `main:` by driver; %s stands for the image.
func (f *fleet) onEngines(name string, tasks map[string]string) string {
	text := "name: " + name + "\ntype: batch\ngroups:\n"
	for _, driver := range []string{"process", "incus", "docker"} {
		if tasks[driver] == "" || driver == "incus" && len(f.incus) == 0 || driver == "docker" && f.docker == nil {
			continue
		}
		text += "  " + driver + ":\n    reschedule: {attempts: 0}\n    regions: {allow: [{name: jakarta}]}\n    tasks:\n      main:\n        driver: " + driver +
			"\n        restart: {attempts: 0}\n        resources: {cpu: 100m, memory: 64MiB}\n        " + tasks[driver] + "\n"
	}
	path := filepath.Join(f.dir, name+".yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// missedExits: tasks end while their agent is down. The next agent reports their exit codes and
// restarts nothing.
func (f *fleet) missedExits() {
	const waits = `command: /bin/sh, args: [-c, 'echo x >>starts; until [ -e end ]; do sleep 0.05; done; echo >ended; exit 9']`
	file := f.onEngines("missed", map[string]string{
		"process": "config: {" + waits + "}", "incus": "config: {image: bb, " + waits + "}", "docker": "config: {image: 'box:1', " + waits + "}",
	})
	f.must("job", "run", "--detach", file)
	var before map[string]*nusav1.Allocation
	f.eventually("it runs", func(context.Context) error {
		before = f.allocs("missed")
		for key, a := range before {
			if a.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING {
				return fmt.Errorf("%s is %s", key, a.GetState())
			}
		}
		if len(before) == 0 {
			return errors.New("no allocation")
		}
		return nil
	})
	for _, a := range before {
		if f.procs[a.GetNodeName()] != nil {
			f.kill(a.GetNodeName())
		}
	}
	folder := func(a *nusav1.Allocation, file string) string {
		return filepath.Join(f.dir, "data", a.GetNodeName(), "allocs", a.GetId(), "tasks", "main", file)
	}
	for key, a := range before {
		if err := os.WriteFile(folder(a, "end"), nil, 0o600); err != nil {
			f.t.Fatal(err)
		}
		f.eventually(key+" ends", func(context.Context) error {
			_, err := os.Stat(folder(a, "ended"))
			return err
		})
	}
	for _, a := range before {
		f.launch(a.GetNodeName())
	}
	for key, a := range before {
		f.eventually("the exit code of "+key, func(context.Context) error {
			got := f.allocs("missed")[key]
			if got.GetId() != a.GetId() || got.GetState() != nusav1.AllocState_ALLOC_STATE_FAILED || got.GetTasks()["main"].GetExitCode() != 9 {
				return fmt.Errorf("%s is %s: %v", got.GetId(), got.GetState(), got.GetTasks()["main"])
			}
			return nil
		})
		if starts, err := os.ReadFile(folder(a, "starts")); err != nil || string(starts) != "x\n" {
			f.t.Errorf("%s noted the starts %q: %v", key, starts, err)
		}
	}
	f.must("job", "stop", "missed")
}

// outputs: steps of a workflow on each engine write an output of 16 KiB, which a later step gets.
func (f *fleet) outputs() {
	const writes = `command: /bin/sh, args: [-c, 'i=0; while [ $i -lt 1024 ]; do printf "%-16d" $i; i=$((i+1)); done >"$NUSA_OUTPUT"']`
	steps := map[string]string{"process": writes, "incus": "image: bb, " + writes, "docker": "image: 'box:1', " + writes}
	if len(f.incus) == 0 {
		delete(steps, "incus")
	}
	if f.docker == nil {
		delete(steps, "docker")
	}
	text := "name: written\ntype: workflow\nworkflow:\n  steps:\n"
	for driver, config := range steps {
		text += "    " + driver + ":\n      groups:\n        main:\n          tasks:\n            main:\n              driver: " + driver +
			"\n              resources: {cpu: 100m, memory: 64MiB}\n              config: {" + config + "}\n"
	}
	path := filepath.Join(f.dir, "written.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	run := f.must("workflow", "run", path)
	name := regexp.MustCompile(`written\.[0-9a-z]+`).FindString(run)
	for driver := range steps {
		out := f.must("workflow", "output", name, driver)
		if want := fmt.Sprintf("%-16d", 1023); len(strings.TrimSuffix(out, "\n")) != 16<<10 || !strings.HasSuffix(strings.TrimSuffix(out, "\n"), want) {
			f.t.Errorf("the step on %s wrote %d bytes, %q\n%s", driver, len(out), out[:min(len(out), 80)], run)
		}
	}
}

// badInput: a job that an engine refuses fails with the engine's message and the wrong field. Other
// work goes on.
func (f *fleet) badInput(before map[string]*nusav1.Allocation) {
	for name, c := range map[string]struct {
		tasks map[string]string
		words map[string]string
	}{
		"no-image": {
			map[string]string{"incus": "config: {image: nonesuch, command: 'true'}", "docker": "config: {image: 'nonesuch:1', pull: never}"},
			map[string]string{"incus": `config.image: nonesuch: Image "nonesuch" not found`, "docker": "No such image: nonesuch:1"},
		},
		"no-command": {
			map[string]string{"incus": "config: {image: bb, command: nonesuch}", "docker": "config: {image: 'box:1', command: nonesuch}", "process": "config: {command: nonesuch}"},
			map[string]string{"incus": "nonesuch", "docker": "config.command: ", "process": "nonesuch"},
		},
		"no-key": {
			map[string]string{"incus": "config: {image: bb, command: 'true', config: {limits.nonesuch: 1}}"},
			map[string]string{"incus": `config.config["limits.nonesuch"]: not allowed on this node: it is not known to be harmless with this value (--incus-allow-privileged)`},
		},
		"no-value": {
			map[string]string{"incus": "config: {image: bb, command: 'true', config: {limits.processes: many}}"},
			map[string]string{"incus": `integer "many"`},
		},
	} {
		if c.tasks["process"] == "" && len(f.incus) == 0 && (f.docker == nil || c.tasks["docker"] == "") {
			f.t.Logf("skipped: %s: no engine for it", name)
			continue
		}
		f.must("job", "run", "--detach", f.onEngines(name, c.tasks))
		f.eventually(name+" has failed", func(context.Context) error {
			all := f.allocs(name)
			for driver, words := range c.words {
				a := all[driver+"[0]"]
				if a == nil && (driver == "incus" && len(f.incus) == 0 || driver == "docker" && f.docker == nil) {
					continue
				}
				if a.GetState() != nusav1.AllocState_ALLOC_STATE_FAILED || !strings.Contains(a.GetMessage(), words) {
					return fmt.Errorf("%s is %s: %s, want %q", driver, a.GetState(), a.GetMessage(), words)
				}
			}
			return nil
		})
		f.must("job", "stop", name)
	}
	f.same(before)
}

// nothingLeft checks that no engine runs an instance of this test.
func (f *fleet) nothingLeft() {
	f.eventually("nothing is left", func(ctx context.Context) error {
		there, err := f.inside(ctx)
		if err == nil && len(there) > 0 {
			err = fmt.Errorf("still there: %v", there)
		}
		return err
	})
}
