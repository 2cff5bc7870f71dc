package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/store"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// smallDisk returns an empty folder on a separate disk of size bytes.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: to mount a small disk takes root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+strconv.Itoa(size)); err != nil {
		t.Skipf("skipped: no small disk can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			block = block[:len(block)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDiskDeclinesNewWork: another program fills the disk of the data folder. Running
// tasks continue. They are not blocked by output that cannot be stored, and they can be
// stopped. Their ends are reported with their exit codes, also by the next agent after a
// kill. New work is declined with a clear reason until the disk has space again.
func TestFullDiskDeclinesNewWork(t *testing.T) {
	disk, dir := smallDisk(t, 24<<20), t.TempDir()
	m := newMaster(t)
	gates := map[string]string{}
	for _, id := range []string{"aaaa", "bbbb"} {
		gates[id] = filepath.Join(dir, id)
		if err := syscall.Mkfifo(gates[id], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func(id, word string) {
		t.Helper()
		if err := os.WriteFile(gates[id], []byte(word+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	said := filepath.Join(dir, "said")
	m.order(testOrder("aaaa", 1, "process", sh("exec 3<>"+gates["aaaa"]+"; echo up $$; while read x <&3; do head -c 100000 /dev/zero | tr '\\0' x; echo $x; echo $x >>"+said+"; done")))
	m.order(testOrder("bbbb", 2, "process", sh("read x <"+gates["bbbb"]+"; exit 5"), batch))
	m.order(testOrder("dddd", 3, "process", sh("sleep 3600")))
	data := filepath.Join(disk, "data")
	agent := startProcess(t, data, m.addr)
	for _, id := range []string{"aaaa", "bbbb", "dddd"} {
		m.untilState(id, running)
	}
	before := statusOf(t, filepath.Join(data, "process", "aaaa", "main.1", "status.json"))
	client := nusav1.NewAllocationsClient(m.conn())
	polled(t, "the first line, which else would be lost too", func() bool {
		out, _ := readLogs(t, client, &nusav1.LogsRequest{Allocation: "aaaa"})
		return strings.HasPrefix(out, "up ") && strings.HasSuffix(out, "\n")
	})
	filler := filepath.Join(disk, "filler")
	fill(t, filler)

	m.order(testOrder("cccc", 4, "process", sh("sleep 3600")))
	if r := m.untilState("cccc", failed); !r.GetDeclined() || r.GetReason() != nusav1.Reason_REASON_INSUFFICIENT_DISK || !strings.Contains(r.GetMessage(), "bytes are free on the disk of the data folder") {
		t.Errorf("new work: %v", r)
	}
	open("aaaa", "full")
	polled(t, "a task not to wait for its output", func() bool { return lines(said) == 1 })
	open("bbbb", "go")
	if r := m.untilState("bbbb", failed); r.GetTasks()["main"].GetExitCode() != 5 {
		t.Errorf("an end meanwhile: %v", r)
	}
	o := testOrder("dddd", 5, "process", sh(""))
	o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
	m.order(o)
	m.untilState("dddd", stopped)

	_ = agent.Process.Kill()
	_ = agent.Wait()
	m.until("the session to break", func() bool { return len(m.sessions) == 0 })
	m.set(func() { m.reports = map[string]*nusav1.AllocReport{} })
	agent = startProcess(t, data, m.addr)
	m.untilState("aaaa", running)
	for id, state := range map[string]nusav1.AllocState{"bbbb": failed, "cccc": failed, "dddd": stopped} {
		m.untilState(id, state)
	}

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	m.order(testOrder("eeee", 6, "process", sh("sleep 3600")))
	m.untilState("eeee", running)
	open("aaaa", "room")
	polled(t, "the task to go on", func() bool { return lines(said) == 2 })
	if after := statusOf(t, filepath.Join(data, "process", "aaaa", "main.1", "status.json")); after["PID"] != before["PID"] {
		t.Errorf("it ran as %v, now as %v", before["PID"], after["PID"])
	}
	client = nusav1.NewAllocationsClient(m.conn())
	out := ""
	defer func() {
		if t.Failed() {
			t.Logf("its log has %d bytes: %.40q … %q", len(out), out, out[max(0, len(out)-200):])
		}
	}()
	polled(t, "the log to say what it lacks", func() bool {
		out, _ = readLogs(t, client, &nusav1.LogsRequest{Allocation: "aaaa"})
		return strings.HasPrefix(out, "up ") && strings.Contains(out, "bytes of output were lost here: write stdout.0: no space left on device]") &&
			strings.HasSuffix(out, "xxx"+"room\n")
	})
	m.set(func() {
		for i, id := range []string{"aaaa", "bbbb", "cccc", "dddd", "eeee"} {
			m.box.DeleteAt(uint64(10+i), id)
		}
	})
	m.until("all to be forgotten", func() bool { return len(m.reports) == 0 })
	_ = agent.Process.Signal(syscall.SIGTERM)
	if err := agent.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

// runWithStore runs an agent whose store fails while broken is set.
func runWithStore(t *testing.T, cfg Config, broken *atomic.Bool) (stop func() error) {
	t.Helper()
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := serve.OpenDataDir(cfg.DataDir, "agent/"+cfg.Region, "")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err = cfg.withParts()
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(dir.Path("agent.db"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := assemble(t.Context(), cfg, dir, st, func(b store.Batch) error {
		if broken.Load() {
			return syscall.ENOSPC
		}
		return st.Write(b)
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	web, err := serve.Open(t.Context(), serve.Options{Net: cfg.Net, Logger: cfg.Logger, HTTPAddr: "-"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx, web) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return errors.Join(err, st.Close(), dir.Close())
		case <-time.After(patience):
			t.Error("the agent does not end")
			return nil
		}
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// TestFailingStoreDelaysEnds: while nothing can be stored, stop orders are executed, ends
// are not reported, new orders are declined, and nothing is acknowledged. Later everything
// is stored and reported. If the agent dies before that, the next agent gets the same
// orders again.
func TestFailingStoreDelaysEnds(t *testing.T) {
	m, mock, dir := newMaster(t), newMock(), t.TempDir()
	broken := &atomic.Bool{}
	cfg := testConfig(t, dir, mock, m.addr)
	m.order(testOrder("aaaa", 1, "mock", nil))
	m.order(testOrder("bbbb", 2, "mock", nil, batch))
	m.order(testOrder("cccc", 3, "mock", nil))
	stop := runWithStore(t, cfg, broken)
	for _, id := range []string{"aaaa", "bbbb", "cccc"} {
		m.untilState(id, running)
	}
	m.until("the orders to be acknowledged", func() bool { return m.acked.Sequence == 3 })
	broken.Store(true)
	if err := mock.Exit(driver.ID{Alloc: "bbbb", Task: "main", Run: 1}, 3); err != nil {
		t.Fatal(err)
	}
	o := testOrder("aaaa", 4, "mock", nil)
	o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
	m.order(o)
	m.order(testOrder("dddd", 5, "mock", nil))
	if r := m.untilState("dddd", failed); !r.GetDeclined() || r.GetReason() != nusav1.Reason_REASON_INSUFFICIENT_DISK || !strings.Contains(r.GetMessage(), "local store: no space left on device") {
		t.Errorf("a new order: %v", r)
	}
	for _, id := range []string{"aaaa", "bbbb"} {
		polled(t, "the task to end", func() bool {
			st, err := mock.Status(t.Context(), driver.ID{Alloc: id, Task: "main", Run: 1})
			return err == nil && st.State == driver.Ended
		})
	}
	m.mu.Lock()
	if a, b := m.reports["aaaa"].GetState(), m.reports["bbbb"].GetState(); a != running || b != running || m.acked.Sequence != 3 {
		t.Errorf("reported before it is durable: %v and %v, orders acknowledged up to %d", a, b, m.acked.Sequence)
	}
	m.mu.Unlock()
	if err := stop(); err == nil {
		t.Error("it ended without an error although records are not stored")
	}
	m.until("the session to break", func() bool { return len(m.sessions) == 0 })

	// Start the agent again. This time the store recovers. The region has placed the declined
	// allocation on another node.
	m.set(func() { m.box.DeleteAt(6, "dddd") })
	m.order(testOrder("ffff", 7, "mock", nil))
	stop = runWithStore(t, cfg, broken)
	if r := m.untilState("ffff", failed); !r.GetDeclined() {
		t.Errorf("a new order: %v", r)
	}
	broken.Store(false)
	m.untilState("aaaa", stopped)
	if r := m.untilState("bbbb", failed); r.GetTasks()["main"].GetExitCode() != 3 {
		t.Errorf("the end: %v", r)
	}
	m.order(testOrder("eeee", 8, "mock", nil))
	m.untilState("eeee", running)
	m.until("the orders to be acknowledged", func() bool { return m.acked.Sequence == 8 })
	if err := stop(); err != nil {
		t.Errorf("ended with %v", err)
	}
	m.until("the session to break", func() bool { return len(m.sessions) == 0 })
	m.set(func() { m.reports = map[string]*nusav1.AllocReport{}; m.position.Epoch = "" })
	runAgent(t, cfg)
	for id, state := range map[string]nusav1.AllocState{"aaaa": stopped, "bbbb": failed, "cccc": running, "ffff": failed, "eeee": running} {
		m.untilState(id, state)
	}
}
