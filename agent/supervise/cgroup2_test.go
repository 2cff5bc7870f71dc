package supervise

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestVersion2 checks which files of cgroups v2 are written and read. It uses an imitation
// of the kernel's files.
func TestVersion2(t *testing.T) {
	root := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	get := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(root, name))
		return string(text)
	}
	old := cgroupRoot
	cgroupRoot = root
	defer func() { cgroupRoot = old }()
	if _, err := makeCgroup(Limits{Cgroup: "run"}); err == nil {
		t.Error("a host without control groups has them")
	}
	put("cgroup.controllers", "cpu memory pids\n")
	l := Limits{Cgroup: "run", MemoryBytes: 64 << 20, CPUMilli: 500, HardCPU: true}
	c, err := makeCgroup(l)
	if err != nil || !c.v2 || len(c.dirs) != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	check := func(want map[string]string) {
		t.Helper()
		for name, text := range want {
			if got := get(name); got != text {
				t.Errorf("%s is %q, want %q", name, got, text)
			}
		}
	}
	check(map[string]string{
		"cgroup.subtree_control": "+memory +cpu", "nusa/cgroup.subtree_control": "+memory +cpu",
		"nusa/run/memory.max": "67108864", "nusa/run/cpu.weight": "50", "nusa/run/cpu.max": "50000",
	})
	if err := c.limit(l, Limits{Cgroup: "run", CPUMilli: 2000}); err != nil {
		t.Error(err)
	}
	check(map[string]string{"nusa/run/memory.max": "max", "nusa/run/cpu.weight": "200", "nusa/run/cpu.max": "max"})
	c.kill()
	check(map[string]string{"nusa/run/cgroup.kill": "1"})

	put("nusa/run/cgroup.procs", "10\n11\n")
	put("nusa/run/cpu.stat", "usage_usec 1500000\nuser_usec 1\n")
	put("nusa/run/memory.current", "1000000\n")
	put("nusa/run/memory.peak", "3000000\n")
	put("nusa/run/memory.stat", "anon 1\nfile 400000\nshmem 100000\n")
	s := existing(l).usage()
	if s.CPU != 1500*time.Millisecond || s.MemoryBytes != 700_000 || s.MemoryPeakBytes != 3_000_000 || s.Processes != 2 {
		t.Errorf("usage is %+v", s)
	}
	for text, want := range map[string]bool{"low 0\noom 0\noom_kill 0\n": false, "oom 2\noom_kill 1\n": true, "": false} {
		put("nusa/run/memory.events", text)
		if got := c.outOfMemory(); got != want {
			t.Errorf("out of memory by %q: %v", text, got)
		}
	}
	// A refused limit names its file and is never ignored silently.
	if err := os.RemoveAll(filepath.Join(root, "nusa")); err != nil {
		t.Fatal(err)
	}
	put("nusa", "no folder")
	if _, err := makeCgroup(l); err == nil || !strings.Contains(err.Error(), "nusa") {
		t.Errorf("a host that does not let us: %v", err)
	}
}

// TestVersion2OfTheKernel uses the kernel's own hierarchy of version 2. It needs root. Where the controllers memory
// and cpu belong to version 1, it tests the rest: a process begins in the cgroup, counts, is killed with it, and the
// missing controllers are named.
func TestVersion2OfTheKernel(t *testing.T) {
	root := t.TempDir()
	if err := unix.Mount("none", root, "cgroup2", 0, ""); err != nil {
		t.Skipf("no cgroup2 can be mounted here: %v", err)
	}
	defer func() { _ = unix.Unmount(root, 0) }()
	dir := filepath.Join(root, "nusa-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no cgroup can be made here: %v", err)
	}
	defer os.Remove(dir)
	for name, old := range map[string]bool{"new": false, "old": true} { // each run has a cgroup of its own
		c := cgroup{v2: true, dirs: []string{filepath.Join(dir, name)}}
		if err := os.Mkdir(c.dirs[0], 0o755); err != nil {
			t.Fatal(err)
		}
		inner := filepath.Join(c.dirs[0], "a", "b") // as a task makes them that runs others in cgroups
		if err := os.MkdirAll(inner, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "3600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := c.enter(cmd.SysProcAttr)
		if err == nil {
			err = cmd.Start()
		}
		c.leave()
		if err != nil {
			t.Fatal(err)
		}
		if s := c.usage(); s.Processes != 1 || s.CPU < 0 || c.outOfMemory() {
			t.Errorf("usage %+v", s)
		}
		if err := writeControl(inner, "cgroup.procs", strconv.Itoa(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
		if old { // like a kernel without cgroup.kill
			cgroup{dirs: c.dirs}.kill()
		} else {
			c.kill()
		}
		_ = cmd.Wait()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			t.Errorf("it ended with %v", cmd.ProcessState)
		}
		c.remove()
		if _, err := os.Stat(c.dirs[0]); err == nil {
			t.Error("the cgroup was not removed")
		}
	}
	offered, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	if names := strings.Fields(string(offered)); !slices.Contains(names, "memory") || !slices.Contains(names, "cpu") {
		if err := delegate(filepath.Join(dir, "nusa")); err == nil || !strings.Contains(err.Error(), "does not offer the controllers memory and cpu") {
			t.Errorf("without the controllers: %v", err)
		}
		_ = os.Remove(filepath.Join(dir, "nusa"))
		return
	}
	if err := delegate(filepath.Join(dir, "nusa")); err != nil {
		t.Errorf("with the controllers: %v", err)
	}
	_ = os.Remove(filepath.Join(dir, "nusa"))
}
