package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/agent/store"
	"github.com/nusa-scheduler/nusa/internal/boottime"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// punctual is a driver that checks that the deadline of each start is in the future.
type punctual struct {
	*mock.Driver
	t *testing.T

	mu     sync.Mutex
	starts int
}

func (p *punctual) Start(ctx context.Context, task driver.Task) error {
	p.mu.Lock()
	p.starts++
	p.mu.Unlock()
	if now := boottime.Now(); task.Lease.At <= now {
		p.t.Errorf("%s starts at %s, after its deadline %s", task.ID, now, task.Lease.At)
	}
	return p.Driver.Start(ctx, task)
}

func (p *punctual) asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts
}

const artifact = "data"

// gate is a server of an artifact. It responds only after it is opened.
type gate struct {
	url     string
	reached chan struct{}
	open    chan struct{}
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{reached: make(chan struct{}), open: make(chan struct{})}
	var once sync.Once
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(g.reached) })
		select {
		case <-g.open:
			fmt.Fprint(w, artifact)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(srv.Close)
	g.url = srv.URL + "/data"
	return g
}

// slowOrder returns an order for a task that a lease binds. The preparation of the task
// waits for the gate.
func slowOrder(g *gate, binding nusav1.LeaseBinding) *nusav1.AllocOrder {
	return testOrder("slow", 1, "mock", nil, func(o *nusav1.AllocOrder, group *nusav1.Group) {
		o.Binding = binding
		group.Tasks["main"].Artifacts = []*nusav1.Artifact{{Source: g.url, To: "data", Checksum: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(artifact)))}}
	})
}

func untilClosed(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal("waited for " + what)
	}
}

// TestSetupLongerThanTheLease: a task whose preparation takes longer than its lease starts
// nevertheless. The lease is renewed meanwhile, and the latest deadline counts.
func TestSetupLongerThanTheLease(t *testing.T) {
	for _, b := range []nusav1.LeaseBinding{nusav1.LeaseBinding_LEASE_BINDING_NODE, nusav1.LeaseBinding_LEASE_BINDING_REGION, nusav1.LeaseBinding_LEASE_BINDING_BOTH} {
		t.Run(b.String(), func(t *testing.T) {
			m, drv, g := newMaster(t), &punctual{Driver: newMock(), t: t}, newGate(t)
			m.lease, m.regionLeft = time.Second, time.Second
			m.order(slowOrder(g, b))
			c := testConfig(t, t.TempDir(), drv, m.addr)
			c.ArtifactsAllow = []string{"127.0.0.1/32"}
			runAgent(t, c)
			untilClosed(t, "the preparation", g.reached)
			began := boottime.Now()
			polled(t, "the leases to pass", func() bool { return boottime.Now() > began+5*time.Second/2 })
			close(g.open)
			if task := m.untilState("slow", running).GetTasks()["main"]; task.GetRun() != 1 {
				t.Errorf("reported as %v", task)
			}
		})
	}
}

// TestFirstTaskThatTheRegionsLeaseBinds: no task on the node is bound by the region's
// lease, so the agent asks only as often as the node's lease requires. After the first
// order for such a task the agent asks at once, because the region's lease that it knows
// has ended.
func TestFirstTaskThatTheRegionsLeaseBinds(t *testing.T) {
	m := newMaster(t)
	m.lease, m.regionLeft = time.Hour, 100*time.Millisecond
	m.order(testOrder("free", 1, "mock", nil))
	runAgent(t, testConfig(t, t.TempDir(), newMock(), m.addr))
	m.untilState("free", running)
	began := boottime.Now()
	polled(t, "the region's lease to end", func() bool { return boottime.Now() > began+200*time.Millisecond })
	m.set(func() { m.regionLeft = time.Hour })
	m.order(testOrder("regn", 2, "mock", nil, func(o *nusav1.AllocOrder, _ *nusav1.Group) {
		o.Binding = nusav1.LeaseBinding_LEASE_BINDING_REGION
	}))
	m.untilState("regn", running)
}

// TestLeaseEndsDuringSetup: a lease ends while a task is being prepared. The task is not
// started. It has not failed, and it starts when the lease is back.
func TestLeaseEndsDuringSetup(t *testing.T) {
	m, drv, g := newMaster(t), &punctual{Driver: newMock(), t: t}, newGate(t)
	m.lease, m.regionLeft = 3*time.Second, 500*time.Millisecond
	m.order(slowOrder(g, nusav1.LeaseBinding_LEASE_BINDING_BOTH))
	c := testConfig(t, t.TempDir(), drv, m.addr)
	c.ArtifactsAllow = []string{"127.0.0.1/32"}
	runAgent(t, c)
	untilClosed(t, "the preparation", g.reached)
	m.set(func() { m.regionLeft = 0 })
	began := boottime.Now()
	polled(t, "the lease to end", func() bool { return boottime.Now() > began+time.Second })
	close(g.open)
	m.until("a reason", func() bool { return m.reports["slow"].GetReason() == nusav1.Reason_REASON_REGION_LEASE })
	if n := drv.asked(); n != 0 {
		t.Errorf("asked to start %d times without a lease", n)
	}
	m.set(func() { m.regionLeft = 10 * time.Second })
	if task := m.untilState("slow", running).GetTasks()["main"]; task.GetRestarts() != 0 || drv.asked() != 1 {
		t.Errorf("asked %d times, reported as %v", drv.asked(), task)
	}
}

// TestKilledAgentLeavesTheDeadline: an agent is killed, and its region's lease ends while
// no agent runs. The supervisor ends the command at its deadline. The next agent has no
// lease. It reports that the task waits, and starts the task again in place when the lease
// is back.
func TestKilledAgentLeavesTheDeadline(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	starts := filepath.Join(dir, "starts")
	m.lease, m.regionLeft = 3*time.Second, 3*time.Second
	m.order(testOrder("aaaa", 1, "process", sh("echo $$ >>"+starts+"; exec sleep 3600"), func(o *nusav1.AllocOrder, _ *nusav1.Group) {
		o.Binding = nusav1.LeaseBinding_LEASE_BINDING_BOTH
	}))
	data := filepath.Join(dir, "data")
	agent := startProcess(t, data, m.addr)
	m.untilState("aaaa", running)
	polled(t, "the command to begin", func() bool { return lines(starts) == 1 })
	_ = agent.Process.Kill()
	_ = agent.Wait()
	m.until("the session to break", func() bool { return len(m.sessions) == 0 })
	m.set(func() { m.regionLeft, m.reports = 0, map[string]*nusav1.AllocReport{} })
	pid, err := os.ReadFile(starts)
	if err != nil {
		t.Fatal(err)
	}
	polled(t, "the supervisor to end the command", func() bool {
		_, err := os.Stat("/proc/" + strings.TrimSpace(string(pid)))
		return errors.Is(err, os.ErrNotExist)
	})
	startProcess(t, data, m.addr)
	var r *nusav1.AllocReport
	m.until("the task to wait", func() bool { r = m.reports["aaaa"]; return r.GetReason() == nusav1.Reason_REASON_REGION_LEASE })
	// If the agent was killed before it stored that the task runs, the task is starting.
	starting := nusav1.AllocState_ALLOC_STATE_STARTING
	if task := r.GetTasks()["main"]; r.GetState() != running && r.GetState() != starting || task.GetState() != stopped {
		t.Errorf("reported as %v", r)
	}
	m.set(func() { m.regionLeft = 10 * time.Second })
	m.until("the task to run again", func() bool {
		task := m.reports["aaaa"].GetTasks()["main"]
		return m.reports["aaaa"].GetReason() == 0 && task.GetState() == running && task.GetRun() == 2 && task.GetRestarts() == 0
	})
	polled(t, "the second command", func() bool { return lines(starts) == 2 })
}

// TestRestoredLogStartsNothingWithoutALease: the log of the region was restored. The master
// grants no lease until the leases of the earlier incarnation have ended. Orders of the log
// wait, also while an earlier lease is still valid. Running tasks continue until their
// deadline.
func TestRestoredLogStartsNothingWithoutALease(t *testing.T) {
	m := newMaster(t)
	m.lease, m.regionLeft = time.Minute, time.Minute
	bound := func(id string, index uint64) *nusav1.AllocOrder {
		return testOrder(id, index, "mock", nil, func(o *nusav1.AllocOrder, _ *nusav1.Group) { o.Binding = nusav1.LeaseBinding_LEASE_BINDING_BOTH })
	}
	m.order(bound("aaaa", 1))
	runAgent(t, testConfig(t, t.TempDir(), newMock(), m.addr))
	m.untilState("aaaa", running)
	var before map[*serverSession]bool
	m.set(func() {
		before = maps.Clone(m.sessions)
		m.mark, m.withhold = store.MasterTerm{Incarnation: 2, Term: 1}, true
	})
	m.kick()
	m.until("a session of the new incarnation", func() bool {
		for ss := range m.sessions {
			if _, earlier := before[ss]; earlier {
				return false
			}
		}
		return len(m.sessions) > 0
	})
	m.order(bound("bbbb", 2))
	m.until("a reason", func() bool { return m.reports["bbbb"].GetReason() != 0 })
	m.set(func() {
		if a, b := m.reports["aaaa"], m.reports["bbbb"]; a.GetState() != running || b.GetState() == running {
			t.Errorf("reported as %v and %v", a, b)
		}
		m.withhold = false
	})
	m.kick() // the next request comes at once
	m.untilState("bbbb", running)
}
