package incus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/lxc/incus/v6/shared/api"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/supervise"
)

// running returns the record of a run if the run is running, else an error.
func (d *Driver) running(ctx context.Context, id driver.ID) (record, error) {
	st, err := d.Status(ctx, id)
	if err != nil {
		return record{}, err
	}
	if st.State != driver.Running {
		return record{}, fmt.Errorf("run %s: %w", id, driver.ErrNotRunning)
	}
	return d.read(id)
}

// Stats implements driver.Driver.
func (d *Driver) Stats(ctx context.Context, id driver.ID) (driver.Stats, error) {
	rec, err := d.running(ctx, id)
	if err != nil {
		return driver.Stats{}, err
	}
	var st api.InstanceState
	if err := d.engine.call(ctx, http.MethodGet, instancePath(rec.Instance)+"/state", nil, nil, &st); err != nil {
		return driver.Stats{}, fmt.Errorf("run %s: %w", id, err)
	}
	out := driver.Stats{CPU: time.Duration(st.CPU.Usage), MemoryBytes: st.Memory.Usage, MemoryPeakBytes: st.Memory.UsagePeak, Processes: int(st.Processes)}
	if out.MemoryPeakBytes == 0 {
		out.MemoryPeakBytes = -1
	}
	return out, nil
}

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, id driver.ID, r driver.Resources) error {
	rec, err := d.running(ctx, id)
	if err != nil {
		return err
	}
	if rec.Supervised && r.MemoryBytes > 0 && r.MemoryBytes < minMemory {
		return fmt.Errorf("%w: resources.memory: %d bytes, a container needs at least %d MiB", driver.ErrInvalid, r.MemoryBytes, minMemory>>20)
	}
	inst, err := d.engine.instance(ctx, rec.Instance)
	if err != nil {
		return fmt.Errorf("run %s: %w", id, err)
	}
	// A resource of 0 means no limit. In a patch an empty string removes a key.
	patch := map[string]string{"limits.memory": "", "limits.cpu.allowance": ""}
	if inst.Type == typeVM {
		patch = map[string]string{"limits.memory": "", "limits.cpu": ""}
	}
	for k, v := range limits(inst.Type, r) {
		patch[k] = v
	}
	body := map[string]any{"config": patch}
	for pace := (supervise.Pace{}); ; {
		err := d.engine.call(ctx, http.MethodPatch, instancePath(rec.Instance), nil, body, nil)
		if err == nil {
			return nil
		}
		// The daemon may still count the instance as starting although the run has begun.
		if !busy(err) || pace.Wait(ctx) != nil {
			return fmt.Errorf("update %s: %w", id, err)
		}
	}
}

// busy reports whether an error means that another operation on the instance must end first.
func busy(err error) bool {
	r := (*refusal)(nil)
	return errors.As(err, &r) && strings.Contains(r.text, "Instance is busy")
}

// Exec implements driver.Driver. The supervisor starts the command, like on the host. So an
// instance without a supervisor has no exec.
func (d *Driver) Exec(ctx context.Context, id driver.ID, x driver.Exec) (driver.ExitStatus, error) {
	rec, err := d.running(ctx, id)
	if err != nil {
		return driver.ExitStatus{}, err
	}
	if !rec.Supervised {
		return driver.ExitStatus{}, fmt.Errorf("exec in run %s: without config.command: %w", id, driver.ErrUnsupported)
	}
	st, err := supervise.Exec(ctx, d.box(id), x)
	if err != nil {
		err = fmt.Errorf("exec in run %s: %w", id, err)
	}
	return st, err
}

// Signal implements driver.Driver. The supervisor sends the signal, so an instance without a
// supervisor gets none.
func (d *Driver) Signal(ctx context.Context, id driver.ID, signal int) error {
	rec, err := d.running(ctx, id)
	if err != nil {
		return err
	}
	if !rec.Supervised {
		return fmt.Errorf("signal to run %s: without config.command: %w", id, driver.ErrUnsupported)
	}
	if err := supervise.Signal(ctx, d.box(id), signal); err != nil {
		return fmt.Errorf("run %s: %w", id, err)
	}
	return nil
}
