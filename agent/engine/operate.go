package engine

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
)

// Restart asks for another run of running tasks. With an empty name it restarts all running
// tasks. It returns the id of the allocation and the names of the tasks, sorted.
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

// Operated returns the id of an allocation and the running runs of one task, or with an empty
// name the running runs of all tasks, sorted by name. Without a running run it returns an error.
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
