package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/health"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
)

const (
	// adoptLimit bounds how long the start of an agent waits for its drivers to report all
	// recorded runs.
	adoptLimit = 3 * time.Second
	// maxAsking bounds the concurrent status requests to one driver.
	maxAsking = 16
)

// runStatus is what a driver reported about a run.
type runStatus struct {
	status driver.Status
	err    error
}

// ask asks a driver for the status of a run. If ctx ends before the driver reports, the
// error is ErrUnavailable, and the state of the run stays unknown.
func ask(ctx context.Context, drv driver.Driver, id driver.ID) runStatus {
	st, err := drv.Status(ctx, id)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: no answer in time: %w", driver.ErrUnavailable, err)
	}
	return runStatus{st, err}
}

// conclusive reports whether the result of a driver's Status says what the state of the run
// is. Other errors do not, such as those of an engine that does not respond or of a file
// that cannot be read. Then the run may be up, and the driver must be asked again.
func conclusive(err error) bool {
	return err == nil || errors.Is(err, driver.ErrNotFound) || errors.Is(err, driver.ErrContract)
}

// recordedRun is the latest run of a task, from the record or from the driver.
type recordedRun struct {
	alloc *alloc
	id    driver.ID
	newer bool      // the run is newer than the record
	found runStatus // zero if the agent lacks the driver
}

// recoverRuns compares the records of all allocations that have not ended with the drivers,
// and returns what the drivers reported. Records are written late, so a driver may know a
// newer run than the record, and then that run counts. The drivers are asked concurrently,
// so that a driver that hangs does not delay the others.
func recoverRuns(ctx context.Context, allocs map[string]*alloc, drivers map[string]driver.Driver) map[driver.ID]runStatus {
	ctx, cancel := context.WithTimeout(ctx, adoptLimit)
	defer cancel()
	byDriver := map[string][]*recordedRun{}
	for _, a := range allocs {
		if a.act.End != nil {
			continue
		}
		for name, to := range a.tasks {
			r := &recordedRun{alloc: a, id: driver.ID{Alloc: a.spec.ID, Task: name, Run: a.act.Tasks[name].Run}}
			byDriver[to.driver] = append(byDriver[to.driver], r)
		}
	}
	var asking sync.WaitGroup
	for name, runs := range byDriver {
		if drv := drivers[name]; drv != nil {
			for part := range slices.Chunk(runs, (len(runs)+maxAsking-1)/maxAsking) {
				asking.Go(func() {
					for _, r := range part {
						r.ask(ctx, drv)
					}
				})
			}
		}
	}
	asking.Wait()
	found := map[driver.ID]runStatus{}
	for name, runs := range byDriver {
		for _, r := range runs {
			r.takeOver(drivers[name] != nil, found)
		}
	}
	return found
}

// ask asks the driver which run of the task is the latest one, and asks for the status of
// that run.
func (r *recordedRun) ask(ctx context.Context, drv driver.Driver) {
	if r.id.Run > 0 {
		r.found = ask(ctx, drv, r.id)
	}
	// The engine retains RetainedRuns runs of a task, and removes an older run only after
	// the record of a new run is durable. So the driver knows at most RetainedRuns runs
	// that are newer than the record.
	for newer := 0; newer <= RetainedRuns; newer++ {
		next := r.id
		next.Run++
		found := ask(ctx, drv, next)
		if found.err != nil {
			return
		}
		r.id, r.found, r.newer = next, found, true
	}
}

// takeOver sets the task's record to the latest run, and adds what the driver reported to
// found. asked is false if the agent lacks the driver.
func (r *recordedRun) takeOver(asked bool, found map[driver.ID]runStatus) {
	t := r.alloc.act.Tasks[r.id.Task]
	switch {
	case r.newer || t.Phase == reconcile.Launching || t.Phase == reconcile.Up || t.Phase == reconcile.Closing:
	case asked && t.Run == 0:
		// An earlier agent may have begun the first run and died before the run was
		// recorded.
		t.Run, t.StartUncertain = 1, true
		r.alloc.setTask(r.id.Task, t)
		return
	default:
		return
	}
	if r.newer {
		t.Run, t.Health, t.Limits, t.RefusedLimits = r.id.Run, health.Waiting, nil, nil
	}
	if asked {
		found[r.id] = r.found
	}
	t.Phase = reconcile.Unknown
	r.alloc.act.Accepted = true
	r.alloc.setTask(r.id.Task, t)
}
