package agent

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestTimeline: the same boot goes on where it was whatever the host's clock
// says meanwhile; another boot begins anew, never before what is on record.
func TestTimeline(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	up := time.Hour
	clock := func() time.Duration { return up }
	open := func(boot string, c contents) timeline {
		t.Helper()
		s, err := openStore(path)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		l, err := s.timeline(boot, clock, c)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := open("one", contents{})
	if d := time.Since(first.now()); d < 0 || d > time.Minute {
		t.Errorf("it begins %s ago", d)
	}
	up += 24 * time.Hour // of which the host's clock shows none: it was set back by a day
	if again := open("one", contents{}); !again.zero.Equal(first.zero) {
		t.Errorf("the same boot began at %s, then at %s", first.zero, again.zero)
	}
	late := first.now()
	up = time.Minute
	held := contents{records: map[string]record{"a": {Actual: reconcile.Actual{
		Started: late.Add(-time.Hour), Tasks: map[string]reconcile.TaskActual{"main": {Restarts: []time.Time{late}}}}}}}
	second := open("two", held)
	if !second.now().Equal(late) {
		t.Errorf("after a boot it is %s, on record is %s", second.now(), late)
	}
	for _, c := range []struct {
		name string
		wall time.Time
		ago  time.Duration
	}{
		{"in the future", time.Now().Add(24 * time.Hour), 0},
		{"before the boot", time.Now().Add(-24 * time.Hour), time.Minute},
	} {
		if ago := second.now().Sub(second.of(c.wall)); ago != c.ago {
			t.Errorf("%s: placed %s ago, want %s", c.name, ago, c.ago)
		}
	}
}

// skewed is a driver whose times are of a clock that was set meanwhile.
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

// TestClockSet: a clock that is set changes neither how often nor how soon a
// task is restarted, nor how long it may run.
func TestClockSet(t *testing.T) {
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
			// The clock is set while nobody looks.
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
