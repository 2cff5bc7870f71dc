package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/process"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestResourcesChangeWithoutARestart: an order with other resources changes the control group of a real
// process. Its process id stays. An agent that is killed before the next change applies it when it is back.
// Where control groups cannot be used, the driver refuses, and the process continues.
func TestResourcesChangeWithoutARestart(t *testing.T) {
	t.Parallel()
	m, dir := newMaster(t), t.TempDir()
	starts, data := filepath.Join(dir, "starts"), filepath.Join(dir, "data")
	order := func(index uint64, mebibytes int64) *nusav1.AllocOrder {
		o := testOrder("aaaa", index, "process", sh("echo $$ >>"+starts+"; echo started; sleep 3600"), func(o *nusav1.AllocOrder, g *nusav1.Group) {
			g.Tasks["main"].Resources = &nusav1.Resources{CpuMilli: 100, MemoryBytes: mebibytes << 20}
			o.Allocation.Resources = g.Tasks["main"].Resources
		})
		o.Resized = index > 1
		return o
	}
	m.order(order(1, 64))
	agent := startProcess(t, data, m.addr)
	m.untilState("aaaa", running)
	untilOutput(t, nusav1.NewAllocationsClient(m.conn()), "started") // the shell may still be on its way
	self, _ := os.Executable()
	caps := process.New(process.Config{Dir: dir, SupervisorArgv: []string{self, "supervise"}}).Fingerprint(t.Context()).Capabilities
	want := nusav1.LimitsState_LIMITS_STATE_APPLIED
	limited := strings.Contains(strings.Join(caps, " "), driver.CapUpdate)
	if !limited {
		want = nusav1.LimitsState_LIMITS_STATE_REFUSED
	}
	check := func(index uint64, mebibytes int) {
		t.Helper()
		m.until("the report about the limits", func() bool {
			r := m.reports["aaaa"]
			return r.GetIndex() == index && r.GetLimits() == want
		})
		text, err := os.ReadFile(starts)
		if err != nil || strings.Count(string(text), "\n") != 1 {
			t.Fatalf("started as processes %q: %v", text, err)
		}
		if is := memoryLimit(t, strings.TrimSpace(string(text))); limited && is != strconv.Itoa(mebibytes<<20) {
			t.Errorf("the limit of the control group is %s", is)
		}
	}
	m.order(order(2, 32))
	check(2, 32)
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait()
	m.until("the session to break", func() bool { return len(m.sessions) == 0 })
	m.set(func() { m.reports = map[string]*nusav1.AllocReport{} })
	m.order(order(3, 128))
	startProcess(t, data, m.addr)
	check(3, 128)
	o := order(4, 128)
	o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
	m.order(o)
	m.untilState("aaaa", stopped)
}

// memoryLimit returns the memory limit of the control group of a process.
func memoryLimit(t *testing.T, pid string) string {
	t.Helper()
	groups, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(groups)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, path := range []string{"/sys/fs/cgroup/memory/" + f[2] + "/memory.limit_in_bytes", "/sys/fs/cgroup/" + f[2] + "/memory.max"} {
			if text, err := os.ReadFile(path); err == nil && (f[1] == "memory" || f[1] == "") && strings.Contains(f[2], "nusa") {
				return strings.TrimSpace(string(text))
			}
		}
	}
	return "no such group"
}
