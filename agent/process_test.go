package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// agentProcess is an agent with the process driver in the test's own executable.
func agentProcess(dir, server string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	self, _ := os.Executable()
	err := Run(ctx, Config{Region: "test", DataDir: dir, Servers: []string{server}, HTTPAddr: "-", Facts: smallHost(),
		SupervisorArgv: []string{self, "supervise"}, Ready: func(Addresses) { fmt.Println("ready") }})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// startProcess starts an agent as a process and waits until it is ready.
func startProcess(t *testing.T, dir, server string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "agent", dir, server)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		endTasks(t, dir)
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the agent said %q: %v", line, err)
	}
	return cmd
}

// endTasks ends the tasks that an agent left running in its data folder. A supervisor that
// still writes its files would make the removal of the test's folder fail.
func endTasks(t *testing.T, dataDir string) {
	t.Helper()
	if !filepath.IsAbs(dataDir) { // the folder must not match other processes
		t.Fatalf("the data folder %q is not absolute", dataDir)
	}
	if err := leftover.End(dataDir); err != nil {
		t.Error(err)
	}
}

func sh(script string) map[string]any {
	return map[string]any{"command": "sh", "args": []any{"-c", script}}
}

// TestTasksOutliveTheirAgent: tasks continue when the agent's process is killed or asked to
// end. The next agent adopts them, reports a missed exit, and can stop them.
func TestTasksOutliveTheirAgent(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) { testEndedAgent(t, signal) })
	}
}

func testEndedAgent(t *testing.T, signal syscall.Signal) {
	m, dir := newMaster(t), t.TempDir()
	gate := filepath.Join(dir, "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	starts := filepath.Join(dir, "starts")
	m.order(testOrder("aaaa", 1, "process", sh("echo $$ >>"+starts+"; echo up; sleep 3600")))
	m.order(testOrder("bbbb", 2, "process", sh("read x <"+gate+"; exit 5"), batch))
	data := filepath.Join(dir, "data")
	agent := startProcess(t, data, m.addr)
	m.untilState("aaaa", running)
	m.untilState("bbbb", running)
	if err := agent.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	if err := agent.Wait(); err != nil && signal == syscall.SIGTERM {
		t.Errorf("asked to end, the agent ended with %v", err)
	}
	m.until("the session to break", func() bool { return len(m.sessions) == 0 })
	m.set(func() { m.reports = map[string]*nusav1.AllocReport{} })
	// One task ends while no agent runs.
	if err := os.WriteFile(gate, []byte("go\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	agent = startProcess(t, data, m.addr)
	m.untilState("aaaa", running)
	if r := m.untilState("bbbb", failed); r.GetTasks()["main"].GetExitCode() != 5 {
		t.Errorf("the missed exit is reported as %v", r)
	}
	client := nusav1.NewAllocationsClient(m.conn())
	untilOutput(t, client, "up\n") // a task runs before its shell writes
	if out, _ := readLogs(t, client, &nusav1.LogsRequest{Allocation: "aaaa"}); out != "up\n" {
		t.Errorf("its output is %q", out)
	}
	text, err := os.ReadFile(starts)
	if err != nil || strings.Count(string(text), "\n") != 1 {
		t.Fatalf("started as processes %q: %v", text, err)
	}
	o := testOrder("aaaa", 3, "process", sh(""))
	o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
	m.order(o)
	m.untilState("aaaa", stopped)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("process %d is still there: %v", pid, err)
	}
	m.set(func() { m.box.DeleteAt(10, "aaaa"); m.box.DeleteAt(11, "bbbb") })
	m.until("both to be forgotten", func() bool { return len(m.reports) == 0 })
	_ = agent.Process.Signal(syscall.SIGTERM)
	if err := agent.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

// TestPausedTasksStartAgain: an agent that pauses stops its tasks and reports nothing. The
// next agent runs the tasks again as the same allocations. Completed tasks stay complete,
// and tasks that must stop are stopped.
func TestPausedTasksStartAgain(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	starts := filepath.Join(dir, "starts")
	// No restart is allowed, so a counted restart would fail the allocation.
	none := func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		g.Tasks["main"].Restart = &nusav1.Restart{Attempts: new(int32)}
	}
	m.order(testOrder("aaaa", 1, "process", sh("echo $$ >>"+starts+"; echo up; sleep 3600"), none))
	m.order(testOrder("bbbb", 2, "process", sh("exit 0"), batch, none))
	m.order(testOrder("cccc", 3, "process", sh("sleep 3600"), none))
	c := testConfig(t, filepath.Join(dir, "data"), nil, m.addr)
	self, _ := os.Executable()
	c.SupervisorArgv, c.PauseOnShutdown = []string{self, "supervise"}, true
	stop := runAgent(t, c)
	m.untilState("aaaa", running)
	m.untilState("bbbb", complete)
	m.untilState("cccc", running)
	polled(t, "the command to begin", func() bool { return lines(starts) == 1 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	paused := time.Now()
	m.mu.Lock()
	if m.goodbyes != 0 || m.reports["aaaa"].GetState() != running || m.reports["cccc"].GetState() != running {
		t.Errorf("%d goodbyes, reports %v", m.goodbyes, m.reports)
	}
	m.mu.Unlock()
	text, err := os.ReadFile(starts)
	if pid, _ := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || syscall.Kill(pid, 0) != syscall.ESRCH {
		t.Fatalf("process %q is still there: %v", text, err)
	}
	o := testOrder("cccc", 4, "process", sh(""))
	o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
	m.order(o)
	m.set(func() { m.reports = map[string]*nusav1.AllocReport{} })
	runAgent(t, c)
	m.until("the task to run again", func() bool {
		task := m.reports["aaaa"].GetTasks()["main"]
		return m.reports["aaaa"].GetState() == running && task.GetState() == running && task.GetRestarts() == 0
	})
	m.mu.Lock()
	if task := m.reports["aaaa"].GetTasks()["main"]; task.GetRun() != 2 || task.GetStarted().AsTime().Before(paused) {
		t.Errorf("its second run, after %v, is reported as %v", paused, task)
	}
	m.mu.Unlock()
	polled(t, "the command to begin again", func() bool { return lines(starts) == 2 })
	m.untilState("bbbb", complete)
	m.untilState("cccc", stopped)
	client := nusav1.NewAllocationsClient(m.conn())
	polled(t, "the output of both runs", func() bool {
		out, _ := readLogs(t, client, &nusav1.LogsRequest{Allocation: "aaaa"})
		return out == "up\nup\n"
	})
}

// TestRemoveOnShutdownRemovesEveryRun: an agent whose data directory will be deleted
// removes every run at its end, also stopped runs and runs that had ended earlier.
func TestRemoveOnShutdownRemovesEveryRun(t *testing.T) {
	m, drv := newMaster(t), newMock()
	m.order(testOrder("aaaa", 1, "mock", nil))
	m.order(testOrder("bbbb", 2, "mock", map[string]any{"run_time": "1ms"}, batch))
	c := testConfig(t, t.TempDir(), drv, m.addr)
	c.PauseOnShutdown, c.RemoveOnShutdown = true, true
	stop := runAgent(t, c)
	m.untilState("aaaa", running)
	m.untilState("bbbb", complete)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"aaaa", "bbbb"} {
		if st, err := drv.Status(t.Context(), driver.ID{Alloc: id, Task: "main", Run: 1}); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("%s is left: %+v, %v", id, st, err)
		}
	}
}

// lines returns the number of lines of a file, or 0 if the file cannot be read.
func lines(path string) int {
	text, _ := os.ReadFile(path)
	return strings.Count(string(text), "\n")
}

// polled waits for something that the agent does not report, for example something that a
// command does after its start.
func polled(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// TestEnvironment: variables, expansion and templates reach the command.
func TestEnvironment(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	script := `echo "$NUSA_JOB $NUSA_GROUP $NUSA_INDEX $NUSA_EPOCH $NUSA_PORT_http $ADDR $0"; cat local/app.conf; pwd; ls "$NUSA_ALLOC_DIR"`
	m.order(testOrder("aaaa", 1, "process", map[string]any{"command": "sh", "args": []any{"-c", script, "${NUSA_TASK}"}}, batch,
		func(o *nusav1.AllocOrder, g *nusav1.Group) {
			o.Allocation.Index = 4
			o.Allocation.Ports = map[string]int32{"http": 31234}
			g.Tasks["main"].Env = map[string]string{"ADDR": "127.0.0.1:${NUSA_PORT_http}"}
			g.Tasks["main"].Templates = []*nusav1.Template{{To: "local/app.conf", Text: "alloc ${NUSA_ALLOC_ID} of ${HOME}\n"}}
		}))
	m.order(testOrder("bbbb", 2, "process", map[string]any{"command": "${NUSA_WRONG}"}))
	c := testConfig(t, dir, nil, m.addr)
	self, _ := os.Executable()
	c.SupervisorArgv = []string{self, "supervise"}
	runAgent(t, c)
	m.untilState("aaaa", complete)
	want := fmt.Sprintf("job web 4 42.3 31234 127.0.0.1:31234 main\nalloc aaaa of ${HOME}\n%s\n", filepath.Join(dir, "allocs", "aaaa", "tasks", "main"))
	if out, errs := readLogs(t, nusav1.NewAllocationsClient(m.conn()), &nusav1.LogsRequest{Allocation: "aaaa"}); out != want || errs != "" {
		t.Errorf("printed %q and %q, want %q", out, errs, want)
	}
	if r := m.untilState("bbbb", failed); !r.GetDeclined() || r.GetReason() != nusav1.Reason_REASON_UNSUPPORTED || !strings.Contains(r.GetMessage(), "NUSA_WRONG") {
		t.Errorf("an unknown variable: %v", r)
	}
}

// TestRestartPolicy: a service that exits is restarted by its policy, and the
// output of the latest runs is retained.
func TestRestartPolicy(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	m.order(testOrder("aaaa", 1, "process", sh("echo run; exit 0"), func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		two := int32(2)
		g.Tasks["main"].Restart = &nusav1.Restart{Attempts: &two, Delay: durationMillis(10)}
	}))
	c := testConfig(t, dir, nil, m.addr)
	self, _ := os.Executable()
	c.SupervisorArgv = []string{self, "supervise"}
	runAgent(t, c)
	r := m.untilState("aaaa", failed)
	if r.GetReason() != nusav1.Reason_REASON_RESTARTS_EXHAUSTED || r.GetTasks()["main"].GetRestarts() != 2 || r.GetTasks()["main"].GetRun() != 3 || len(r.GetTasks()["main"].GetEvents()) != 8 {
		t.Errorf("ended as %v", r)
	}
	if out, _ := readLogs(t, nusav1.NewAllocationsClient(m.conn()), &nusav1.LogsRequest{Allocation: "aaaa", Follow: true}); out != "run\nrun\n" {
		t.Errorf("the output of the two latest runs is %q", out)
	}
}

// TestStartLatency measures the time from the order to the running report.
func TestStartLatency(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	c := testConfig(t, dir, nil, m.addr)
	self, _ := os.Executable()
	c.SupervisorArgv = []string{self, "supervise"}
	runAgent(t, c)
	m.untilSession()
	m.order(testOrder("warm", 1, "process", sh("sleep 60")))
	m.untilState("warm", running)
	began := time.Now()
	m.order(testOrder("fast", 2, "process", sh("sleep 60")))
	m.untilState("fast", running)
	t.Logf("order to running report: %s", time.Since(began))
	for i, id := range []string{"warm", "fast"} {
		m.set(func() { m.box.DeleteAt(uint64(10+i), id) })
	}
	m.until("both to be stopped", func() bool { return len(m.reports) == 0 })
}
