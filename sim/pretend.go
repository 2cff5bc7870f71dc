package sim

import (
	"context"
	"strconv"
	"strings"
	"sync"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
)

// pretend is the mock driver in the place of the process driver, so that the
// federation takes job files as a user writes them. What a task does is in its
// environment: SIM_RUN_TIME=10s is the mock's `run_time`.
type pretend struct {
	*mock.Driver
	begun *begun
}

// begun are the runs that ever began, by instance.
type begun struct {
	mu   sync.Mutex
	runs map[Instance]map[driver.ID]bool
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
		if name, ok := strings.CutPrefix(key, "SIM_"); ok {
			t.Config[strings.ToLower(name)] = value
			if n, err := strconv.Atoi(value); err == nil {
				t.Config[strings.ToLower(name)] = float64(n)
			}
		}
	}
	return p.Driver.Start(ctx, t)
}
