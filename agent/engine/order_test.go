package engine

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/agent/ordertest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestInvalidOrderNamesItsTasks: an order with fields that this version does not
// know still contains every task, so that tasks that another version started can be
// stopped.
func TestInvalidOrderNamesItsTasks(t *testing.T) {
	wire := ordertest.New("aaaa", 1, "process", nil, func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		g.Tasks["a"] = &nusav1.Task{Driver: "process", Env: map[string]string{"X": "${NUSA_OF_TOMORROW}"}}
	})
	o := readOrder(wire, Node{}, false)
	if o.spec.Ask.Unsupported == "" {
		t.Error("it is accepted")
	}
	if len(o.spec.Tasks) != 2 {
		t.Errorf("tasks %+v", o.spec.Tasks)
	}
	for _, task := range o.spec.Tasks {
		if to := o.tasks[task.Name]; to.driver != "process" || to.task.ID.Alloc != "aaaa" || to.task.ID.Task != task.Name {
			t.Errorf("task %s would be looked for as %+v", task.Name, to)
		}
	}
}

// TestUnreadableTaskIsNotBegun: a task does not start if its order cannot be decoded
// completely.
func TestUnreadableTaskIsNotBegun(t *testing.T) {
	r := &runner{ctx: t.Context()}
	drv := mock.New(mock.Config{})
	wire := ordertest.New("aaaa", 1, "mock", nil, func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		g.Tasks["main"].Env = map[string]string{"X": "${NUSA_OF_TOMORROW}"}
	})
	_, err := r.start(drv, launch{order: readOrder(wire, Node{}, false).tasks["main"]})
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "NUSA_OF_TOMORROW") || len(drv.Running()) != 0 {
		t.Errorf("%v, running %v", err, drv.Running())
	}
}

// TestTimesAreBounded: the agent limits extreme times of an order.
func TestTimesAreBounded(t *testing.T) {
	for _, d := range []time.Duration{math.MinInt64, -1, 1, math.MaxInt64} {
		odd := durationpb.New(d)
		wire := ordertest.New("aaaa", 1, "mock", nil, func(o *nusav1.AllocOrder, g *nusav1.Group) {
			o.Allocation.Ports = map[string]int32{"http": 20000}
			g.Tasks["main"].KillTimeout = odd
			g.Tasks["main"].Restart = &nusav1.Restart{Attempts: proto.Int32(math.MinInt32), Window: odd, Delay: odd}
			g.Tasks["main"].Check = &nusav1.Check{Kind: &nusav1.Check_Tcp{Tcp: &nusav1.TCPCheck{Port: "http"}},
				Interval: odd, Timeout: odd, HealthyDeadline: odd, Failures: math.MinInt32}
		})
		o := readOrder(wire, Node{}, false)
		task, k := o.spec.Tasks[0], o.tasks["main"].check
		if k == nil {
			t.Fatalf("%v: %s", d, o.spec.Ask.Unsupported)
		}
		if task.KillTimeout < 0 || task.KillTimeout > maxKill || task.Restart.Attempts < 0 || task.Restart.Window < time.Second || task.Restart.Delay < 0 {
			t.Errorf("%v: %+v", d, task)
		}
		if k.Interval < minInterval || k.Interval > maxInterval || k.Timeout <= 0 || k.Timeout > maxTimeout || k.Deadline <= 0 || k.Deadline > maxInterval || k.Failures < 1 {
			t.Errorf("%v: %+v", d, k.Policy)
		}
	}
}

// TestMemoryOfARetry: only a group whose retry rules raise the memory of its one task gets what the allocation has.
func TestMemoryOfARetry(t *testing.T) {
	task := &nusav1.Task{Resources: &nusav1.Resources{MemoryBytes: 100}}
	raises := &nusav1.Retry{Rules: []*nusav1.RetryRule{{}, {Memory: &nusav1.RetryMemory{Factor: 2}}}}
	for _, c := range []struct {
		retry *nusav1.Retry
		tasks int
		alloc int64
		want  int64
	}{
		{raises, 1, 200, 200}, {raises, 1, 100, 100}, {raises, 1, 50, 100}, {raises, 2, 200, 100}, {nil, 1, 200, 100},
		{&nusav1.Retry{Rules: []*nusav1.RetryRule{{}}}, 1, 200, 100},
	} {
		g := &nusav1.Group{Retry: c.retry, Tasks: map[string]*nusav1.Task{"t": task}}
		if c.tasks > 1 {
			g.Tasks["u"] = task
		}
		a := &nusav1.Allocation{Resources: &nusav1.Resources{MemoryBytes: c.alloc}}
		if got := memoryOf(a, g, task); got != c.want {
			t.Errorf("%v: %d bytes, want %d", c, got, c.want)
		}
	}
}
