package engine

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/agent/store"
	"github.com/nusa-scheduler/nusa/internal/notify"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of the engine.
const (
	// MaxAllocs bounds the allocations of a node.
	MaxAllocs = 10_000
	// maxStarting bounds the allocations that start at the same time. The engine declines
	// further allocations as busy.
	maxStarting = 256
	// maxEvents bounds the functions that wait for the loop. With more, callers wait.
	maxEvents = 256
)

// Config configures an engine.
type Config struct {
	Log *slog.Logger
	// Clock is the clock that leases are counted with. It also advances while the host is
	// suspended.
	Clock    func() time.Duration
	Timeline store.Timeline
	Drivers  map[string]driver.Driver
	Node     Node
	// Host is the capacity of the node. The engine sets the fields MaxStarting, Leaving and
	// Pausing.
	Host    reconcile.Host
	Writer  *store.Writer
	Reports Reports
	Metrics *Metrics
	// TasksChanged is called with the number of running tasks after each change.
	TasksChanged func(n int)
	// PortsInUse reports which of the host ports another program has open.
	PortsInUse func(ports []int) map[int]bool
	// MaxRetainedBytes and MaxRetainedFolders bound the output and the working folders
	// of ended allocations.
	MaxRetainedBytes   int64
	MaxRetainedFolders int
}

// Reports receives the latest report of each allocation, for the master.
type Reports interface {
	// Put sets the report of an allocation. With repeat the report is sent again even if it
	// has not changed.
	Put(id string, rep *nusav1.AllocReport, repeat bool)
	Delete(id string)
}

// Engine owns the desired and the actual state of the node's allocations.
type Engine struct {
	cfg    Config
	log    *slog.Logger
	events chan func()
	// ready is closed when all recorded runs are adopted and reported. In a session that
	// begins earlier the agent would send the master an incomplete set.
	ready   chan struct{}
	changed notify.Signal

	// ctx and group belong to the goroutines that the loop starts.
	ctx   context.Context
	group *errgroup.Group

	// The loop's goroutine owns the fields below.
	host   reconcile.Host
	allocs map[string]*alloc
	// removing holds the allocations whose data is being removed.
	removing  map[string]bool
	leases    lease.Holder
	planner   planner
	runner    *runner
	checks    *checks
	retention *retention
	// found holds the results of the drivers about recorded runs until adopt uses them.
	found map[driver.ID]runStatus
}

// New returns an engine with the allocations that an earlier process of the agent stored.
// It starts nothing.
func New(cfg Config, c store.Contents) (*Engine, error) {
	e := &Engine{cfg: cfg, log: cfg.Log, events: make(chan func(), maxEvents), ready: make(chan struct{}),
		host: cfg.Host, allocs: map[string]*alloc{}, removing: map[string]bool{}, found: map[driver.ID]runStatus{}}
	e.host.MaxStarting = maxStarting
	for id, wire := range c.Orders {
		a := newAlloc(readOrder(wire, cfg.Node, c.Forgotten[id]))
		rec := c.Records[id]
		a.act = rec.Actual
		var rep nusav1.AllocReport
		if err := proto.Unmarshal(rec.Report, &rep); err != nil {
			return nil, fmt.Errorf("local store: record of %s: %w", id, err)
		}
		maps.Copy(a.details, rep.GetTasks())
		a.output = rep.GetOutput()
		e.allocs[id] = a
	}
	return e, nil
}

// Ready returns a channel that is closed when all recorded runs are adopted and their
// reports are complete.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Changed returns a channel that the next change of an allocation closes.
func (e *Engine) Changed() <-chan struct{} { return e.changed.C() }

// Run runs the loop until ctx ends. The goroutines of the tasks end with ctx, but the tasks
// themselves continue.
func (e *Engine) Run(ctx context.Context) error {
	e.begin(ctx)
	defer e.checks.close()
	wake := e.advance()
	e.publish()
	e.retention.request()
	close(e.ready)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(max(0, wake.Sub(e.cfg.Timeline.Now())))
		}
		select {
		case <-ctx.Done():
			return e.group.Wait()
		case <-e.ctx.Done(): // a goroutine of a task failed, which is a bug
			return e.group.Wait()
		case f := <-e.events:
			f()
			e.drain()
		case <-timer.C:
		}
		wake = e.advance()
		e.publish()
	}
}

// begin makes the parts that need the loop's context and asks the drivers about the
// recorded runs.
func (e *Engine) begin(ctx context.Context) {
	e.group, e.ctx = errgroup.WithContext(ctx)
	e.runner = &runner{log: e.log, ctx: e.ctx, group: e.group, drivers: e.cfg.Drivers, setup: e.cfg.Node.Setup, writer: e.cfg.Writer, events: runEvents{
		started:   func(id driver.ID, at time.Time) { e.post(func() { e.runStarted(id, at) }) },
		ended:     func(id driver.ID, end runEnd) { e.post(func() { e.runEnded(id, end) }) },
		uncertain: func(id driver.ID, why string) { e.post(func() { e.runUncertain(id, why) }) },
		deadline:  e.deadline,
	}}
	e.checks = newChecks(e.ctx, e.cfg.Metrics, func(id driver.ID, s healthState) { e.post(func() { e.checkReported(id, s) }) })
	e.retention = &retention{log: e.log, ctx: e.ctx, group: e.group, setup: e.cfg.Node.Setup, maxBytes: e.cfg.MaxRetainedBytes, maxFolders: e.cfg.MaxRetainedFolders,
		list: func() []retained { return listRetained(e.allocs, e.cfg.Drivers) }, post: e.post}
	e.found = recoverRuns(e.ctx, e.allocs, e.cfg.Drivers)
}

// drain calls all functions that already wait, so that one plan covers them.
func (e *Engine) drain() {
	for range maxEvents {
		select {
		case f := <-e.events:
			f()
		default:
			return
		}
	}
}

// do gives f to the loop and waits until f has returned. It returns false if ctx ended
// earlier.
func (e *Engine) do(ctx context.Context, f func()) bool {
	done := make(chan struct{})
	select {
	case e.events <- func() { f(); close(done) }:
	case <-ctx.Done():
		return false
	}
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// post gives f to the loop and does not wait. Goroutines of tasks report their results with
// post.
func (e *Engine) post(f func()) {
	select {
	case e.events <- f:
	case <-e.ctx.Done():
	}
}

// Wake makes the loop plan and publish again. It is called when the store can be written
// again.
func (e *Engine) Wake(ctx context.Context) { e.do(ctx, func() {}) }

// SetHost replaces the states of the drivers, and the memory of each accelerator by its id, that
// the plans use.
func (e *Engine) SetHost(ctx context.Context, drivers map[string]reconcile.Driver, gpus map[string]int64) bool {
	return e.do(ctx, func() { e.host.Drivers, e.host.GPUs = drivers, gpus })
}

// publish gives changed records to the store's writer, then changed reports to the
// sessions. The end of an allocation must be durable before it is reported. After that
// report the master gives the work to another node, so the work must not begin here again.
func (e *Engine) publish() {
	if e.host.Pausing {
		e.changed.Notify()
		return // nothing has to be stored: when the agent starts again, it asks the drivers for the state of the runs
	}
	changed, ended := map[string]*nusav1.AllocReport{}, map[string]reconcile.State{}
	for id, a := range e.allocs {
		if !a.dirty {
			continue
		}
		before := a.act.Reached
		a.act.Reached = reconcile.StateOf(a.spec, a.act)
		if a.act.End != nil && before != a.act.Reached && !a.unstored {
			ended[id] = before
		}
		changed[id] = makeReport(a.order, a.act, a.details, e.verdict(a))
		changed[id].Output = a.output
		e.cfg.Writer.PutRecord(id, a.act, changed[id])
	}
	if len(changed) == 0 {
		return
	}
	if len(ended) > 0 {
		if e.cfg.Writer.Flush() != nil {
			for id, before := range ended { // publish tries again when the store can be written
				e.allocs[id].act.Reached = before
				delete(changed, id)
			}
		}
		e.retention.request()
	}
	for id, rep := range changed {
		a := e.allocs[id]
		if a.act.Accepted || a.act.End != nil || rep.GetReason() != 0 {
			e.cfg.Reports.Put(id, rep, a.repeat)
		}
		a.dirty, a.repeat = false, false
	}
	tasks := e.runningTasks()
	e.cfg.TasksChanged(tasks)
	e.cfg.Metrics.count(e.allocs, tasks)
	e.changed.Notify()
}

func (e *Engine) runningTasks() int {
	n := 0
	for _, a := range e.allocs {
		for _, t := range a.act.Tasks {
			if t.Phase == reconcile.Up || t.Phase == reconcile.Closing {
				n++
			}
		}
	}
	return n
}

// Leave makes the engine stop every task and accept no new work. It returns the longest
// kill timeout of the tasks. ok is false if ctx ended earlier.
func (e *Engine) Leave(ctx context.Context) (killTimeout time.Duration, ok bool) {
	ok = e.do(ctx, func() { e.host.Leaving, killTimeout = true, e.longestKillTimeout() })
	return killTimeout, ok
}

// Pause makes the engine stop every task and change nothing else: no record and no report
// says that a task ended. It returns the longest kill timeout of the tasks. ok is false if
// ctx ended earlier.
func (e *Engine) Pause(ctx context.Context) (killTimeout time.Duration, ok bool) {
	ok = e.do(ctx, func() { e.host.Pausing, killTimeout = true, e.longestKillTimeout() })
	return killTimeout, ok
}

func (e *Engine) longestKillTimeout() (longest time.Duration) {
	for _, a := range e.allocs {
		longest = max(longest, reconcile.StopTime(a.spec))
	}
	return longest
}

// AllEnded reports whether every allocation has ended.
func (e *Engine) AllEnded(ctx context.Context) bool {
	all := true
	return e.do(ctx, func() {
		for _, a := range e.allocs {
			all = all && a.act.End != nil
		}
	}) && all
}

// NothingRuns reports whether no task runs and none may still begin.
func (e *Engine) NothingRuns(ctx context.Context) bool {
	quiet := true
	return e.do(ctx, func() {
		for _, a := range e.allocs {
			quiet = quiet && reconcile.NothingRuns(a.act)
		}
	}) && quiet
}

// RemoveRuns removes every run of every allocation from its driver, with its output and its
// container. Call it when nothing runs and the data directory is about to be deleted.
func (e *Engine) RemoveRuns(ctx context.Context) {
	var ids []driver.ID
	var drivers []driver.Driver
	e.do(ctx, func() {
		for id, a := range e.allocs {
			for name, t := range a.act.Tasks {
				drv := e.cfg.Drivers[a.tasks[name].driver]
				for run := max(1, t.Run-RetainedRuns+1); drv != nil && run <= t.Run; run++ {
					ids, drivers = append(ids, driver.ID{Alloc: id, Task: name, Run: run}), append(drivers, drv)
				}
			}
		}
	})
	var removing errgroup.Group
	removing.SetLimit(maxAsking)
	for i, id := range ids {
		removing.Go(func() error {
			if err := drivers[i].Remove(ctx, id); err != nil {
				e.log.Warn("run not removed", "run", id, "error", err)
			}
			return nil
		})
	}
	_ = removing.Wait()
}

// SweepSetup removes the prepared folders and secrets of allocations that have ended. Call
// it before Run.
func (e *Engine) SweepSetup() {
	e.cfg.Node.Setup.Sweep(func(id string) bool { a := e.allocs[id]; return a != nil && a.act.End == nil })
}
