package mock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
)

// maxOutput bounds the retained output of a run, in bytes.
const maxOutput = 1 << 20

// Driver runs simulated tasks. They live as long as the Driver, so an agent that restarts
// with the same Driver adopts them.
type Driver struct {
	driver.Unsupported

	cfg Config

	mu   sync.Mutex
	runs map[driver.ID]*run
	// starts counts how often each run has begun.
	starts map[driver.ID]int
}

// Config configures a Driver.
type Config struct {
	// Clock is the clock of the lease deadlines. It is required for tasks with leases.
	Clock func() time.Duration
	// Unhealthy is the message of an unhealthy driver. "" means that the driver is healthy.
	Unhealthy string
}

// New returns a driver without runs.
func New(cfg Config) *Driver {
	return &Driver{cfg: cfg, runs: map[driver.ID]*run{}, starts: map[driver.ID]int{}}
}

// run is one simulated task. Driver.mu guards its fields, except for the channels.
type run struct {
	behaviour behaviour
	status    driver.Status
	started   chan struct{}
	ended     chan struct{}
	timers    []*time.Timer
	// guard says when the lease ends the run. wake is the timer of the guard's next
	// decision.
	guard lease.Guard
	wake  *time.Timer
}

// behaviour is the `config` of a task.
type behaviour struct {
	startDelay time.Duration // start_delay: the time from Start to the begin, such as "50ms"
	runTime    time.Duration // run_time: 0 means until it is stopped
	stopDelay  time.Duration // stop_delay: the time from the stop request to the end
	exitCode   int           // exit_code
	startError string        // start_error: the start fails with this message
	stdout     string        // stdout: printed at the start
	stderr     string
}

func parse(config map[string]any) (behaviour, error) {
	var b behaviour
	for _, key := range slices.Sorted(maps.Keys(config)) {
		var err error
		switch value := config[key]; key {
		case "start_delay":
			b.startDelay, err = duration(value)
		case "run_time":
			b.runTime, err = duration(value)
		case "stop_delay":
			b.stopDelay, err = duration(value)
		case "exit_code":
			n, ok := value.(float64)
			b.exitCode = int(n)
			if !ok || n != float64(b.exitCode) || n < 0 || n > 255 {
				err = errors.New("must be a number of 0..255")
			}
		case "start_error":
			b.startError, err = text(value)
		case "stdout":
			b.stdout, err = text(value)
		case "stderr":
			b.stderr, err = text(value)
		default:
			err = errors.New("unknown field; known are exit_code, run_time, start_delay, start_error, stderr, stdout, stop_delay")
		}
		if err != nil {
			return b, fmt.Errorf("config.%s: %w", key, err)
		}
	}
	return b, nil
}

func duration(v any) (time.Duration, error) {
	s, err := text(v)
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(s)
	if err == nil && d < 0 {
		err = errors.New("must not be negative")
	}
	return d, err
}

func text(v any) (string, error) {
	s, ok := v.(string)
	if !ok || len(s) > maxOutput {
		return "", fmt.Errorf("must be a text of at most %d bytes", maxOutput)
	}
	return s, nil
}

// Fingerprint implements driver.Driver.
func (d *Driver) Fingerprint(context.Context) driver.Fingerprint {
	if d.cfg.Unhealthy != "" {
		return driver.Fingerprint{Version: "1", Message: d.cfg.Unhealthy}
	}
	caps := []string{driver.CapRecover}
	if d.cfg.Clock != nil {
		caps = append(caps, driver.CapSelfFencing)
	}
	return driver.Fingerprint{Healthy: true, Version: "1", Capabilities: caps}
}

// Starts returns how often a run has begun. A result above 1 is a bug.
func (d *Driver) Starts(id driver.ID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.starts[id]
}

// Running returns the runs that are running now, sorted.
func (d *Driver) Running() []driver.ID {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []driver.ID
	for id, r := range d.runs {
		if r.status.State == driver.Running {
			out = append(out, id)
		}
	}
	slices.SortFunc(out, func(a, b driver.ID) int {
		if a.String() < b.String() {
			return -1
		}
		return 1
	})
	return out
}

// Runs implements driver.Lister.
func (d *Driver) Runs(context.Context) ([]driver.ID, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.runs)), nil
}

// Start implements driver.Driver.
func (d *Driver) Start(ctx context.Context, t driver.Task) error {
	b, err := parse(t.Config)
	if err != nil {
		return fmt.Errorf("%w: task %s: %w", driver.ErrInvalid, t.ID.Task, err)
	}
	d.mu.Lock()
	r, begun := d.runs[t.ID]
	if !begun {
		r = &run{behaviour: b, started: make(chan struct{}), ended: make(chan struct{}), guard: lease.NewGuard(t.Lease, 0),
			status: driver.Status{State: driver.Starting, Started: time.Now()}}
		d.runs[t.ID] = r
		d.starts[t.ID]++
		r.timers = append(r.timers, time.AfterFunc(b.startDelay, func() { d.begin(r) }))
	}
	d.mu.Unlock()
	select {
	case <-r.started:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", driver.ErrStart, ctx.Err())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.status.Cause == driver.CauseStartFailed {
		return fmt.Errorf("%w: %s", driver.ErrStart, r.status.Message)
	}
	return nil
}

// begin changes a starting run to a running one.
func (d *Driver) begin(r *run) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.status.State != driver.Starting {
		return
	}
	if r.behaviour.startError != "" {
		r.end(driver.CauseStartFailed, 127, r.behaviour.startError)
		return
	}
	if d.cfg.Clock != nil && !r.guard.MayFork(d.cfg.Clock()) {
		r.end(driver.CauseLateStart, 127, "its lease ended before the command was started")
		return
	}
	r.status.State, r.status.Started = driver.Running, time.Now()
	close(r.started)
	if r.behaviour.runTime > 0 {
		r.after(d, r.behaviour.runTime, driver.CauseExited, r.behaviour.exitCode, "")
	}
	d.watch(r)
}

// watch sets the timer for the guard's next decision. The caller holds Driver.mu.
func (d *Driver) watch(r *run) {
	if r.wake != nil {
		r.wake.Stop()
	}
	at := r.guard.Wake()
	if at == 0 || d.cfg.Clock == nil || r.status.State != driver.Running {
		return
	}
	r.wake = time.AfterFunc(at-d.cfg.Clock(), func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if r.guard.Tick(d.cfg.Clock()) == lease.Nothing {
			d.watch(r)
			return
		}
		r.end(driver.CauseLeaseExpired, 143, "no renewal came before the lease ended")
	})
}

// after ends the run after a delay. The caller holds Driver.mu.
func (r *run) after(d *Driver, delay time.Duration, cause driver.Cause, code int, message string) {
	r.timers = append(r.timers, time.AfterFunc(delay, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		r.end(cause, code, message)
	}))
}

// end ends the run, if it has not ended yet. The caller holds Driver.mu.
func (r *run) end(cause driver.Cause, code int, message string) {
	if r.status.State == driver.Ended {
		return
	}
	if r.status.State == driver.Starting {
		close(r.started)
	}
	r.status.State, r.status.Finished = driver.Ended, time.Now()
	r.status.Cause, r.status.ExitCode, r.status.Message = cause, code, message
	for _, t := range r.timers {
		t.Stop()
	}
	if r.wake != nil {
		r.wake.Stop()
	}
	close(r.ended)
}

func (d *Driver) find(id driver.ID) (*run, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.runs[id]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("run %s: %w", id, driver.ErrNotFound)
}

// Status implements driver.Driver.
func (d *Driver) Status(_ context.Context, id driver.ID) (driver.Status, error) {
	r, err := d.find(id)
	if err != nil {
		return driver.Status{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return r.status, nil
}

// Wait implements driver.Driver.
func (d *Driver) Wait(ctx context.Context, id driver.ID) (driver.Status, error) {
	r, err := d.find(id)
	if err != nil {
		return driver.Status{}, err
	}
	select {
	case <-r.ended:
		return d.Status(ctx, id)
	case <-ctx.Done():
		return driver.Status{}, ctx.Err()
	}
}

// Stop implements driver.Driver.
func (d *Driver) Stop(ctx context.Context, id driver.ID, grace time.Duration) error {
	r, err := d.find(id)
	if err != nil {
		return nil
	}
	d.mu.Lock()
	if delay := min(r.behaviour.stopDelay, grace); delay > 0 {
		r.after(d, delay, driver.CauseStopped, 143, "stopped by the agent")
	} else {
		r.end(driver.CauseStopped, 143, "stopped by the agent")
	}
	d.mu.Unlock()
	_, err = d.Wait(ctx, id)
	return err
}

// Exit ends a run as if its command had exited by itself.
func (d *Driver) Exit(id driver.ID, code int) error {
	r, err := d.find(id)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r.end(driver.CauseExited, code, "")
	return nil
}

// Renew implements driver.Driver.
func (d *Driver) Renew(_ context.Context, id driver.ID, l lease.Deadline) error {
	r, err := d.find(id)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cfg.Clock == nil {
		return fmt.Errorf("renew the lease of run %s: %w", id, driver.ErrInvalid)
	}
	r.guard.Renew(l)
	d.watch(r)
	return nil
}

// Logs implements driver.Driver. A run prints its whole output at its start.
func (d *Driver) Logs(ctx context.Context, id driver.ID, o driver.LogOptions, emit func(driver.LogChunk) error) error {
	r, err := d.find(id)
	if err != nil {
		return err
	}
	select {
	case <-r.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	if st, err := d.Status(ctx, id); err != nil || st.Cause == driver.CauseLateStart {
		return err
	}
	send := func(wanted, stderr bool, s string) error {
		if o.TailBytes > 0 && int64(len(s)) > o.TailBytes {
			s = s[int64(len(s))-o.TailBytes:]
		}
		if lines := strings.SplitAfter(s, "\n"); o.TailLines > 0 {
			if lines[len(lines)-1] == "" {
				lines = lines[:len(lines)-1] // nothing follows the last line end
			}
			s = strings.Join(lines[max(0, len(lines)-o.TailLines):], "")
		}
		for wanted && s != "" {
			n := min(len(s), driver.MaxChunk)
			if err := emit(driver.LogChunk{Stderr: stderr, Data: []byte(s[:n])}); err != nil {
				return err
			}
			s = s[n:]
		}
		return nil
	}
	if err := send(o.Stdout, false, r.behaviour.stdout); err != nil {
		return err
	}
	if err := send(o.Stderr, true, r.behaviour.stderr); err != nil {
		return err
	}
	if o.Follow {
		_, err = d.Wait(ctx, id)
	}
	return err
}

// Size implements driver.Driver.
func (d *Driver) Size(_ context.Context, id driver.ID) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.runs[id]
	if r == nil {
		return 0, nil
	}
	return int64(len(r.behaviour.stdout) + len(r.behaviour.stderr)), nil
}

// Remove implements driver.Driver.
func (d *Driver) Remove(_ context.Context, id driver.ID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.runs[id]; r != nil && r.status.State != driver.Ended {
		return fmt.Errorf("remove %s: the run still runs", id)
	}
	delete(d.runs, id)
	return nil
}
