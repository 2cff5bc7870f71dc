//go:build integration

package incus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/engines"
	"github.com/nusa-scheduler/nusa/agent/supervise"
)

// daemon is the one that the tests share; nil: not installed.
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
	if err = errors.Join(err, d.Destroy()); err != nil {
		fmt.Fprintln(os.Stderr, "incusd for the tests:", err)
		code = 1
	}
	os.Exit(code)
}

// real returns the daemon, or skips.
func real(t *testing.T) *engines.Incus {
	t.Helper()
	if daemon == nil {
		t.Skip("skipped: no incus (as root, with incusd and busybox-static installed)")
	}
	return daemon
}

// newReal returns a driver over the real daemon whose supervisor is the built
// binary.
func newReal(t *testing.T, dir string) *Driver {
	t.Helper()
	init, err := filepath.Abs("../../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Dir: dir, Address: real(t).Socket(), Init: init})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	if f := d.Fingerprint(t.Context()); !f.Healthy {
		t.Fatalf("not healthy: %s", f.Message)
	}
	return d
}

// task makes a task with folders of its own. It is removed at the end.
func task(t *testing.T, d *Driver, alloc string, config map[string]any) driver.Task {
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

// TestSpeed measures; what it asserts is only that all of it runs.
func TestSpeed(t *testing.T) {
	d := newReal(t, t.TempDir())
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
	for i := range 50 {
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
	began = time.Now()
	for _, tk := range tasks {
		group.Go(func() {
			if err := d.Stop(t.Context(), tk.ID, time.Second); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	t.Logf("one after the other, from Start to its command running: %v; 50 at once: %s, stopped and deleted in %s", one, all, time.Since(began).Round(time.Millisecond))
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
		Clock:   supervise.Boottime,
		Sleeper: map[string]any{"image": "bb", "command": "sleep", "args": []any{"3600"}},
		Exiter: func(code int, out, err string) map[string]any {
			return shell(fmt.Sprintf("printf %%s '%s'; printf %%s '%s' >&2; exit %d", out, err, code))
		},
		Invalid: map[string]any{"image": "bb", "command": "true", "no_such_field": true},
		Broken:  map[string]any{"image": "bb", "command": "/no/such/file"},
		Shell:   func(script string) []string { return []string{"sh", "-c", script} },
	})
}
