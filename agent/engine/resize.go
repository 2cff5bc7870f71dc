package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/agent/retry"
)

// resizeAttempts bounds how often a driver whose engine does not respond is asked to change the limits of
// a run. With the back-off of package retry, that takes some minutes at most.
const resizeAttempts = 8

// resize asks a driver to change the limits of a run. It asks again while the engine does not respond.
func (r *runner) resize(drv driver.Driver, id driver.ID, to reconcile.Limits) error {
	err := r.usesMore(drv, id, to)
	if err != nil {
		return err
	}
	backOff := retry.New()
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(r.ctx, StatusLimit)
		err := drv.Update(ctx, id, driver.Resources{CPUMilli: to.CPUMilli, MemoryBytes: to.MemoryBytes, DiskBytes: to.DiskBytes})
		cancel()
		silent := errors.Is(err, driver.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
		if !silent || attempt == resizeAttempts {
			return err
		}
		r.log.Warn("limits not changed yet: the driver is asked again", "run", id, "error", err)
		if !retry.Sleep(r.ctx, backOff.NextBackOff()) {
			return err
		}
	}
}

// usesMore returns an error if a run uses more memory than a new limit. With control groups of version 2, the kernel
// would not refuse such a limit, but kill the run.
func (r *runner) usesMore(drv driver.Driver, id driver.ID, to reconcile.Limits) error {
	if to.MemoryBytes == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, StatusLimit)
	defer cancel()
	used, err := drv.Stats(ctx, id)
	if err != nil || used.MemoryBytes <= to.MemoryBytes {
		return nil // the driver decides
	}
	return fmt.Errorf("the task uses %d MiB of memory, more than the new limit of %d MiB", used.MemoryBytes>>20, to.MemoryBytes>>20)
}

// notNeeded reports whether an error of a change of limits says that the run has ended.
func notNeeded(err error) bool {
	return errors.Is(err, driver.ErrNotFound) || errors.Is(err, driver.ErrNotRunning)
}
