package agent

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

const (
	// defaultKeptLogs of allocations that have ended, in bytes.
	defaultKeptLogs = 1 << 30
	// trimPause between two looks at what is kept: tasks may end by the hundred.
	trimPause = time.Second
)

// keptRun is what an allocation that has ended keeps of a task.
type keptRun struct {
	driver driver.Driver
	id     driver.ID
	ended  time.Time
}

// trimSoon has what is kept bounded after an allocation has ended. One
// goroutine does so at a time; what ends meanwhile is looked at after it.
func (e *engine) trimSoon() {
	if e.trimming {
		e.trimAgain = true
		return
	}
	e.trimming, e.trimAgain = true, false
	runs := e.keptRuns()
	e.tasks.Go(func() error {
		e.trim(runs)
		if sleep(e.ctx, trimPause) {
			e.post(func() {
				e.trimming = false
				if e.trimAgain {
					e.trimSoon()
				}
			})
		}
		return nil
	})
}

// keptRuns lists the runs of allocations that have ended, the latest first.
func (e *engine) keptRuns() []keptRun {
	var out []keptRun
	for id, a := range e.allocs {
		if a.act.End == nil {
			continue
		}
		for name, t := range a.act.Tasks {
			drv := e.drivers[a.tasks[name].driver]
			for run := max(1, t.Run-keptRuns+1); drv != nil && run <= t.Run; run++ {
				out = append(out, keptRun{driver: drv, id: driver.ID{Alloc: id, Task: name, Run: run}, ended: t.Finished})
			}
		}
	}
	slices.SortFunc(out, func(a, b keptRun) int {
		return cmp.Or(b.ended.Compare(a.ended), cmp.Compare(b.id.Run, a.id.Run))
	})
	return out
}

// trim removes the oldest runs until the rest is within the bound.
func (e *engine) trim(runs []keptRun) {
	ctx, cancel := context.WithTimeout(e.ctx, statusLimit)
	defer cancel()
	var kept int64
	for _, r := range runs {
		size, err := r.driver.Size(ctx, r.id)
		if err != nil {
			e.log.Warn("size of a run not known", "run", r.id, "error", err)
			continue
		}
		if kept += size; kept <= e.keptLogs || size == 0 {
			continue
		}
		e.log.Info("old logs removed", "run", r.id, "bytes", size, "bound", e.keptLogs)
		if err := r.driver.Remove(ctx, r.id); err != nil {
			e.log.Warn("old logs not removed", "run", r.id, "error", err)
		}
	}
}
