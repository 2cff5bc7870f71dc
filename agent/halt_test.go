package agent

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// late is a driver whose engine takes a request to start, does not answer it,
// and carries it out later. Before that it knows nothing of the run.
type late struct {
	*mock.Driver
	t     *testing.T
	delay time.Duration
	// times is how often that happens, from then on it starts as it should.
	times int
	// blocked: Start returns with its context only.
	blocked bool
	broken  bool // Stop fails

	mu    sync.Mutex
	asked map[driver.ID]int
	begun []driver.ID
	over  map[string]bool // allocations of which nothing may begin any more
}

func newLate(t *testing.T, delay time.Duration, times int) *late {
	return &late{Driver: mock.New(mock.Config{}), t: t, delay: delay, times: times, asked: map[driver.ID]int{}, over: map[string]bool{}}
}

// carryOut a start, and look that it may be.
func (l *late) carryOut(ctx context.Context, task driver.Task) error {
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
		return l.carryOut(ctx, task)
	}
	time.AfterFunc(l.delay, func() { _ = l.carryOut(context.Background(), task) })
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

// detached is a driver as one life of an agent has it: when that is killed
// nothing it does arrives any more.
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

// life of an agent's engine and store, without sessions; in a bubble.
type life struct {
	*role
	kill func() // as kill -9 does
}

// write is a call of the store: it says whether what was noted is to be there
// for the next life, and whether this one ends with it.
type write func(n notes) (durable, last bool)

func live(t *testing.T, dir string, drv driver.Driver, look write) *life {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cfg := testConfig(t, dir, detached{drv, ctx}, "127.0.0.1:1")
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	cfg.Clock, cfg.BootID = func() time.Duration { return time.Since(start) + time.Hour }, "boot"
	r, finish := assembled(t, cfg)
	store := r.keeper.store
	r.keeper.store = func(n notes) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		durable, last := look(n)
		var err error
		if durable {
			err = store(n)
		}
		if last {
			cancel()
		}
		return errors.Join(err, ctx.Err())
	}
	g := errgroup.Group{}
	g.Go(func() error { return r.engine.run(ctx) })
	g.Go(func() error { return r.keeper.run(ctx) })
	return &life{role: r, kill: func() {
		cancel()
		_ = g.Wait()
		if err := finish(); err != nil {
			t.Error(err)
		}
	}}
}

// always is a store that works.
func always(notes) (durable, last bool) { return true, false }

// give an order. False: the agent died.
func (l *life) give(o *nusav1.AllocOrder) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c := link.Change[*nusav1.AllocOrder]{Position: link.Position{Epoch: "raft", Sequence: o.GetIndex()},
		Upserts: []link.Item[*nusav1.AllocOrder]{{Key: o.GetAllocation().GetId(), Value: o}}}
	return l.engine.apply(ctx, c, func() bool { return true }) == nil
}

// task "main" of an allocation, as reported.
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
	return testOrder("aaaa", index, "mock", nil, func(o *nusav1.AllocOrder, g *nusav1.Group) {
		g.Tasks["main"].Restart = &nusav1.Restart{Attempts: proto.Int32(5), Delay: durationMillis(2000)}
		if stop {
			o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
		}
	})
}

// TestLateStart: a start fails without a word about whether the engine will
// carry it out, and it does, later. The next run does not begin beside it, it
// is shown why, and whenever the agent is killed meanwhile the next one knows.
func TestLateStart(t *testing.T) {
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
					if !strings.Contains(shown.GetMessage(), "run 1 may have begun or begin yet") || !strings.Contains(fmt.Sprint(shown.GetEvents()), "run 1 may have begun or begin yet") {
						t.Errorf("meanwhile it shows %v", shown)
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

// TestStopIsTriedAgain: a driver that cannot stop what may have begun is asked
// until it can, over lives of the agent, and nothing else of the task begins
// before that.
func TestStopIsTriedAgain(t *testing.T) {
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

// TestKilledAtEveryWrite: an agent is killed at its nth write to the store,
// which is done or lost, while an order to run, or already the one to stop, is
// acted upon; an engine takes its time, and the next agent may not be able to make
// a task ready for a while. Whatever that one finds: what is
// ordered to stop does not run, and never does after it was reported as ended;
// nothing begins twice, or two runs of a task side by side.
func TestKilledAtEveryWrite(t *testing.T) {
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
	noted := func(n notes) { // what is durable may be reported
		if r, ok := n.records["aaaa"]; ok && r.Actual.End != nil {
			drv.mu.Lock()
			drv.over["aaaa"] = true
			drv.mu.Unlock()
		}
	}
	writes := 0
	l := live(t, dir, drv, func(n notes) (bool, bool) {
		writes++
		if writes < nth || durable {
			noted(n)
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
	if full { // there is no room for its folder
		folder := filepath.Join(dir, allocsDir, "aaaa")
		if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(filepath.Dir(folder), 0o700), os.WriteFile(folder, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(5*time.Second, func() { _ = os.Remove(folder) })
	}
	l = live(t, dir, drv, func(n notes) (bool, bool) { noted(n); return true, false })
	defer func() { l.kill() }()
	time.Sleep(time.Millisecond)
	// The master tells it what it may have missed: the latest order.
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

// muddled is a driver that may fail to say how its runs do.
type muddled struct {
	*mock.Driver
	mu  sync.Mutex
	err error
}

func (m *muddled) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *muddled) Status(ctx context.Context, id driver.ID) (driver.Status, error) {
	m.mu.Lock()
	err := m.err
	m.mu.Unlock()
	if err != nil {
		return driver.Status{}, fmt.Errorf("run %s: %w", id, err)
	}
	return m.Driver.Status(ctx, id)
}

// TestAdoptOfWhatCannotBeSeen: a run is up, and the next agent's driver fails to
// say so for a while: the run goes on, it is shown what is waited for, and it is
// adopted when the driver can say it. A driver that breaks its contract never
// will: then the run is stopped before the region is told that it has failed.
func TestAdoptOfWhatCannotBeSeen(t *testing.T) {
	for name, c := range map[string]struct {
		err error
		run int // that is up at the end, 0 = none
	}{
		"too many files": {syscall.EMFILE, 1}, "bad disk": {syscall.EIO, 1}, "bad record": {errors.New("unexpected end of JSON input"), 1},
		"away": {driver.ErrUnavailable, 1}, "contract": {driver.ErrContract, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drv, dir := &muddled{Driver: mock.New(mock.Config{})}, t.TempDir()
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
					t.Errorf("meanwhile %v run, and it shows %v", running, shown)
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
