//go:build integration

// Package local_test runs the federation of separate processes that
// federation.sh starts, kills parts of it with -9 and asserts the end state.
package local_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestMain ends the processes that killed tests left.
func TestMain(m *testing.M) { os.Exit(leftover.M{M: m}.Run()) }

// federation is a running deploy/local.
type federation struct {
	t    *testing.T
	env  []string
	port int
	dir  string
	// identity is that of an operator, nil in a federation without identities.
	identity *trust.Source
}

// ports is the number of ports that a federation may use.
const ports = 600

// start runs federation.sh on free ports in its own folder, and stops it at the end of the test. env are
// further variables of the script.
func start(t *testing.T, env ...string) *federation {
	t.Helper()
	f := &federation{t: t, port: freeport.Reserve(t, ports), dir: t.TempDir()}
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	f.env = append(os.Environ(), "NUSA="+bin, "NUSA_DIR="+f.dir, "NUSA_PORT="+strconv.Itoa(f.port))
	f.env = append(f.env, env...)
	leftover.Nothing(t, f.dir)
	t.Cleanup(func() {
		if t.Failed() {
			f.dumpLogs()
		}
		f.script("stop")
		if n := f.processes(); n > 0 {
			t.Errorf("%d tasks outlive the federation", n)
		}
	})
	if f.script("start"); t.Failed() {
		t.FailNow()
	}
	return f
}

func (f *federation) script(args ...string) string {
	f.t.Helper()
	cmd := exec.Command("./federation.sh", args...)
	cmd.Env = f.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.t.Errorf("federation.sh %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestUnknownProcess: a mistyped name is refused with the list of names, and a stopped process cannot be
// killed.
func TestUnknownProcess(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"kill nosuch", "no process is called nosuch; there are: global-1 global-2 southeastasia-server-1 "},
		{"start nosuch", "no process is called nosuch; there are: "},
		{"kill global-1", "global-1 does not run"},
		{"kill", "which process?"},
	} {
		cmd := exec.Command("./federation.sh", strings.Fields(c.args)...)
		// The script starts no program here, so any program will do.
		cmd.Env = append(os.Environ(), "NUSA=/bin/sh", "NUSA_DIR="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if exit, ended := err.(*exec.ExitError); !ended || exit.ExitCode() != 1 || !strings.Contains(string(out), c.want) {
			t.Errorf("federation.sh %s: %v, %q, want %q", c.args, err, out, c.want)
		}
	}
}

// dumpLogs logs the end of each process's log. The short list of failures that make prints at the end
// (.ci/gotest) leaves these logs out.
func (f *federation) dumpLogs() {
	files, _ := filepath.Glob(filepath.Join(f.dir, "log", "*.log"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		f.t.Logf("log of %s:\n%s", filepath.Base(file), strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
}

func (f *federation) dial(port int) *grpc.ClientConn {
	f.t.Helper()
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), f.identity.Dial(identity.Rules{{Kind: identity.Global}, {Kind: identity.Server}}))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

// patience bounds the wait for a condition. Even a slow and busy machine needs less.
const patience = 2 * time.Minute

// eventually calls want until it returns nil. If the time is up, the test fails with the last error of want.
func (f *federation) eventually(what string, want func(ctx context.Context) error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for last := ""; ; {
		once, done := context.WithTimeout(ctx, 20*time.Second)
		err := want(once)
		done()
		if err == nil {
			return
		}
		if err.Error() != last {
			last = err.Error()
			f.t.Log(time.Now().Format("05.000"), err)
		}
		select {
		case <-ctx.Done():
			f.t.Fatalf("%s: not within %s: %v", what, patience, err)
		case <-tick.C:
		}
	}
}

// running returns a job's live allocations by instance index. It is an error if an index has two.
func running(ctx context.Context, conn *grpc.ClientConn, name string) (map[int32]*nusav1.Allocation, error) {
	res, err := nusav1.NewAllocationsClient(conn).List(ctx, &nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Namespace: "default", Name: name}})
	if err != nil {
		return nil, err
	}
	if len(res.GetErrors()) > 0 {
		return nil, fmt.Errorf("partial answer: %v", res.GetErrors())
	}
	out := map[int32]*nusav1.Allocation{}
	for _, a := range res.GetAllocations() {
		if a.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING || a.GetDesired() != nusav1.AllocDesired_ALLOC_DESIRED_RUN {
			continue
		}
		if other := out[a.GetIndex()]; other != nil {
			return nil, fmt.Errorf("index %d runs twice: %s and %s", a.GetIndex(), other.GetId(), a.GetId())
		}
		out[a.GetIndex()] = a
	}
	return out, nil
}

const counterJob = `
name: counter
regions: {spread: {min: 3, max: 3}, divide: even}
groups:
  main:
    count: 6
    disconnect: {node: {after: 2s}}
    tasks:
      loop:
        driver: process
        config: {command: /bin/sh, args: ["-c", "echo $$ >> pids; exec sleep 100000"]}
        resources: {cpu: 10m, memory: 16MiB}
`

func (f *federation) submit(conn *grpc.ClientConn, text string) {
	f.t.Helper()
	spec, err := job.Parse([]byte(text), "job.yaml")
	if err != nil {
		f.t.Fatal(err)
	}
	f.eventually("submit", func(ctx context.Context) error {
		_, err := nusav1.NewJobsClient(conn).Submit(ctx, &nusav1.SubmitRequest{Spec: spec, IdempotencyKey: "first-" + spec.GetName()})
		return err
	})
}

func (f *federation) allRun(conn *grpc.ClientConn, what string) map[int32]*nusav1.Allocation {
	f.t.Helper()
	var last map[int32]*nusav1.Allocation
	f.eventually(what, func(ctx context.Context) error {
		allocs, err := running(ctx, conn, "counter")
		if err != nil {
			return err
		}
		if len(allocs) != 6 {
			return fmt.Errorf("%d of 6 instances run", len(allocs))
		}
		last = allocs
		return nil
	})
	return last
}

// sameTasks fails when an instance runs in another allocation than before.
func sameTasks(t *testing.T, what string, before, after map[int32]*nusav1.Allocation) {
	t.Helper()
	for i, b := range before {
		if a := after[i]; a.GetId() != b.GetId() || a.GetTasks()["loop"].GetRestarts() != b.GetTasks()["loop"].GetRestarts() {
			t.Errorf("%s: index %d was %s, is %s (restarts %d → %d)", what, i, b.GetId(), a.GetId(),
				b.GetTasks()["loop"].GetRestarts(), a.GetTasks()["loop"].GetRestarts())
		}
	}
}

// TestKillEverythingOnce: an agent, a master and the active global server are killed with -9, one after the
// other. Each time the tasks keep running.
func TestKillEverythingOnce(t *testing.T) {
	f := start(t)
	first, second := f.dial(f.port), f.dial(f.port+5)
	f.submit(second, counterJob) // a standby accepts submits, too
	before := f.allRun(first, "after submit")
	// An allocation runs once its shell has started; the shell writes its process id and becomes sleep later.
	f.eventually("a process for each instance", func(context.Context) error {
		n := f.processes()
		if n > 6 {
			t.Errorf("%d processes run for 6 instances", n)
		} else if n < 6 {
			return fmt.Errorf("%d processes run for 6 instances", n)
		}
		return nil
	})

	t.Run("agent", func(t *testing.T) {
		victim := before[0].GetNodeName()
		f.script("kill", victim)
		f.script("start", victim)
		after := f.allRun(first, "after the agent came back")
		sameTasks(t, "agent killed and restarted", before, after)
	})
	t.Run("master", func(t *testing.T) {
		region := before[0].GetRegion()
		old := f.master(first, region, "")
		f.script("kill", old)
		f.master(first, region, old)
		after := f.allRun(first, "after another master was elected")
		sameTasks(t, "master killed", before, after)
		f.script("start", old)
	})
	t.Run("active global server", func(t *testing.T) {
		old := f.active(first)
		f.script("kill", old)
		f.script("start", old) // the killed server may have held the only etcd member
		f.eventually("an active global server", func(ctx context.Context) error {
			_, err := nusav1.NewJobsClient(second).Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "counter"}})
			return err
		})
		after := f.allRun(second, "after another global server became active")
		sameTasks(t, "active global server killed", before, after)
	})
	t.Run("node lost", func(t *testing.T) {
		victim := before[0].GetNodeName()
		f.script("kill", victim)
		f.eventually("the work of a lost node runs elsewhere", func(ctx context.Context) error {
			allocs, err := running(ctx, second, "counter")
			if err != nil {
				return err
			}
			for i := range int32(6) {
				if a := allocs[i]; a == nil || a.GetNodeName() == victim {
					return fmt.Errorf("index %d: %v on %s", i, a.GetState(), a.GetNodeName())
				}
			}
			return nil
		})
		f.script("start", victim)
	})
	t.Run("stop", func(t *testing.T) {
		if _, err := nusav1.NewJobsClient(second).Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "counter"}}); err != nil {
			t.Fatal(err)
		}
		f.eventually("nothing runs after a stop", func(ctx context.Context) error {
			allocs, err := running(ctx, second, "counter")
			if err == nil && len(allocs) > 0 {
				err = fmt.Errorf("%d still run", len(allocs))
			}
			if n := f.processes(); err == nil && n > 0 {
				err = fmt.Errorf("%d processes still run", n)
			}
			return err
		})
	})
}

// processes counts the job's running processes. Each process has written its process id into a file.
func (f *federation) processes() (n int) {
	f.t.Helper()
	err := filepath.WalkDir(filepath.Join(f.dir, "data"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "pids" {
			return nil // folders of ended allocations are deleted in the meantime
		}
		text, _ := os.ReadFile(path)
		for _, pid := range strings.Fields(string(text)) {
			cmdline, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
			if strings.HasPrefix(string(cmdline), "sleep\x00100000") {
				n++
			}
		}
		return nil
	})
	if err != nil {
		f.t.Error(err)
	}
	return n
}

// master waits until a region has a master whose name differs from the argument not.
func (f *federation) master(conn *grpc.ClientConn, region, not string) (name string) {
	f.t.Helper()
	f.eventually("a master of "+region, func(ctx context.Context) error {
		r, err := nusav1.NewRegionsClient(conn).Get(ctx, &nusav1.GetRegionRequest{Name: region})
		if err != nil {
			return err
		}
		if r.GetState() != nusav1.RegionState_REGION_STATE_CONNECTED || r.GetMaster() == not {
			return fmt.Errorf("state %s, master %s", r.GetState(), r.GetMaster())
		}
		name = r.GetMaster()
		return nil
	})
	return name
}

func (f *federation) active(conn *grpc.ClientConn) (name string) {
	f.t.Helper()
	f.eventually("an active global server", func(ctx context.Context) error {
		tree, err := nusav1.NewTopologyClient(conn).Get(ctx, &nusav1.GetTopologyRequest{})
		if err != nil {
			return err
		}
		for _, s := range tree.GetServers() {
			if s.GetActive() {
				name = s.GetName()
				return nil
			}
		}
		return fmt.Errorf("no active server among %v", tree.GetServers())
	})
	return name
}
