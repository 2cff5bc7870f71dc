package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of the engine.
const (
	// maxAllocs is how many allocations a node takes orders for.
	maxAllocs = 10_000
	// maxStarting allocations at a time; more are declined as busy.
	maxStarting = 256
	// maxEvents wait for the engine; who has one more waits.
	maxEvents = 256
)

// errTooMany: more allocations than maxAllocs.
var errTooMany = errors.New("too many allocations for one node")

// engine owns what is desired and what is actual. One goroutine runs it; all
// others hand it functions to call.
type engine struct {
	log     *slog.Logger
	clock   func() time.Duration
	line    timeline
	drivers map[string]driver.Driver
	store   *store
	node    node
	reports *reports
	keeper  *keeper
	// inventory is told how many tasks run.
	inventory *inventory
	metrics   *metrics
	// portsInUse says which host ports somebody else has open.
	portsInUse func(ports []int) map[int]bool

	// keptLogs bounds the output and the folders of allocations that have ended,
	// in bytes, keptFolders their number; trimming: it is being looked at, trimAgain: once more after that.
	keptLogs            int64
	keptFolders         int
	trimming, trimAgain bool

	events chan func()
	// ready is closed when everything on record was looked at and its reports
	// are there: before, a session would show a master less than there is.
	ready chan struct{}
	tasks *errgroup.Group
	ctx   context.Context // of the tasks' goroutines
	// changed is renewed with every change, for those who wait for one.
	changed *pulse

	host   reconcile.Host
	allocs map[string]*alloc
	lease  lease.Holder
	checks *checks
	// answers of drivers about runs, that adopt has not used yet.
	answers map[driver.ID]answer
	// governed is what the latest plan of all allocations assumed of the rest,
	// and wake when time alone may change one; zero = never.
	governed governing
	wake     time.Time
}

// alloc is one allocation: the order, what is, and the details for reports.
type alloc struct {
	*order
	act     reconcile.Actual
	details map[string]*nusav1.TaskState
	// dirty: something of it has changed since it was last published.
	dirty bool
	// stale: repeat the report, the master seems to have missed it.
	stale bool
	// unstored: it was declined because its order could not be stored. Then its
	// end need not be durable: nothing on record says that it is to run.
	unstored bool
}

// run until ctx ends. Everything that waits for a task ends with it.
func (e *engine) run(ctx context.Context) error {
	e.tasks, e.ctx = errgroup.WithContext(ctx)
	e.checks = newChecks(e.ctx, e.metrics, e.told)
	defer e.checks.close()
	e.recover()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return e.tasks.Wait()
		case <-e.ctx.Done(): // a task's goroutine failed, which none should
			return e.tasks.Wait()
		case f := <-e.events:
			f()
			e.drain()
		case <-timer.C:
		}
		wake := e.settle()
		e.publish()
		if first {
			e.trimSoon()
			close(e.ready)
		}
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(max(0, wake.Sub(e.line.now())))
		}
	}
}

// drain takes what has come meanwhile, so that a burst is one plan.
func (e *engine) drain() {
	for range maxEvents {
		select {
		case f := <-e.events:
			f()
		default:
			return
		}
	}
}

// do has f called by the engine and waits for it. False: ctx ended before.
func (e *engine) do(ctx context.Context, f func()) bool {
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

// post has f called by the engine later. The tasks' goroutines report so.
func (e *engine) post(f func()) {
	select {
	case e.events <- f:
	case <-e.ctx.Done():
	}
}

// load takes over what an earlier life of the agent stored.
func (e *engine) load(c contents) error {
	for id, wire := range c.orders {
		a := &alloc{order: readOrder(wire, e.node, c.forget[id]), details: map[string]*nusav1.TaskState{}, dirty: true}
		rec := c.records[id]
		a.act = rec.Actual
		var rep nusav1.AllocReport
		if err := proto.Unmarshal(rec.Report, &rep); err != nil {
			return fmt.Errorf("record of %s: %w", id, err)
		}
		maps.Copy(a.details, rep.GetTasks())
		e.allocs[id] = a
	}
	return nil
}

// apply takes a change of orders: it is durable when apply returns nil, and
// acted upon after that. valid is asked at the last moment whether the sender
// is still the master.
func (e *engine) apply(ctx context.Context, c link.Change[*nusav1.AllocOrder], valid func() bool) error {
	err := errSuperseded
	if !e.do(ctx, func() {
		if valid() {
			err = e.accept(c)
		}
	}) {
		return ctx.Err()
	}
	return err
}

// newest returns the greatest order by (incarnation, index); nil = none.
func (e *engine) newest(ctx context.Context) (*nusav1.AllocOrder, error) {
	var newest *nusav1.AllocOrder
	if !e.do(ctx, func() {
		for _, a := range e.allocs {
			if newest == nil || newerThan(a.wire, newest) {
				newest = a.wire
			}
		}
	}) {
		return nil, ctx.Err()
	}
	return newest, nil
}

// known returns the ids of all allocations that were not forgotten.
func (e *engine) known(ctx context.Context) ([]string, error) {
	var ids []string
	if !e.do(ctx, func() {
		for id, a := range e.allocs {
			if a.alloc.Want != reconcile.Forget {
				ids = append(ids, id)
			}
		}
	}) {
		return nil, ctx.Err()
	}
	return ids, nil
}

func (e *engine) accept(c link.Change[*nusav1.AllocOrder]) error {
	var fresh []*nusav1.AllocOrder
	added := 0
	for _, item := range c.Upserts {
		o := item.Value
		id := o.GetAllocation().GetId()
		if !allocName.MatchString(id) {
			// It has no place in paths, nor in reports; the others have.
			e.log.Error("order passed over: its allocation's id is none", "alloc", clip(id))
			continue
		}
		old := e.allocs[id]
		switch {
		case old == nil:
			added++
		case newerThan(old.wire, o):
			e.log.Warn("older order refused", "alloc", id, "reason", nusav1.Reason_REASON_STALE_ORDER,
				"index", o.GetIndex(), "known_index", old.wire.GetIndex(), "incarnation", o.GetIncarnation())
			e.metrics.stale.Inc()
			old.dirty, old.stale = true, true
			continue
		case !newerThan(o, old.wire) && old.alloc.Want != reconcile.Forget:
			continue // a repetition
		}
		if old != nil && !old.namedBy(o) {
			e.log.Error("order without what runs: its group is passed over", "alloc", id, "index", o.GetIndex())
			o = proto.CloneOf(o)
			o.Group = old.wire.GetGroup()
		}
		fresh = append(fresh, o)
	}
	if len(e.allocs)+added > maxAllocs {
		return fmt.Errorf("%w: %d, at most %d", errTooMany, len(e.allocs)+added, maxAllocs)
	}
	var removed []string
	for _, id := range c.Removed {
		if a := e.allocs[id]; a != nil {
			removed = append(removed, id)
		}
	}
	n := orderNotes(fresh, removed, c.Position)
	failure := e.keeper.write(n)
	if failure != nil {
		e.keeper.owe(n)
	}
	for _, o := range fresh {
		id := o.GetAllocation().GetId()
		known := e.allocs[id] != nil
		e.order(o)
		if failure != nil && !known {
			e.refuseNew(id, failure)
		}
	}
	for _, id := range removed {
		a := e.allocs[id]
		a.alloc.Want, a.dirty = reconcile.Forget, true
	}
	if failure != nil {
		return fmt.Errorf("%w: %w", errOwed, failure)
	}
	return nil
}

// order takes one stored order.
func (e *engine) order(wire *nusav1.AllocOrder) {
	id := wire.GetAllocation().GetId()
	o := readOrder(wire, e.node, false)
	if a := e.allocs[id]; a != nil {
		a.order, a.dirty = o, true
		return
	}
	e.allocs[id] = &alloc{order: o, act: reconcile.Actual{}, details: map[string]*nusav1.TaskState{}, dirty: true}
}

// carryOut does one action; what takes time is begun in a goroutine that
// reports back.
func (e *engine) carryOut(do reconcile.Action) {
	a := e.allocs[do.Alloc]
	a.dirty = true
	switch do.Kind {
	case reconcile.Accept:
		a.act.Accepted = true
	case reconcile.Decline:
		a.act.End = &reconcile.Outcome{State: do.State, Declined: true, Reason: do.Reason, Message: do.Message}
		e.log.Info("declined", "alloc", do.Alloc, "reason", do.Reason, "message", do.Message)
	case reconcile.Adopt:
		e.adopt(a, do)
	case reconcile.Start:
		e.start(a, do)
	case reconcile.Close:
		a.act.Closing = &reconcile.Outcome{State: do.State, Reason: do.Reason, Message: do.Message}
	case reconcile.StopRun:
		e.halt(a, do)
	case reconcile.End:
		a.act.End = &reconcile.Outcome{State: do.State, Reason: do.Reason, Message: do.Message}
		e.tasks.Go(func() error { return e.clean(do.Alloc) })
		e.log.Info("ended", "alloc", do.Alloc, "state", do.State, "reason", do.Reason, "message", do.Message)
	case reconcile.Remove:
		e.remove(a)
	}
}

// setTask changes a task of an allocation.
func (a *alloc) setTask(name string, t reconcile.TaskActual) {
	// The plan that is being carried out keeps the old map.
	tasks := maps.Clone(a.act.Tasks)
	if tasks == nil {
		tasks = map[string]reconcile.TaskActual{}
	}
	tasks[name] = t
	a.act.Tasks = tasks
	a.dirty = true
}

func (a *alloc) detail(name string) *nusav1.TaskState {
	d := a.details[name]
	if d == nil {
		d = &nusav1.TaskState{State: nusav1.AllocState_ALLOC_STATE_PENDING}
		a.details[name] = d
	}
	return d
}

// publish hands changed records to the keeper of the store, then changed
// reports to the sessions. An end is durable before anybody hears of it: the
// master gives the work to others, so it must not begin again here.
func (e *engine) publish() {
	if e.host.Pausing {
		e.changed.beat()
		return // the next start asks the drivers
	}
	changed, ended := map[string]*nusav1.AllocReport{}, map[string]reconcile.State{}
	for id, a := range e.allocs {
		if !a.dirty {
			continue
		}
		was := a.act.Reached
		a.act.Reached = reconcile.StateOf(a.alloc, a.act)
		if a.act.End != nil && was != a.act.Reached && !a.unstored {
			ended[id] = was
		}
		changed[id] = makeReport(a.order, a.act, a.details)
		e.keeper.keep(id, a.act, changed[id])
	}
	if len(changed) == 0 {
		return
	}
	if len(ended) > 0 {
		if e.keeper.flush() != nil {
			for id, was := range ended { // once more when it can be written
				e.allocs[id].act.Reached = was
				delete(changed, id)
			}
		}
		e.trimSoon()
	}
	for id, rep := range changed {
		a := e.allocs[id]
		if a.act.Accepted || a.act.End != nil {
			e.reports.put(id, rep, a.stale)
		}
		a.dirty, a.stale = false, false
	}
	tasks := e.live()
	e.inventory.setTasks(tasks)
	e.metrics.count(e.allocs, tasks)
	e.changed.beat()
}

// live counts the tasks that run.
func (e *engine) live() int {
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

// remove forgets an allocation that has ended, with its folders.
func (e *engine) remove(a *alloc) {
	id := a.alloc.ID
	delete(e.allocs, id)
	e.reports.delete(id)
	runs := map[string]int{}
	for name, t := range a.act.Tasks {
		runs[name] = t.Run
	}
	tasks := a.tasks
	e.tasks.Go(func() error {
		e.removeFiles(id, tasks, runs)
		e.keeper.drop(id)
		return nil
	})
	e.changed.beat()
}

// begun notes that a run is up.
func (e *engine) begun(a *alloc, name string, run int, at time.Time) {
	t := a.act.Tasks[name]
	if t.Run != run || t.Phase != reconcile.Launching && t.Phase != reconcile.Unknown {
		return
	}
	t.Phase = reconcile.Up
	a.setTask(name, t)
	if a.act.Started.IsZero() {
		a.act.Started = e.line.of(at)
	}
	d := a.detail(name)
	noted := int(d.Run) == run // by the agent that was here before
	d.State, d.Started, d.Finished = nusav1.AllocState_ALLOC_STATE_RUNNING, timestamppb.New(at), nil
	d.Reason, d.Message, d.Run = nusav1.Reason_REASON_UNSPECIFIED, "", int32(run)
	if !noted {
		noteEvent(d, at, "started", fmt.Sprintf("run %d", run))
	}
	e.watch(a, name)
}

// over notes that a run has ended.
func (e *engine) over(a *alloc, name string, end reconcile.TaskActual) {
	t := a.act.Tasks[name]
	if t.Run != end.Run || t.Phase == reconcile.Ended {
		return
	}
	e.checks.end(driver.ID{Alloc: a.alloc.ID, Task: name, Run: end.Run})
	shown := end.Finished
	end.Finished = e.line.of(shown)
	end = t.Finish(end)
	a.setTask(name, end)
	end.Finished = shown
	d := a.detail(name)
	noteEnd(d, end, a.alloc.Batch && end.ExitCode == 0 && end.Signal == 0 && end.Reason == "")
	message := fmt.Sprintf("exit code %d", end.ExitCode)
	if end.Message != "" && end.Reason != reconcile.ReasonUnhealthy { // that was said before
		message += ": " + end.Message
	}
	noteEvent(d, end.Finished, "ended", message)
	e.log.Info("task ended", "alloc", a.alloc.ID, "task", name, "run", end.Run, "exit_code", end.ExitCode, "signal", end.Signal, "reason", end.Reason)
}
