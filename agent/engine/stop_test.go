package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/agent/ordertest"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/agent/setup"
	"github.com/nusa-scheduler/nusa/agent/store"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// late is a driver whose engine accepts a start request, does not respond, and starts the
// run later. Until then the engine does not know the run.
type late struct {
	*mock.Driver
	t     *testing.T
	delay time.Duration
	// Number of starts that are late. The following starts are normal.
	times int
	// True: Start returns only when its context ends.
	blocked bool
	broken  bool // Stop fails

	mu    sync.Mutex
	asked map[driver.ID]int
	begun []driver.ID
	over  map[string]bool // allocations whose runs may no longer begin
}

func newLate(t *testing.T, delay time.Duration, times int) *late {
	return &late{Driver: mock.New(mock.Config{}), t: t, delay: delay, times: times, asked: map[driver.ID]int{}, over: map[string]bool{}}
}

// start starts the run and checks that it may begin.
func (l *late) start(ctx context.Context, task driver.Task) error {
	l.mu.Lock()
	if l.Starts(task.ID) == 0 {
		l.begun = append(l.begun, task.ID)
		if l.over[task.ID.Alloc] {
			l.t.Errorf("%s begins after its allocation ended", task.ID)
		}
		for _, other := range l.Running() {
			if other.Alloc == task.ID.Alloc && other.Task == task.ID.Task {
				l.t.Errorf("%s begins beside %s", task.ID, other)
			}
		}
	}
	l.mu.Unlock()
	return l.Driver.Start(ctx, task)
}

func (l *late) Start(ctx context.Context, task driver.Task) error {
	l.mu.Lock()
	l.asked[task.ID]++
	hold := l.times > 0
	l.times--
	l.mu.Unlock()
	if !hold {
		return l.start(ctx, task)
	}
	time.AfterFunc(l.delay, func() { _ = l.start(context.Background(), task) })
	if l.blocked {
		<-ctx.Done()
		return ctx.Err()
	}
	return fmt.Errorf("the engine: %w: no answer", driver.ErrUnavailable)
}

func (l *late) Stop(ctx context.Context, id driver.ID, grace time.Duration) error {
	l.mu.Lock()
	broken := l.broken
	l.mu.Unlock()
	if broken {
		return fmt.Errorf("the engine: %w: no answer", driver.ErrUnavailable)
	}
	return l.Driver.Stop(ctx, id, grace)
}

// detached is a driver as seen by one agent. After this agent was killed, none of its calls
// reaches the driver.
type detached struct {
	driver.Driver
	life context.Context
}

func (d detached) Start(ctx context.Context, t driver.Task) error {
	if d.life.Err() != nil {
		return d.life.Err()
	}
	return d.Driver.Start(ctx, t)
}

func (d detached) Stop(ctx context.Context, id driver.ID, grace time.Duration) error {
	if d.life.Err() != nil {
		return d.life.Err()
	}
	return d.Driver.Stop(ctx, id, grace)
}

func (d detached) Runs(ctx context.Context) ([]driver.ID, error) {
	return d.Driver.(driver.Lister).Runs(ctx)
}

// noReports receives reports and ignores them.
type noReports struct{}

func (noReports) Put(string, *nusav1.AllocReport, bool) {}
func (noReports) Delete(string)                         {}

// life is the engine and the store of one agent, from its start to its end, in a synctest
// bubble.
type life struct {
	engine *Engine
	kill   func() // ends the agent like kill -9
}

// write is called for each write to the store. It returns whether the batch is durable, and
// whether the agent dies with this write.
type write func(b store.Batch) (durable, last bool)

func live(t *testing.T, dir string, drv driver.Driver, onWrite write) *life {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
	st, err := store.Open(filepath.Join(dir, "agent.db"))
	if err != nil {
		t.Fatal(err)
	}
	contents, err := st.Load()
	if err != nil {
		t.Fatal(err)
	}
	line, err := st.Timeline("boot", clock, contents)
	if err != nil {
		t.Fatal(err)
	}
	allocs := filepath.Join(dir, "allocs")
	prepare, err := setup.New(setup.Config{Dir: allocs, Private: []string{dir}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	var e *Engine
	w := store.NewWriter(func(b store.Batch) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		durable, last := onWrite(b)
		var err error
		if durable {
			err = st.Write(b)
		}
		if last {
			cancel()
		}
		return errors.Join(err, ctx.Err())
	}, log, func(ctx context.Context) { e.Wake(ctx) })
	e, err = New(Config{Log: log, Clock: clock, Timeline: line, Drivers: map[string]driver.Driver{"mock": detached{drv, ctx}}, Writer: w, Reports: noReports{},
		Metrics: NewMetrics(), Node: Node{ID: st.NodeID, Region: "test", AllocsDir: allocs, Setup: prepare},
		Host:         reconcile.Host{CPUMilli: 4000, MemoryBytes: 4 << 30, DiskBytes: 1 << 40, Drivers: map[string]reconcile.Driver{"mock": {Fencing: true}}},
		TasksChanged: func(int) {}, PortsInUse: func([]int) map[int]bool { return nil },
		MaxRetainedBytes: DefaultRetainedBytes, MaxRetainedFolders: DefaultRetainedFolders}, contents)
	if err != nil {
		t.Fatal(err)
	}
	e.SweepSetup()
	g := errgroup.Group{}
	g.Go(func() error { return e.Run(ctx) })
	g.Go(func() error { return w.Run(ctx) })
	return &life{engine: e, kill: func() {
		cancel()
		_ = g.Wait()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}}
}

// clock returns the time in a bubble.
func clock() time.Duration {
	return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) + time.Hour
}

// always is the write function of a store that works.
func always(store.Batch) (durable, last bool) { return true, false }

// give sends an order to the engine. It returns false if the agent died.
func (l *life) give(o *nusav1.AllocOrder) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c := link.Change[*nusav1.AllocOrder]{Position: link.Position{Epoch: "raft", Sequence: o.GetIndex()},
		Upserts: []link.Item[*nusav1.AllocOrder]{{Key: o.GetAllocation().GetId(), Value: o}}}
	return l.engine.Apply(ctx, c, func() bool { return true }) == nil
}

// task returns the task "main" of an allocation, as reported.
func (l *life) task(id string) *nusav1.TaskState {
	var out *nusav1.TaskState
	l.engine.do(context.Background(), func() {
		if a := l.engine.allocs[id]; a != nil && a.details["main"] != nil {
			out = proto.CloneOf(a.details["main"])
		}
	})
	return out
}

func (l *life) ended(id string) (end *reconcile.Outcome) {
	l.engine.do(context.Background(), func() { end = l.engine.allocs[id].act.End })
	return end
}

func lateOrder(index uint64, stop bool) *nusav1.AllocOrder {
	return ordertest.New("aaaa", index, "mock", nil, func(o *nusav1.AllocOrder, g *nusav1.Group) {
		g.Tasks["main"].Restart = &nusav1.Restart{Attempts: proto.Int32(5), Delay: durationpb.New(2 * time.Second)}
		if stop {
			o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
		}
	})
}

// TestLateRunDelaysTheNextRun: a start fails, but the engine starts the run later. The next
// run does not begin while the first run may still be running, and the report says why.
// This also holds if the agent is killed in between.
func TestLateRunDelaysTheNextRun(t *testing.T) {
	for _, kill := range []time.Duration{-1, 0, time.Millisecond, time.Second, 4 * time.Second, 9 * time.Second} {
		t.Run(kill.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drv, dir := newLate(t, 3*time.Second, 1), t.TempDir()
				l := live(t, dir, drv, always)
				l.give(lateOrder(1, false))
				if kill >= 0 {
					time.Sleep(kill)
					l.kill()
					l = live(t, dir, drv, always)
				}
				defer func() { l.kill() }()
				if kill == -1 {
					time.Sleep(time.Second)
					synctest.Wait()
					shown := l.task("aaaa")
					if !strings.Contains(shown.GetMessage(), "run 1 may have begun or may still begin") || !strings.Contains(fmt.Sprint(shown.GetEvents()), "run 1 may have begun or may still begin") {
						t.Errorf("before the late start it shows %v", shown)
					}
				}
				time.Sleep(30 * time.Second)
				synctest.Wait()
				running := drv.Running()
				if st := l.task("aaaa"); len(running) != 1 || st.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING || int(st.GetRun()) != running[0].Run {
					t.Errorf("at the end %v run, and it shows %v", running, st)
				}
				for _, id := range drv.begun {
					if n := drv.Starts(id); n != 1 {
						t.Errorf("%s begun %d times", id, n)
					}
				}
			})
		})
	}
}

// TestFailedStopIsRetried: if a driver cannot stop a run, the agent asks again until it
// can, also after restarts of the agent. No other run of the task begins before that.
func TestFailedStopIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv, dir := newLate(t, time.Millisecond, 1), t.TempDir()
		drv.broken = true
		l := live(t, dir, drv, always)
		l.give(lateOrder(1, false))
		time.Sleep(time.Minute)
		synctest.Wait()
		if drv.asked[driver.ID{Alloc: "aaaa", Task: "main", Run: 1}] != 1 || len(drv.asked) != 1 {
			t.Errorf("asked to start %v", drv.asked)
		}
		l.give(lateOrder(2, true))
		time.Sleep(time.Minute)
		l.kill()
		l = live(t, dir, drv, always)
		defer func() { l.kill() }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if end := l.ended("aaaa"); end != nil || len(drv.Running()) != 1 {
			t.Errorf("ended as %v while %v run", end, drv.Running())
		}
		drv.mu.Lock()
		drv.broken = false
		drv.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if end := l.ended("aaaa"); end == nil || end.State != reconcile.Stopped || len(drv.Running()) != 0 {
			t.Errorf("ended as %v while %v run", end, drv.Running())
		}
	})
}

// TestAgentSurvivesAKillAtEveryWrite: an agent is killed at its nth write to the store. The
// write is durable or lost. The agent is working on an order to run or to stop. The engine
// may be slow, and the next agent may be unable to prepare a task for a while. A task that
// was ordered to stop does not run. It never begins after its end was reported. No run
// begins twice, and no two runs of a task run at the same time.
func TestAgentSurvivesAKillAtEveryWrite(t *testing.T) {
	reached := 0
	for _, delay := range []time.Duration{0, 50 * time.Millisecond, 3 * time.Second} {
		for _, times := range []int{0, 1, 3} {
			for _, stopAt := range []time.Duration{-1, 0, 20 * time.Millisecond, 5 * time.Second} {
				for nth := 1; nth <= 6; nth++ {
					for i := range 4 {
						durable, full := i&1 != 0, i&2 != 0
						name := fmt.Sprintf("%s/%d/stop=%s/%d=%t/full=%t", delay, times, stopAt, nth, durable, full)
						t.Run(name, func(t *testing.T) {
							synctest.Test(t, func(t *testing.T) {
								if killedAt(t, delay, times, stopAt, nth, durable, full) {
									reached++
								}
							})
						})
					}
				}
			}
		}
	}
	if reached < 100 {
		t.Errorf("only %d agents were killed", reached)
	}
}

func killedAt(t *testing.T, delay time.Duration, times int, stopAt time.Duration, nth int, durable, full bool) (killed bool) {
	drv, dir := newLate(t, delay, times), t.TempDir()
	drv.blocked = true
	noted := func(b store.Batch) { // a durable record may be reported
		if r, ok := b.Records["aaaa"]; ok && r.Actual.End != nil {
			drv.mu.Lock()
			drv.over["aaaa"] = true
			drv.mu.Unlock()
		}
	}
	writes := 0
	l := live(t, dir, drv, func(b store.Batch) (bool, bool) {
		writes++
		if writes < nth || durable {
			noted(b)
		}
		return writes < nth || durable, writes == nth
	})
	l.give(lateOrder(1, false))
	if stopAt >= 0 {
		time.Sleep(stopAt)
		l.give(lateOrder(2, true))
	}
	time.Sleep(20 * time.Millisecond)
	synctest.Wait()
	killed = writes >= nth
	l.kill()
	if full { // the folder cannot be made
		folder := filepath.Join(dir, "allocs", "aaaa")
		if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(filepath.Dir(folder), 0o700), os.WriteFile(folder, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(5*time.Second, func() { _ = os.Remove(folder) })
	}
	l = live(t, dir, drv, func(b store.Batch) (bool, bool) { noted(b); return true, false })
	defer func() { l.kill() }()
	time.Sleep(time.Millisecond)
	// The master sends the latest order again.
	o := lateOrder(1, false)
	if stopAt >= 0 {
		o = lateOrder(2, true)
	}
	l.give(o)
	time.Sleep(30 * time.Minute)
	synctest.Wait()
	running := drv.Running()
	if want := stopAt < 0; want != (len(running) == 1) || len(running) > 1 {
		t.Errorf("at the end %v run", running)
	}
	if end := l.ended("aaaa"); (end != nil) != (stopAt >= 0) {
		t.Errorf("at the end it is %v", end)
	}
	for _, id := range drv.begun {
		if n := drv.Starts(id); n != 1 {
			t.Errorf("%s begun %d times", id, n)
		}
	}
	return killed
}

// faultyStatus is a driver whose Status may fail.
type faultyStatus struct {
	*mock.Driver
	mu  sync.Mutex
	err error
}

func (m *faultyStatus) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *faultyStatus) Status(ctx context.Context, id driver.ID) (driver.Status, error) {
	m.mu.Lock()
	err := m.err
	m.mu.Unlock()
	if err != nil {
		return driver.Status{}, fmt.Errorf("run %s: %w", id, err)
	}
	return m.Driver.Status(ctx, id)
}

// TestRunIsAdoptedWhenItsDriverAnswers: a run is running, and the driver of the next agent
// cannot report it for a while. The run continues, and the report shows the driver's error.
// The run is adopted when the driver can report it. If the driver breaks its contract, it
// will never report the run. Then the run is stopped before it is reported as failed.
func TestRunIsAdoptedWhenItsDriverAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		err error
		run int // the run that is running at the end, 0 = none
	}{
		"too many files": {syscall.EMFILE, 1}, "bad disk": {syscall.EIO, 1}, "bad record": {errors.New("unexpected end of JSON input"), 1},
		"no answer": {driver.ErrUnavailable, 1}, "contract": {driver.ErrContract, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drv, dir := &faultyStatus{Driver: mock.New(mock.Config{})}, t.TempDir()
				first := driver.ID{Alloc: "aaaa", Task: "main", Run: 1}
				l := live(t, dir, drv, always)
				l.give(lateOrder(1, false))
				time.Sleep(time.Second)
				l.kill()
				drv.fail(c.err)
				l = live(t, dir, drv, always)
				defer func() { l.kill() }()
				time.Sleep(time.Minute)
				synctest.Wait()
				shown := l.task("aaaa")
				if running := drv.Running(); c.run == 1 && (len(running) != 1 || running[0] != first || !strings.Contains(shown.GetMessage(), c.err.Error())) {
					t.Errorf("while the driver fails %v run, and it shows %v", running, shown)
				}
				drv.fail(nil)
				time.Sleep(time.Minute)
				synctest.Wait()
				running, st := drv.Running(), l.task("aaaa")
				if c.run == 0 {
					if end := l.ended("aaaa"); end == nil || end.State != reconcile.Failed || len(running) != 0 {
						t.Errorf("ended as %v while %v run, and it shows %v", end, running, st)
					}
					return
				}
				if len(running) != 1 || running[0] != first || st.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING || st.GetMessage() != "" {
					t.Errorf("at the end %v run, and it shows %v", running, st)
				}
				l.give(lateOrder(2, true))
				time.Sleep(time.Minute)
				synctest.Wait()
				if end := l.ended("aaaa"); end == nil || len(drv.Running()) != 0 {
					t.Errorf("ended as %v while %v run", end, drv.Running())
				}
			})
		})
	}
}
