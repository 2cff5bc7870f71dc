package mock

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
)

func TestContract(t *testing.T) {
	defer goleak.VerifyNone(t)
	begin := time.Now()
	clock := func() time.Duration { return time.Since(begin) }
	d := New(Config{Clock: clock})
	drivertest.Run(t, drivertest.Subject{
		Driver:  d,
		Reopen:  func(*testing.T) driver.Driver { return d },
		Clock:   clock,
		Sleeper: map[string]any{},
		Exiter: func(code int, out, err string) map[string]any {
			return map[string]any{"run_time": "1ms", "exit_code": float64(code), "stdout": out, "stderr": err}
		},
		Invalid: map[string]any{"no_such_field": true},
		Broken:  map[string]any{"start_error": "as asked"},
	})
}
