package process

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mounts"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/supervise"
)

// Driver runs processes. Make one with New.
type Driver struct {
	cfg     Config
	spawner *supervise.Spawner
	// name distinguishes the cgroups of the agents on one host.
	name string

	probe  sync.Once
	limits error // why cgroups cannot be used, or nil
	views  error // why tasks have no mount namespace, or nil

	mu sync.Mutex
	// mine holds the supervisors that this process started and must reap.
	mine map[driver.ID]*os.Process
}

// Config configures a Driver.
type Config struct {
	// Dir is the folder that has a folder for each run. It is required.
	Dir string
	// SupervisorArgv is the command line of a supervisor. It is required.
	SupervisorArgv []string
	// NoLimits makes the driver use no cgroups.
	NoLimits bool
	// Users are the users that tasks may run as.
	Users Users
	// Hide is the agent's folder. A task of another user sees only its own folders there.
	// "" means that nothing is hidden.
	Hide string
}

// New returns a driver for runs below cfg.Dir.
func New(cfg Config) *Driver {
	sum := sha256.Sum256([]byte(cfg.Dir))
	return &Driver{cfg: cfg, name: hex.EncodeToString(sum[:4]), spawner: supervise.NewSpawner(cfg.SupervisorArgv), mine: map[driver.ID]*os.Process{}}
}

// Close ends the spare supervisor. Running tasks continue.
func (d *Driver) Close() { d.spawner.Close() }

func (d *Driver) runDir(id driver.ID) string {
	return filepath.Join(d.cfg.Dir, id.Alloc, fmt.Sprintf("%s.%d", id.Task, id.Run))
}

// Fingerprint reports a healthy driver if the supervisor's executable exists. The driver
// has limits only with cgroups, and mounts only if the agent may mount.
func (d *Driver) Fingerprint(context.Context) driver.Fingerprint {
	if _, err := exec.LookPath(d.cfg.SupervisorArgv[0]); err != nil {
		return driver.Fingerprint{Message: fmt.Sprintf("no supervisor: %v", err)}
	}
	limits, views := d.usable()
	caps := []string{driver.CapExec, driver.CapGPU, driver.CapGPUShare, driver.CapKillSignal, driver.CapRecover, driver.CapSecrets, driver.CapSelfFencing, driver.CapSignal, driver.CapStats, driver.CapVolumes}
	var lacks []string
	if limits == nil {
		caps = append(caps, driver.CapCPULimit, driver.CapMemoryLimit, driver.CapUpdate)
	} else {
		lacks = append(lacks, fmt.Sprintf("CPU and memory are not limited: %v", limits))
	}
	if views == nil {
		caps = append(caps, driver.CapMounts)
	} else {
		lacks = append(lacks, fmt.Sprintf("volumes have no target and are not read-only: %v", views))
	}
	if os.Geteuid() == 0 {
		caps = append(caps, driver.CapUser)
	}
	slices.Sort(caps)
	return driver.Fingerprint{Healthy: true, Version: "1", Capabilities: caps, Message: strings.Join(lacks, "; ")}
}

// usable returns why cgroups (limits) and mount namespaces (views) cannot be used. The
// checks run only once.
func (d *Driver) usable() (limits, views error) {
	d.probe.Do(func() {
		d.views = mounts.Usable()
		if d.cfg.NoLimits {
			d.limits = errors.New("switched off")
			return
		}
		d.limits = supervise.LimitsUsable(fmt.Sprintf("%s.probe", d.name))
	})
	return d.limits, d.views
}

// Start implements driver.Driver.
func (d *Driver) Start(ctx context.Context, t driver.Task) error {
	spec, err := d.spec(t)
	if err != nil {
		return err
	}
	dir := d.runDir(t.ID)
	if st, err := supervise.Query(dir); err == nil {
		return st.StartError()
	} else if !errors.Is(err, driver.ErrNotFound) {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	if err := supervise.WriteSpec(dir, spec); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	p, st, err := d.spawner.Spawn(ctx, dir)
	if errors.Is(err, supervise.ErrSupervised) {
		// An agent that was killed had already begun the run.
		st, err = supervise.Begun(ctx, dir)
	}
	if p != nil {
		d.mu.Lock()
		d.mine[t.ID] = p
		d.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	return st.StartError()
}

// spec returns the specification of a run for its supervisor. It returns the same errors
// as Start.
func (d *Driver) spec(t driver.Task) (supervise.Spec, error) {
	c, err := parse(t)
	if err != nil {
		return supervise.Spec{}, fmt.Errorf("%w: task %s: %w", driver.ErrInvalid, t.ID.Task, err)
	}
	c.user, err = d.cfg.Users.of(c.user)
	if err != nil {
		return supervise.Spec{}, fmt.Errorf("%w: task %s: config.user: %w", driver.ErrFinal, t.ID.Task, err)
	}
	s := supervise.Spec{
		Argv: append([]string{c.command}, c.args...), Dir: c.dir, User: c.user, Own: t.Dir, Ulimits: c.ulimits,
		LogFiles: t.Logs.Files, LogSizeBytes: t.Logs.SizeBytes,
		LeaseDeadline: t.Lease.At, LeaseNumber: t.Lease.Number, StopGrace: t.StopGrace, KillSignal: t.KillSignal,
	}
	for _, k := range slices.Sorted(maps.Keys(t.Env)) {
		s.Env = append(s.Env, k+"="+t.Env[k])
	}
	if len(t.GPUs) > 0 { // after t.Env, because the last value of a variable counts
		devices := strings.Join(t.GPUs, ",")
		s.Env = append(s.Env, "CUDA_VISIBLE_DEVICES="+devices, "NVIDIA_VISIBLE_DEVICES="+devices)
	}
	limits, views := d.usable()
	if limits == nil {
		s.Limits = supervise.Limits{
			Cgroup:      fmt.Sprintf("%s.%s.%s.%d", d.name, t.ID.Alloc, t.ID.Task, t.ID.Run),
			MemoryBytes: t.Resources.MemoryBytes, CPUMilli: t.Resources.CPUMilli, HardCPU: c.hardCPU,
		}
	}
	if views != nil {
		return s, link(t, views)
	}
	s.View, err = d.view(t, c.user)
	if err != nil {
		return s, fmt.Errorf("%w: task %s: %w", driver.ErrFinal, t.ID.Task, err)
	}
	return s, nil
}

// Admit implements driver.Admitter.
func (d *Driver) Admit(t driver.Task) error {
	c, err := parse(t)
	if err != nil {
		return nil // Start returns the error
	}
	if _, err := d.cfg.Users.of(c.user); errors.Is(err, driver.ErrNotAllowed) {
		return fmt.Errorf("config.user: %w", err)
	}
	return nil
}

// Status implements driver.Driver.
func (d *Driver) Status(_ context.Context, id driver.ID) (driver.Status, error) {
	return named(id)(supervise.Query(d.runDir(id)))
}

// Wait implements driver.Driver.
func (d *Driver) Wait(ctx context.Context, id driver.ID) (driver.Status, error) {
	st, err := named(id)(supervise.Wait(ctx, d.runDir(id)))
	if err == nil {
		d.collect(id)
	}
	return st, err
}

// Stop implements driver.Driver.
func (d *Driver) Stop(ctx context.Context, id driver.ID, grace time.Duration) error {
	dir := d.runDir(id)
	if _, err := supervise.Query(dir); errors.Is(err, driver.ErrNotFound) {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		// A supervisor that an earlier agent started may be about to begin the run. Forbid
		// prevents the begin.
		if _, err := named(id)(supervise.Forbid(ctx, dir, "stopped before it began")); err != nil {
			return err
		}
	}
	_, err := named(id)(supervise.Stop(ctx, dir, grace))
	if err == nil {
		d.collect(id)
	}
	return err
}

// collect reaps the supervisor of a run that has ended, so that no zombie process stays.
func (d *Driver) collect(id driver.ID) {
	d.mu.Lock()
	p := d.mine[id]
	delete(d.mine, id)
	d.mu.Unlock()
	if p != nil {
		_, _ = p.Wait()
	}
}

// Renew implements driver.Driver.
func (d *Driver) Renew(ctx context.Context, id driver.ID, l lease.Deadline) error {
	_, err := named(id)(driver.Status{}, supervise.Renew(ctx, d.runDir(id), l))
	return err
}

// Logs implements driver.Driver.
func (d *Driver) Logs(ctx context.Context, id driver.ID, o driver.LogOptions, emit func(driver.LogChunk) error) error {
	if _, err := d.Status(ctx, id); err != nil {
		return err
	}
	return supervise.Logs(ctx, d.runDir(id), o, emit)
}

// Size implements driver.Driver.
func (d *Driver) Size(_ context.Context, id driver.ID) (int64, error) {
	return supervise.LogSize(d.runDir(id))
}

// Remove implements driver.Driver.
func (d *Driver) Remove(_ context.Context, id driver.ID) error {
	dir := d.runDir(id)
	st, err := supervise.Query(dir)
	if err == nil && st.State != driver.Ended {
		return fmt.Errorf("remove %s: the run still runs", id)
	}
	d.collect(id)
	if st.Cause == driver.CauseLost || st.Cause == driver.CauseRebooted {
		supervise.Release(dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	// This succeeds when the last run of the allocation is removed.
	_ = os.Remove(filepath.Dir(dir))
	return nil
}

// Runs implements driver.Lister.
func (d *Driver) Runs(context.Context) ([]driver.ID, error) { return driver.RunsIn(d.cfg.Dir, "") }

// named adds the id of the run to an error.
func named(id driver.ID) func(driver.Status, error) (driver.Status, error) {
	return func(st driver.Status, err error) (driver.Status, error) {
		if err != nil {
			err = fmt.Errorf("run %s: %w", id, err)
		}
		return st, err
	}
}

// Exec implements driver.Driver.
func (d *Driver) Exec(ctx context.Context, id driver.ID, x driver.Exec) (driver.ExitStatus, error) {
	st, err := supervise.Exec(ctx, d.runDir(id), x)
	if err != nil {
		err = fmt.Errorf("exec in run %s: %w", id, err)
	}
	return st, err
}

// Stats implements driver.Driver.
func (d *Driver) Stats(_ context.Context, id driver.ID) (driver.Stats, error) {
	s, err := supervise.Usage(d.runDir(id))
	if err != nil {
		return driver.Stats{}, fmt.Errorf("run %s: %w", id, err)
	}
	return s, nil
}

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, id driver.ID, r driver.Resources) error {
	if err, _ := d.usable(); err != nil {
		return fmt.Errorf("%w: limits of run %s: %w", driver.ErrUnsupported, id, err)
	}
	err := supervise.Update(ctx, d.runDir(id), func(l *supervise.Limits) {
		l.MemoryBytes, l.CPUMilli = r.MemoryBytes, r.CPUMilli
	})
	if err != nil {
		return fmt.Errorf("run %s: %w", id, err)
	}
	return nil
}

// Signal implements driver.Driver.
func (d *Driver) Signal(ctx context.Context, id driver.ID, signal int) error {
	if err := supervise.Signal(ctx, d.runDir(id), signal); err != nil {
		return fmt.Errorf("run %s: %w", id, err)
	}
	return nil
}
