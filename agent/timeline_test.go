package agent

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// skewed is a driver whose times come from a wall clock that was set.
type skewed struct {
	driver.Driver
	by time.Duration
}

func (s skewed) shift(st driver.Status, err error) (driver.Status, error) {
	st.Started, st.Finished = st.Started.Round(0).Add(s.by), st.Finished.Round(0).Add(s.by)
	return st, err
}

func (s skewed) Status(ctx context.Context, id driver.ID) (driver.Status, error) {
	return s.shift(s.Driver.Status(ctx, id))
}

func (s skewed) Wait(ctx context.Context, id driver.ID) (driver.Status, error) {
	return s.shift(s.Driver.Wait(ctx, id))
}

// TestWallClockDoesNotAffectRestarts: a wall clock that is set changes neither the
// number nor the time of restarts, nor max_runtime.
func TestWallClockDoesNotAffectRestarts(t *testing.T) {
	for _, by := range []time.Duration{0, time.Hour, -time.Hour, -24 * time.Hour, 24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			m, mock, dir := newMaster(t), newMock(), t.TempDir()
			m.order(testOrder("aaaa", 1, "mock", map[string]any{"run_time": "5ms", "exit_code": float64(1)}, func(_ *nusav1.AllocOrder, g *nusav1.Group) {
				two := int32(2)
				g.Tasks["main"].Restart = &nusav1.Restart{Attempts: &two, Delay: durationMillis(10), Window: durationpb.New(10 * time.Minute)}
			}))
			m.order(testOrder("bbbb", 2, "mock", nil, func(_ *nusav1.AllocOrder, g *nusav1.Group) { g.MaxRuntime = durationpb.New(10 * time.Minute) }))
			stop := runAgent(t, testConfig(t, dir, mock, m.addr))
			m.untilState("bbbb", running)
			r := m.untilState("aaaa", failed)
			if r.GetTasks()["main"].GetRun() != 3 {
				t.Fatalf("without a change it ran %d times", r.GetTasks()["main"].GetRun())
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			// The wall clock is set while no agent runs.
			m.order(testOrder("cccc", 3, "mock", map[string]any{"run_time": "5ms", "exit_code": float64(1)}, func(_ *nusav1.AllocOrder, g *nusav1.Group) {
				two := int32(2)
				g.Tasks["main"].Restart = &nusav1.Restart{Attempts: &two, Delay: durationMillis(10), Window: durationpb.New(10 * time.Minute)}
			}))
			runAgent(t, testConfig(t, dir, skewed{mock, by}, m.addr))
			if r := m.untilState("cccc", failed); r.GetTasks()["main"].GetRun() != 3 || r.GetReason() != nusav1.Reason_REASON_RESTARTS_EXHAUSTED {
				t.Errorf("ran %d times and ended with %v", r.GetTasks()["main"].GetRun(), r)
			}
			o := testOrder("bbbb", 4, "mock", nil)
			o.Allocation.Desired, o.Allocation.Reason = nusav1.AllocDesired_ALLOC_DESIRED_STOP, nusav1.Reason_REASON_STOPPED_BY_USER
			m.order(o)
			if r := m.untilState("bbbb", stopped); r.GetReason() != nusav1.Reason_REASON_STOPPED_BY_USER {
				t.Errorf("ended with %v", r)
			}
		})
	}
}
