package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// minPrefix is the shortest accepted prefix of an allocation's id.
const minPrefix = 4

// The kinds of errors of a lookup.
var (
	// ErrInvalid: the request is not valid.
	ErrInvalid = errors.New("invalid request")
	// ErrUnknown: this node has no such allocation.
	ErrUnknown = errors.New("unknown allocation")
	// ErrNotRunning: no task of the request is running.
	ErrNotRunning = errors.New("not running")
	// ErrNoDriver: the agent no longer has the task's driver.
	ErrNoDriver = errors.New("no driver")
)

// lookupError has a complete message and one of the kinds above.
type lookupError struct {
	kind error
	text string
}

func (e *lookupError) Error() string { return e.text }
func (e *lookupError) Unwrap() error { return e.kind }

func lookupErrorf(kind error, format string, args ...any) error {
	return &lookupError{kind, fmt.Sprintf(format, args...)}
}

// List returns the allocations for which include returns true. include gets the allocation
// as ordered, and whether the allocation has ended. List returns an error only if ctx
// ended.
func (e *Engine) List(ctx context.Context, include func(a *nusav1.Allocation, ended bool) bool) ([]*nusav1.Allocation, error) {
	var out []*nusav1.Allocation
	if !e.do(ctx, func() {
		for _, a := range e.allocs {
			if include(a.wire.GetAllocation(), a.act.End != nil) {
				out = append(out, e.show(a))
			}
		}
	}) {
		return nil, ctx.Err()
	}
	return out, nil
}

// Get returns an allocation by its id or by a unique prefix of its id.
func (e *Engine) Get(ctx context.Context, prefix string) (out *nusav1.Allocation, err error) {
	if !e.do(ctx, func() {
		var a *alloc
		a, err = e.find(prefix)
		if err == nil {
			out = e.show(a)
		}
	}) {
		return nil, ctx.Err()
	}
	return out, err
}

// show returns an allocation as ordered, with its state on this node.
func (e *Engine) show(a *alloc) *nusav1.Allocation {
	out := proto.CloneOf(a.wire.GetAllocation())
	rep := makeReport(a.order, a.act, a.details, e.verdict(a))
	for name, d := range rep.GetTasks() {
		id := driver.ID{Alloc: a.spec.ID, Task: name, Run: a.act.Tasks[name].Run}
		if s, ok := e.checks.state(id); ok {
			d.Check = checkStateToProto(a.tasks[name].check, s)
		}
	}
	out.State, out.Tasks = rep.GetState(), rep.GetTasks()
	if rep.GetReason() != 0 || rep.GetMessage() != "" {
		out.Reason, out.Message = rep.GetReason(), rep.GetMessage()
	}
	return out
}

// find finds an allocation by its id or by a unique prefix of its id.
func (e *Engine) find(prefix string) (*alloc, error) {
	if len(prefix) < minPrefix {
		return nil, lookupErrorf(ErrInvalid, "id: %q is shorter than %d characters", prefix, minPrefix)
	}
	if a := e.allocs[prefix]; a != nil {
		return a, nil
	}
	var found *alloc
	for id, a := range e.allocs {
		if !strings.HasPrefix(id, prefix) {
			continue
		}
		if found != nil {
			return nil, lookupErrorf(ErrInvalid, "id: several allocations begin with %q; give more characters", prefix)
		}
		found = a
	}
	if found == nil {
		return nil, lookupErrorf(ErrUnknown, "no allocation %q on this node", prefix)
	}
	return found, nil
}

// findTask finds a task by its name and a prefix of its allocation's id. The name may
// be "" if the allocation has one task.
func (e *Engine) findTask(prefix, name string) (*alloc, string, error) {
	a, err := e.find(prefix)
	if err != nil {
		return nil, "", err
	}
	if name == "" && len(a.spec.Tasks) == 1 {
		name = a.spec.Tasks[0].Name
	}
	if _, ok := a.tasks[name]; !ok {
		var names []string
		for _, t := range a.spec.Tasks {
			names = append(names, t.Name)
		}
		if name == "" {
			return nil, "", lookupErrorf(ErrInvalid, "task: the allocation has several; name one of: %s", strings.Join(names, ", "))
		}
		return nil, "", lookupErrorf(ErrInvalid, "task: %q is not one of: %s", name, strings.Join(names, ", "))
	}
	return a, name, nil
}

// LiveRun is the running run of a task. If the task has none, Problem says why.
type LiveRun struct {
	ID      driver.ID
	Driver  driver.Driver
	Problem string
}

// LiveRun returns the running run of a task.
func (e *Engine) LiveRun(ctx context.Context, prefix, task string) (run LiveRun, err error) {
	if !e.do(ctx, func() {
		var a *alloc
		var name string
		a, name, err = e.findTask(prefix, task)
		if err == nil {
			run = e.liveRun(a, name)
		}
	}) {
		return run, ctx.Err()
	}
	return run, err
}

// LiveRuns returns the id of an allocation, and the running run of each task by the task's
// name.
func (e *Engine) LiveRuns(ctx context.Context, prefix string) (id string, runs map[string]LiveRun, err error) {
	runs = map[string]LiveRun{}
	if !e.do(ctx, func() {
		var a *alloc
		a, err = e.find(prefix)
		if err != nil {
			return
		}
		id = a.spec.ID
		for name := range a.tasks {
			runs[name] = e.liveRun(a, name)
		}
	}) {
		return "", nil, ctx.Err()
	}
	return id, runs, err
}

func (e *Engine) liveRun(a *alloc, name string) LiveRun {
	to, t := a.tasks[name].driver, a.act.Tasks[name]
	r := LiveRun{ID: driver.ID{Alloc: a.spec.ID, Task: name, Run: t.Run}, Driver: e.cfg.Drivers[to]}
	switch {
	case r.Driver == nil:
		r.Problem = noDriver(to)
	case t.Phase != reconcile.Up && t.Phase != reconcile.Closing:
		r.Problem = "task " + name + " does not run"
	}
	return r
}

// LogRun is a run whose output can be read. If ID is zero, no such run has begun.
type LogRun struct {
	ID     driver.ID
	Driver driver.Driver
	// Last says that no further run of the task will begin.
	Last bool
}

// LogRun returns a run of a task that has begun. With next = 0 it returns the latest run,
// else the first retained run whose number is at least next.
func (e *Engine) LogRun(ctx context.Context, prefix, task string, next int) (run LogRun, err error) {
	if !e.do(ctx, func() { run, err = e.logRun(prefix, task, next) }) {
		return run, ctx.Err()
	}
	return run, err
}

func (e *Engine) logRun(prefix, task string, next int) (LogRun, error) {
	a, name, err := e.findTask(prefix, task)
	if err != nil {
		return LogRun{}, err
	}
	drv := e.cfg.Drivers[a.tasks[name].driver]
	if drv == nil {
		return LogRun{}, lookupErrorf(ErrNoDriver, "%s", noDriver(a.tasks[name].driver))
	}
	t := a.act.Tasks[name]
	begun := t.Run
	if t.Phase == reconcile.Launching || t.Phase == reconcile.Waiting || t.Phase == reconcile.Ended && t.Reason == reconcile.ReasonUnsupported {
		begun-- // the run may not have begun, so the driver may not know it
	}
	switch {
	case next == 0 && begun > 0:
		next = begun
	case next == 0 || next > begun:
		return LogRun{Last: a.act.End != nil}, nil
	}
	// The output of earlier runs may have been removed already.
	id := driver.ID{Alloc: a.spec.ID, Task: name, Run: max(next, begun-RetainedRuns+1)}
	return LogRun{ID: id, Driver: drv}, nil
}

// Restart asks for another run of a running task, or with an empty name of all running tasks. It
// returns the id of the allocation and the names of these tasks, sorted. It does not wait for the
// new runs.
func (e *Engine) Restart(ctx context.Context, prefix, task string) (id string, tasks []string, err error) {
	if !e.do(ctx, func() {
		var a *alloc
		var runs []LiveRun
		a, runs, err = e.operated(prefix, task)
		if err != nil {
			return
		}
		if a.ends() {
			err = lookupErrorf(ErrNotRunning, "the allocation is stopping")
			return
		}
		id = a.spec.ID
		for _, r := range runs {
			t := a.act.Tasks[r.ID.Task]
			t.RestartAsked = true
			a.setTask(r.ID.Task, t)
			tasks = append(tasks, r.ID.Task)
		}
	}) {
		return "", nil, ctx.Err()
	}
	return id, tasks, err
}

// Operated returns the id of an allocation and the run of a running task, or with an empty name
// the runs of all running tasks, sorted by name. If nothing runs, it returns ErrNotRunning.
func (e *Engine) Operated(ctx context.Context, prefix, task string) (id string, runs []LiveRun, err error) {
	if !e.do(ctx, func() {
		var a *alloc
		a, runs, err = e.operated(prefix, task)
		if err == nil {
			id = a.spec.ID
		}
	}) {
		return "", nil, ctx.Err()
	}
	return id, runs, err
}

func (e *Engine) operated(prefix, task string) (*alloc, []LiveRun, error) {
	a, err := e.find(prefix)
	if err == nil && task != "" {
		a, task, err = e.findTask(prefix, task)
	}
	if err != nil {
		return nil, nil, err
	}
	var runs []LiveRun
	problem := "no task of the allocation runs"
	for _, t := range a.spec.Tasks {
		if task != "" && t.Name != task {
			continue
		}
		r := e.liveRun(a, t.Name)
		if r.Problem == "" && a.act.Tasks[t.Name].Phase != reconcile.Up {
			r.Problem = "task " + t.Name + " is stopping"
		}
		if r.Problem == "" {
			runs = append(runs, r)
		} else if task != "" {
			problem = r.Problem
		}
	}
	if len(runs) == 0 {
		return nil, nil, lookupErrorf(ErrNotRunning, "%s", problem)
	}
	return a, runs, nil
}

// Signalled records in the events of a task that an operator sent it a signal.
func (e *Engine) Signalled(ctx context.Context, run driver.ID, signal string) {
	e.do(ctx, func() {
		if a := e.allocs[run.Alloc]; a != nil && a.act.Tasks[run.Task].Run == run.Run {
			addEvent(a.detail(run.Task), e.cfg.Timeline.Now(), "signal", "an operator sent "+signal)
			a.dirty = true
		}
	})
}

// Folder returns the id and the folder of an allocation, and the names of its tasks, sorted.
func (e *Engine) Folder(ctx context.Context, prefix string) (id, dir string, tasks []string, err error) {
	if !e.do(ctx, func() {
		var a *alloc
		a, err = e.find(prefix)
		if err != nil {
			return
		}
		id, dir = a.spec.ID, filepath.Join(e.cfg.Node.AllocsDir, a.spec.ID)
		for _, t := range a.spec.Tasks {
			tasks = append(tasks, t.Name)
		}
		slices.Sort(tasks)
	}) {
		return "", "", nil, ctx.Err()
	}
	return id, dir, tasks, err
}
