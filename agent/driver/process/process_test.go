package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/internal/boottime"
)

// TestMain lets the test's own executable be the supervisor.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervise.Main(os.Args[2:]))
	}
	goleak.VerifyTestMain(leftover.M{M: m})
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

// TestContract runs the suite with cgroups, if there are any, and without.
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
				Clock:   boottime.Now,
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

// TestLogsAcrossRotation: when files are rotated, no byte is lost or repeated. This holds
// for following, for reading everything and for reading tails.
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
		{"last line", driver.LogOptions{Stdout: true, TailLines: 1}, "line 4999\n"},
		{"lines over many files", driver.LogOptions{Stdout: true, TailLines: 4500}, want.String()[strings.Index(want.String(), "line 500\n"):]},
		{"more lines than there are", driver.LogOptions{Stdout: true, TailLines: 5001}, want.String()},
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
		"config.command: is missing: the program to run": {},
		"config.command: must be text":                   {"command": 1.0},
		"config.args: must be a list of text":            {"command": "x", "args": "y"},
		"config.args[1]: must be text":                   {"command": "x", "args": []any{"a", 2.0}},
		"config.cpu_hard_limit":                          {"command": "x", "cpu_hard_limit": "yes"},
		"config.comand: unknown field":                   {"comand": "x"},
	} {
		err := newDriver(t, t.TempDir()).Start(t.Context(), driver.Task{ID: driver.ID{Alloc: "a", Task: "t", Run: 1}, Config: config})
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%v: %v, want %q", config, err, field)
		}
	}
}

// TestBadStart: a task that cannot be started fails with the wrong field and the system's
// error, and leaves nothing.
func TestBadStart(t *testing.T) {
	d, dir := newDriver(t, t.TempDir()), t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		config map[string]any
		want   []string
	}{
		{map[string]any{"command": "no-such-command"}, []string{"config.command: ", "no-such-command", "not found in the task's PATH, "}},
		{map[string]any{"command": "/no/such/file"}, []string{"config.command: ", "/no/such/file", "there is no file"}},
		{map[string]any{"command": plain}, []string{"config.command: ", "may not be executed"}},
		{map[string]any{"command": dir}, []string{"config.command: ", "is a folder, not a program"}},
		{map[string]any{"command": "true", "dir": "/no/such/folder"}, []string{"config.dir: ", "/no/such/folder"}},
		{map[string]any{"command": "true", "dir": plain}, []string{"config.dir: ", "not a directory"}},
		{map[string]any{"command": "true", "user": "no-such-user"}, []string{"config.user: ", "no-such-user"}},
	} {
		id := driver.ID{Alloc: fmt.Sprintf("bad-%d", i), Task: "main", Run: 1}
		err := d.Start(t.Context(), driver.Task{ID: id, Config: c.config, Dir: dir, AllocDir: dir,
			Env: map[string]string{"PATH": os.Getenv("PATH")}, Logs: driver.LogBounds{Files: 1, SizeBytes: 4096}})
		if !errors.Is(err, driver.ErrFinal) || !errors.Is(err, driver.ErrStart) {
			t.Errorf("%v: %v", c.config, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, want %q in it", c.config, err, want)
			}
		}
		if st, err := d.Status(t.Context(), id); err != nil || st.State != driver.Ended || st.Cause != driver.CauseStartFailed {
			t.Errorf("%v: ended as %+v, %v", c.config, st, err)
		}
	}
}

// TestTwoAgents: two agents on one host may have runs with the same names. The cgroups of
// these runs differ.
func TestTwoAgents(t *testing.T) {
	names := map[string]bool{}
	for range 2 {
		d := newDriver(t, t.TempDir())
		if err, _ := d.usable(); err != nil {
			t.Skipf("skipped: no control groups here: %v", err)
		}
		task := driver.Task{ID: driver.ID{Alloc: "same", Task: "main", Run: 1}, Config: shell("sleep 60"), Dir: t.TempDir(), AllocDir: t.TempDir(),
			Env: map[string]string{"PATH": os.Getenv("PATH")}, Logs: driver.LogBounds{Files: 1, SizeBytes: 4096}, Resources: driver.Resources{MemoryBytes: 32 << 20}}
		if err := d.Start(t.Context(), task); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := d.Stop(t.Context(), task.ID, 0); err != nil {
				t.Error(err)
			}
		}()
		spec, err := d.spec(task)
		if err != nil {
			t.Fatal(err)
		}
		names[spec.Limits.Cgroup] = true
		if s, err := d.Stats(t.Context(), task.ID); err != nil || s.Processes < 1 {
			t.Errorf("it has %d processes in its group, %v", s.Processes, err)
		}
	}
	if len(names) != 2 {
		t.Errorf("the groups are %v", names)
	}
}

// TestStopBeforeTheStart: an agent dies after it prepared a run and before the supervisor's first
// record. The next agent stops the run. If the supervisor comes later, it begins nothing.
func TestStopBeforeTheStart(t *testing.T) {
	d := newDriver(t, t.TempDir())
	marker := filepath.Join(t.TempDir(), "ran")
	task := driver.Task{ID: driver.ID{Alloc: "aaaa", Task: "main", Run: 1}, Config: shell("echo >" + marker), Dir: t.TempDir(), AllocDir: t.TempDir(),
		Logs: driver.LogBounds{Files: 1, SizeBytes: 4096}}
	spec, err := d.spec(task)
	if err != nil {
		t.Fatal(err)
	}
	dir := d.runDir(task.ID)
	if err := errors.Join(os.MkdirAll(dir, 0o700), supervise.WriteSpec(dir, spec)); err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(t.Context(), task.ID, 0); err != nil {
		t.Fatal(err)
	}
	p, _, err := d.spawner.Spawn(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
	if st, err := d.Status(t.Context(), task.ID); err != nil || st.State != driver.Ended || st.Message != "stopped before it began" {
		t.Errorf("%+v: %v", st, err)
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("it ran")
	}
}
