package incus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lxc/incus/v6/shared/api"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/supervise"
)

// Start implements driver.Driver.
func (d *Driver) Start(ctx context.Context, t driver.Task) error {
	c, err := parse(t)
	if err == nil {
		err = c.allowed(d.cfg)
	}
	if err == nil && t.KillSignal != 0 && !c.supervised() {
		err = errors.New("kill_signal: needs config.command, because without a command the init of the image ends the instance")
	}
	if err != nil {
		return fmt.Errorf("%w: task %s: %w", driver.ErrInvalid, t.ID.Task, err)
	}
	unlock, err := d.locks.take(ctx, t.ID)
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	defer unlock()
	if st, err := d.status(ctx, t.ID); err == nil {
		return st.StartError()
	} else if !errors.Is(err, driver.ErrNotFound) {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	// The volumes stay mounted until the instance is deleted, because the daemon checks
	// them whenever the instance changes.
	t.Volumes, err = d.mounts.Put(t.ID, t.Volumes)
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	rec, err := d.prepare(t, c)
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	err = d.launch(ctx, t, c, rec)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil: // a later call continues
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	return d.abandon(t.ID, rec, err)
}

// Admit implements driver.Admitter.
func (d *Driver) Admit(t driver.Task) error {
	c, err := parse(t)
	if err != nil {
		return nil // Start returns the error
	}
	return c.allowed(d.cfg)
}

// prepare makes the folder of a run and writes the record of the run.
func (d *Driver) prepare(t driver.Task, c settings) (record, error) {
	rec := record{Instance: instanceName(d.owner, t.ID), Supervised: c.supervised()}
	if err := os.MkdirAll(d.box(t.ID), 0o700); err != nil {
		return rec, err
	}
	if err := mountPoints(t); err != nil {
		return rec, err
	}
	if c.supervised() {
		if err := supervise.WriteSpec(d.box(t.ID), spec(t, c)); err != nil {
			return rec, err
		}
	}
	return rec, d.write(t.ID, rec)
}

// mountPoints makes the mount points of the volumes that are inside the task's own folders.
// A mounted volume hides the files that the folder has at its mount point.
func mountPoints(t driver.Task) error {
	for _, v := range t.Volumes {
		target := t.TargetOf(v)
		for _, dir := range []string{t.AllocDir, t.Dir} {
			if rel, err := filepath.Rel(dir, target); err == nil && rel != "." && filepath.IsLocal(rel) {
				if err := mountPoint(dir, rel, v.Source); err != nil {
					return fmt.Errorf("volumes.%s: %w", v.Name, err)
				}
			}
		}
	}
	return nil
}

// mountPoint makes a mount point in a folder of the task. It opens no link that leads out
// of the folder, because the task may have made such a link: the task is root in its
// container, and has the rights of root in this folder.
func mountPoint(dir, rel, source string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if fi, err := os.Stat(source); err != nil || fi.IsDir() {
		return root.MkdirAll(rel, 0o755)
	}
	f, err := root.OpenFile(rel, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// launch makes and starts the instance, or continues an interrupted start.
func (d *Driver) launch(ctx context.Context, t driver.Task, c settings, rec record) error {
	if c.supervised() {
		// The supervisor's record decides whether the start succeeded. The daemon may take
		// half a minute to report the start of a container that ended at once.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		made := make(chan error, 1)
		d.ending.Go(func() { made <- d.make(ctx, t, c, rec) })
		if err := d.begun(ctx, t.ID, rec, made); err != nil || len(t.Ports)+len(c.devices) == 0 {
			return err
		}
		// The daemon may still refuse ports and other devices, so wait for its response,
		// too.
		return <-made
	}
	if err := d.make(ctx, t, c, rec); err != nil {
		return err
	}
	rec.Started = time.Now().UTC().Round(0)
	return d.write(t.ID, rec)
}

// make makes and starts the instance. If an earlier start left an instance that never ran,
// make starts that instance. An instance that has run is not started again.
func (d *Driver) make(ctx context.Context, t driver.Task, c settings, rec record) error {
	inst, err := d.engine.instance(ctx, rec.Instance)
	switch {
	case refused(err, http.StatusNotFound):
		var server api.Server
		if err := d.engine.call(ctx, http.MethodGet, "/1.0", nil, nil, &server); err != nil {
			return err
		}
		if err := d.checkImage(ctx, c, server.Environment.Architectures); err != nil {
			return err
		}
		query := url.Values{}
		if c.target == "" && server.Environment.ServerClustered {
			c.target = server.Environment.ServerName // the member of the cluster that has the task's folders
		}
		if c.target != "" {
			query.Set("target", c.target)
		}
		post := request(d.owner, t, c, d.box(t.ID), d.cfg.Init)
		if err := d.engine.call(ctx, http.MethodPost, "/1.0/instances", query, post, nil); err != nil {
			return d.explain(ctx, rec, c, err)
		}
	case err != nil:
		return err
	default:
		if id, mine := ours(d.owner, inst); !mine || id != t.ID {
			return fmt.Errorf("the daemon has another instance of the name %s", rec.Instance)
		}
		if inst.StatusCode == api.Stopped && inst.LastUsedAt.Year() <= 1970 {
			if err := d.engine.setState(ctx, rec.Instance, api.InstanceStatePut{Action: "start", Timeout: -1}); err != nil {
				return d.explain(ctx, rec, c, err)
			}
		}
	}
	return nil
}

// checkEvery is the pause between two checks whether a container still runs while its
// supervisor has recorded nothing.
const checkEvery = 500 * time.Millisecond

// begun waits for the supervisor's record or for an error of the daemon. made delivers the
// result of make.
func (d *Driver) begun(ctx context.Context, id driver.ID, rec record, made <-chan error) error {
	said := false
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	var pace supervise.Pace
	for {
		st, err := supervise.Query(d.box(id))
		if err == nil && st.State != driver.Starting {
			return outside(st).StartError()
		}
		if err != nil && !errors.Is(err, driver.ErrNotFound) {
			return err
		}
		select {
		case <-pace.After():
		case err := <-made:
			if err != nil {
				return err // abandon checks whether the run began nevertheless
			}
			said = true
		case <-check.C:
			if !said {
				continue
			}
			inst, err := d.engine.instance(ctx, rec.Instance)
			if err != nil && !refused(err, http.StatusNotFound) {
				continue // the daemon restarts, and the container continues
			}
			if err == nil && inst.StatusCode != api.Stopped {
				continue
			}
			if st, err := supervise.Query(d.box(id)); err == nil {
				return outside(st).StartError()
			}
			return d.explain(ctx, rec, settings{}, errors.New("the container ended before its supervisor recorded a start"))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// abandon ends a run whose start failed. It deletes the run's instance in the background,
// because the daemon may hang. If the run has begun in spite of the error, the start has
// not failed.
func (d *Driver) abandon(id driver.ID, rec record, cause error) error {
	if errors.Is(cause, driver.ErrStart) {
		d.ending.Go(func() { d.deleteEnded(d.ctx, id) })
		return cause // the supervisor's record says how the run ended
	}
	if r := (*refusal)(nil); errors.As(cause, &r) && r.code == http.StatusBadRequest {
		// The daemon made nothing, and a retry would be refused again.
		return errors.Join(fmt.Errorf("%w: task %s: %w", driver.ErrInvalid, id.Task, cause), d.mounts.Drop(id), os.RemoveAll(d.runDir(id)))
	}
	if rec.Supervised {
		ctx, cancel := context.WithTimeout(d.ctx, deleteLimit)
		defer cancel()
		st, err := supervise.Forbid(ctx, d.box(id), cause.Error())
		if err != nil {
			return fmt.Errorf("%w: %w: %w", driver.ErrStart, cause, err)
		}
		if r := (*refusal)(nil); st.Cause == driver.CauseStartFailed || !errors.As(cause, &r) {
			// If the daemon does not respond, the instance may be running. Then the run
			// continues.
			if st.State == driver.Ended {
				d.ending.Go(func() { d.deleteEnded(d.ctx, id) })
			}
			if st.Message == cause.Error() { // Forbid has recorded this message
				return fmt.Errorf("%w: %w", driver.ErrStart, cause)
			}
			return outside(st).StartError()
		}
		// The daemon could not give the instance a device, so it ends the instance.
		if err := d.delete(ctx, id, rec); err != nil {
			return fmt.Errorf("%w: %w: %w", driver.ErrStart, cause, err)
		}
	}
	_, err := d.finish(id, rec, driver.CauseStartFailed, cause.Error(), 127)
	d.ending.Go(func() { d.deleteEnded(d.ctx, id) })
	return errors.Join(fmt.Errorf("%w: %w", driver.ErrStart, cause), err)
}

// checkImage checks the name, the type and the architecture of a local image before the
// instance is made. runs lists the architectures of the daemon's host.
func (d *Driver) checkImage(ctx context.Context, c settings, runs []string) error {
	src := source(c.image)
	if src.Server != "" {
		return nil // the daemon will fetch the image and report problems
	}
	name := src.Alias
	var alias api.ImageAliasesEntry
	err := d.engine.call(ctx, http.MethodGet, "/1.0/images/aliases/"+url.PathEscape(name), nil, nil, &alias)
	if err == nil {
		name = alias.Target
	} else if !refused(err, http.StatusNotFound) {
		return err
	}
	var image api.Image
	if err := d.engine.call(ctx, http.MethodGet, "/1.0/images/"+url.PathEscape(name), nil, nil, &image); err != nil {
		return fmt.Errorf("config.image: %s: %w", c.image, err)
	}
	if image.Type != c.kind {
		return fmt.Errorf("config.type: image %s is of a %s", c.image, image.Type)
	}
	if !slices.Contains(runs, image.Architecture) {
		return fmt.Errorf("config.image: %s is for %s, this host runs %s", c.image, image.Architecture, strings.Join(runs, ", "))
	}
	return nil
}

// daemonHints maps a part of a daemon's error to the field of the job file that the error
// concerns. The first entry that matches counts.
var daemonHints = []struct{ words, field string }{
	{"address already in use", "ports"},
	{"from listener process", "ports"}, // the same error, without the daemon's own text
	{"configuration key", "config.config"},
	{"limits.memory", "resources.memory"},
	{"limits.cpu", "resources.cpu"},
	{"evice", "config.devices"},
	{"rofile", "config.profiles"},
	{"luster", "config.target"},
	{"image", "config.image"},
	{"lias", "config.image"},
	{"Invalid value", "config.config"},
}

// supervisorHints maps the beginning of a supervisor's error to the field of the job file
// that the error concerns.
var supervisorHints = []struct{ words, field string }{
	{"command ", "config.command"}, {"fork/exec ", "config.command"}, {"chdir ", "config.dir"}, {"user: ", "config.user"}, {"group: ", "config.user"},
}

// explain adds two things to a daemon's error: before it the field at fault, and after it
// the errors of the container's log.
func (d *Driver) explain(ctx context.Context, rec record, c settings, err error) error {
	words := err.Error()
	if i := slices.IndexFunc(daemonHints, func(b struct{ words, field string }) bool { return strings.Contains(words, b.words) }); i >= 0 {
		field := daemonHints[i].field
		if field == "config.image" {
			field += ": " + c.image
		}
		err = fmt.Errorf("%s: %w", field, err)
		if daemonHints[i].field == "config.image" && strings.Contains(words, "not found") {
			err = driver.NoImage(fmt.Errorf("%w: check the name, or copy the image to this node's daemon (incus image copy)", err))
		}
	}
	var errorLines []string
	for line := range strings.Lines(d.engine.log(ctx, rec.Instance, "lxc.log")) {
		if _, text, ok := strings.Cut(line, " ERROR "); ok && len(errorLines) < 3 {
			errorLines = append(errorLines, strings.Join(strings.Fields(text), " "))
		}
	}
	if len(errorLines) > 0 {
		err = fmt.Errorf("%w (%s)", err, strings.Join(errorLines, "; "))
	}
	return err
}
