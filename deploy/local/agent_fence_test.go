//go:build integration

package local_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// fenceLease is the lease of the nodes, fenceStop the time that tasks may take to stop. The
// master waits for lease.Over of both. In this test the supervisors may be late by the
// difference.
const fenceLease, fenceStop = 15 * time.Second, time.Second

// Each attempt writes when it starts and then every 20 ms. The polite one also writes that it was
// asked to stop.
const fenceJob = `
name: fenced
groups:
  polite:
    disconnect: {node: {after: 1s, running: stop}}
    tasks:
      main:
        driver: process
        config: {command: /bin/sh, args: ["-c", "trap 'echo TERM >> %[1]s/polite.$NUSA_EPOCH; exit 0' TERM; echo $$ > %[1]s/polite.$NUSA_EPOCH; while :; do date +%%s%%N >> %[1]s/polite.$NUSA_EPOCH; sleep 0.02; done"]}
        resources: {cpu: 10m, memory: 16MiB}
        kill_timeout: %[2]s
  stubborn:
    disconnect: {node: {after: 1s, running: stop}}
    tasks:
      main:
        driver: process
        config: {command: /bin/sh, args: ["-c", "trap '' TERM; echo $$ > %[1]s/stubborn.$NUSA_EPOCH; while :; do date +%%s%%N >> %[1]s/stubborn.$NUSA_EPOCH; sleep 0.02; done"]}
        resources: {cpu: 10m, memory: 16MiB}
        kill_timeout: %[2]s
`

// life is what one attempt has written.
type life struct {
	pid         int
	first, last time.Time
	asked       bool
}

// readLife returns an error until the attempt has written its process and a time.
func readLife(path string) (l life, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return l, err
	}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if line == "TERM" {
			l.asked = true
			continue
		}
		n, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			return l, fmt.Errorf("%s: %q", path, line)
		}
		if i == 0 {
			l.pid = int(n)
			continue
		}
		l.last = time.Unix(0, n)
		if l.first.IsZero() {
			l.first = l.last
		}
	}
	if l.first.IsZero() {
		return l, fmt.Errorf("%s has no time yet", path)
	}
	return l, nil
}

// startFence runs a global server, a region of one server with a short lease, and the first of
// two agents. The other agent is "second".
func startFence(t *testing.T) *fleet {
	t.Helper()
	f, bin := newFleet(t)
	at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", f.port+n) }
	add := func(name, role string, args ...string) {
		f.args[name] = append([]string{bin, role, "--name", name, "--data-dir", filepath.Join(f.dir, "data", name)}, args...)
	}
	add("global", "global", "--insecure", "--grpc-addr", at(0), "--http-addr", at(1), "--etcd-client-addr", at(2), "--etcd-peer-addr", at(3))
	add("jakarta", "regional", "--region", "jakarta", "--grpc-addr", at(100), "--raft-addr", at(101), "--gossip-addr", at(102),
		"--probe-addr", at(103), "--http-addr", at(104), "--global", at(0), "--node-lease", fenceLease.String())
	for i, name := range []string{"first", "second"} {
		add(name, "agent", "--region", "jakarta", "--servers", at(100), "--http-addr", at(110+10*i), "--shared-machine", "here", "--share", "4", "--leave-on-shutdown",
			"--incus", "off", "--docker-host", "off")
	}
	for _, name := range []string{"global", "jakarta", "first"} {
		f.launch(name)
	}
	f.conn = f.dial(f.port)
	return f
}

// TestFencedByTheSupervisor: a killed agent renews no lease. Its supervisors stop the tasks that
// must not run without one, also a task that ignores SIGTERM, and only then does the master
// replace them. The agent restarts nothing when it is back.
func TestFencedByTheSupervisor(t *testing.T) {
	f := startFence(t)
	beats := t.TempDir()
	f.submit(f.conn, fmt.Sprintf(fenceJob, beats, fenceStop))
	attempts := func(group string) []string {
		files, err := filepath.Glob(filepath.Join(beats, group+".*"))
		if err != nil {
			t.Fatal(err)
		}
		return files // file names contain the epoch, so they are in order
	}
	groups := []string{"polite", "stubborn"}
	began := func(n int) func(context.Context) error {
		return func(ctx context.Context) error {
			for _, g := range groups {
				files := attempts(g)
				if len(files) != n {
					return fmt.Errorf("%s has begun %d times, want %d", g, len(files), n)
				}
				// The node reports a task as running before its shell has written.
				if _, err := readLife(files[n-1]); err != nil {
					return err
				}
			}
			list, err := nusav1.NewAllocationsClient(f.conn).List(ctx, &nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "fenced"}})
			if err != nil {
				return err
			}
			for _, a := range list.GetAllocations() {
				if a.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING || len(list.GetAllocations()) != len(groups) || a.GetNodeSilent() != nil {
					return fmt.Errorf("%v", a)
				}
			}
			return nil
		}
	}
	f.eventually("both run", began(1))
	f.launch("second")
	f.eventually("the second node is ready", func(ctx context.Context) error {
		n, err := nusav1.NewNodesClient(f.conn).Get(ctx, &nusav1.GetNodeRequest{Id: "second", Region: "jakarta"})
		if err == nil && n.GetState() != nusav1.NodeState_NODE_STATE_READY {
			err = fmt.Errorf("%v", n.GetState())
		}
		return err
	})
	f.kill("first")
	killed := time.Now()
	f.eventually("both run again", began(2))

	for _, g := range groups {
		files := attempts(g)
		first, err := readLife(files[0])
		if err != nil {
			t.Fatal(err)
		}
		second, err := readLife(files[1])
		if err != nil {
			t.Fatal(err)
		}
		if !first.last.Before(second.first) {
			t.Errorf("%s: the first attempt lived until %v, the second began at %v", g, first.last, second.first)
		}
		if err := syscall.Kill(first.pid, 0); err != syscall.ESRCH {
			t.Errorf("%s: process %d is still there: %v", g, first.pid, err)
		}
		if !first.last.After(killed) {
			t.Errorf("%s died with its agent, %v before", g, killed.Sub(first.last))
		}
		if g == "polite" && !first.asked {
			t.Errorf("%s was not asked to end", g)
		}
		t.Logf("%s: ended %v after its agent, begun elsewhere %v after that", g, first.last.Sub(killed), second.first.Sub(first.last))
	}

	f.launch("first")
	f.eventually("the first node is back and has reported the ends", func(ctx context.Context) error {
		if err := began(2)(ctx); err != nil {
			return err
		}
		list, err := nusav1.NewAllocationsClient(f.conn).List(ctx, &nusav1.ListAllocationsRequest{All: true})
		if err != nil {
			return err
		}
		for _, a := range list.GetAllocations() {
			if a.GetNodeName() == "first" && a.GetState() != nusav1.AllocState_ALLOC_STATE_LOST {
				return fmt.Errorf("%v", a)
			}
		}
		n, err := nusav1.NewNodesClient(f.conn).Get(ctx, &nusav1.GetNodeRequest{Id: "first", Region: "jakarta"})
		if err == nil && (n.GetState() != nusav1.NodeState_NODE_STATE_READY || n.GetAllocated().GetCpuMilli() != 0) {
			err = fmt.Errorf("%v, %v allocated", n.GetState(), n.GetAllocated())
		}
		return err
	})
	f.must("job", "stop", "fenced")
	f.eventually("nothing runs", func(ctx context.Context) error {
		for _, g := range groups {
			for _, file := range attempts(g) {
				l, err := readLife(file)
				if err != nil {
					return err
				}
				if syscall.Kill(l.pid, 0) != syscall.ESRCH {
					return fmt.Errorf("process %d of %s runs", l.pid, g)
				}
			}
		}
		return nil
	})
}
