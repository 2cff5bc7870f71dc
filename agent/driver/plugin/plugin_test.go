package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/agent/driver/process"
	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/internal/boottime"
	"github.com/nusa-scheduler/nusa/job/config"
)

// TestMain lets the test's executable run as each of the plugins, by name, and as the
// supervisors of their runs.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervise.Main(os.Args[2:]))
	}
	if os.Getenv(envSocket) != "" {
		if err := servePlugin(os.Getenv(envName)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// A process that ends normally does not need the race detector's wait of one second at
	// the exit.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	goleak.VerifyTestMain(leftover.M{M: m})
}

// servePlugin is the main function of the tests' plugins.
func servePlugin(name string) error {
	switch name {
	case "mock":
		return Serve(name, mock.New(mock.Config{Clock: boottime.Now}))
	case "formed":
		return Serve(name, formed{mock.New(mock.Config{Clock: boottime.Now})})
	case "processes":
		p := process.New(process.Config{Dir: Dir(), SupervisorArgv: []string{self(), "supervise"}})
		defer p.Close()
		return Serve(name, p)
	}
	return serveLiar(name)
}

// formed is a driver that says which config it takes.
type formed struct{ *mock.Driver }

func (f formed) Fingerprint(ctx context.Context) driver.Fingerprint {
	out := f.Driver.Fingerprint(ctx)
	out.Config = config.Schema{
		{Name: "stdout", Kind: config.Text, Required: true, Help: "what it prints"}, {Name: "exit_code", Kind: config.Integer, Min: 0, Max: 255},
		{Name: "stderr", Kind: config.Text, Values: []string{"a"}, Secret: true},
	}
	return out
}

// TestConfigOfAPlugin: the fingerprint has the form of the config, and a task with another form fails without a
// retry, with the name of the field. A secret is not in the message.
func TestConfigOfAPlugin(t *testing.T) {
	d := openPlugin(t, "formed", t.TempDir(), soon())
	want := formed{mock.New(mock.Config{})}.Fingerprint(t.Context()).Config
	if got := d.Fingerprint(patient(t)); !got.Healthy || !reflect.DeepEqual(got.Config, want) {
		t.Errorf("%+v", got)
	}
	task := driver.Task{ID: driver.ID{Alloc: "a", Task: "t", Run: 1}}
	for text, values := range map[string]map[string]any{
		"config.stdout: is missing: what it prints":                {"exit_code": 1.0},
		"config.exit_code: must be a whole number of 0 to 255":     {"stdout": "x", "exit_code": 256.0},
		"task cannot run: task t: config.stderr: must be one of a": {"stdout": "x", "stderr": "pass"},
		`config.stduot: unknown field, did you mean "stdout"?`:     {"stduot": "x"},
	} {
		task.Config = values
		err := d.Start(patient(t), task)
		if c, final := driver.CategoryOf(err); c != driver.CategoryConfig || !final || !strings.Contains(fmt.Sprint(err), text) || strings.Contains(fmt.Sprint(err), "pass") {
			t.Errorf("%v: %v (%s, %t), want %q", values, err, c, final, text)
		}
	}
	task.Config = map[string]any{"stdout": "${NUSA_JOB}", "exit_code": 3.0}
	if err := d.Start(patient(t), task); err != nil {
		t.Error(err)
	}
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

// patience limits how long a test waits.
const patience = time.Minute

// soon returns limits that are short enough for a test.
func soon() limits {
	l := defaults
	l.ping = 50 * time.Millisecond
	return l
}

// openPlugin starts the plugin of a name.
func openPlugin(t *testing.T, name, dir string, limits limits) *Driver {
	t.Helper()
	return openConfig(t, Config{Name: name, Path: self(), Dir: dir}, limits)
}

func openConfig(t *testing.T, cfg Config, limits limits) *Driver {
	t.Helper()
	d, err := open(cfg, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// kill ends the plugin's process like a crash and waits for the next one.
func kill(t *testing.T, d *Driver) {
	t.Helper()
	ctx := patient(t)
	l, err := d.current(ctx, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-l.gone
	if next, err := d.current(ctx, true); err != nil || next == l {
		t.Fatalf("the plugin does not come back: %v", err)
	}
}

// subject returns the process driver in a plugin, as the subject of the suite.
func subject(d *Driver, reopen func(t *testing.T) driver.Driver) drivertest.Subject {
	shell := func(script string) map[string]any {
		return map[string]any{"command": "sh", "args": []any{"-c", script}}
	}
	return drivertest.Subject{
		Driver: d, Reopen: reopen, Clock: boottime.Now,
		Sleeper: map[string]any{"command": "sleep", "args": []any{"3600"}},
		Exiter: func(code int, out, err string) map[string]any {
			return shell(fmt.Sprintf("printf %%s '%s'; printf %%s '%s' >&2; exit %d", out, err, code))
		},
		Invalid: map[string]any{"command": "true", "no_such_field": true},
		Broken:  map[string]any{"command": "/no/such/file"},
		Shell:   func(script string) []string { return []string{"sh", "-c", script} },
	}
}

// TestContract runs the suite with a real process and a real socket, in three forms: with a
// plugin that crashes, with an agent that restarts, and without the optional calls.
func TestContract(t *testing.T) {
	t.Run("plugin crashes", func(t *testing.T) {
		d := openPlugin(t, "processes", t.TempDir(), defaults)
		drivertest.Run(t, subject(d, func(t *testing.T) driver.Driver { kill(t, d); return d }))
	})
	t.Run("agent restarts", func(t *testing.T) {
		dir := t.TempDir()
		d := openPlugin(t, "processes", dir, defaults)
		drivertest.Run(t, subject(d, func(t *testing.T) driver.Driver { return openPlugin(t, "processes", dir, defaults) }))
	})
	t.Run("without exec, stats and update", func(t *testing.T) {
		d := openPlugin(t, "mock", t.TempDir(), defaults)
		drivertest.Run(t, drivertest.Subject{
			Driver: d, Reopen: func(*testing.T) driver.Driver { return d }, Clock: boottime.Now,
			Sleeper: map[string]any{},
			Exiter: func(code int, out, err string) map[string]any {
				return map[string]any{"run_time": "1ms", "exit_code": float64(code), "stdout": out, "stderr": err}
			},
			Invalid: map[string]any{"no_such_field": true},
			Broken:  map[string]any{"start_error": "as asked"},
		})
	})
}

func task(t *testing.T, config map[string]any) driver.Task {
	t.Helper()
	return driver.Task{ID: driver.ID{Alloc: "00000000-0000-4000-8000-000000000001", Task: "main", Run: 1}, Config: config,
		Env: map[string]string{"PATH": os.Getenv("PATH"), "SECRET": "s3cr3t"}, Dir: t.TempDir(), AllocDir: t.TempDir(),
		Logs: driver.LogBounds{Files: 2, SizeBytes: 1 << 20}, StopGrace: time.Second}
}

// TestWaitSurvivesThePlugin: Wait returns the true end although the plugin was killed
// twice. While the plugin is down, Status returns the reason.
func TestWaitSurvivesThePlugin(t *testing.T) {
	ctx := patient(t)
	d := openPlugin(t, "processes", t.TempDir(), defaults)
	tk := task(t, map[string]any{"command": "sh", "args": []any{"-c", "until test -e go; do sleep 0.02; done; exit 5"}})
	if err := d.Start(ctx, tk); err != nil {
		t.Fatal(err)
	}
	type end struct {
		st  driver.Status
		err error
	}
	ended := make(chan end, 1)
	go func() {
		st, err := d.Wait(ctx, tk.ID)
		ended <- end{st, err}
	}()
	follow := make(chan error, 1)
	go func() {
		follow <- d.Logs(ctx, tk.ID, driver.LogOptions{Stdout: true, Follow: true}, func(driver.LogChunk) error { return nil })
	}()
	kill(t, d)
	var e *Error
	if err := <-follow; !errors.As(err, &e) || !errors.Is(err, driver.ErrUnavailable) || e.Plugin != "processes" {
		t.Errorf("logs of a plugin that was killed: %v", err)
	}
	kill(t, d)
	if err := os.WriteFile(filepath.Join(tk.Dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if e := <-ended; e.err != nil || e.st.ExitCode != 5 || e.st.Cause != driver.CauseExited {
		t.Errorf("ended as %+v: %v", e.st, e.err)
	}
	if err := d.Remove(ctx, tk.ID); err != nil {
		t.Error(err)
	}
}

// TestClose: Close ends the process and removes its socket.
func TestClose(t *testing.T) {
	dir := t.TempDir()
	d := openPlugin(t, "mock", dir, defaults)
	l, err := d.current(patient(t), true)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(l.dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the socket's folder has mode %v: %v", info.Mode(), err)
	}
	d.Close()
	if !strings.Contains(l.end, "exit code 0") {
		t.Error(l.end)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "run")); err != nil || len(left) > 0 {
		t.Errorf("left are %v: %v", left, err)
	}
	if f := d.Fingerprint(t.Context()); f.Healthy {
		t.Errorf("after its end %+v", f)
	}
	if _, err := d.Status(t.Context(), driver.ID{Alloc: "a", Task: "t", Run: 1}); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("after its end: %v", err)
	}
}

// TestChanged: Changed is called when the plugin is ready, and when its path cannot
// be executed.
func TestChanged(t *testing.T) {
	changed := make(chan struct{}, 100)
	cfg := Config{Name: "mock", Path: self(), Dir: t.TempDir(), Changed: func() { changed <- struct{}{} }}
	d := openConfig(t, cfg, defaults)
	if f := d.Fingerprint(t.Context()); !f.Healthy || f.Version != "1" || len(f.Capabilities) != 2 {
		t.Errorf("%+v", f)
	}
	<-changed
	cfg.Path, cfg.Dir = "/no/such/plugin", t.TempDir()
	d = openConfig(t, cfg, defaults)
	if f := d.Fingerprint(t.Context()); f.Healthy || !strings.Contains(f.Message, "there is no file /no/such/plugin on this node: install it there") {
		t.Errorf("%+v", f)
	}
	<-changed
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := d.Start(ctx, task(t, nil)); !errors.Is(err, driver.ErrStart) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("start without a plugin: %v", err)
	}
}
