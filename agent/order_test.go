package agent

import (
	"math"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestMissingDriverIsNamed: a task whose driver is missing after the agent's
// restart fails with a clear message.
func TestMissingDriverIsNamed(t *testing.T) {
	m, drv, dir := newMaster(t), newMock(), t.TempDir()
	m.order(testOrder("aaaa-1", 1, "mock", map[string]any{"stdout": "x", "run_time": "1ms"}, batch))
	m.order(testOrder("aaaa-2", 2, "mock", nil))
	stop := runAgent(t, testConfig(t, dir, drv, m.addr))
	m.untilState("aaaa-1", complete)
	m.untilState("aaaa-2", running)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	c := testConfig(t, dir, drv, m.addr)
	c.Drivers = map[string]driver.Driver{"other": drv}
	runAgent(t, c)
	if r := m.untilState("aaaa-2", failed); r.GetReason() != nusav1.Reason_REASON_UNSUPPORTED {
		t.Errorf("%v", r)
	}
	stream, err := nusav1.NewAllocationsClient(m.conn()).Logs(t.Context(), &nusav1.LogsRequest{Allocation: "aaaa-1"})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("logs: %v", err)
	}
}

// TestInvalidOrdersAreDeclined: an order that no job file can produce is declined and
// reserves nothing. Other allocations run, and running tasks continue.
func TestInvalidOrdersAreDeclined(t *testing.T) {
	m, drv := newMaster(t), newMock()
	resources := func(r *nusav1.Resources) func(*nusav1.AllocOrder, *nusav1.Group) {
		return func(o *nusav1.AllocOrder, _ *nusav1.Group) { o.Allocation.Resources = r }
	}
	port := func(label string, host, to int32) func(*nusav1.AllocOrder, *nusav1.Group) {
		return func(o *nusav1.AllocOrder, g *nusav1.Group) {
			o.Allocation.Ports = map[string]int32{label: host}
			g.Ports = map[string]*nusav1.Port{label: {To: to}}
		}
	}
	m.order(testOrder("good-1", 1, "mock", nil))
	odd := map[string]func(*nusav1.AllocOrder, *nusav1.Group){
		"odd-01": resources(&nusav1.Resources{CpuMilli: -1 << 40, MemoryBytes: 1}),
		"odd-02": resources(&nusav1.Resources{CpuMilli: math.MaxInt64}),
		"odd-03": resources(&nusav1.Resources{MemoryBytes: math.MaxInt64 - 1000}),
		"odd-04": resources(&nusav1.Resources{DiskBytes: math.MinInt64}),
		"odd-05": resources(&nusav1.Resources{Gpu: &nusav1.GPU{Count: -1}}),
		"odd-06": port("http", 70000, 0),
		"odd-07": port("http", -1, 80),
		"odd-08": port("a=b", 20000, 80),
		"odd-09": port("http", 20000, 1<<20),
		"odd-10": func(_ *nusav1.AllocOrder, g *nusav1.Group) {
			g.Volumes = map[string]*nusav1.Volume{"../../../x": {Source: "/"}}
		},
		"odd-11": func(_ *nusav1.AllocOrder, g *nusav1.Group) {
			g.Tasks = map[string]*nusav1.Task{"..": g.Tasks["main"]}
		},
		"odd-12": func(_ *nusav1.AllocOrder, g *nusav1.Group) { g.Tasks = nil },
		"odd-13": func(_ *nusav1.AllocOrder, g *nusav1.Group) {
			g.Tasks["main"].Templates = []*nusav1.Template{{To: "../x"}}
		},
	}
	index := uint64(2)
	for id, change := range odd {
		m.order(testOrder(id, index, "mock", nil, change))
		index++
	}
	m.order(testOrder("../..", index, "mock", nil))
	m.order(testOrder("good-2", index+1, "mock", nil, resources(&nusav1.Resources{CpuMilli: 3900})))
	m.order(testOrder("good-3", index+2, "mock", nil, resources(&nusav1.Resources{CpuMilli: 200})))
	runAgent(t, testConfig(t, t.TempDir(), drv, m.addr))
	for id := range odd {
		if r := m.untilState(id, failed); !r.GetDeclined() || r.GetReason() != nusav1.Reason_REASON_UNSUPPORTED {
			t.Errorf("%s: %v", id, r)
		}
	}
	m.untilState("good-1", running)
	m.untilState("good-2", running)
	if r := m.untilState("good-3", failed); r.GetReason() != nusav1.Reason_REASON_INSUFFICIENT_CPU {
		t.Errorf("one core in ten thousand more than there are: %v", r)
	}
}

// TestOrderWithoutARunningTaskStopsIt: if an order no longer contains a running task, the
// task is stopped together with its allocation.
func TestOrderWithoutARunningTaskStopsIt(t *testing.T) {
	m, drv, dir := newMaster(t), newMock(), t.TempDir()
	for i, id := range []string{"aaaa", "bbbb", "cccc"} {
		m.order(testOrder(id, uint64(i)+1, "mock", nil))
	}
	stop := runAgent(t, testConfig(t, dir, drv, m.addr))
	for _, id := range []string{"aaaa", "bbbb", "cccc"} {
		m.untilState(id, running)
	}
	toStop := func(o *nusav1.AllocOrder, _ *nusav1.Group) {
		o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
	}
	garbage := testOrder("aaaa", 4, "mock", nil, toStop)
	garbage.Group = []byte("garbage")
	m.order(garbage)
	m.order(testOrder("bbbb", 5, "mock", nil, toStop, func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		g.Tasks = map[string]*nusav1.Task{"other": g.Tasks["main"]}
	}))
	m.order(testOrder("cccc", 6, "mock", nil, func(_ *nusav1.AllocOrder, g *nusav1.Group) { g.Tasks = nil }))
	m.untilState("aaaa", stopped)
	m.untilState("bbbb", stopped)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if left := drv.Running(); len(left) != 1 || left[0].Alloc != "cccc" {
		t.Errorf("still running: %v", left)
	}
	runAgent(t, testConfig(t, dir, drv, m.addr))
	m.order(testOrder("cccc", 7, "mock", nil, toStop))
	m.untilState("cccc", stopped)
	if left := drv.Running(); len(left) != 0 {
		t.Errorf("still running: %v", left)
	}
}
