package sim

import (
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
)

// pretend is the mock driver in the place of the process driver, so that the
// federation takes job files as a user writes them. What a task does is in its
// environment: SIM_RUN_TIME=10s is the mock's `run_time`. A command in it, such
// as a check, succeeds from SIM_HEALTHY_AFTER=3s on.
type pretend struct {
	*mock.Driver
	begun *begun
}

// begun are the runs that ever began, by instance.
type begun struct {
	mu   sync.Mutex
	runs map[Instance]map[driver.ID]bool
	// well is from when on commands in a run succeed.
	well map[driver.ID]time.Time
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

// Fingerprint is the mock's, with commands.
func (p pretend) Fingerprint(ctx context.Context) driver.Fingerprint {
	f := p.Driver.Fingerprint(ctx)
	f.Capabilities = slices.Sorted(slices.Values(append(f.Capabilities, driver.CapExec)))
	return f
}

// Exec answers at once.
func (p pretend) Exec(_ context.Context, id driver.ID, x driver.Exec) (driver.ExitStatus, error) {
	p.begun.mu.Lock()
	defer p.begun.mu.Unlock()
	if time.Now().Before(p.begun.well[id]) {
		_, err := io.WriteString(x.Stdout, "warming up")
		return driver.ExitStatus{Code: 1}, err
	}
	return driver.ExitStatus{}, nil
}

// Begun counts the runs that ever began, by instance.
func (f *Federation) Begun() map[Instance]int {
	f.begun.mu.Lock()
	defer f.begun.mu.Unlock()
	out := map[Instance]int{}
	for i, runs := range f.begun.runs {
		out[i] = len(runs)
	}
	return out
}

// Start replaces the command by the behaviour.
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
