package supervise

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
