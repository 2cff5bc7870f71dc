//go:build integration

package local_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/engines"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// fleet is a federation of real processes over real engines: one global server, two regions of one server
// each, and one agent for every engine. Each engine has a network namespace of its own, as on its own node.
type fleet struct {
	*federation
	addr  string
	conn  *grpc.ClientConn
	procs map[string]*exec.Cmd
	args  map[string][]string

	incus  []*engines.Incus // the Incus of jakarta and of frankfurt; empty = not installed
	docker *engines.Docker  // the Docker of jakarta; nil = not installed
	// nets holds the network of each agent whose engine has its own network. The ports of tasks are there.
	nets map[string]*engines.Network
}

// newFleet returns a fleet whose processes are not started yet, and the path of nusa.
func newFleet(t *testing.T) (f *fleet, bin string) {
	t.Helper()
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: make build first", err)
	}
	f = &fleet{federation: &federation{t: t, port: freeport.Reserve(t, ports), dir: t.TempDir()}, procs: map[string]*exec.Cmd{}, args: map[string][]string{}, nets: map[string]*engines.Network{}}
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
	return f, bin
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	f, bin := newFleet(t)
	f.engines()
	f.define(bin)
	for _, name := range []string{"global", "jakarta", "frankfurt"} {
		f.launch(name)
	}
	for name := range f.args {
		f.launch(name)
	}
	f.conn = f.dial(f.port)
	f.eventually("every node is ready", func(ctx context.Context) error {
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

// engines starts two Incus daemons and a Docker engine, if they are installed.
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

// define sets the command line of every process.
func (f *fleet) define(bin string) {
	at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", f.port+n) }
	add := func(name, role string, args ...string) {
		f.args[name] = append([]string{bin, role, "--name", name, "--data-dir", filepath.Join(f.dir, "data", name)}, args...)
	}
	add("global", "global", "--insecure", "--grpc-addr", at(0), "--http-addr", at(1), "--etcd-client-addr", at(2), "--etcd-peer-addr", at(3))
	region := func(name, location string, from int) {
		add(name, "regional", "--region", name, "--location", location, "--grpc-addr", at(from), "--raft-addr", at(from+1),
			"--gossip-addr", at(from+2), "--probe-addr", at(from+3), "--http-addr", at(from+4), "--global", at(0))
	}
	region("jakarta", "-6.2,106.8", 100)
	region("frankfurt", "50.1,8.7", 200)
	given := f.give()
	agent := func(name, region string, from int, args ...string) {
		tasks := f.port + 500 + 10*len(f.args) // ports that no other process of the host uses
		add(name, "agent", append([]string{"--region", region, "--servers", at(from), "--http-addr", at(from + 10*len(f.args)),
			"--port-min", strconv.Itoa(tasks), "--port-max", strconv.Itoa(tasks + 8),
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

// launch starts a process, the first time or again.
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

// kill ends a process with SIGKILL.
func (f *fleet) kill(name string) {
	f.t.Helper()
	cmd := f.procs[name]
	delete(f.procs, name)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// end stops the agents, which stop their tasks, then the other processes, then the engines with all their
// remaining containers.
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

// nusa runs the command line tool and returns its output.
func (f *fleet) nusa(args ...string) (stdout, stderr string, code int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.args["global"][0], args...)
	cmd.Env = append(os.Environ(), "NUSA_ADDR="+f.addr)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		f.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// must runs a command like nusa and fails the test if the command fails.
func (f *fleet) must(args ...string) string {
	f.t.Helper()
	out, errs, code := f.nusa(args...)
	if code != 0 {
		f.t.Fatalf("nusa %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// allocs returns a job's allocations by group[index]: the wanted one, or an ended one if none is wanted.
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
