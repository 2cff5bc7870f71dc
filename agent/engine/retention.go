package engine

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/retry"
	"github.com/nusa-scheduler/nusa/agent/setup"
)

const (
	// DefaultRetainedBytes is the default bound on the retained output and folders of ended
	// allocations, in bytes.
	DefaultRetainedBytes = 1 << 30
	// DefaultRetainedFolders is the default bound on the working folders of ended
	// allocations.
	DefaultRetainedFolders = 500
	// retentionPause is the pause between two passes. Hundreds of tasks may end at once,
	// and one pass serves them all.
	retentionPause = time.Second
)

// retained is one piece of the data of an ended allocation. It is the output of a run, or,
// if driver is nil, the working folder of the allocation.
type retained struct {
	driver driver.Driver
	id     driver.ID
	ended  time.Time
}

// retention enforces the bounds on the output and the folders of ended allocations.
type retention struct {
	log        *slog.Logger
	ctx        context.Context
	group      *errgroup.Group
	setup      *setup.Setup
	maxBytes   int64
	maxFolders int
	list       func() []retained
	post       func(func()) // gives a function to the loop

	state passState
}

// passState is the state of a retention's passes.
type passState int

const (
	noPass    passState = iota
	onePass             // a pass is running
	passAgain           // a pass is running, and another one is needed
)

// request starts a pass. If a pass is running, a further pass follows it. Only the loop
// calls request.
func (r *retention) request() {
	if r.state != noPass {
		r.state = passAgain
		return
	}
	r.state = onePass
	list := r.list()
	r.group.Go(func() error {
		r.pass(list)
		if retry.Sleep(r.ctx, retentionPause) {
			r.post(func() {
				again := r.state == passAgain
				r.state = noPass
				if again {
					r.request()
				}
			})
		}
		return nil
	})
}

// listRetained lists the data of ended allocations, the latest end first. The folder of an
// allocation comes after its outputs, because a folder is less useful.
func listRetained(allocs map[string]*alloc, drivers map[string]driver.Driver) []retained {
	var out []retained
	for id, a := range allocs {
		if a.act.End == nil {
			continue
		}
		folder := retained{id: driver.ID{Alloc: id}}
		for name, t := range a.act.Tasks {
			if t.Finished.After(folder.ended) {
				folder.ended = t.Finished
			}
			drv := drivers[a.tasks[name].driver]
			for run := max(1, t.Run-RetainedRuns+1); drv != nil && run <= t.Run; run++ {
				out = append(out, retained{driver: drv, id: driver.ID{Alloc: id, Task: name, Run: run}, ended: t.Finished})
			}
		}
		if len(a.act.Tasks) > 0 { // a declined allocation has no folder
			out = append(out, folder)
		}
	}
	slices.SortFunc(out, func(a, b retained) int {
		return cmp.Or(b.ended.Compare(a.ended), cmp.Compare(b.id.Run, a.id.Run), cmp.Compare(a.id.Alloc, b.id.Alloc))
	})
	return out
}

// pass removes the oldest data until the remaining data is within the bounds.
func (r *retention) pass(list []retained) {
	ctx, cancel := context.WithTimeout(r.ctx, StatusLimit)
	defer cancel()
	var bytes int64
	folders := 0
	for _, item := range list {
		size, err := r.size(ctx, item)
		if err != nil {
			r.log.Warn("size of retained data not known", "of", item.id, "error", err)
			continue
		}
		if item.driver == nil && size > 0 {
			folders++
		}
		bytes += size
		if over := bytes > r.maxBytes || item.driver == nil && folders > r.maxFolders; size == 0 || !over {
			continue
		}
		r.log.Info("retained data of an ended allocation removed", "what", item.id, "bytes", size, "bound", r.maxBytes)
		if item.driver == nil {
			err = r.setup.Remove(item.id.Alloc)
		} else {
			err = item.driver.Remove(ctx, item.id)
		}
		if err != nil {
			r.log.Warn("retained data of an ended allocation not removed", "what", item.id, "error", err)
		}
	}
}

func (r *retention) size(ctx context.Context, item retained) (int64, error) {
	if item.driver != nil {
		return item.driver.Size(ctx, item.id)
	}
	return r.setup.Size(ctx, item.id.Alloc)
}
