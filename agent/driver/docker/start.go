package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

const (
	// resumeLimit is how long Start waits for a start that another process of the agent
	// began.
	resumeLimit = 10 * time.Second
	// killAgain is the time after which Stop kills a container again that is still running.
	killAgain = 10 * time.Second
)

// errNoFencing is the error for a task with a lease. Nothing in a Docker container ends the
// container at a deadline.
var errNoFencing = errors.New("a lease binds the group, and a Docker container does not end with its lease: use the driver process or incus")

// Start implements driver.Driver.
func (d *Driver) Start(ctx context.Context, t driver.Task) error {
	c, err := parse(t)
	if err == nil {
		err = d.allowed(c)
	}
	if err == nil && t.Lease.At != 0 {
		err = errNoFencing
	}
	if err != nil {
		return fmt.Errorf("%w: task %s: %w", driver.ErrInvalid, t.ID.Task, err)
	}
	ctx, leave, err := d.enter(ctx, t.ID)
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	defer leave()
	rec, known := d.records.get(t.ID)
	switch {
	case known && rec.End != nil:
		return rec.End.StartError()
	case known && rec.Begun:
		err = d.resume(ctx, t, c, rec)
	default:
		err = d.launch(ctx, t, c)
	}
	if ctx.Err() == nil && !client.IsErrConnectionFailed(err) {
		// The engine has mounted the volumes, or will never mount them.
		_ = d.mounts.Drop(t.ID) // on an error Remove drops the volumes
	}
	return err
}

// Admit implements driver.Admitter.
func (d *Driver) Admit(t driver.Task) error {
	c, err := parse(t)
	if err != nil {
		return nil // Start returns the error
	}
	return d.allowed(c)
}

func (d *Driver) allowed(c settings) error {
	if c.privileged && !d.cfg.AllowPrivileged {
		return fmt.Errorf("config.privileged: %w (--docker-allow-privileged)", driver.ErrNotAllowed)
	}
	return nil
}

// launch makes the container and asks the engine to start it.
func (d *Driver) launch(ctx context.Context, t driver.Task, c settings) error {
	// The record comes first, because sweep removes containers without a record.
	if _, err := d.records.change(t.ID, func(rec *record) { rec.MemoryBytes = t.Resources.MemoryBytes }); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	volumes, err := d.mounts.Put(t.ID, t.Volumes)
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", driver.ErrStart, err), d.records.remove(t.ID))
	}
	t.Volumes = volumes
	made, ran, err := d.create(ctx, t, c)
	if err != nil {
		if ctx.Err() == nil && !client.IsErrConnectionFailed(err) {
			// The engine made no container, so a retry begins from the start.
			err = errors.Join(err, d.records.remove(t.ID))
		}
		return err
	}
	rec, err := d.records.change(t.ID, func(rec *record) { rec.Container, rec.Begun = made, true })
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	if ran {
		return d.resume(ctx, t, c, rec)
	}
	return d.begin(ctx, t.ID, rec)
}

// enter waits until no other call of Start for the run is running. The returned context
// ends with ctx or when Stop is called.
func (d *Driver) enter(ctx context.Context, id driver.ID) (context.Context, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	mine := &starting{cancel: cancel, done: make(chan struct{})}
	for {
		d.mu.Lock()
		other := d.starts[id]
		if other == nil {
			d.starts[id] = mine
			d.mu.Unlock()
			return ctx, func() {
				d.mu.Lock()
				delete(d.starts, id)
				d.mu.Unlock()
				cancel()
				close(mine.done)
			}, nil
		}
		d.mu.Unlock()
		select {
		case <-other.done:
		case <-ctx.Done():
			cancel()
			return nil, nil, ctx.Err()
		}
	}
}

// errTaken: another program's container has this container's name.
var errTaken = errors.New("another program has a container of that name: remove or rename that container")

// create makes the container. If an interrupted start left a container that never ran,
// create replaces that container. If the container of this run has run already, create
// returns its id and ran = true.
func (d *Driver) create(ctx context.Context, t driver.Task, c settings) (made string, ran bool, err error) {
	img, err := d.images.ensure(ctx, c)
	if err != nil {
		return "", false, err
	}
	user := c.user
	if user == "" && img.Config != nil {
		user = img.Config.User
	}
	if err := errors.Join(chown(t.Dir, user), chownSecrets(t.SecretsDir, user)); err != nil {
		return "", false, fmt.Errorf("%w: config.user: %w", driver.ErrStart, err)
	}
	for range 3 {
		if err := d.records.openGate(t.ID); err != nil {
			return "", false, fmt.Errorf("%w: %w", driver.ErrStart, err)
		}
		res, err := d.cli.ContainerCreate(ctx, options(t, c, img, d.records))
		if err == nil {
			return res.ID, false, nil
		}
		if !cerrdefs.IsConflict(err) {
			return "", false, d.address.refused(faultyField(err.Error()), err)
		}
		// From here on the existing container can no longer begin. It may have begun already.
		if err := d.records.closeGate(t.ID); err != nil {
			return "", false, fmt.Errorf("%w: %w", driver.ErrStart, err)
		}
		got, err := d.cli.ContainerInspect(ctx, nameOf(t.ID), client.ContainerInspectOptions{})
		if cerrdefs.IsNotFound(err) {
			continue // the engine has just removed the container
		}
		if err != nil {
			return "", false, fmt.Errorf("%w: %w", driver.ErrStart, d.address.wrap(err))
		}
		if got.Container.Config.Labels[labelOwner] != d.records.owner {
			return "", false, fmt.Errorf("%w: %s: %w", driver.ErrStart, nameOf(t.ID), errTaken)
		}
		if !timeOf(got.Container.State.StartedAt).IsZero() {
			return got.Container.ID, true, nil
		}
		if err := d.removeContainer(ctx, got.Container.ID, false); err != nil {
			return "", false, fmt.Errorf("%w: %w", driver.ErrStart, err)
		}
	}
	return "", false, fmt.Errorf("%w: %s: the engine refuses the name and has no such container", driver.ErrStart, nameOf(t.ID))
}

// begin asks the engine to start a container that never ran. If the container is already
// running, begin changes nothing.
func (d *Driver) begin(ctx context.Context, id driver.ID, rec record) error {
	_, err := d.cli.ContainerStart(ctx, rec.Container, client.ContainerStartOptions{})
	switch {
	case err == nil:
		return d.begun(ctx, id, rec)
	case ctx.Err() != nil || client.IsErrConnectionFailed(err):
		// The engine may still start the container, so a caller that gives up must call
		// Stop.
		return fmt.Errorf("%w: %w", driver.ErrStart, d.address.wrap(err))
	}
	at := time.Now().UTC().Round(0)
	st := driver.Status{State: driver.Ended, Started: at, Finished: at, ExitCode: 127, Cause: driver.CauseStartFailed,
		Message: fmt.Sprintf("%s: %v", faultyField(err.Error()), d.address.wrap(err))}
	// Another request may have started the container. Then the container runs or has run.
	if got, err := d.cli.ContainerInspect(ctx, rec.Container, client.ContainerInspectOptions{}); err == nil && !timeOf(got.Container.State.StartedAt).IsZero() && got.Container.State.Error == "" {
		return d.begun(ctx, id, rec)
	}
	st, err = d.records.end(id, st)
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	_ = d.removeContainer(ctx, rec.Container, false)
	return st.StartError()
}

// begun records the process id and the start time, which Status returns while the engine
// does not respond.
func (d *Driver) begun(ctx context.Context, id driver.ID, rec record) error {
	got, err := d.cli.ContainerInspect(ctx, rec.Container, client.ContainerInspectOptions{})
	if err != nil {
		return nil // the container was started; Status reports the rest
	}
	s := got.Container.State
	_, err = d.records.change(id, func(rec *record) { rec.PID, rec.Started = s.Pid, timeOf(s.StartedAt) })
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	return nil
}

// resume continues a start that another process of the agent began. The engine may still be
// starting the container. If the container does not begin in time, resume does not start
// the same container again, because the first request may still start it. Instead resume
// makes another container and prevents the begin of the first one.
func (d *Driver) resume(ctx context.Context, t driver.Task, c settings, rec record) error {
	id := t.ID
	for until := time.Now().Add(resumeLimit); ; {
		got, err := d.cli.ContainerInspect(ctx, rec.Container, client.ContainerInspectOptions{})
		switch {
		case cerrdefs.IsNotFound(err):
			st, err := d.records.end(id, lost(rec))
			return cmp.Or(err, st.StartError())
		case err != nil:
			return fmt.Errorf("%w: %w", driver.ErrStart, d.address.wrap(err))
		}
		st := statusOf(got.Container.State, rec)
		switch {
		case st.State == driver.Running:
			return d.begun(ctx, id, rec)
		case st.State == driver.Ended:
			st, err := d.records.end(id, st)
			return cmp.Or(err, st.StartError())
		case time.Now().After(until):
			if _, err := d.records.change(id, func(rec *record) { rec.Begun = false }); err != nil {
				return fmt.Errorf("%w: %w", driver.ErrStart, err)
			}
			return d.launch(ctx, t, c)
		}
		if err := pause(ctx, retryPause); err != nil {
			return fmt.Errorf("%w: %w", driver.ErrStart, err)
		}
	}
}

// Stop implements driver.Driver.
func (d *Driver) Stop(ctx context.Context, id driver.ID, grace time.Duration) error {
	if s := d.inFlight(id); s != nil {
		s.cancel()
		select {
		case <-s.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	rec, ok := d.records.get(id)
	if !ok || rec.End != nil {
		return nil
	}
	if err := d.stop(ctx, id, rec, grace); err != nil {
		return err
	}
	_ = d.mounts.Drop(id) // on an error Remove drops the volumes
	return nil
}

func (d *Driver) stop(ctx context.Context, id driver.ID, rec record, grace time.Duration) error {
	if !rec.Begun {
		// The start was interrupted before the engine was asked to start the container. So
		// a container may exist, but it is not running.
		return d.undo(ctx, id)
	}
	got, err := d.cli.ContainerInspect(ctx, rec.Container, client.ContainerInspectOptions{})
	switch {
	case cerrdefs.IsNotFound(err):
		_, err := d.records.end(id, lost(rec))
		return err
	case err != nil:
		return fmt.Errorf("stop %s: %w", id, d.address.wrap(err))
	}
	st := statusOf(got.Container.State, rec)
	switch st.State {
	case driver.Ended:
		_, err := d.records.end(id, st)
		return err
	case driver.Starting:
		// The engine may be starting the container. The removal waits until the engine has
		// finished.
		if err := d.removeContainer(ctx, rec.Container, true); err != nil {
			return fmt.Errorf("stop %s: %w", id, err)
		}
		at := time.Now().UTC().Round(0)
		_, err := d.records.end(id, driver.Status{State: driver.Ended, Started: at, Finished: at, ExitCode: 137, Signal: 9, Cause: driver.CauseStopped, Message: "stopped before it ran"})
		return err
	}
	if _, err := d.records.change(id, func(rec *record) { rec.Stopping = true }); err != nil {
		return err
	}
	if err := d.terminate(ctx, got.Container, grace); err != nil {
		return fmt.Errorf("stop %s: %w", id, err)
	}
	_, _, err = d.status(ctx, id)
	return err
}

// undo removes the container and the record that an interrupted Start has left.
func (d *Driver) undo(ctx context.Context, id driver.ID) error {
	got, err := d.cli.ContainerInspect(ctx, nameOf(id), client.ContainerInspectOptions{})
	switch {
	case err != nil && !cerrdefs.IsNotFound(err):
		return fmt.Errorf("stop %s: %w", id, d.address.wrap(err))
	case err == nil && got.Container.Config.Labels[labelOwner] == d.records.owner:
		if err := d.removeContainer(ctx, got.Container.ID, true); err != nil {
			return fmt.Errorf("stop %s: %w", id, err)
		}
	}
	return d.records.remove(id)
}

// terminate sends a running container the stop signal of its image, kills the container
// after the grace, and returns once the container has stopped.
func (d *Driver) terminate(ctx context.Context, c container.InspectResponse, grace time.Duration) error {
	if grace > 0 {
		if err := d.signal(ctx, c.ID, cmp.Or(c.Config.StopSignal, "SIGTERM")); err != nil {
			return err
		}
		err := d.stopped(ctx, c.ID, grace)
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
	for {
		if err := d.signal(ctx, c.ID, "SIGKILL"); err != nil {
			return err
		}
		err := d.stopped(ctx, c.ID, killAgain)
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
}

// signal sends a signal to a container. It returns nil if the container is not running.
func (d *Driver) signal(ctx context.Context, container, name string) error {
	_, err := d.cli.ContainerKill(ctx, container, client.ContainerKillOptions{Signal: name})
	if err == nil || cerrdefs.IsConflict(err) || cerrdefs.IsNotFound(err) {
		return nil
	}
	return d.address.wrap(err)
}

// stopped waits until a container has stopped, but not longer than limit.
func (d *Driver) stopped(ctx context.Context, container string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := d.untilStopped(ctx, container)
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
