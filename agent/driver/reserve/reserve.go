package reserve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
)

// recheck bounds how long Wait sleeps. Go's timers do not count the time in which the host is suspended.
const recheck = 30 * time.Second

// Config configures a Driver.
type Config struct {
	// Dir is the folder with the driver's file. It is required.
	Dir string
	// Clock is the clock of leases and of ttl. It is required.
	Clock func() time.Duration
	// BootID identifies the present boot of the host.
	BootID string
}

// Driver keeps the books of reservations. Make one with New.
type Driver struct {
	driver.Unsupported

	cfg  Config
	disk *disk

	mu   sync.Mutex
	runs map[driver.ID]*run
}

// run is one reservation. Driver.mu guards its record. change serialises what is written about the run.
type run struct {
	change sync.Mutex
	rec    record
	stored bool // the start is durable
	// changed is closed at the next change of the record.
	changed chan struct{}
}

// New returns a driver with the runs of the file in cfg.Dir.
func New(cfg Config) (*Driver, error) {
	disk, records, err := openDisk(cfg.Dir)
	if err != nil {
		return nil, err
	}
	d := &Driver{cfg: cfg, disk: disk, runs: map[driver.ID]*run{}}
	for id, r := range records {
		d.runs[id] = &run{rec: *r, stored: true, changed: make(chan struct{})}
	}
	return d, nil
}

// Close closes the driver's file. The reservations continue.
func (d *Driver) Close() { _ = d.disk.db.Close() } // nothing is lost: each change was synced

func (d *Driver) now() moment {
	return moment{wall: time.Now().UTC().Round(0), clock: d.cfg.Clock(), boot: d.cfg.BootID}
}

// Fingerprint implements driver.Driver. The driver has no exec, no statistics, no secrets and no volumes.
func (d *Driver) Fingerprint(context.Context) driver.Fingerprint {
	return driver.Fingerprint{Healthy: true, Version: "1", Capabilities: []string{driver.CapRecover, driver.CapSelfFencing}}
}

func (d *Driver) find(id driver.ID) *run {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.runs[id]
}

// Start implements driver.Driver.
func (d *Driver) Start(_ context.Context, t driver.Task) error {
	life, err := ttl(t.Config)
	if err != nil {
		return fmt.Errorf("%w: task %s: %w", driver.ErrInvalid, t.ID.Task, err)
	}
	d.mu.Lock()
	r := d.runs[t.ID]
	if r == nil {
		r = &run{changed: make(chan struct{})}
		d.runs[t.ID] = r
	}
	d.mu.Unlock()
	r.change.Lock()
	defer r.change.Unlock()
	if r.stored {
		return nil
	}
	if d.find(t.ID) != r { // an earlier Start of the run failed meanwhile, or Stop came first
		return fmt.Errorf("%w: run %s was given up before it began", driver.ErrStart, t.ID)
	}
	now := d.now()
	rec := record{Started: now.wall, Boot: now.boot, Clock: now.clock, TTL: life, Lease: t.Lease}
	if t.Lease.At != 0 && now.clock >= t.Lease.At {
		rec.End = &end{At: now.wall, Cause: driver.CauseLateStart, ExitCode: 127, Message: "its lease ended before the reservation began"}
	}
	if err := d.disk.put(t.ID, rec); err != nil {
		d.mu.Lock()
		delete(d.runs, t.ID)
		d.mu.Unlock()
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r.rec, r.stored = rec, true
	return nil
}

// edit changes the record of a run durably. change returns false if nothing is to be written.
func (d *Driver) edit(id driver.ID, change func(*record) bool) error {
	r := d.find(id)
	if r == nil {
		return fmt.Errorf("run %s: %w", id, driver.ErrNotFound)
	}
	r.change.Lock()
	defer r.change.Unlock()
	d.mu.Lock()
	rec, known := r.rec, r.stored && d.runs[id] == r
	d.mu.Unlock()
	if !known {
		return fmt.Errorf("run %s: %w", id, driver.ErrNotFound)
	}
	if !change(&rec) {
		return nil
	}
	if err := d.disk.put(id, rec); err != nil {
		return fmt.Errorf("run %s: %w: %w", id, driver.ErrUnavailable, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r.rec = rec
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// Status implements driver.Driver.
func (d *Driver) Status(_ context.Context, id driver.ID) (driver.Status, error) {
	st, _, _, err := d.look(id)
	return st, err
}

// look returns the status of a run, when the status may change without a call, and a channel that the
// next change of the record closes. If the run has ended, look first makes the end durable, so that the
// status never changes again.
func (d *Driver) look(id driver.ID) (st driver.Status, next time.Duration, changed <-chan struct{}, err error) {
	r := d.find(id)
	if r == nil {
		return st, 0, nil, fmt.Errorf("run %s: %w", id, driver.ErrNotFound)
	}
	d.mu.Lock()
	rec, stored, changed := r.rec, r.stored, r.changed
	d.mu.Unlock()
	if !stored {
		return driver.Status{State: driver.Starting}, recheck, changed, nil
	}
	ended, next := rec.state(d.now())
	if ended == nil || rec.End != nil {
		return rec.status(ended), next, changed, nil
	}
	err = d.edit(id, func(r *record) bool {
		if r.End == nil {
			r.End, _ = r.state(d.now())
		}
		rec = *r
		return r.End != nil
	})
	return rec.status(rec.End), 0, changed, err
}

// Wait implements driver.Driver.
func (d *Driver) Wait(ctx context.Context, id driver.ID) (driver.Status, error) {
	for {
		st, next, changed, err := d.look(id)
		if err != nil || st.State == driver.Ended {
			return st, err
		}
		if next == 0 { // only a call can end the run: no timer
			select {
			case <-changed:
			case <-ctx.Done():
				return driver.Status{}, ctx.Err()
			}
			continue
		}
		timer := time.NewTimer(min(next, recheck))
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return driver.Status{}, ctx.Err()
		}
	}
}

// Stop implements driver.Driver.
func (d *Driver) Stop(_ context.Context, id driver.ID, _ time.Duration) error {
	err := d.edit(id, func(r *record) bool {
		now := d.now()
		if r.End != nil {
			return false
		}
		r.End, _ = r.state(now)
		if r.End == nil {
			r.End = &end{At: now.wall, Cause: driver.CauseStopped, ExitCode: 143, Message: "stopped by the agent"}
		}
		return true
	})
	if errors.Is(err, driver.ErrNotFound) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if r := d.runs[id]; r != nil && !r.stored {
			delete(d.runs, id) // a Start that waits fails
		}
		return nil
	}
	return err
}

// Renew implements driver.Driver.
func (d *Driver) Renew(_ context.Context, id driver.ID, l lease.Deadline) error {
	return d.edit(id, func(r *record) bool {
		was := r.Lease
		if ended, _ := r.state(d.now()); ended == nil {
			r.Lease = lease.Newer(r.Lease, l)
		}
		return r.Lease != was
	})
}

// Logs implements driver.Driver. A reservation has no output.
func (d *Driver) Logs(ctx context.Context, id driver.ID, o driver.LogOptions, _ func(driver.LogChunk) error) error {
	var err error
	if o.Follow {
		_, err = d.Wait(ctx, id)
	} else {
		_, err = d.Status(ctx, id)
	}
	return err
}

// Size implements driver.Driver.
func (d *Driver) Size(context.Context, driver.ID) (int64, error) { return 0, nil }

// Remove implements driver.Driver.
func (d *Driver) Remove(ctx context.Context, id driver.ID) error {
	st, err := d.Status(ctx, id)
	if errors.Is(err, driver.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.State != driver.Ended {
		return fmt.Errorf("remove %s: the reservation has not ended", id)
	}
	if err := d.disk.remove(id); err != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.runs, id)
	return nil
}

// Runs implements driver.Lister.
func (d *Driver) Runs(context.Context) ([]driver.ID, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.runs)), nil
}
