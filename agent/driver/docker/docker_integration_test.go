//go:build integration

package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
	"github.com/nusa-scheduler/nusa/agent/driver/mounts"
	"github.com/nusa-scheduler/nusa/internal/boottime"
)

func open(t *testing.T, e *engine, dir string) *Driver {
	t.Helper()
	d, err := New(Config{Dir: dir, Host: e.Host()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func shell(script string) map[string]any {
	return map[string]any{"image": "box:1", "command": "/bin/sh", "args": []any{"-c", script}}
}

// stoppable returns a command that runs until it receives a stop signal.
func stoppable(then string) map[string]any {
	return shell("trap '" + then + "' TERM; while true; do sleep 0.02; done")
}

// TestEngineInAnotherMountNamespace: the driver recognizes an engine in its own mount namespace before a task
// is placed there. An engine that shares the agent's namespace supports volumes.
func TestEngineInAnotherMountNamespace(t *testing.T) {
	shares := open(t, newEngine(t), t.TempDir()).Fingerprint(t.Context())
	if err := mounts.Usable(); err != nil {
		t.Skip("skipped: ", err)
	}
	dockerd, err := exec.LookPath("dockerd")
	must(t, err)
	bin := t.TempDir()
	must(t, os.WriteFile(filepath.Join(bin, "dockerd"), []byte("#!/bin/sh\nexec unshare --mount --propagation private "+dockerd+" \"$@\"\n"), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	unshared := open(t, newEngine(t), t.TempDir()).Fingerprint(t.Context())
	for name, c := range map[string]struct {
		f   driver.Fingerprint
		can bool
	}{"with the agent's mounts": {shares, true}, "with its own": {unshared, false}} {
		if can := slices.Contains(c.f.Capabilities, driver.CapVolumes); can != c.can || !c.f.Healthy || strings.Contains(c.f.Message, "no volumes, no secrets: its process") == c.can {
			t.Errorf("%s: %+v", name, c.f)
		}
	}
}

func TestContract(t *testing.T) {
	e := newEngine(t)
	dir := t.TempDir()
	drivertest.Run(t, drivertest.Subject{
		Driver:  open(t, e, dir),
		Reopen:  func(t *testing.T) driver.Driver { return open(t, e, dir) },
		Clock:   boottime.Now,
		Sleeper: stoppable("exit 0"),
		Exiter: func(code int, out, err string) map[string]any {
			return shell(fmt.Sprintf("printf %%s '%s'; printf %%s '%s' >&2; exit %d", out, err, code))
		},
		Invalid: map[string]any{"image": "box:1", "no_such_field": true},
		Broken:  map[string]any{"image": "box:1", "command": "/no/such/file"},
		Shell:   func(script string) []string { return []string{"/bin/sh", "-c", script} },
		Framed:  true,
	})
}

// newTask returns a task. Its containers are removed with the engine.
func newTask(t *testing.T, config map[string]any) driver.Task {
	t.Helper()
	dir := t.TempDir()
	task := driver.Task{
		ID: driver.ID{Alloc: "11111111-1111-4111-8111-" + strconv.FormatInt(time.Now().UnixNano(), 36), Task: "main", Run: 1}, Config: config,
		Env: map[string]string{"GREETING": "good day"}, Dir: filepath.Join(dir, "task"), AllocDir: filepath.Join(dir, "alloc"),
		Resources: driver.Resources{CPUMilli: 100, MemoryBytes: 64 << 20}, Logs: driver.LogBounds{Files: 3, SizeBytes: 4096}, StopGrace: time.Second,
	}
	for _, d := range []string{task.Dir, task.AllocDir} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return task
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func output(t *testing.T, d *Driver, id driver.ID, o driver.LogOptions) string {
	t.Helper()
	var b strings.Builder
	must(t, d.Logs(limited(t), id, o, func(c driver.LogChunk) error {
		b.Write(c.Data)
		return nil
	}))
	return b.String()
}

// TestTasks checks on one engine what a task may rely on.
func TestTasks(t *testing.T) {
	e := newEngine(t)
	d := open(t, e, t.TempDir())
	t.Run("bad input", func(t *testing.T) { badInput(t, e, d) })
	t.Run("environment", func(t *testing.T) { environment(t, e, d) })
	t.Run("volumes", func(t *testing.T) { volumes(t, e) })
	t.Run("ports", func(t *testing.T) { portMapping(t, e, d) })
	t.Run("limits", func(t *testing.T) { limits(t, d) })
	t.Run("rotation", func(t *testing.T) { rotation(t, d) })
	t.Run("long lines", func(t *testing.T) { longLines(t, d) })
	t.Run("following", func(t *testing.T) { following(t, d) })
	t.Run("grace", func(t *testing.T) { grace(t, d) })
}

// badInput checks that an error has the engine's message and the wrong field.
func badInput(t *testing.T, e *engine, d *Driver) {
	must(t, e.Load(limited(t), "foreign:1", map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH], map[string]any{}))
	for name, c := range map[string]struct {
		config map[string]any
		memory int64
		ports  []driver.Port
		kind   error
		words  []string
	}{
		"no such image":  {config: map[string]any{"image": "none:1", "pull": "never"}, kind: driver.ErrInvalid, words: []string{"config.image", "No such image: none:1"}},
		"no registry":    {config: map[string]any{"image": "127.0.0.1:1/none:1"}, kind: driver.ErrStart, words: []string{"config.image", "connection refused"}},
		"not a name":     {config: map[string]any{"image": "UPPER CASE"}, kind: driver.ErrInvalid, words: []string{"config.image", "invalid reference format"}},
		"architecture":   {config: map[string]any{"image": "foreign:1"}, kind: driver.ErrInvalid, words: []string{"config.image", "the engine runs " + runtime.GOARCH}},
		"little memory":  {config: shell("true"), memory: 1 << 20, kind: driver.ErrInvalid, words: []string{"resources.memory", "Minimum memory limit allowed is 6MB"}},
		"no command":     {config: map[string]any{"image": "box:1", "command": "nonesuch"}, kind: driver.ErrStart, words: []string{"config.command", `"nonesuch": executable file not found`}},
		"not executable": {config: map[string]any{"image": "box:1", "command": "/bin"}, kind: driver.ErrStart, words: []string{"config.command", "permission denied"}},
		"no such user":   {config: map[string]any{"image": "box:1", "command": "sh", "user": "nonesuch"}, kind: driver.ErrStart, words: []string{"config.user", "unable to find user nonesuch"}},
		"privileged":     {config: map[string]any{"image": "box:1", "privileged": true}, kind: driver.ErrInvalid, words: []string{"config.privileged", "--docker-allow-privileged"}},
		"port in use":    {config: shell("true"), ports: []driver.Port{{Label: "a", Host: 9999, To: 1}, {Label: "b", Host: 9999, To: 2}}, kind: driver.ErrStart, words: []string{"ports", "port is already allocated"}},
	} {
		task := newTask(t, c.config)
		task.Resources.MemoryBytes, task.Ports = c.memory, c.ports
		err := d.Start(limited(t), task)
		if !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", name, err, c.kind)
			continue
		}
		for _, w := range c.words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want it to say %q", name, err, w)
			}
		}
		if st, err := d.Status(limited(t), task.ID); err == nil && st.State != driver.Ended {
			t.Errorf("%s: afterwards %+v", name, st)
		}
		if _, err := e.client(t).ContainerInspect(limited(t), nameOf(task.ID), client.ContainerInspectOptions{}); err == nil {
			t.Errorf("%s: a container is left", name)
		}
	}
	none, err := New(Config{Dir: t.TempDir(), Host: "unix://" + t.TempDir() + "/none"})
	must(t, err)
	defer none.Close()
	if f := none.Fingerprint(t.Context()); f.Healthy || !strings.Contains(f.Message, "no such file") && !strings.Contains(f.Message, "Cannot connect") && !strings.Contains(f.Message, "failed to connect") {
		t.Errorf("without an engine: %+v", f)
	}
	if err := none.Start(limited(t), newTask(t, shell("true"))); !errors.Is(err, driver.ErrStart) {
		t.Errorf("without an engine: %v", err)
	}
}

func environment(t *testing.T, e *engine, d *Driver) {
	task := newTask(t, shell(`echo "$GREETING"; id -u; pwd; echo kept >kept; cat shared; cat $ALLOC/vol/f; echo x >$ALLOC/vol/new || echo read-only`))
	task.Config["user"] = "4711:4712"
	task.Config["labels"] = map[string]any{"team": "blue"}
	task.Env["ALLOC"] = task.AllocDir
	vol := t.TempDir()
	must(t, os.Chmod(filepath.Dir(vol), 0o755))
	must(t, os.WriteFile(filepath.Join(vol, "f"), []byte("from the volume\n"), 0o644))
	must(t, os.Chmod(task.AllocDir, 0o755))
	must(t, os.WriteFile(filepath.Join(task.Dir, "shared"), []byte("from a template\n"), 0o600))
	task.Volumes = []driver.Volume{{Name: "vol", Source: vol, ReadOnly: true}}
	must(t, d.Start(limited(t), task))
	if _, err := d.Wait(limited(t), task.ID); err != nil {
		t.Fatal(err)
	}
	want := "good day\n4711\n" + task.Dir + "\nfrom a template\nfrom the volume\nread-only\n"
	if got := output(t, d, task.ID, driver.LogOptions{Stdout: true}); got != want {
		t.Errorf("it printed %q, want %q; stderr: %q", got, want, output(t, d, task.ID, driver.LogOptions{Stderr: true}))
	}
	if data, err := os.ReadFile(filepath.Join(task.Dir, "kept")); string(data) != "kept\n" {
		t.Errorf("its file has %q: %v", data, err)
	}
	got, err := e.client(t).ContainerInspect(limited(t), nameOf(task.ID), client.ContainerInspectOptions{})
	must(t, err)
	labels := got.Container.Config.Labels
	if labels["team"] != "blue" || labels[labelAlloc] != task.ID.Alloc || labels[labelOwner] == "" {
		t.Errorf("its labels are %v", labels)
	}
}

// volumes checks that the allowed folder is mounted, even if its path changes. A read-only
// mount includes the mounts below it. In the end nothing stays mounted on the host.
func volumes(t *testing.T, e *engine) {
	dir, base := t.TempDir(), t.TempDir()
	d := open(t, e, dir)
	source, below := filepath.Join(base, "a"), filepath.Join(base, "a", "below")
	must(t, os.MkdirAll(below, 0o755))
	must(t, unix.Mount("test", below, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(base, "b", "below"), unix.MNT_DETACH) })
	must(t, os.WriteFile(filepath.Join(below, "f"), []byte("below\n"), 0o644))
	task := newTask(t, shell(`cat /vol/below/f; echo x >/vol/new || echo read-only; echo x >/vol/below/new || echo read-only; cat /etc/marker; sleep 3600`))
	task.Volumes = []driver.Volume{{Name: "vol", Source: source, Target: "/vol", ReadOnly: true}}

	// The start is interrupted after the engine received the mounts. Then the path changes.
	staged := task
	var err error
	staged.Volumes, err = d.mounts.Put(task.ID, task.Volumes)
	must(t, err)
	c, err := parse(staged)
	must(t, err)
	_, err = d.records.change(task.ID, func(*record) {})
	must(t, err)
	made, _, err := d.create(limited(t), staged, c)
	must(t, err)
	rec, err := d.records.change(task.ID, func(rec *record) { rec.Container, rec.Begun = made, true })
	must(t, err)
	must(t, os.Rename(source, filepath.Join(base, "b")))
	must(t, os.Symlink("/etc", source))
	d = open(t, e, dir) // a new driver without a Close, like after a kill
	must(t, d.begin(limited(t), task.ID, rec))
	must(t, d.Start(limited(t), task))
	until(t, func() bool { return strings.Count(output(t, d, task.ID, driver.LogOptions{Stdout: true}), "\n") == 3 })
	if got := output(t, d, task.ID, driver.LogOptions{Stdout: true}); got != "below\nread-only\nread-only\n" {
		t.Errorf("it printed %q", got)
	}
	noneStaged(t, d)
	must(t, d.Stop(limited(t), task.ID, 0))

	// The next task does not follow the changed path and leaves no mount.
	next := newTask(t, shell("true"))
	next.Volumes = task.Volumes
	if err := d.Start(limited(t), next); !errors.Is(err, driver.ErrStart) || !strings.Contains(err.Error(), "volumes.vol: ") {
		t.Errorf("a link was put there: %v", err)
	}
	if _, err := d.Status(limited(t), next.ID); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("afterwards: %v", err)
	}
	noneStaged(t, d)
}

// noneStaged checks that no volume is mounted for the engine any more.
func noneStaged(t *testing.T, d *Driver) {
	t.Helper()
	d.mounts.Sweep(func(id driver.ID) bool {
		t.Errorf("the volumes of %s are still mounted for the engine", id)
		return true
	})
}

func until(t *testing.T, done func() bool) {
	t.Helper()
	for ctx := limited(t); !done(); {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

// portMapping checks that connections to a host port reach the container, both with the
// container's own network and with the host's network.
func portMapping(t *testing.T, e *engine, d *Driver) {
	for network, to := range map[string]int{"bridge": 80, "host": 8101} {
		task := newTask(t, shell(fmt.Sprintf("echo %s >index.html; exec /bin/httpd -f -p %d", network, to)))
		task.Config["network"] = network
		task.Ports = []driver.Port{{Label: "http", Host: map[string]int{"bridge": 8100, "host": 8101}[network], To: to}}
		must(t, d.Start(limited(t), task))
		var got []byte
		for ctx := limited(t); ctx.Err() == nil && len(got) == 0; _ = pause(ctx, 10*time.Millisecond) {
			_ = e.Net.Do(func() error {
				conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", task.Ports[0].Host), time.Second)
				if err != nil {
					return err
				}
				defer conn.Close()
				fmt.Fprintf(conn, "GET /index.html HTTP/1.0\r\n\r\n")
				got, err = io.ReadAll(conn)
				return err
			})
		}
		if !strings.HasSuffix(string(got), "\n"+network+"\n") {
			t.Errorf("network %s: %q", network, got)
		}
		must(t, d.Stop(limited(t), task.ID, 0))
	}
}

func limits(t *testing.T, d *Driver) {
	task := newTask(t, shell("dd if=/dev/zero of=/dev/null bs=256M count=1"))
	task.Resources.MemoryBytes = 32 << 20
	must(t, d.Start(limited(t), task))
	if st, err := d.Wait(limited(t), task.ID); err != nil || st.ExitCode != 137 || st.Signal != 9 || !strings.Contains(st.Message, "out of memory") {
		t.Errorf("it ended as %+v: %v", st, err)
	}
	task = newTask(t, shell("i=0; while test $i -lt 20; do sleep 60 & i=$((i+1)); done; sleep 60"))
	task.Config["pids_limit"] = 10.0
	must(t, d.Start(limited(t), task))
	if st, err := d.Wait(limited(t), task.ID); err != nil || st.ExitCode == 0 {
		t.Errorf("with too many processes it ended as %+v: %v", st, err)
	}
}

// rotation checks that the output is bounded and its end is retained.
func rotation(t *testing.T, d *Driver) {
	task := newTask(t, shell("i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; printf end"))
	must(t, d.Start(limited(t), task))
	if followed := output(t, d, task.ID, driver.LogOptions{Stdout: true, Stderr: true, Follow: true}); !strings.HasSuffix(followed, "line 2999\nend") {
		t.Errorf("followed, it ends with %q", followed[max(0, len(followed)-100):])
	}
	kept := output(t, d, task.ID, driver.LogOptions{Stdout: true})
	size, err := d.Size(limited(t), task.ID)
	// A line is never split, so a file may be larger by one line.
	if !strings.HasSuffix(kept, "line 2999\nend") || err != nil || size == 0 || size > 2*3*4096+3*200 {
		t.Errorf("%d bytes are kept in %d: %v", len(kept), size, err)
	}
	if tail := output(t, d, task.ID, driver.LogOptions{Stdout: true, TailBytes: 7}); tail != "999\nend" {
		t.Errorf("the tail is %q", tail)
	}
	if tail := output(t, d, task.ID, driver.LogOptions{Stdout: true, TailLines: 2}); tail != "line 2999\nend" {
		t.Errorf("the last two lines are %q", tail)
	}
}

// longLines checks that a line of 200 KiB is retained as a whole. If a rotation removed its
// beginning, the end of the line is retained.
func longLines(t *testing.T, d *Driver) {
	const length = 200 << 10
	whole := strings.Repeat("x", length) + "end"
	for _, bounds := range []driver.LogBounds{{Files: 2, SizeBytes: 1 << 20}, {Files: 3, SizeBytes: 16 << 10}} {
		task := newTask(t, shell("dd if=/dev/zero bs=1024 count=200 2>/dev/null | /bin/busybox tr '\\0' x; printf end"))
		task.Logs = bounds
		must(t, d.Start(limited(t), task))
		_, err := d.Wait(limited(t), task.ID)
		must(t, err)
		kept := output(t, d, task.ID, driver.LogOptions{Stdout: true})
		// The engine writes parts of 16 KiB and never splits a part between files.
		most := 2*bounds.Files*int(bounds.SizeBytes) + bounds.Files*16<<10
		if rotated := length > most; !strings.HasSuffix(whole, kept) || len(kept) > most || len(kept) < 16<<10 || !rotated && kept != whole {
			t.Errorf("%+v: %d bytes are kept, at most %d: …%q", bounds, len(kept), most, kept[max(0, len(kept)-20):])
		}
		if tail := output(t, d, task.ID, driver.LogOptions{Stdout: true, TailBytes: 20000}); tail != whole[len(whole)-20000:] {
			t.Errorf("%+v: the tail has %d bytes", bounds, len(tail))
		}
	}
}

// following checks that a follower sees every byte once, although the engine
// pauses.
func following(t *testing.T, d *Driver) {
	task := newTask(t, shell("i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; sleep 0.1; printf end"))
	task.Logs = driver.LogBounds{Files: 2, SizeBytes: 1 << 20}
	var want strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	want.WriteString("end")
	must(t, d.Start(limited(t), task))
	for _, o := range []driver.LogOptions{{Stdout: true, Follow: true}, {Stdout: true, Follow: true, TailBytes: 1 << 30}, {Stdout: true}} {
		if got := output(t, d, task.ID, o); got != want.String() {
			t.Errorf("%+v: %d bytes, want %d", o, len(got), want.Len())
		}
	}
}

// grace checks that SIGTERM comes first. A command that handles it ends with its own exit
// code. Other commands get SIGKILL.
func grace(t *testing.T, d *Driver) {
	for _, c := range []struct {
		then         string
		grace        time.Duration
		code, signal int
	}{{"exit 5", 20 * time.Second, 5, 0}, {"", 100 * time.Millisecond, 137, 9}, {"exit 5", 0, 137, 9}} {
		task := newTask(t, stoppable(c.then+";echo asked"))
		task.Config["args"] = []any{"-c", "trap '" + c.then + "' TERM; echo ready; while true; do sleep 0.02; done"}
		must(t, d.Start(limited(t), task))
		ready := errors.New("ready")
		err := d.Logs(limited(t), task.ID, driver.LogOptions{Stdout: true, Follow: true}, func(driver.LogChunk) error { return ready })
		if !errors.Is(err, ready) {
			t.Fatal(err)
		}
		must(t, d.Stop(limited(t), task.ID, c.grace))
		if st, err := d.Status(limited(t), task.ID); err != nil || st.State != driver.Ended || st.Cause != driver.CauseStopped || st.ExitCode != c.code || st.Signal != c.signal {
			t.Errorf("trap %q, grace %s: %+v, %v", c.then, c.grace, st, err)
		}
	}
}
