package sim

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
)

// pretend is the mock driver under the name of the process driver, so that the federation accepts
// ordinary job files. A task's environment sets its behaviour. For example, SIM_RUN_TIME=10s sets
// `run_time` of the mock. With SIM_HEALTHY_AFTER=3s, commands in the task, such as a check, succeed
// from 3 s after its start.
type pretend struct {
	*mock.Driver
	begun *begun
}

// begun holds all runs that ever started, by instance.
type begun struct {
	mu   sync.Mutex
	runs map[Instance]map[driver.ID]bool
	// well is, by run, the time from which commands in the run succeed.
	well map[driver.ID]time.Time
	// sessions is the number of running commands.
	sessions int
}

func (b *begun) note(t driver.Task) {
	b.mu.Lock()
	defer b.mu.Unlock()
	index, _ := strconv.Atoi(t.Env["NUSA_INDEX"])
	i := Instance{Job: t.Env["NUSA_JOB"], Group: t.Env["NUSA_GROUP"], Index: int32(index)}
	if b.runs[i] == nil {
		b.runs[i] = map[driver.ID]bool{}
	}
	b.runs[i][t.ID] = true
	after, _ := time.ParseDuration(t.Env["SIM_HEALTHY_AFTER"])
	b.well[t.ID] = time.Now().Add(after)
}

// Fingerprint returns the mock's fingerprint, with support for commands and volumes.
func (p pretend) Fingerprint(ctx context.Context) driver.Fingerprint {
	f := p.Driver.Fingerprint(ctx)
	f.Capabilities = slices.Sorted(slices.Values(append(f.Capabilities, driver.CapExec, driver.CapVolumes)))
	return f
}

// Exec runs a command in a task. Only `echo CODE` is a session: it prints its terminal, repeats its
// input and the new sizes of the terminal, and exits with CODE at the end of its input. Any other
// command ends immediately.
func (p pretend) Exec(ctx context.Context, id driver.ID, x driver.Exec) (driver.ExitStatus, error) {
	if x.Command[0] == "echo" {
		p.begun.session(+1)
		defer p.begun.session(-1)
		return echo(ctx, x)
	}
	p.begun.mu.Lock()
	defer p.begun.mu.Unlock()
	if time.Now().Before(p.begun.well[id]) {
		_, err := io.WriteString(x.Stdout, "warming up")
		return driver.ExitStatus{Code: 1}, err
	}
	return driver.ExitStatus{}, nil
}

func echo(ctx context.Context, x driver.Exec) (driver.ExitStatus, error) {
	code, err := strconv.Atoi(x.Command[1])
	if err != nil {
		return driver.ExitStatus{}, fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	if x.TTY {
		fmt.Fprintf(x.Stdout, "terminal %dx%d;", x.Size.Columns, x.Size.Rows)
	} else if _, err := io.WriteString(x.Stderr, "no terminal;"); err != nil {
		return driver.ExitStatus{}, err
	}
	ended := make(chan error, 1)
	// The command ends when its input ends, and the input ends with the session.
	go func() {
		_, err := io.Copy(x.Stdout, x.Stdin)
		ended <- err
	}()
	for {
		select {
		case size := <-x.Resize:
			fmt.Fprintf(x.Stdout, "now %dx%d;", size.Columns, size.Rows)
		case err := <-ended:
			return driver.ExitStatus{Code: code}, err
		case <-ctx.Done():
			return driver.ExitStatus{}, ctx.Err()
		}
	}
}

func (b *begun) session(change int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions += change
}

// Sessions returns the number of commands that run in tasks now.
func (f *Federation) Sessions() int {
	f.begun.mu.Lock()
	defer f.begun.mu.Unlock()
	return f.begun.sessions
}

// Stats returns constant values.
func (p pretend) Stats(ctx context.Context, id driver.ID) (driver.Stats, error) {
	if st, err := p.Status(ctx, id); err != nil || st.State != driver.Running {
		return driver.Stats{}, fmt.Errorf("run %s: %w, %w", id, driver.ErrNotRunning, err)
	}
	return driver.Stats{CPU: time.Second, MemoryBytes: 2 << 20, MemoryPeakBytes: 3 << 20, Processes: 4}, nil
}

// Begun returns the number of runs that ever started, by instance.
func (f *Federation) Begun() map[Instance]int {
	f.begun.mu.Lock()
	defer f.begun.mu.Unlock()
	out := map[Instance]int{}
	for i, runs := range f.begun.runs {
		out[i] = len(runs)
	}
	return out
}

// Start starts the task with the behaviour that its environment sets, instead of its command.
func (p pretend) Start(ctx context.Context, t driver.Task) error {
	p.begun.note(t)
	t.Config = map[string]any{}
	for key, value := range t.Env {
		if name, ok := strings.CutPrefix(key, "SIM_"); ok && name != "HEALTHY_AFTER" {
			t.Config[strings.ToLower(name)] = value
			if n, err := strconv.Atoi(value); err == nil {
				t.Config[strings.ToLower(name)] = float64(n)
			}
		}
	}
	return p.Driver.Start(ctx, t)
}
