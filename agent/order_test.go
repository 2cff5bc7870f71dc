package agent

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// An order that asks for what this version does not know still names every
// task: what another version started must be found, to be stopped.
func TestOrderThatCannotRunNamesItsTasks(t *testing.T) {
	wire := testOrder("aaaa", 1, "process", nil, func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		g.Tasks["a"] = &nusav1.Task{Driver: "process", Env: map[string]string{"X": "${NUSA_OF_TOMORROW}"}}
	})
	o := readOrder(wire, node{}, false)
	if o.alloc.Ask.Unsupported == "" {
		t.Error("it is accepted")
	}
	if len(o.alloc.Tasks) != 2 {
		t.Errorf("tasks %+v", o.alloc.Tasks)
	}
	for _, task := range o.alloc.Tasks {
		if to := o.tasks[task.Name]; to.driver != "process" || to.task.ID.Alloc != "aaaa" || to.task.ID.Task != task.Name {
			t.Errorf("task %s would be looked for as %+v", task.Name, to)
		}
	}
}

func TestLogStreamsAreBounded(t *testing.T) {
	s := newAllocations(nil)
	for range maxLogs {
		s.logs <- struct{}{}
	}
	if err := s.Logs(nil, nil); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
}

// A driver that was there before the agent's restart is missed with a clear
// word.
func TestDriverGone(t *testing.T) {
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
