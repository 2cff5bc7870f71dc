//go:build integration

package incus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lxc/incus/v6/shared/api"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/engines"
	"github.com/nusa-scheduler/nusa/internal/boottime"
)

// daemon is shared by the tests. nil: Incus is not installed.
var daemon *engines.Incus

func TestMain(m *testing.M) {
	code := 1
	d, err := engines.NewIncus(nil)
	switch {
	case errors.Is(err, engines.ErrMissing):
		code, err = m.Run(), nil
	case err == nil:
		daemon = d
		code = m.Run()
	}
	err = errors.Join(err, d.Destroy())
	if err != nil {
		fmt.Fprintln(os.Stderr, "incusd for the tests:", err)
		code = 1
	}
	os.Exit(code)
}

// real returns the daemon. It skips the test if there is none.
func real(t testing.TB) *engines.Incus {
	t.Helper()
	if daemon == nil {
		t.Skip("skipped: no incus (as root, with incusd and busybox-static installed)")
	}
	return daemon
}

// slim returns the command line of the supervisor of `make build`.
func slim(t testing.TB) []string {
	t.Helper()
	path, err := filepath.Abs("../../supervise/slim/nusa-supervise")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: make build first", err)
	}
	return []string{path}
}

// newReal returns a driver with the real daemon, configured like an agent's driver.
func newReal(t testing.TB, dir string) *Driver { return newOver(t, dir, slim(t)) }

func newOver(t testing.TB, dir string, init []string) *Driver {
	t.Helper()
	d, err := New(Config{Dir: dir, Address: real(t).Socket(), Init: init})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	last := ""
	until(t, "it is healthy", func() bool { // a busy daemon may respond too late
		f := d.Fingerprint(t.Context())
		if f.Message != last {
			last = f.Message
			t.Log(last)
		}
		return f.Healthy
	})
	return d
}

// task returns a task with its own folders. The run is removed at the end of the test.
func task(t testing.TB, d *Driver, alloc string, config map[string]any) driver.Task {
	t.Helper()
	out := driver.Task{
		ID: driver.ID{Alloc: alloc, Task: "main", Run: 1}, Config: config,
		Env: map[string]string{"PATH": "/bin", "NUSA_NODE": "here"}, Dir: t.TempDir(), AllocDir: t.TempDir(),
		Resources: driver.Resources{CPUMilli: 500, MemoryBytes: 64 << 20},
		Logs:      driver.LogBounds{Files: 2, SizeBytes: 1 << 20}, StopGrace: time.Second,
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(d.Stop(ctx, out.ID, 0), d.Remove(ctx, out.ID)); err != nil {
			t.Error(err)
		}
	})
	return out
}

// TestManyAtOnce: tasks that start and stop at the same time do not disturb each other.
func TestManyAtOnce(t *testing.T) { t.Log(speed(t, newReal(t, t.TempDir()), 8)) }

// BenchmarkSpeed measures 50 tasks at once, with the slim supervisor and with the whole executable. A machine of
// two cores that does something else may need longer than the driver allows for a start. `make integration-long`
// runs it.
func BenchmarkSpeed(b *testing.B) {
	whole, err := filepath.Abs("../../../bin/nusa")
	must(b, err)
	b.Run("slim", func(b *testing.B) { b.Log(speed(b, newReal(b, b.TempDir()), 50)) })
	b.Run("whole", func(b *testing.B) {
		b.Log(speed(b, newOver(b, b.TempDir(), []string{whole, "supervise"}), 50))
	})
}

// speed starts and stops some tasks one after the other, then n tasks at the same time. It returns what it measured.
func speed(t testing.TB, d *Driver, n int) string {
	t.Helper()
	sleeper := map[string]any{"image": "bb", "command": "sleep", "args": []any{"3600"}}
	var one []time.Duration
	for i := range 5 {
		tk := task(t, d, fmt.Sprintf("one-%d", i), sleeper)
		began := time.Now()
		if err := d.Start(t.Context(), tk); err != nil {
			t.Fatal(err)
		}
		one = append(one, time.Since(began).Round(time.Millisecond))
	}
	var tasks []driver.Task
	for i := range n {
		tasks = append(tasks, task(t, d, fmt.Sprintf("many-%d", i), sleeper))
	}
	began := time.Now()
	var group sync.WaitGroup
	for _, tk := range tasks {
		group.Go(func() {
			if err := d.Start(t.Context(), tk); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	all := time.Since(began).Round(time.Millisecond)
	anonymous, pages := memory(t, d, tasks)
	began = time.Now()
	for _, tk := range tasks {
		group.Go(func() {
			if err := d.Stop(t.Context(), tk.ID, time.Second); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	return fmt.Sprintf("one after the other, from Start to its command running: %v; %d at once: %s, stopped and deleted in %s; a supervisor has %d KiB of its own, with pages of its executable %d KiB",
		one, n, all, time.Since(began).Round(time.Millisecond), anonymous, pages)
}

// memory returns the average memory of the tasks' supervisors in KiB: the private pages, and
// all resident pages. Supervisors share the pages of the executable.
func memory(t testing.TB, d *Driver, tasks []driver.Task) (anonymous, resident int) {
	t.Helper()
	for _, tk := range tasks {
		var state api.InstanceState
		must(t, real(t).Ask(t.Context(), http.MethodGet, instancePath(instanceName(d.owner, tk.ID))+"/state", nil, &state))
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", state.Pid))
		must(t, err)
		for line := range strings.Lines(string(text)) {
			var kib int
			if _, err := fmt.Sscanf(line, "RssAnon: %d kB", &kib); err == nil {
				anonymous += kib
			}
			if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
				resident += kib
			}
		}
	}
	return anonymous / len(tasks), resident / len(tasks)
}

func shell(script string) map[string]any {
	return map[string]any{"image": "bb", "command": "sh", "args": []any{"-c", script}}
}

func TestContract(t *testing.T) {
	real(t)
	dir := t.TempDir()
	drivertest.Run(t, drivertest.Subject{
		Driver:  newReal(t, dir),
		Reopen:  func(t *testing.T) driver.Driver { return newReal(t, dir) },
		Clock:   boottime.Now,
		Sleeper: map[string]any{"image": "bb", "command": "sleep", "args": []any{"3600"}},
		Exiter: func(code int, out, err string) map[string]any {
			return shell(fmt.Sprintf("printf %%s '%s'; printf %%s '%s' >&2; exit %d", out, err, code))
		},
		Invalid: map[string]any{"image": "bb", "command": "true", "no_such_field": true},
		Broken:  map[string]any{"image": "bb", "command": "/no/such/file"},
		Shell:   func(script string) []string { return []string{"sh", "-c", script} },
	})
}
