package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/agent/engine"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// statusOf reads a supervisor's record of a run.
func statusOf(t *testing.T, path string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	status := map[string]any{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for { // the last line counts
		next := map[string]any{}
		if err := d.Decode(&next); err == io.EOF {
			return status
		} else if err != nil {
			t.Fatal(err)
		}
		status = next
	}
}

// number returns a number of a record.
func number(t *testing.T, status map[string]any, key string) int {
	t.Helper()
	n, err := strconv.Atoi(string(status[key].(json.Number)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// startTicks returns the start time of a process since the boot (proc_pid_stat(5)).
func startTicks(t *testing.T, pid int) uint64 {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	n, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRebootEndsRuns: the host goes down with the agent, its supervisors and tasks, and
// comes up with another boot id. Another process has the process id of a task, and even its
// start time. That process is neither adopted nor killed. The ended runs are reported with
// the reboot as the reason. Their policies restart them: at once, or by the region on
// another node if no restart is allowed. A task that needs a lease waits for a new lease.
// Runs that ended before the reboot do not change.
func TestRebootEndsRuns(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	starts := filepath.Join(dir, "starts")
	three := int32(3)
	again := func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		g.Tasks["main"].Restart = &nusav1.Restart{Attempts: &three, Delay: durationMillis(10)}
	}
	m.order(testOrder("aaaa", 1, "process", sh("echo $$ >>"+starts+"; sleep 3600"), again))
	m.order(testOrder("bbbb", 2, "process", sh("sleep 3600")))
	m.order(testOrder("cccc", 3, "process", sh("exit 0"), batch))
	m.order(testOrder("dddd", 4, "process", sh("sleep 3600"), again, func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		g.Disconnect = &nusav1.Disconnect{Node: &nusav1.DisconnectLevel{After: durationpb.New(time.Minute), Running: nusav1.Running_RUNNING_STOP}}
	}))
	data := filepath.Join(dir, "data")
	agent := startProcess(t, data, m.addr)
	for _, id := range []string{"aaaa", "bbbb", "dddd"} {
		m.untilState(id, running)
	}
	m.untilState("cccc", complete)
	polled(t, "the command to begin", func() bool { return lines(starts) == 1 })

	_ = agent.Process.Kill()
	_ = agent.Wait()
	m.until("the session to break", func() bool { return len(m.sessions) == 0 })
	m.set(func() {
		m.reports = map[string]*nusav1.AllocReport{}
		m.silent, m.lease = true, 2*time.Second // no lease is available yet
	})
	other := exec.Command("sleep", "3600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	for _, id := range []string{"aaaa", "bbbb", "dddd"} {
		path := filepath.Join(data, "process", id, "main.1", "status.json")
		status := statusOf(t, path)
		command, supervisor := number(t, status, "PID"), number(t, status, "session")
		// The command dies with its supervisor, which is killed before it can
		// record anything.
		if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		polled(t, "the task to be gone", func() bool {
			return syscall.Kill(command, 0) == syscall.ESRCH && syscall.Kill(supervisor, 0) == syscall.ESRCH
		})
		status["boot"] = "the boot before"
		status["PID"], status["group"], status["session"] = other.Process.Pid, other.Process.Pid, other.Process.Pid
		status["ticks"] = startTicks(t, other.Process.Pid)
		status["session_ticks"] = status["ticks"]
		text, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	agent = startProcess(t, data, m.addr)
	r := m.untilState("bbbb", failed)
	if r.GetReason() != nusav1.Reason_REASON_HOST_REBOOTED || r.GetTasks()["main"].GetReason() != nusav1.Reason_REASON_HOST_REBOOTED {
		t.Errorf("what may not be restarted here: %v", r)
	}
	m.until("the other to run again", func() bool {
		task := m.reports["aaaa"].GetTasks()["main"]
		return task.GetState() == running && task.GetRun() == 2 && task.GetRestarts() == 1
	})
	polled(t, "the command to begin again", func() bool { return lines(starts) == 2 })
	m.untilState("cccc", complete)
	m.until("what needs a lease to have ended", func() bool {
		task := m.reports["dddd"].GetTasks()["main"]
		return task.GetRun() == 1 && task.GetState() == failed && task.GetReason() == nusav1.Reason_REASON_HOST_REBOOTED
	})
	m.set(func() { m.silent = false })
	m.until("what needs a lease to run again", func() bool {
		task := m.reports["dddd"].GetTasks()["main"]
		return task.GetState() == running && task.GetRun() == 2
	})
	if text, err := os.ReadFile("/proc/" + strconv.Itoa(other.Process.Pid) + "/stat"); err != nil || strings.Contains(string(text), ") Z ") {
		t.Errorf("the other process is gone: %s %v", text, err)
	}
	m.set(func() {
		for i, id := range []string{"aaaa", "bbbb", "cccc", "dddd"} {
			m.box.DeleteAt(uint64(10+i), id)
		}
	})
	m.until("all to be forgotten", func() bool { return len(m.reports) == 0 })
	_ = agent.Process.Signal(syscall.SIGTERM)
	if err := agent.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

// silent is a driver that may hang. Then its Status returns only when the caller's context
// ends.
type silent struct {
	*mock.Driver
	hangs atomic.Bool
}

func (s *silent) Status(ctx context.Context, id driver.ID) (driver.Status, error) {
	if s.hangs.Load() {
		<-ctx.Done()
		return driver.Status{}, fmt.Errorf("engine: %w", ctx.Err())
	}
	return s.Driver.Status(ctx, id)
}

// TestAgentStartsBesideAHangingDriver: runs of other drivers are adopted at once, and their
// leases are renewed. Runs of the hanging driver are adopted when the driver responds. No
// run begins twice.
func TestAgentStartsBesideAHangingDriver(t *testing.T) {
	m, drv, dir := newMaster(t), newMock(), t.TempDir()
	hung := &silent{Driver: newMock()}
	config := func() Config {
		c := testConfig(t, dir, drv, m.addr)
		c.Drivers["hung"] = hung
		return c
	}
	m.order(testOrder("good", 1, "mock", nil))
	ids := []string{"hung-1", "hung-2", "hung-3", "hung-4"}
	for i, id := range ids {
		m.order(testOrder(id, uint64(i)+2, "hung", nil))
	}
	stop := runAgent(t, config())
	for _, id := range append(ids, "good") {
		m.untilState(id, running)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	m.until("the session to break", func() bool { return len(m.sessions) == 0 })
	m.set(func() { m.reports = map[string]*nusav1.AllocReport{} })
	hung.hangs.Store(true)
	began := time.Now()
	runAgent(t, config())
	m.untilState("good", running)
	if d := time.Since(began); d >= engine.StatusLimit {
		t.Errorf("the agent was held up for %s", d)
	}
	hung.hangs.Store(false)
	m.set(func() { m.reports = map[string]*nusav1.AllocReport{} })
	for i, id := range ids {
		m.order(testOrder(id, uint64(i)+10, "hung", nil, func(o *nusav1.AllocOrder, _ *nusav1.Group) {
			o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
		}))
	}
	for _, id := range ids {
		m.untilState(id, stopped)
		if n := hung.Starts(driver.ID{Alloc: id, Task: "main", Run: 1}) + hung.Starts(driver.ID{Alloc: id, Task: "main", Run: 2}); n != 1 {
			t.Errorf("%s: begun %d times", id, n)
		}
	}
	if left := hung.Running(); len(left) != 0 {
		t.Errorf("still running: %v", left)
	}
}
