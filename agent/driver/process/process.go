// Package process is the driver that runs a command of the host, each under a
// supervisor of its own (package supervise), so that it outlives the agent.
package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/supervise"
)

// Driver runs processes. Make one with New.
type Driver struct {
	cfg     Config
	spawner *supervise.Spawner

	probe  sync.Once
	limits error // why control groups are of no use; nil = they are

	mu sync.Mutex
	// mine are supervisors that this process started and must collect.
	mine map[driver.ID]*os.Process
}

// Config of a Driver.
type Config struct {
	// Dir keeps a folder for each run. Required.
	Dir string
	// SupervisorArgv starts a supervisor. Required.
	SupervisorArgv []string
	// NoLimits leaves control groups alone.
	NoLimits bool
}

// New returns a driver for runs below cfg.Dir.
func New(cfg Config) *Driver {
	return &Driver{cfg: cfg, spawner: supervise.NewSpawner(cfg.SupervisorArgv), mine: map[driver.ID]*os.Process{}}
}

// Close ends what the driver keeps ready. What runs goes on.
func (d *Driver) Close() { d.spawner.Close() }

func (d *Driver) runDir(id driver.ID) string {
	return filepath.Join(d.cfg.Dir, id.Alloc, fmt.Sprintf("%s.%d", id.Task, id.Run))
}

// Fingerprint: processes always work; limits only where control groups do.
func (d *Driver) Fingerprint(context.Context) (f driver.Fingerprint) {
	f = driver.Fingerprint{Healthy: true, Version: "1", Capabilities: []string{
		driver.CapExec, driver.CapRecover, driver.CapSelfFencing, driver.CapStats, driver.CapVolumes,
	}}
	if os.Geteuid() == 0 {
		f.Capabilities = append(f.Capabilities, driver.CapUser)
	}
	defer func() { slices.Sort(f.Capabilities) }()
	if _, err := exec.LookPath(d.cfg.SupervisorArgv[0]); err != nil {
		return driver.Fingerprint{Message: fmt.Sprintf("no supervisor: %v", err)}
	}
	if err := d.usable(); err != nil {
		f.Message = fmt.Sprintf("CPU and memory are not limited: %v", err)
		return f
	}
	f.Capabilities = append(f.Capabilities, driver.CapCPULimit, driver.CapMemoryLimit, driver.CapUpdate)
	return f
}

// usable tries control groups once.
func (d *Driver) usable() error {
	d.probe.Do(func() {
		if d.cfg.NoLimits {
			d.limits = errors.New("switched off")
			return
		}
		d.limits = supervise.LimitsUsable(fmt.Sprintf("probe-%d", os.Getpid()))
	})
	return d.limits
}

// Start: see driver.Driver.
func (d *Driver) Start(ctx context.Context, t driver.Task) error {
	spec, err := d.spec(t)
	if err != nil {
		return fmt.Errorf("%w: task %s: %w", driver.ErrInvalid, t.ID.Task, err)
	}
	dir := d.runDir(t.ID)
	if st, err := supervise.Query(dir); err == nil {
		return failure(st)
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
		// An agent that was killed meanwhile had begun it.
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
	return failure(st)
}

// failure turns a run that could not start into the error of its start.
func failure(st driver.Status) error {
	if st.Cause == driver.CauseStartFailed {
		return fmt.Errorf("%w: %s", driver.ErrStart, st.Message)
	}
	return nil
}

// spec of the supervisor, from the task's configuration.
func (d *Driver) spec(t driver.Task) (supervise.Spec, error) {
	c, err := parse(t)
	if err != nil {
		return supervise.Spec{}, err
	}
	s := supervise.Spec{
		Argv: append([]string{c.command}, c.args...), Dir: c.dir, User: c.user, Own: t.Dir,
		LogFiles: t.Logs.Files, LogSizeBytes: t.Logs.SizeBytes,
		LeaseDeadline: t.LeaseDeadline, StopGrace: t.StopGrace,
	}
	for _, k := range slices.Sorted(maps.Keys(t.Env)) {
		s.Env = append(s.Env, k+"="+t.Env[k])
	}
	if d.usable() == nil {
		s.Limits = supervise.Limits{
			Cgroup:      fmt.Sprintf("%s.%s.%d", t.ID.Alloc, t.ID.Task, t.ID.Run),
			MemoryBytes: t.Resources.MemoryBytes, CPUMilli: t.Resources.CPUMilli, HardCPU: c.hardCPU,
		}
	}
	return s, mount(t)
}

// mount puts the volumes where the task sees them. A process has no mount
// namespace of its own, so a volume is a symbolic link in the allocation's
// folder and cannot be made read-only.
func mount(t driver.Task) error {
	for _, v := range t.Volumes {
		if v.ReadOnly || v.Target != "" {
			return fmt.Errorf("volume %s: read_only and target are not supported yet by driver process", v.Name)
		}
		link := filepath.Join(t.AllocDir, v.Name)
		if err := os.Symlink(v.Source, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// Status: see driver.Driver.
func (d *Driver) Status(_ context.Context, id driver.ID) (driver.Status, error) {
	return named(id)(supervise.Query(d.runDir(id)))
}

// Wait: see driver.Driver.
func (d *Driver) Wait(ctx context.Context, id driver.ID) (driver.Status, error) {
	st, err := named(id)(supervise.Wait(ctx, d.runDir(id)))
	if err == nil {
		d.collect(id)
	}
	return st, err
}

// Stop: see driver.Driver.
func (d *Driver) Stop(ctx context.Context, id driver.ID, grace time.Duration) error {
	_, err := named(id)(supervise.Stop(ctx, d.runDir(id), grace))
	if errors.Is(err, driver.ErrNotFound) {
		return nil
	}
	if err == nil {
		d.collect(id)
	}
	return err
}

// collect the process of a supervisor that is ending, lest it stays a zombie.
func (d *Driver) collect(id driver.ID) {
	d.mu.Lock()
	p := d.mine[id]
	delete(d.mine, id)
	d.mu.Unlock()
	if p != nil {
		_, _ = p.Wait()
	}
}

// Renew: see driver.Driver.
func (d *Driver) Renew(ctx context.Context, id driver.ID, deadline time.Duration) error {
	_, err := named(id)(driver.Status{}, supervise.Renew(ctx, d.runDir(id), deadline))
	return err
}

// Logs: see driver.Driver.
func (d *Driver) Logs(ctx context.Context, id driver.ID, o driver.LogOptions, emit func(driver.LogChunk) error) error {
	if _, err := d.Status(ctx, id); err != nil {
		return err
	}
	return supervise.Logs(ctx, d.runDir(id), o, emit)
}

// Size: see driver.Driver.
func (d *Driver) Size(_ context.Context, id driver.ID) (int64, error) {
	return supervise.LogSize(d.runDir(id))
}

// Remove: see driver.Driver.
func (d *Driver) Remove(_ context.Context, id driver.ID) error {
	dir := d.runDir(id)
	st, err := supervise.Query(dir)
	if err == nil && st.State != driver.Ended {
		return fmt.Errorf("remove %s: it still runs", id)
	}
	d.collect(id)
	if st.Cause == driver.CauseLost || st.Cause == driver.CauseRebooted {
		supervise.Release(dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	// The allocation's folder goes with its last run.
	_ = os.Remove(filepath.Dir(dir))
	return nil
}

// named adds the run to an error.
func named(id driver.ID) func(driver.Status, error) (driver.Status, error) {
	return func(st driver.Status, err error) (driver.Status, error) {
		if err != nil {
			err = fmt.Errorf("run %s: %w", id, err)
		}
		return st, err
	}
}

// Exec: see driver.Driver.
func (d *Driver) Exec(ctx context.Context, id driver.ID, x driver.Exec) (driver.ExitStatus, error) {
	st, err := supervise.Exec(ctx, d.runDir(id), x)
	if err != nil {
		err = fmt.Errorf("exec in run %s: %w", id, err)
	}
	return st, err
}

// Stats: see driver.Driver.
func (d *Driver) Stats(_ context.Context, id driver.ID) (driver.Stats, error) {
	s, err := supervise.Usage(d.runDir(id))
	if err != nil {
		return driver.Stats{}, fmt.Errorf("run %s: %w", id, err)
	}
	return s, nil
}

// Update: see driver.Driver.
func (d *Driver) Update(ctx context.Context, id driver.ID, r driver.Resources) error {
	if err := d.usable(); err != nil {
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
