package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
	"github.com/nusa-scheduler/nusa/agent/driver/plugin"
	"github.com/nusa-scheduler/nusa/agent/setup"
	"github.com/nusa-scheduler/nusa/internal/boottime"
)

// TestMain makes the test binary serve as the plugin and its supervisors, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" || plugin.Dir() != "" {
		main()
		return
	}
	// The race detector must not wait a second when the process exits.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, dir string) *plugin.Driver {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d, err := plugin.New(plugin.Config{Name: "script", Path: self, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// TestContract: the example passes the test suite for drivers, as a plugin.
func TestContract(t *testing.T) {
	dir := t.TempDir()
	drivertest.Run(t, drivertest.Subject{
		Driver:  open(t, dir),
		Reopen:  func(t *testing.T) driver.Driver { return open(t, dir) },
		Clock:   boottime.Now,
		Sleeper: map[string]any{"text": "exec sleep 3600"},
		Exiter: func(code int, out, err string) map[string]any {
			return map[string]any{"interpreter": "sh", "text": fmt.Sprintf("printf %%s '%s'; printf %%s '%s' >&2; exit %d", out, err, code)}
		},
		Invalid: map[string]any{"script": "true"},
		Broken:  map[string]any{"interpreter": "/no/such/interpreter", "text": "true"},
		Shell:   func(script string) []string { return []string{"sh", "-c", script} },
	})
}

// TestRefuses: an error about a mistake names the field.
func TestRefuses(t *testing.T) {
	d := open(t, t.TempDir())
	d.Fingerprint(t.Context()) // the plugin tells which settings it has
	for want, config := range map[string]map[string]any{
		"config.text: is missing":             {},
		"config.text: must be text: write it": {"text": 1.0},
		"config.txt: unknown field, did you ": {"txt": "true"},
	} {
		err := d.Start(t.Context(), driver.Task{ID: driver.ID{Alloc: "a", Task: "t", Run: 1}, Config: config})
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "task cannot run: task t: "+want) {
			t.Errorf("%v: %v", config, err)
		}
	}
}

// TestPath: the interpreter is found although the agent sets no PATH.
func TestPath(t *testing.T) {
	d := open(t, t.TempDir())
	id := driver.ID{Alloc: "00000000-0000-4000-8000-000000000000", Task: "t", Run: 1}
	err := d.Start(t.Context(), driver.Task{ID: id, Config: map[string]any{"text": "exec true"}, Dir: t.TempDir(), AllocDir: t.TempDir(),
		Logs: driver.LogBounds{Files: 1, SizeBytes: 4096}})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := d.Wait(t.Context(), id); err != nil || st.ExitCode != 0 {
		t.Errorf("%+v: %v", st, err)
	}
}

// TestStartsAgain: a second start of a task leaves the script alone that an interpreter reads.
func TestStartsAgain(t *testing.T) {
	d := open(t, t.TempDir())
	task := driver.Task{ID: driver.ID{Alloc: "00000000-0000-4000-8000-000000000000", Task: "t", Run: 1},
		Config: map[string]any{"text": "exec true"}, Dir: t.TempDir(), AllocDir: t.TempDir(), Logs: driver.LogBounds{Files: 1, SizeBytes: 4096}}
	if err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	read, err := os.Open(filepath.Join(task.Dir, "script"))
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	written := time.Unix(1_000_000_000, 0)
	if err := os.Chtimes(read.Name(), written, written); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if now, err := read.Stat(); err != nil || !now.ModTime().Equal(written) {
		t.Errorf("the file that an interpreter reads was written: %v", err)
	}
}

// TestOutput: a task of a plugin writes the output of a step of a workflow, of at most 16 KiB.
func TestOutput(t *testing.T) {
	d, dir := open(t, t.TempDir()), t.TempDir()
	s, err := setup.New(setup.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	const alloc = "00000000-0000-4000-8000-000000000000"
	folder := s.TaskDir(alloc, "t")
	for _, p := range []string{folder, s.SharedDir(alloc)} {
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for run, n := range []int{5, setup.MaxOutput, setup.MaxOutput + 1} {
		id := driver.ID{Alloc: alloc, Task: "t", Run: run + 1}
		err := d.Start(t.Context(), driver.Task{ID: id, Dir: folder, AllocDir: s.SharedDir(alloc), Logs: driver.LogBounds{Files: 1, SizeBytes: 4096},
			Env:    map[string]string{"NUSA_OUTPUT": filepath.Join(folder, setup.OutputFile)},
			Config: map[string]any{"text": fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x > $NUSA_OUTPUT", n)}})
		if err != nil {
			t.Fatal(err)
		}
		if st, err := d.Wait(t.Context(), id); err != nil || st.ExitCode != 0 {
			t.Fatalf("%+v: %v", st, err)
		}
		text, err := s.Output(alloc, "t")
		if (err != nil) != (n > setup.MaxOutput) || err == nil && text != strings.Repeat("x", n) {
			t.Errorf("%d bytes: %d bytes, %v", n, len(text), err)
		}
	}
}

// TestShort: the example is short.
func TestShort(t *testing.T) {
	text, err := os.ReadFile("main.go")
	if n := bytes.Count(text, []byte("\n")); err != nil || n >= 100 {
		t.Errorf("it has %d lines: %v", n, err)
	}
}
