package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/agent/driver/plugin"
	"github.com/nusa-scheduler/nusa/agent/facts"
	"github.com/nusa-scheduler/nusa/agent/master"
	"github.com/nusa-scheduler/nusa/agent/store"
	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/internal/boottime"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestMain lets the test's executable also run as a supervisor, as an agent that can be
// killed, or as a small server.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervise.Main(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		os.Exit(agentProcess(os.Args[2], os.Args[3]))
	}
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		os.Exit(serveWord(os.Args[2], os.Args[3]))
	}
	if plugin.Dir() != "" {
		if err := testPlugin(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(leftover.M{M: m})
}

// smallHost returns a host for tests with four cores and 4 GiB.
func smallHost() facts.Source {
	return facts.Source{
		Static: func(context.Context) (*nusav1.HostFacts, error) {
			return &nusav1.HostFacts{Hostname: "test", CpuCores: 4, MemoryBytes: 4 << 30,
				Disks: []*nusav1.DiskFacts{{Device: "d", Mount: "/", TotalBytes: 1 << 40}}}, nil
		},
		Stats: func(context.Context) (*nusav1.NodeStats, error) { return &nusav1.NodeStats{Cpu: 0.5}, nil },
	}
}

func testConfig(t *testing.T, dir string, drv driver.Driver, servers ...string) Config {
	t.Helper()
	level := slog.LevelError
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	c := Config{Region: "test", Name: "node", DataDir: dir, Servers: servers, HTTPAddr: "-", Facts: smallHost(),
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level}))}
	if drv != nil {
		c.Drivers = map[string]driver.Driver{"mock": drv}
	}
	return c
}

// runAgent runs an agent until stop is called. stop returns the agent's error.
func runAgent(t *testing.T, c Config) (stop func() error) {
	t.Helper()
	return runAgentReady(t, c, func(Addresses) {})
}

func runAgentReady(t *testing.T, c Config, onReady func(Addresses)) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	c.Ready = func(a Addresses) { onReady(a); close(ready) }
	go func() { done <- Run(ctx, c) }()
	var err error
	stopped := false
	stop = func() error {
		cancel()
		if !stopped {
			select {
			case err = <-done:
			case <-time.After(patience):
				t.Error("the agent does not end")
			}
			stopped = true
		}
		return err
	}
	t.Cleanup(func() {
		_ = stop()
		endTasks(t, c.DataDir)
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
	case <-time.After(patience):
		t.Fatal("the agent is not ready")
	}
	return stop
}

// TestStopWhileStarting: an agent that is stopped while it starts ends without an error.
func TestStopWhileStarting(t *testing.T) {
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		c := testConfig(t, t.TempDir(), newMock(), "127.0.0.1:1")
		c.Ready = func(Addresses) { cancel() }
		if err := Run(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
}

func newMock() *mock.Driver { return mock.New(mock.Config{Clock: boottime.Now}) }

func newMaster(t *testing.T) *server {
	m := newServer(t)
	m.master, m.servers = true, []string{m.addr}
	return m
}

const (
	running  = nusav1.AllocState_ALLOC_STATE_RUNNING
	complete = nusav1.AllocState_ALLOC_STATE_COMPLETE
	failed   = nusav1.AllocState_ALLOC_STATE_FAILED
	stopped  = nusav1.AllocState_ALLOC_STATE_STOPPED
)

func TestRunsWhatIsOrdered(t *testing.T) {
	m, drv := newMaster(t), newMock()
	m.order(testOrder("aaaa", 1, "mock", nil))
	m.order(testOrder("bbbb", 2, "mock", map[string]any{"run_time": "1ms"}, batch))
	m.order(testOrder("cccc", 3, "mock", map[string]any{"run_time": "1ms", "exit_code": 3}, batch))
	m.order(testOrder("dddd", 4, "nothing", nil))
	stop := runAgent(t, testConfig(t, t.TempDir(), drv, m.addr))
	m.untilState("aaaa", running)
	m.untilState("bbbb", complete)
	if r := m.untilState("cccc", failed); r.GetTasks()["main"].GetExitCode() != 3 || r.GetReason() != nusav1.Reason_REASON_EXITED || r.GetDeclined() {
		t.Errorf("failed as %v", r)
	}
	if r := m.untilState("dddd", failed); r.GetReason() != nusav1.Reason_REASON_DRIVER_MISSING || !r.GetDeclined() {
		t.Errorf("declined as %v", r)
	}
	m.until("statistics with the task", func() bool {
		return len(m.stats) > 0 && m.stats[len(m.stats)-1].GetTasks() == 1 && m.stats[0].GetCpu() == 0.5
	})
	o := testOrder("aaaa", 5, "mock", nil)
	o.Allocation.Desired, o.Allocation.Reason = nusav1.AllocDesired_ALLOC_DESIRED_STOP, nusav1.Reason_REASON_SUPERSEDED
	m.order(o)
	if r := m.untilState("aaaa", stopped); r.GetReason() != nusav1.Reason_REASON_SUPERSEDED || r.GetIndex() != 5 {
		t.Errorf("stopped as %v", r)
	}
	m.set(func() { m.box.DeleteAt(6, "aaaa") })
	m.until("the report to go", func() bool { return m.reports["aaaa"] == nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if len(m.hellos) != 1 || m.hellos[0].GetClusterId() != "" || m.hellos[0].GetInventory().GetCapacity().GetCpuMilli() != 4000 {
		t.Errorf("hellos %v", m.hellos)
	}
}

// TestRestartAdoptsRuns: after a restart running tasks are adopted, missed ends are
// reported, no run starts twice, and the position of the orders resumes.
func TestRestartAdoptsRuns(t *testing.T) {
	m, drv, dir := newMaster(t), newMock(), t.TempDir()
	m.order(testOrder("aaaa", 1, "mock", nil))
	m.order(testOrder("bbbb", 2, "mock", nil, batch))
	stop := runAgent(t, testConfig(t, dir, drv, m.addr))
	m.untilState("aaaa", running)
	m.untilState("bbbb", running)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	m.set(func() { m.reports = map[string]*nusav1.AllocReport{} })
	if err := drv.Exit(driver.ID{Alloc: "bbbb", Task: "main", Run: 1}, 143); err != nil {
		t.Fatal(err)
	}
	stop = runAgent(t, testConfig(t, dir, drv, m.addr))
	m.untilState("aaaa", running)
	m.untilState("bbbb", failed)
	for _, id := range []string{"aaaa", "bbbb"} {
		if n := drv.Starts(driver.ID{Alloc: id, Task: "main", Run: 1}); n != 1 {
			t.Errorf("%s was started %d times", id, n)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	h := m.hellos[len(m.hellos)-1]
	if h.GetNodeId() != m.hellos[0].GetNodeId() || h.GetClusterId() != "cluster-1" {
		t.Errorf("after the restart it presents itself as %v", h)
	}
	if h.GetIndex() != 2 || h.GetOrders().GetSequence() == 0 {
		t.Errorf("it resumes at %v with index %d", h.GetOrders(), h.GetIndex())
	}
}

// TestUncommittedReportsAreSentAgain: the agent sends reports again that no master has
// committed. It sends them in its next session, and after a restart.
func TestUncommittedReportsAreSentAgain(t *testing.T) {
	m, drv, dir := newMaster(t), newMock(), t.TempDir()
	m.noAck = true
	m.order(testOrder("aaaa", 1, "mock", map[string]any{"run_time": "1ms"}, batch))
	stop := runAgent(t, testConfig(t, dir, drv, m.addr))
	m.until("the orders to be stored", func() bool { return m.acked.Sequence == 1 })
	m.kick()
	m.until("a second session", func() bool { return len(m.hellos) >= 2 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	m.set(func() { m.noAck = false })
	runAgent(t, testConfig(t, dir, drv, m.addr))
	m.untilState("aaaa", complete)
	if n := drv.Starts(driver.ID{Alloc: "aaaa", Task: "main", Run: 1}); n != 1 {
		t.Errorf("started %d times", n)
	}
}

// TestOlderOrderChangesNothing: an order that is older than the stored order changes
// nothing. The agent reports the stored order again.
func TestOlderOrderChangesNothing(t *testing.T) {
	m, drv := newMaster(t), newMock()
	m.order(testOrder("aaaa", 7, "mock", nil))
	runAgent(t, testConfig(t, t.TempDir(), drv, m.addr))
	m.untilState("aaaa", running)
	m.set(func() {
		delete(m.reports, "aaaa")
		old := testOrder("aaaa", 3, "mock", nil)
		old.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
		m.box.PutAt(8, "aaaa", old)
	})
	if r := m.untilState("aaaa", running); r.GetIndex() != 7 {
		t.Errorf("it reports order %d", r.GetIndex())
	}
	// A later incarnation has priority, even with a smaller index.
	o := testOrder("aaaa", 1, "mock", nil)
	o.Incarnation, o.Allocation.Desired = 2, nusav1.AllocDesired_ALLOC_DESIRED_STOP
	m.set(func() { m.box.PutAt(9, "aaaa", o) })
	m.untilState("aaaa", stopped)
}

// TestBrokenSessionsLoseNothing: sessions that break at any time lose no order and
// start no run twice.
func TestBrokenSessionsLoseNothing(t *testing.T) {
	m, drv := newMaster(t), newMock()
	runAgent(t, testConfig(t, t.TempDir(), drv, m.addr))
	var ids []string
	for i := range 20 {
		id := "alloc-" + string(rune('a'+i))
		ids = append(ids, id)
		m.order(testOrder(id, uint64(i+1), "mock", nil))
		if i%3 == 0 {
			m.kick()
		}
	}
	for _, id := range ids {
		m.untilState(id, running)
		if n := drv.Starts(driver.ID{Alloc: id, Task: "main", Run: 1}); n != 1 {
			t.Errorf("%s was started %d times", id, n)
		}
	}
}

// TestFullSetForgets: allocations that a full set does not contain are stopped and
// removed.
func TestFullSetForgets(t *testing.T) {
	m, drv := newMaster(t), newMock()
	m.order(testOrder("aaaa", 1, "mock", nil))
	m.order(testOrder("bbbb", 2, "mock", nil))
	runAgent(t, testConfig(t, t.TempDir(), drv, m.addr))
	m.untilState("aaaa", running)
	m.untilState("bbbb", running)
	next := newServer(t)
	next.set(func() {
		m.set(func() { m.master = false })
		next.mark.Term = 2
		next.master = true
		next.box = newServer(t).box
		next.box.PutAt(10, "bbbb", testOrder("bbbb", 2, "mock", nil))
		next.box.PutAt(11, "cccc", testOrder("cccc", 11, "mock", nil))
		next.box.ForgetUpTo(11)
	})
	m.set(func() { m.hint, m.servers = next.addr, []string{m.addr, next.addr} })
	m.kick()
	next.untilState("cccc", running)
	next.untilState("bbbb", running)
	next.until("aaaa to be forgotten", func() bool { return next.reports["aaaa"] == nil })
	for _, id := range drv.Running() {
		if id.Alloc == "aaaa" {
			t.Error("aaaa still runs")
		}
	}
}

// TestRetainedOutputIsBounded: only the latest output of ended allocations is
// retained.
func TestRetainedOutputIsBounded(t *testing.T) {
	m, drv := newMaster(t), newMock()
	c := testConfig(t, t.TempDir(), drv, m.addr)
	c.MaxRetainedBytes = 10
	runAgent(t, c)
	size := func(id string) int64 {
		n, err := drv.Size(t.Context(), driver.ID{Alloc: id, Task: "main", Run: 1})
		if err != nil {
			t.Error(err)
		}
		return n
	}
	for i, id := range []string{"aaaa", "bbbb", "cccc"} {
		m.order(testOrder(id, uint64(i+1), "mock", map[string]any{"stdout": "1234567", "run_time": "1ms"}, batch))
		m.untilState(id, complete)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); size("aaaa")+size("bbbb") > 0; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("kept are %d, %d, %d bytes", size("aaaa"), size("bbbb"), size("cccc"))
		}
	}
	if size("cccc") != 7 {
		t.Errorf("of the latest %d bytes are kept", size("cccc"))
	}
	stream, err := nusav1.NewAllocationsClient(m.conn()).Logs(t.Context(), &nusav1.LogsRequest{Allocation: "aaaa"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "not retained any more") {
		t.Errorf("the log of the oldest: %v", err)
	}
}

func TestFatalErrorsEndTheAgent(t *testing.T) {
	m := newMaster(t)
	dir := t.TempDir()
	stop := runAgent(t, testConfig(t, dir, newMock(), m.addr))
	m.untilSession()
	m.until("statistics", func() bool { return len(m.stats) > 0 })
	if err := Run(t.Context(), testConfig(t, dir, newMock(), m.addr)); !errors.Is(err, serve.ErrDirInUse) {
		t.Errorf("a second agent: %v", err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	m.set(func() { m.cluster = "another" })
	if err := Run(t.Context(), testConfig(t, dir, newMock(), m.addr)); !errors.Is(err, serve.ErrOtherCluster) {
		t.Errorf("another cluster: %v", err)
	}
	c := testConfig(t, dir, newMock(), m.addr)
	c.Region = "elsewhere"
	if err := Run(t.Context(), c); !errors.Is(err, serve.ErrOtherRole) {
		t.Errorf("another region: %v", err)
	}
	m.set(func() { m.refuse = &nusav1.Refused{Message: "banned", Permanent: true} })
	if err := Run(t.Context(), testConfig(t, t.TempDir(), newMock(), m.addr)); !errors.Is(err, master.ErrRefused) || !strings.Contains(err.Error(), "banned") {
		t.Errorf("refused: %v", err)
	}
	if err := Run(t.Context(), Config{}); err == nil || !strings.Contains(err.Error(), "--region") {
		t.Errorf("no region: %v", err)
	}
}

// TestInventoryIsSentOnce: the inventory is in the hello and is not sent again.
func TestInventoryIsSentOnce(t *testing.T) {
	m := newMaster(t)
	c := testConfig(t, t.TempDir(), newMock(), m.addr)
	c.VolumesAllow = []string{"/srv", "/mnt/"}
	runAgent(t, c)
	m.until("several statistics", func() bool { return len(m.stats) >= 2 })
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.invs) != 0 {
		t.Errorf("%d inventories were sent again", len(m.invs))
	}
	if allow := m.hellos[0].GetInventory().GetVolumesAllow(); !slices.Equal(allow.GetFolders(), []string{"/mnt", "/srv"}) {
		t.Errorf("allowed are %v", allow)
	}
}

// TestReadyMeansConnected: /readyz succeeds only with a session with the master. /livez
// succeeds without one.
func TestReadyMeansConnected(t *testing.T) {
	m := newServer(t)
	c := testConfig(t, t.TempDir(), newMock(), m.addr)
	c.HTTPAddr = "127.0.0.1:0"
	addr := make(chan string, 1)
	runAgentReady(t, c, func(a Addresses) { addr <- a.HTTP })
	base := "http://" + <-addr
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	defer http.DefaultClient.CloseIdleConnections()
	if code, _ := get("/livez"); code != http.StatusOK {
		t.Errorf("live: %d", code)
	}
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, errNotConnected.Error()) {
		t.Errorf("ready without a master: %d %s", code, body)
	}
	m.set(func() { m.master = true })
	m.order(testOrder("aaaa", 1, "mock", nil))
	m.untilState("aaaa", running)
	if code, body := get("/readyz"); code != http.StatusOK {
		t.Errorf("ready: %d %s", code, body)
	}
	_, body := get("/metrics")
	for _, want := range []string{`nusa_agent_allocations{state="running"} 1`, "nusa_agent_tasks 1", "nusa_agent_connected 1", `nusa_agent_actions_total{kind="start"} 1`} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// TestRunWithoutRecordIsAdopted: the agent is killed after it began two runs and before it
// recorded them. The next agent adopts both runs, although one holds a port and the other
// must stop.
func TestRunWithoutRecordIsAdopted(t *testing.T) {
	m, drv, dir := newMaster(t), newMock(), t.TempDir()
	c := testConfig(t, dir, drv, m.addr)
	m.order(testOrder("aaaa", 1, "mock", nil))
	m.order(testOrder("bbbb", 2, "mock", nil))
	stop := runAgent(t, c)
	m.untilState("aaaa", running)
	m.untilState("bbbb", running)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(filepath.Join(dir, "agent.db"))
	if err != nil {
		t.Fatal(err)
	}
	o := testOrder("bbbb", 3, "mock", nil)
	o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
	err = errors.Join(
		st.Write(store.OrderBatch([]*nusav1.AllocOrder{o}, nil, link.Position{Epoch: "raft", Sequence: 2})), st.Close(),
		removeRecords(filepath.Join(dir, "agent.db"), "aaaa", "bbbb"))
	if err != nil {
		t.Fatal(err)
	}
	m.set(func() { m.reports = map[string]*nusav1.AllocReport{} })
	m.order(o)
	runAgent(t, c)
	m.untilState("aaaa", running)
	m.untilState("bbbb", stopped)
	if got := drv.Running(); len(got) != 1 || got[0].Alloc != "aaaa" {
		t.Errorf("running: %v", got)
	}
}

// removeRecords deletes records of allocations from a store that is closed.
func removeRecords(path string, ids ...string) error {
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	return errors.Join(db.Update(func(tx *bolt.Tx) error {
		for _, id := range ids {
			if err := tx.Bucket([]byte("records")).Delete([]byte(id)); err != nil {
				return err
			}
		}
		return nil
	}), db.Close())
}

// TestFirstReportsAreComplete: the full set after a restart contains every running
// allocation, so that the master does not release their resources.
func TestFirstReportsAreComplete(t *testing.T) {
	m, drv, dir := newMaster(t), newMock(), t.TempDir()
	for i := range 30 {
		m.order(testOrder(fmt.Sprintf("alloc%d", i), uint64(i+1), "mock", nil))
	}
	stop := runAgent(t, testConfig(t, dir, drv, m.addr))
	m.until("all to run", func() bool { return len(m.reports) == 30 })
	for range 5 {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		m.set(func() { m.fulls = nil })
		stop = runAgent(t, testConfig(t, dir, drv, m.addr))
		m.until("a full set", func() bool { return len(m.fulls) > 0 })
		m.mu.Lock()
		if m.fulls[0] != 30 {
			t.Errorf("the first full set has %d of 30 reports", m.fulls[0])
		}
		m.mu.Unlock()
	}
}
