package sim

import (
	"context"
	"strings"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
)

// pretend is the mock driver in the place of the process driver, so that the
// federation takes job files as a user writes them. What a task does is in its
// environment: SIM_RUN_TIME=10s is the mock's `run_time`.
type pretend struct{ *mock.Driver }

// Start replaces the command by the behaviour.
func (p pretend) Start(ctx context.Context, t driver.Task) error {
	t.Config = map[string]any{}
	for key, value := range t.Env {
		if name, ok := strings.CutPrefix(key, "SIM_"); ok {
			t.Config[strings.ToLower(name)] = value
		}
	}
	return p.Driver.Start(ctx, t)
}
