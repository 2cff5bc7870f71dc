package process

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
	"github.com/nusa-scheduler/nusa/agent/supervise"
)

// TestMain lets the test's own binary be the supervisor.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervise.Main(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

func newDriver(t *testing.T, dir string) *Driver {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := New(Config{Dir: dir, SupervisorArgv: []string{self, "supervise"}})
	t.Cleanup(d.Close)
	return d
}

func shell(script string) map[string]any {
	return map[string]any{"command": "sh", "args": []any{"-c", script}}
}

func TestContract(t *testing.T) {
	dir := t.TempDir()
	drivertest.Run(t, drivertest.Subject{
		Driver:  newDriver(t, dir),
		Reopen:  func(t *testing.T) driver.Driver { return newDriver(t, dir) },
		Clock:   supervise.Boottime,
		Sleeper: map[string]any{"command": "sleep", "args": []any{"3600"}},
		Exiter: func(code int, out, err string) map[string]any {
			return shell(fmt.Sprintf("printf %%s '%s'; printf %%s '%s' >&2; exit %d", out, err, code))
		},
		Invalid: map[string]any{"command": "true", "no_such_field": true},
		Broken:  map[string]any{"command": "/no/such/file"},
	})
}
