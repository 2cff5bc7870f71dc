package agent

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestAgentFollowsTheMaster: the agent finds the master with the help of any server, has a
// second session as a reserve, and follows a change of leadership.
func TestAgentFollowsTheMaster(t *testing.T) {
	a, b, drv := newServer(t), newServer(t), newMock()
	list := []string{a.addr, b.addr}
	a.servers, b.servers = list, list
	a.hint, b.master = b.addr, true
	b.order(testOrder("aaaa", 1, "mock", nil))
	runAgent(t, testConfig(t, t.TempDir(), drv, a.addr))
	b.untilState("aaaa", running)
	a.until("a warm session", func() bool { return len(a.sessions) == 1 })
	// Another server becomes the master. It has not committed any report.
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

// TestServerWithoutMasterIsLeft: an agent disconnects from a server that knows no master,
// for example after the server's restart, and finds the master through another server.
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

// TestTasksPauseAtTheEndOfTheirLease: at the end of a lease the supervisors and the agent stop
// the tasks that the lease binds. The tasks start again in place when the lease is back.
// Their allocations do not end, and no restart is counted. Other tasks continue.
func TestTasksPauseAtTheEndOfTheirLease(t *testing.T) {
	const short = 400 * time.Millisecond
	type bound struct {
		binding nusav1.LeaseBinding
		reason  nusav1.Reason
	}
	unspecified, none := nusav1.LeaseBinding_LEASE_BINDING_UNSPECIFIED, nusav1.LeaseBinding_LEASE_BINDING_NONE
	node, region, both := nusav1.LeaseBinding_LEASE_BINDING_NODE, nusav1.LeaseBinding_LEASE_BINDING_REGION, nusav1.LeaseBinding_LEASE_BINDING_BOTH
	ofNode, ofRegion := nusav1.Reason_REASON_LEASE_EXPIRED, nusav1.Reason_REASON_REGION_LEASE
	for name, c := range map[string]struct {
		ends func(m *server)
		back func(m *server)
		want map[string]bound // reason 0: the task continues
	}{
		"the node's": {func(m *server) { m.silent = true }, func(m *server) { m.silent = false },
			map[string]bound{"free": {none, 0}, "oldm": {unspecified, ofNode}, "node": {node, ofNode}}},
		"the region's": {func(m *server) { m.regionLeft = 0 }, func(m *server) { m.regionLeft = 2 * short },
			map[string]bound{"free": {none, 0}, "oldm": {unspecified, 0}, "node": {node, 0}, "regn": {region, ofRegion}, "both": {both, ofRegion}}},
	} {
		t.Run(name, func(t *testing.T) {
			m, drv := newMaster(t), newMock()
			m.lease, m.regionLeft = short, 2*short
			index := uint64(0)
			for _, id := range slices.Sorted(maps.Keys(c.want)) {
				index++
				m.order(testOrder(id, index, "mock", nil, func(o *nusav1.AllocOrder, g *nusav1.Group) {
					o.Binding, g.Singleton = c.want[id].binding, c.want[id].binding != none
				}))
			}
			runAgent(t, testConfig(t, t.TempDir(), drv, m.addr))
			for id := range c.want {
				m.untilState(id, running)
			}
			m.set(func() { c.ends(m) })
			for id, w := range c.want {
				var rep *nusav1.AllocReport
				m.until(id+" to wait", func() bool { rep = m.reports[id]; return rep.GetReason() == w.reason })
				if task := rep.GetTasks()["main"]; rep.GetState() != running || w.reason != 0 && (task.GetState() != stopped || task.GetReason() != w.reason) {
					t.Errorf("%s is reported as %v", id, rep)
				}
			}
			for _, run := range drv.Running() {
				if c.want[run.Alloc].reason != 0 {
					t.Errorf("%s runs without its lease", run)
				}
			}
			m.set(func() { c.back(m) })
			for id, w := range c.want {
				run := int32(1)
				if w.reason != 0 {
					run = 2
				}
				m.until(id+" to run", func() bool {
					task := m.reports[id].GetTasks()["main"]
					return m.reports[id].GetReason() == 0 && task.GetState() == running && task.GetRun() >= run && task.GetRestarts() == 0
				})
			}
			m.set(func() {
				for _, h := range m.hellos {
					if h.GetFeatureLevel() != 1 {
						t.Errorf("feature level %d", h.GetFeatureLevel())
					}
				}
			})
		})
	}
}

// TestRegionLeaseIsAwaited: an agent that never had the region's lease starts nothing that
// needs this lease, and reports why.
func TestRegionLeaseIsAwaited(t *testing.T) {
	m, drv := newMaster(t), newMock()
	m.order(testOrder("regn", 1, "mock", nil, func(o *nusav1.AllocOrder, _ *nusav1.Group) {
		o.Binding = nusav1.LeaseBinding_LEASE_BINDING_REGION
	}))
	m.order(testOrder("free", 2, "mock", nil))
	m.set(func() { m.lease = time.Second })
	runAgent(t, testConfig(t, t.TempDir(), drv, m.addr))
	m.untilState("free", running)
	var r *nusav1.AllocReport
	m.until("a reason", func() bool { r = m.reports["regn"]; return r.GetReason() == nusav1.Reason_REASON_REGION_LEASE })
	if r.GetState() != nusav1.AllocState_ALLOC_STATE_PENDING || len(drv.Running()) != 1 {
		t.Errorf("reported as %v, running %v", r, drv.Running())
	}
	// Only the region's lease is granted now.
	m.set(func() { m.lease, m.regionLeft = 0, 10*time.Second })
	if r := m.untilState("regn", running); r.GetReason() != 0 {
		t.Errorf("reported as %v", r)
	}
}

// TestDriverWithoutFencingTakesNoLease: an allocation that a lease binds is declined if its
// driver cannot end its tasks at a deadline.
func TestDriverWithoutFencingTakesNoLease(t *testing.T) {
	m := newMaster(t)
	m.set(func() { m.regionLeft = time.Minute })
	for i, b := range []nusav1.LeaseBinding{nusav1.LeaseBinding_LEASE_BINDING_UNSPECIFIED, nusav1.LeaseBinding_LEASE_BINDING_REGION} {
		m.order(testOrder(fmt.Sprint("all", i), uint64(i+1), "mock", nil, func(o *nusav1.AllocOrder, g *nusav1.Group) {
			o.Binding, g.Singleton = b, true
		}))
	}
	runAgent(t, testConfig(t, t.TempDir(), mock.New(mock.Config{}), m.addr)) // a driver without a clock has no fencing
	for _, id := range []string{"all0", "all1"} {
		if r := m.untilState(id, failed); !r.GetDeclined() || r.GetReason() != nusav1.Reason_REASON_CAPABILITY_MISSING || !strings.Contains(r.GetMessage(), "self_fencing") {
			t.Errorf("%s: %v", id, r)
		}
	}
}

// TestSilentMasterIsLeft: the agent disconnects from a master that sends nothing for the
// length of a lease, and connects again.
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

// TestRefusalIsLoggedOnce: after each refusal a standby sends the agent back to the master.
// One warning is enough.
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
	// The agent has two session slots, and each may warn once.
	if warnings := lines.with("refuses this agent"); len(warnings) == 0 || len(warnings) > 2 {
		t.Errorf("%d warnings: %q", len(warnings), warnings)
	}
}
