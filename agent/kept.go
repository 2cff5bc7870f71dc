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
	// defaultKeptFolders of allocations that have ended.
	defaultKeptFolders = 500
	// trimPause between two looks at what is kept: tasks may end by the hundred.
	trimPause = time.Second
)

// kept is what an allocation that has ended keeps: the output of a run or, with
// a nil driver, its folder.
type kept struct {
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
	list := e.keptNow()
	e.tasks.Go(func() error {
		e.trim(list)
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

// keptNow lists what allocations that have ended keep, the latest first and of
// each its folder last: what is in it is worth less than what it said.
func (e *engine) keptNow() []kept {
	var out []kept
	for id, a := range e.allocs {
		if a.act.End == nil {
			continue
		}
		folder := kept{id: driver.ID{Alloc: id}}
		for name, t := range a.act.Tasks {
			if t.Finished.After(folder.ended) {
				folder.ended = t.Finished
			}
			drv := e.drivers[a.tasks[name].driver]
			for run := max(1, t.Run-keptRuns+1); drv != nil && run <= t.Run; run++ {
				out = append(out, kept{driver: drv, id: driver.ID{Alloc: id, Task: name, Run: run}, ended: t.Finished})
			}
		}
		if len(a.act.Tasks) > 0 { // one that was declined has none
			out = append(out, folder)
		}
	}
	slices.SortFunc(out, func(a, b kept) int {
		return cmp.Or(b.ended.Compare(a.ended), cmp.Compare(b.id.Run, a.id.Run), cmp.Compare(a.id.Alloc, b.id.Alloc))
	})
	return out
}

// trim removes the oldest until the rest is within the bounds.
func (e *engine) trim(list []kept) {
	ctx, cancel := context.WithTimeout(e.ctx, statusLimit)
	defer cancel()
	var bytes int64
	folders := 0
	for _, k := range list {
		size, err := e.keptSize(ctx, k)
		if err != nil {
			e.log.Warn("size of what is kept not known", "of", k.id, "error", err)
			continue
		}
		if k.driver == nil && size > 0 {
			folders++
		}
		bytes += size
		if over := bytes > e.keptLogs || k.driver == nil && folders > e.keptFolders; size == 0 || !over {
			continue
		}
		e.log.Info("of an ended allocation removed", "what", k.id, "bytes", size, "bound", e.keptLogs)
		if k.driver == nil {
			err = e.node.setup.Remove(k.id.Alloc)
		} else {
			err = k.driver.Remove(ctx, k.id)
		}
		if err != nil {
			e.log.Warn("of an ended allocation not removed", "what", k.id, "error", err)
		}
	}
}

func (e *engine) keptSize(ctx context.Context, k kept) (int64, error) {
	if k.driver != nil {
		return k.driver.Size(ctx, k.id)
	}
	return e.node.setup.Size(ctx, k.id.Alloc)
}
