package process

import (
	"errors"
	"fmt"
	"os"
	"strings"
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

// TestContract: with control groups, where there are any, and without.
func TestContract(t *testing.T) {
	for name, without := range map[string]bool{"limits": false, "no limits": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			open := func(t *testing.T) *Driver {
				d := newDriver(t, dir)
				d.cfg.NoLimits = without
				return d
			}
			drivertest.Run(t, drivertest.Subject{
				Driver:  open(t),
				Reopen:  func(t *testing.T) driver.Driver { return open(t) },
				Clock:   supervise.Boottime,
				Sleeper: map[string]any{"command": "sleep", "args": []any{"3600"}},
				Exiter: func(code int, out, err string) map[string]any {
					return shell(fmt.Sprintf("printf %%s '%s'; printf %%s '%s' >&2; exit %d", out, err, code))
				},
				Invalid: map[string]any{"command": "true", "no_such_field": true},
				Broken:  map[string]any{"command": "/no/such/file"},
				Shell:   func(script string) []string { return []string{"sh", "-c", script} },
			})
		})
	}
}

// TestLogsAcrossRotation: following, reading all and the tail go through
// rotated files without losing or repeating a byte.
func TestLogsAcrossRotation(t *testing.T) {
	d := newDriver(t, t.TempDir())
	var want strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	task := driver.Task{
		ID:     driver.ID{Alloc: "rotating", Task: "main", Run: 1},
		Config: shell("i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done"),
		Env:    map[string]string{"PATH": os.Getenv("PATH")}, Dir: t.TempDir(), AllocDir: t.TempDir(),
		Logs: driver.LogBounds{Files: 100, SizeBytes: 4096},
	}
	if err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		o    driver.LogOptions
		want string
	}{
		{"followed", driver.LogOptions{Stdout: true, Follow: true}, want.String()},
		{"afterwards", driver.LogOptions{Stdout: true}, want.String()},
		{"tail over two files", driver.LogOptions{Stdout: true, TailBytes: 6000}, want.String()[want.Len()-6000:]},
		{"tail of more than there is", driver.LogOptions{Stdout: true, TailBytes: 1 << 30}, want.String()},
	} {
		var got strings.Builder
		err := d.Logs(t.Context(), task.ID, c.o, func(chunk driver.LogChunk) error {
			got.Write(chunk.Data)
			return nil
		})
		if err != nil || got.String() != c.want {
			t.Errorf("%s: %d bytes, want %d: %v", c.name, got.Len(), len(c.want), err)
		}
	}
	if _, err := d.Wait(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
}

// TestConfig: every mistake names its field.
func TestConfig(t *testing.T) {
	for field, config := range map[string]map[string]any{
		"config.command: required":             {},
		"config.command: must be a text":       {"command": 1.0},
		"config.args: must be a list of texts": {"command": "x", "args": "y"},
		"config.args: [1]: must be a text":     {"command": "x", "args": []any{"a", 2.0}},
		"config.cpu_hard_limit":                {"command": "x", "cpu_hard_limit": "yes"},
		"config.comand: unknown field":         {"comand": "x"},
	} {
		err := newDriver(t, t.TempDir()).Start(t.Context(), driver.Task{ID: driver.ID{Alloc: "a", Task: "t", Run: 1}, Config: config})
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%v: %v, want %q", config, err, field)
		}
	}
}
