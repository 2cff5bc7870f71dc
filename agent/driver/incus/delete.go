package incus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/lxc/incus/v6/shared/api"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

const (
	// deleteLimit bounds the deletion of an instance.
	deleteLimit = 20 * time.Second
	// selfExit is how long the daemon may take to notice that a container has ended. After
	// that time the container is stopped by force.
	selfExit = 2 * time.Second
	// hangs is the time after which a daemon that does not respond about an instance counts
	// as hanging.
	hangs = 3 * time.Second
	// retryEvery is the pause between two attempts.
	retryEvery = 30 * time.Millisecond
)

// delete stops the instance of a run by force if the instance is running. Then it deletes
// the instance and the volumes that were mounted for it. The caller holds the run's lock.
func (d *Driver) delete(ctx context.Context, id driver.ID, rec record) error {
	err := d.deleteInstance(ctx, id, rec)
	if err == nil {
		_ = d.mounts.Drop(id) // on an error Remove drops the volumes
	}
	return err
}

// deleteInstance deletes the instance of a run if the instance's keys say that it belongs to
// this driver.
func (d *Driver) deleteInstance(ctx context.Context, id driver.ID, rec record) error {
	ctx, cancel := context.WithTimeout(ctx, deleteLimit)
	defer cancel()
	st, stErr := d.status(ctx, id)
	patience := time.Now()
	if stErr == nil && st.State == driver.Ended {
		patience = patience.Add(selfExit)
	}
	for {
		short, done := context.WithTimeout(ctx, hangs)
		inst, err := d.engine.instance(short, rec.Instance)
		done()
		switch dial := (*net.OpError)(nil); {
		case refused(err, http.StatusNotFound):
			return nil
		case errors.As(err, &dial) && dial.Op == "dial", errors.Is(err, context.DeadlineExceeded):
			return err // the daemon is down or hangs, and other callers must not wait for the lock
		}
		if err == nil {
			if who, mine := ours(d.owner, inst); !mine || who != id {
				return nil
			}
			if inst.StatusCode == api.Stopped {
				err = d.engine.call(ctx, http.MethodDelete, instancePath(rec.Instance), nil, nil, nil)
				if err == nil {
					return nil
				}
			} else if time.Now().After(patience) {
				err = d.engine.setState(ctx, rec.Instance, api.InstanceStatePut{Action: "stop", Timeout: -1, Force: true})
			}
		}
		// The daemon is between two states while an instance ends, so try again.
		t := time.NewTimer(retryEvery)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errors.Join(fmt.Errorf("delete %s: %w", rec.Instance, ctx.Err()), err)
		}
	}
}

// deleteEnded deletes the instance of a run that has ended.
func (d *Driver) deleteEnded(ctx context.Context, id driver.ID) {
	unlock, err := d.locks.take(ctx, id)
	if err != nil {
		return
	}
	defer unlock()
	if rec, err := d.read(id); err == nil {
		_ = d.delete(ctx, id, rec) // on an error the next fingerprint deletes the instance
	}
}

// sweep deletes instances of this driver that no run needs. The run of such an instance has
// ended, or it was removed while the daemon did not respond.
func (d *Driver) sweep(ctx context.Context) error {
	var all []api.Instance
	if err := d.engine.call(ctx, http.MethodGet, "/1.0/instances", url.Values{"recursion": {"1"}}, nil, &all); err != nil {
		return err
	}
	for _, inst := range all {
		id, mine := ours(d.owner, inst)
		if !mine {
			continue
		}
		st, err := d.status(ctx, id)
		if _, recErr := d.read(id); errors.Is(recErr, driver.ErrNotFound) || err == nil && st.State == driver.Ended {
			d.ending.Go(func() { d.sweepOne(id, inst.Name) })
		}
	}
	return nil
}

func (d *Driver) sweepOne(id driver.ID, name string) {
	unlock, err := d.locks.take(d.ctx, id)
	if err != nil {
		return
	}
	defer unlock()
	// Read the status again under the lock, because a start may have begun.
	st, err := d.status(d.ctx, id)
	if _, recErr := d.read(id); errors.Is(recErr, driver.ErrNotFound) || err == nil && st.State == driver.Ended {
		_ = d.delete(d.ctx, id, record{Instance: name}) // on an error the next fingerprint deletes the instance
	}
}
