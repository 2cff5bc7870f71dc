package agent

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestAgentFollowsTheMaster: the agent finds the master from any server, keeps a
// second session warm, and follows a change of leadership.
func TestAgentFollowsTheMaster(t *testing.T) {
	a, b, drv := newServer(t), newServer(t), newMock()
	list := []string{a.addr, b.addr}
	a.servers, b.servers = list, list
	a.hint, b.master = b.addr, true
	b.order(testOrder("aaaa", 1, "mock", nil))
	runAgent(t, testConfig(t, t.TempDir(), drv, a.addr))
	b.untilState("aaaa", running)
	a.until("a warm session", func() bool { return len(a.sessions) == 1 })
	// The leadership moves. The new master has committed no report.
	b.set(func() { b.master, b.hint = false, a.addr })
	a.set(func() {
		a.master, a.hint, a.mark.Term = true, "", 2
		a.box.PutAt(1, "aaaa", testOrder("aaaa", 1, "mock", nil))
		a.box.PutAt(2, "bbbb", testOrder("bbbb", 2, "mock", nil))
	})
	a.untilState("bbbb", running)
	a.untilState("aaaa", running)
	b.until("a warm session", func() bool { return len(b.sessions) == 1 })
	if n := drv.Starts(driver.ID{Alloc: "aaaa", Task: "main", Run: 1}); n != 1 {
		t.Errorf("started %d times", n)
	}
}

// TestServerWithoutMasterIsLeft: an agent leaves a server that knows no master, for example
// after the server's restart, and finds the master elsewhere.
func TestServerWithoutMasterIsLeft(t *testing.T) {
	alone, master, drv := newServer(t), newServer(t), newMock()
	alone.servers, alone.hint = []string{alone.addr}, ""
	master.master = true
	master.order(testOrder("aaaa", 1, "mock", nil))
	runAgent(t, testConfig(t, t.TempDir(), drv, alone.addr, master.addr))
	master.untilState("aaaa", running)
}

// TestOlderTermIsRefused: a master of an older term is refused, also after a
// restart of the agent.
func TestOlderTermIsRefused(t *testing.T) {
	m, drv, dir := newMaster(t), newMock(), t.TempDir()
	m.mark.Term = 5
	stop := runAgent(t, testConfig(t, dir, drv, m.addr))
	m.untilSession()
	m.until("statistics", func() bool { return len(m.stats) > 0 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	m.set(func() { m.mark.Term = 4 })
	m.order(testOrder("aaaa", 1, "mock", nil))
	runAgent(t, testConfig(t, dir, drv, m.addr))
	m.until("three attempts", func() bool { return len(m.hellos) >= 4 })
	if m.acked.Sequence != 0 || len(drv.Running()) != 0 {
		t.Errorf("it took orders of the past: %v", drv.Running())
	}
	m.set(func() { m.mark.Term = 6 })
	m.untilState("aaaa", running)
}

// TestLeaseExpiryStopsFencedTasks: without a lease the tasks that need one are
// stopped by their supervisors and the agent. Other tasks go on.
func TestLeaseExpiryStopsFencedTasks(t *testing.T) {
	m, drv := newMaster(t), newMock()
	m.lease = 300 * time.Millisecond
	m.order(testOrder("keep", 1, "mock", nil))
	m.order(testOrder("stop", 2, "mock", nil, func(_ *nusav1.AllocOrder, g *nusav1.Group) { g.Singleton = true }))
	runAgent(t, testConfig(t, t.TempDir(), drv, m.addr))
	m.untilState("keep", running)
	m.untilState("stop", running)
	m.set(func() { m.silent = true })
	if r := m.untilState("stop", failed); r.GetReason() != nusav1.Reason_REASON_LEASE_EXPIRED {
		t.Errorf("ended as %v", r)
	}
	if got := drv.Running(); len(got) != 1 || got[0].Alloc != "keep" {
		t.Errorf("running: %v", got)
	}
}

// TestSilentMasterIsLeft: the agent leaves a master that sends nothing for a lease,
// and tries again.
func TestSilentMasterIsLeft(t *testing.T) {
	m := newMaster(t)
	m.lease, m.silent = 200*time.Millisecond, true
	runAgent(t, testConfig(t, t.TempDir(), newMock(), m.addr))
	m.until("another session", func() bool { return len(m.hellos) >= 2 })
}

func TestLeaveStopsTasksAndSaysGoodbye(t *testing.T) {
	m, drv := newMaster(t), newMock()
	m.order(testOrder("aaaa", 1, "mock", nil))
	c := testConfig(t, t.TempDir(), drv, m.addr)
	c.LeaveOnShutdown = true
	stop := runAgent(t, c)
	m.untilState("aaaa", running)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.reports["aaaa"]; r.GetState() != stopped || r.GetReason() != nusav1.Reason_REASON_AGENT_LEAVING {
		t.Errorf("the master received %v", r)
	}
	if m.goodbyes != 1 || len(drv.Running()) != 0 {
		t.Errorf("%d goodbyes, running %v", m.goodbyes, drv.Running())
	}
}

// TestRefusalIsLoggedOnce: a standby leads a refused agent back to the master after
// each attempt. One warning is enough.
func TestRefusalIsLoggedOnce(t *testing.T) {
	leader, a, b := newServer(t), newServer(t), newServer(t)
	leader.set(func() { leader.refuse = &nusav1.Refused{Message: "the name is in use"} })
	for _, s := range []*server{a, b} {
		s.set(func() { s.hint, s.servers = leader.addr, []string{a.addr, b.addr, leader.addr} })
	}
	lines := &logLines{}
	c := testConfig(t, t.TempDir(), newMock(), a.addr)
	c.Logger = slog.New(slog.NewTextHandler(lines, nil))
	stop := runAgent(t, c)
	leader.until("several refusals", func() bool { return len(leader.hellos) > 6 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	// Each of the two slots may warn once.
	if warnings := lines.with("refuses this agent"); len(warnings) == 0 || len(warnings) > 2 {
		t.Errorf("%d warnings: %q", len(warnings), warnings)
	}
}
