package docker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mounts"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/job/config"
)

// DefaultHost is the default address of the engine.
const DefaultHost = "unix:///var/run/docker.sock"

const (
	// askLimit bounds a short request to the engine.
	askLimit = 5 * time.Second
	// retryPause is the pause before a request is repeated.
	retryPause = 200 * time.Millisecond
)

// The labels of every container of this driver. A job may not set labels with the prefix
// labelPrefix.
const (
	labelPrefix = config.DockerLabelPrefix
	labelOwner  = labelPrefix + "owner" // the random id of the data directory
	labelAlloc  = labelPrefix + "alloc"
	labelTask   = labelPrefix + "task"
	labelRun    = labelPrefix + "run"
)

// Config configures a Driver.
type Config struct {
	// Dir is the folder for the records of the runs. It is required.
	Dir string
	// Host is the address of the engine. Default: DefaultHost. Bind mounts and exec work
	// only with an engine on this machine.
	Host string
	// Auth is a file with passwords of registries, in the format of Docker's config.json.
	// Only its owner may be able to read the file. Default: none.
	Auth string
	// AllowPrivileged lets jobs ask for privileged containers, which have the rights of
	// root on the host.
	AllowPrivileged bool
}

// Driver runs containers. Make one with New.
type Driver struct {
	cfg     Config
	cli     *client.Client
	address address
	images  images
	records *records
	mounts  *mounts.Folder

	mu sync.Mutex
	// starts holds the running calls of Start, so that Stop can end them.
	starts map[driver.ID]*starting
}

// starting is a running call of Start.
type starting struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// New returns a driver for the engine at cfg.Host. The engine may still be down.
func New(cfg Config) (*Driver, error) {
	if cfg.Host == "" {
		cfg.Host = DefaultHost
	}
	cli, err := client.New(client.WithHost(cfg.Host))
	if err != nil {
		return nil, fmt.Errorf("docker engine %s: %w", cfg.Host, err)
	}
	if cfg.Auth != "" {
		if _, err := readAuth(cfg.Auth); err != nil {
			return nil, fmt.Errorf("passwords of registries (--docker-auth): %w", err)
		}
	}
	recs, err := openRecords(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("records of containers: %w", err)
	}
	d := &Driver{cfg: cfg, cli: cli, address: address(cfg.Host),
		images:  images{cli: cli, address: address(cfg.Host), authFile: cfg.Auth},
		records: recs, mounts: mounts.NewFolder(cfg.Dir), starts: map[driver.ID]*starting{}}
	d.mounts.Sweep(func(id driver.ID) bool {
		rec, ok := recs.get(id)
		return ok && rec.End == nil && rec.Started.IsZero() // the engine may be starting the container
	})
	return d, nil
}

// Close ends the connections to the engine. Running containers continue.
func (d *Driver) Close() {
	_ = d.cli.Close()
	d.mounts.Close()
}

// Fingerprint asks the engine about its capabilities and removes containers of this driver
// that have no record. The driver has no self-fencing. Only the engine could stop a
// container at a deadline, and the engine knows no leases.
func (d *Driver) Fingerprint(ctx context.Context) driver.Fingerprint {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	res, err := d.cli.Info(ctx, client.InfoOptions{})
	if err != nil {
		return driver.Fingerprint{Message: d.address.wrap(err).Error()}
	}
	info := res.Info
	f := driver.Fingerprint{Healthy: true, Version: info.ServerVersion, Capabilities: []string{driver.CapKillSignal, driver.CapRecover, driver.CapSignal, driver.CapStats, driver.CapUpdate}}
	if info.OSType != runtime.GOOS {
		return driver.Fingerprint{Version: info.ServerVersion, Message: fmt.Sprintf("the engine runs %s containers, the agent is for %s", info.OSType, runtime.GOOS)}
	}
	var missing, notes []string
	limit := func(can bool, capability, what string) {
		switch {
		case !can:
			missing = append(missing, what)
		case capability != "":
			f.Capabilities = append(f.Capabilities, capability)
		}
	}
	if _, ok := info.Runtimes["nvidia"]; ok {
		f.Capabilities = append(f.Capabilities, driver.CapGPU, driver.CapGPUShare)
	}
	limit(info.CPUShares && info.CPUCfsQuota, driver.CapCPULimit, "CPU")
	limit(info.MemoryLimit, driver.CapMemoryLimit, "memory")
	limit(info.SwapLimit, "", "swap")
	limit(info.PidsLimit, "", "processes")
	if len(missing) > 0 {
		notes = append(notes, "this engine does not limit: "+strings.Join(missing, ", "))
	}
	if d.local() {
		f.Capabilities = append(f.Capabilities, driver.CapExec)
		if why := d.mountProblem(info); why != "" {
			notes = append(notes, "no volumes, no secrets: "+why)
		} else {
			if note := mounts.ByPath(); note != "" {
				notes = append(notes, note)
			}
			f.Capabilities = append(f.Capabilities, driver.CapMounts, driver.CapVolumes)
			// Only one user of the host can read a secret. With userns-remap the users of a
			// container have other numbers on the host.
			if slices.Contains(info.SecurityOptions, "name=userns") {
				notes = append(notes, "no secrets: the engine maps users (userns-remap), containers could not read them")
			} else {
				f.Capabilities = append(f.Capabilities, driver.CapSecrets)
			}
		}
	}
	f.Message = strings.Join(notes, "; ")
	slices.Sort(f.Capabilities)
	d.sweep(ctx)
	return f
}

// local reports whether the engine's processes run on this host.
func (d *Driver) local() bool { return strings.HasPrefix(d.cfg.Host, "unix://") }

// mountProblem returns why containers cannot see what the agent mounts. It returns "" if no
// problem is known, or if the agent cannot mount and gives the engine paths instead.
func (d *Driver) mountProblem(info system.Info) string {
	if mounts.Usable() != nil {
		return ""
	}
	if slices.Contains(info.SecurityOptions, "name=rootless") {
		return "the engine is rootless: it has users and mounts of its own"
	}
	return d.mounts.Unseen(strings.TrimPrefix(d.cfg.Host, "unix://"))
}

// sweep removes containers of this driver that have no record. A slow engine may make a
// container after its start was given up, or may not have removed a container when asked.
// Every other container has a record, because the driver writes the record before it asks
// for the container.
func (d *Driver) sweep(ctx context.Context) {
	list, err := d.cli.ContainerList(ctx, client.ContainerListOptions{All: true,
		Filters: client.Filters{}.Add("label", labelOwner+"="+d.records.owner)})
	if err != nil {
		return // the next sweep removes them
	}
	for _, c := range list.Items {
		id, ok := runOf(c.Labels)
		if _, known := d.records.get(id); ok && !known {
			_ = d.removeContainer(ctx, c.ID, false)
		}
	}
}

// removeContainer removes a container. With force it also removes a running container. For
// a missing container it returns nil.
func (d *Driver) removeContainer(ctx context.Context, container string, force bool) error {
	_, err := d.cli.ContainerRemove(ctx, container, client.ContainerRemoveOptions{Force: force, RemoveVolumes: true})
	if err == nil || cerrdefs.IsNotFound(err) {
		return nil
	}
	return d.address.wrap(err)
}

// Status implements driver.Driver. While the engine does not respond, Status returns the
// last known state, because a restart of the engine does not end its containers.
func (d *Driver) Status(ctx context.Context, id driver.ID) (driver.Status, error) {
	st, _, err := d.status(ctx, id)
	return st, err
}

// status does the work of Status. answered reports whether the engine responded.
func (d *Driver) status(ctx context.Context, id driver.ID) (st driver.Status, answered bool, err error) {
	rec, ok := d.records.get(id)
	switch {
	case !ok || rec.End == nil && !rec.Begun:
		return driver.Status{}, true, fmt.Errorf("run %s: %w", id, driver.ErrNotFound)
	case rec.End != nil:
		return *rec.End, true, nil
	}
	short, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	got, err := d.cli.ContainerInspect(short, rec.Container, client.ContainerInspectOptions{})
	switch {
	case cerrdefs.IsNotFound(err):
		st, err := d.records.end(id, lost(rec))
		return st, true, err
	case ctx.Err() != nil:
		return driver.Status{}, false, ctx.Err()
	case err != nil:
		return driver.Status{State: driver.Running, PID: rec.PID, Started: rec.Started, Message: d.address.wrap(err).Error()}, false, nil
	}
	st = statusOf(got.Container.State, rec)
	switch {
	case st.State == driver.Ended:
		st, err = d.records.end(id, st)
	case st.State == driver.Starting && d.inFlight(id) == nil:
		// An agent died before the engine started the container, so the next Start
		// continues.
		return driver.Status{}, true, fmt.Errorf("run %s: %w", id, driver.ErrNotFound)
	}
	return st, true, err
}

// Wait implements driver.Driver. It also waits across restarts of the engine.
func (d *Driver) Wait(ctx context.Context, id driver.ID) (driver.Status, error) {
	for {
		st, answered, err := d.status(ctx, id)
		if err != nil || st.State == driver.Ended {
			return st, err
		}
		if answered && st.State == driver.Running {
			rec, _ := d.records.get(id)
			err = d.untilStopped(ctx, rec.Container)
		}
		if err != nil || !answered || st.State == driver.Starting {
			if err := pause(ctx, retryPause); err != nil {
				return driver.Status{}, fmt.Errorf("run %s: %w", id, err)
			}
		}
	}
}

// untilStopped returns nil once a container has stopped.
func (d *Driver) untilStopped(ctx context.Context, container string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	res := d.cli.ContainerWait(ctx, container, client.ContainerWaitOptions{})
	select {
	case <-res.Result:
		return nil
	case err := <-res.Error:
		return err
	}
}

// Renew returns an error: this driver has no self-fencing.
func (d *Driver) Renew(_ context.Context, id driver.ID, _ lease.Deadline) error {
	return fmt.Errorf("%w: run %s: no lease can bind a container", driver.ErrInvalid, id)
}

// Remove implements driver.Driver. If the engine does not remove the container now, a later
// sweep does.
func (d *Driver) Remove(ctx context.Context, id driver.ID) error {
	rec, ok := d.records.get(id)
	if !ok {
		return nil
	}
	st, _, err := d.status(ctx, id)
	if err != nil && !errors.Is(err, driver.ErrNotFound) {
		return err
	}
	if d.inFlight(id) != nil || err == nil && st.State != driver.Ended {
		return fmt.Errorf("remove %s: the run still runs", id)
	}
	short, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if rec.Container != "" {
		_ = d.removeContainer(short, rec.Container, true)
	}
	return errors.Join(d.mounts.Drop(id), d.records.remove(id))
}

// Runs implements driver.Lister. Containers without a record are no runs: sweep removes them.
func (d *Driver) Runs(context.Context) ([]driver.ID, error) {
	return driver.RunsIn(d.records.dir, ".json")
}

func (d *Driver) inFlight(id driver.ID) *starting {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.starts[id]
}

// pause waits for a duration. It returns the error of ctx if ctx ended earlier.
func pause(ctx context.Context, length time.Duration) error {
	t := time.NewTimer(length)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
