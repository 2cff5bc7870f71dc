//go:build integration

package local_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lxc/incus/v6/shared/api"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/engines"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// fleet is a federation of real processes over real engines: one global server,
// two regions of one server each, and one agent for every engine. Each engine is
// in a network namespace of its own, as on a node of its own.
type fleet struct {
	*federation
	addr  string
	conn  *grpc.ClientConn
	procs map[string]*exec.Cmd
	args  map[string][]string

	incus  []*engines.Incus // of jakarta and of frankfurt; empty: not installed
	docker *engines.Docker  // of jakarta; nil: not installed
	// nets are those of the agents whose engine is in one: tasks' ports are there.
	nets map[string]*engines.Network
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: make build first", err)
	}
	f := &fleet{federation: &federation{t: t, port: freePorts(t), dir: t.TempDir()}, procs: map[string]*exec.Cmd{}, args: map[string][]string{}, nets: map[string]*engines.Network{}}
	f.addr = fmt.Sprintf("127.0.0.1:%d", f.port)
	f.env = append(os.Environ(), "NUSA="+bin)
	if err := os.Mkdir(filepath.Join(f.dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	leftover.Nothing(t, f.dir)
	t.Cleanup(func() {
		if t.Failed() {
			f.dumpLogs()
		}
		f.end()
	})
	f.engines()
	f.define(bin)
	for _, name := range []string{"global", "jakarta", "frankfurt"} {
		f.launch(name)
	}
	for name := range f.args {
		f.launch(name)
	}
	f.conn = f.dial(f.port)
	f.eventually(40*time.Second, "every node is ready", func(ctx context.Context) error {
		res, err := nusav1.NewNodesClient(f.conn).List(ctx, &nusav1.ListNodesRequest{})
		if err != nil {
			return err
		}
		ready := 0
		for _, n := range res.GetNodes() {
			if n.GetState() == nusav1.NodeState_NODE_STATE_READY {
				ready++
			}
		}
		if want := len(f.args) - 3; ready < want {
			return fmt.Errorf("%d of %d nodes", ready, want)
		}
		return nil
	})
	return f
}

// engines starts two Incus daemons and a Docker engine, those that there are.
func (f *fleet) engines() {
	f.t.Helper()
	network := func(agent string, region int) *engines.Network {
		n, err := engines.NewNetwork()
		if err != nil {
			f.t.Skip("skipped: no network namespaces: ", err)
		}
		f.t.Cleanup(func() { n.Close() })
		f.nets[agent] = n
		f.reach(n, fmt.Sprintf("127.0.0.1:%d", f.port+region))
		return n
	}
	for n, agent := range []string{"jkt-incus", "fra-incus"} {
		i, err := engines.NewIncus(network(agent, 100*(n+1)))
		if errors.Is(err, engines.ErrMissing) {
			f.t.Log(err)
			break
		}
		f.incus = append(f.incus, i)
		if err == nil {
			err = i.AddImage(f.t.Context(), "alpine/3.22", "x86_64")
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
	d, err := engines.NewDocker(network("jkt-docker", 100), "--live-restore")
	if errors.Is(err, engines.ErrMissing) {
		f.t.Log(err)
		return
	}
	f.docker = d
	if err == nil {
		err = d.Load(f.t.Context(), "busybox:1.37", "amd64", map[string]any{})
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// define the command line of every process.
func (f *fleet) define(bin string) {
	at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", f.port+n) }
	add := func(name, role string, args ...string) {
		f.args[name] = append([]string{bin, role, "--name", name, "--data-dir", filepath.Join(f.dir, "data", name)}, args...)
	}
	add("global", "global", "--grpc-addr", at(0), "--http-addr", at(1), "--etcd-client-addr", at(2), "--etcd-peer-addr", at(3))
	region := func(name, location string, from int) {
		add(name, "regional", "--region", name, "--location", location, "--grpc-addr", at(from), "--raft-addr", at(from+1),
			"--gossip-addr", at(from+2), "--probe-addr", at(from+3), "--http-addr", at(from+4), "--global", at(0))
	}
	region("jakarta", "-6.2,106.8", 100)
	region("frankfurt", "50.1,8.7", 200)
	given := f.give()
	agent := func(name, region string, from int, args ...string) {
		add(name, "agent", append([]string{"--region", region, "--servers", at(from), "--http-addr", at(from + 10*len(f.args)),
			"--shared-machine", "here", "--share", "4", "--leave-on-shutdown", "--label", "engine=" + name}, slices.Concat(given, args)...)...)
	}
	agent("jkt-process", "jakarta", 100, "--incus", "off", "--docker-host", "off")
	for n, i := range f.incus {
		place := []struct{ node, region string }{{"jkt-incus", "jakarta"}, {"fra-incus", "frankfurt"}}[n]
		agent(place.node, place.region, 100*(n+1), "--incus", i.Socket(), "--docker-host", "off")
	}
	if len(f.incus) == 0 { // a region without a node places nothing
		agent("fra-process", "frankfurt", 200, "--incus", "off", "--docker-host", "off")
	}
	if f.docker != nil {
		agent("jkt-docker", "jakarta", 100, "--incus", "off", "--docker-host", f.docker.Host())
	}
}

// launch a process, also again.
func (f *fleet) launch(name string) {
	f.t.Helper()
	if f.procs[name] != nil {
		return
	}
	log, err := os.OpenFile(filepath.Join(f.dir, "log", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(f.args[name][0], f.args[name][1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := f.nets[name].Do(cmd.Start); err != nil {
		f.t.Fatal(err)
	}
	f.procs[name] = cmd
}

// kill a process as a crash would.
func (f *fleet) kill(name string) {
	f.t.Helper()
	cmd := f.procs[name]
	delete(f.procs, name)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// end everything: the agents, which stop their tasks, the other processes, and
// the engines, with what is left in them.
func (f *fleet) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var agents, others []string
	for name := range f.procs {
		if f.args[name][1] == "agent" {
			agents = append(agents, name)
		} else {
			others = append(others, name)
		}
	}
	for _, names := range [][]string{agents, others} {
		for _, name := range names {
			_ = f.procs[name].Process.Signal(unix.SIGTERM)
		}
		for _, name := range names {
			cmd := f.procs[name]
			late := context.AfterFunc(ctx, func() {
				f.t.Errorf("%s does not end", name)
				_ = cmd.Process.Kill()
			})
			_ = cmd.Wait()
			late()
		}
	}
	for _, i := range f.incus {
		if err := i.Destroy(); err != nil {
			f.t.Error(err)
		}
	}
	if f.docker != nil {
		if err := f.docker.Destroy(); err != nil {
			f.t.Error(err)
		}
	}
}

// nusa runs the command line tool and returns what it printed.
func (f *fleet) nusa(args ...string) (stdout, stderr string, code int) {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), f.args["global"][0], args...)
	cmd.Env = append(os.Environ(), "NUSA_ADDR="+f.addr)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		f.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// must is nusa with success.
func (f *fleet) must(args ...string) string {
	f.t.Helper()
	out, errs, code := f.nusa(args...)
	if code != 0 {
		f.t.Fatalf("nusa %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// allocs of a job by group[index]: the one that is wanted, else one that ended.
func (f *fleet) allocs(job string) map[string]*nusav1.Allocation {
	f.t.Helper()
	var res nusav1.ListAllocationsResponse
	if err := protojson.Unmarshal([]byte(f.must("alloc", "list", "--all", "--job", job, "-o", "json")), &res); err != nil {
		f.t.Fatal(err)
	}
	wanted := func(a *nusav1.Allocation) bool { return a.GetDesired() == nusav1.AllocDesired_ALLOC_DESIRED_RUN }
	out := map[string]*nusav1.Allocation{}
	for _, a := range res.GetAllocations() {
		key := fmt.Sprintf("%s[%d]", a.GetGroup(), a.GetIndex())
		other := out[key]
		if other != nil && wanted(a) && wanted(other) {
			f.t.Errorf("%s is there twice: %s, %s", key, other.GetId(), a.GetId())
		}
		if other == nil || wanted(a) {
			out[key] = a
		}
	}
	return out
}

// TestEngines: one job on Incus, Docker and processes in two regions. What is
// not installed is left out, and said.
func TestEngines(t *testing.T) {
	f := startFleet(t)
	name := f.jobFile()
	out := f.must("job", "run", "--timeout", "90s", name)
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
		if logs := f.must("alloc", "logs", a.GetId()[:8]); logs != said {
			t.Errorf("%s logged %q, want %q", key, logs, said)
		}
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
	f.part("bad input", func() { f.badInput(before) })
	f.part("features", f.features)
	f.part("stop", func() {
		f.must("job", "stop", "engines")
		f.nothingLeft()
	})
}

// part of the test, on the same federation.
func (f *fleet) part(name string, what func()) {
	whole := f.t
	whole.Run(name, func(t *testing.T) {
		f.t = t
		defer func() { f.t = whole }()
		what()
	})
}

// jobFile is the example, without the groups of engines that are not here.
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

// inside are what the engines have: the instances of each Incus and the running
// containers of Docker, with their main process. Docker keeps the ended ones for
// their logs.
func (f *fleet) inside(ctx context.Context) (out []string, err error) {
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

// agentsKilled: every agent dies by kill -9 and comes back; allocations,
// containers and their processes are the same.
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
		// An answer of exec comes through the agent that was started anew.
		f.eventually(40*time.Second, key+" answers again", func(context.Context) error {
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

// same: the allocations are those of before, and nothing was restarted.
func (f *fleet) same(before map[string]*nusav1.Allocation) {
	f.t.Helper()
	after := f.allocs("engines")
	for key, b := range before {
		a := after[key]
		if a.GetId() != b.GetId() || a.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING || a.GetTasks()["main"].GetRestarts() != b.GetTasks()["main"].GetRestarts() {
			f.t.Errorf("%s was %s, is %s, %s, %d restarts", key, b.GetId(), a.GetId(), a.GetState(), a.GetTasks()["main"].GetRestarts())
		}
	}
}

// enginesKilled: every engine's daemon dies by kill -9 and comes back under its
// containers.
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
		f.eventually(40*time.Second, key+" answers", func(context.Context) error {
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

// onEngines is a batch job with a group for each driver that there is, each on
// a node that has it. tasks are the lines below `main:` by driver; %s there is
// the image.
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

// missedExits: tasks end while no agent is there; the next one tells their exit
// code, and starts nothing again.
func (f *fleet) missedExits() {
	const waits = `command: /bin/sh, args: [-c, 'echo x >>starts; until [ -e end ]; do sleep 0.05; done; echo >ended; exit 9']`
	file := f.onEngines("missed", map[string]string{
		"process": "config: {" + waits + "}", "incus": "config: {image: bb, " + waits + "}", "docker": "config: {image: 'box:1', " + waits + "}",
	})
	f.must("job", "run", "--detach", file)
	var before map[string]*nusav1.Allocation
	f.eventually(40*time.Second, "it runs", func(context.Context) error {
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
		f.eventually(20*time.Second, key+" ends", func(context.Context) error {
			_, err := os.Stat(folder(a, "ended"))
			return err
		})
	}
	for _, a := range before {
		f.launch(a.GetNodeName())
	}
	for key, a := range before {
		f.eventually(40*time.Second, "the exit code of "+key, func(context.Context) error {
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

// badInput: a job that an engine refuses fails with the engine's own words and
// the field at fault; what else runs goes on.
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
		f.eventually(40*time.Second, name+" has failed", func(context.Context) error {
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

// nothingLeft: no engine runs anything of ours.
func (f *fleet) nothingLeft() {
	f.eventually(40*time.Second, "nothing is left", func(ctx context.Context) error {
		there, err := f.inside(ctx)
		if err == nil && len(there) > 0 {
			err = fmt.Errorf("still there: %v", there)
		}
		return err
	})
}
