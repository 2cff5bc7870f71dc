package process

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// sleeping starts a task in which commands can run.
func sleeping(t *testing.T, d *Driver, change ...func(*driver.Task)) driver.Task {
	t.Helper()
	task := driver.Task{
		ID:     driver.ID{Alloc: strings.ReplaceAll(t.Name(), "/", "-"), Task: "main", Run: 1},
		Config: shell("exec sleep 3600"), Env: map[string]string{"PATH": os.Getenv("PATH")},
		Dir: t.TempDir(), AllocDir: t.TempDir(), Logs: driver.LogBounds{Files: 2, SizeBytes: 4096},
		Resources: driver.Resources{CPUMilli: 100, MemoryBytes: 64 << 20},
	}
	for _, f := range change {
		f(&task)
	}
	if err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(context.Background(), task.ID, 0); err != nil {
			t.Error(err)
		}
	})
	return task
}

func output(t *testing.T, d *Driver, id driver.ID, script string) string {
	t.Helper()
	var out bytes.Buffer
	st, err := d.Exec(t.Context(), id, driver.Exec{Command: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil || st.Code != 0 {
		t.Fatalf("%q: %q, %+v, %v", script, out.String(), st, err)
	}
	return out.String()
}

// TestExecWhereTheTaskIs: a command has the folder, the user and the cgroups of the
// task.
func TestExecWhereTheTaskIs(t *testing.T) {
	d := newDriver(t, t.TempDir())
	task := sleeping(t, d)
	if got := output(t, d, task.ID, "pwd"); got != task.Dir+"\n" {
		t.Errorf("its folder is %q, want %q", got, task.Dir)
	}
	groups := func(pid string) string { return output(t, d, task.ID, "cat /proc/"+pid+"/cgroup") }
	if main, self := groups(strings.TrimSpace(output(t, d, task.ID, "pgrep -P $PPID -o || echo self"))), groups("self"); main != self {
		t.Errorf("its control groups are\n%s\nthose of the task\n%s", self, main)
	}
	if os.Geteuid() != 0 {
		t.Skip("other users: only as root")
	}
	other := sleeping(t, d, func(x *driver.Task) {
		x.ID.Task, x.Config = "other", map[string]any{"command": "sleep", "args": []any{"3600"}, "user": "nobody"}
	})
	if got := output(t, d, other.ID, "id -un; pwd"); got != "nobody\n"+other.Dir+"\n" {
		t.Errorf("as another user: %q", got)
	}
}

// TestExecLeavesNothing: the background processes of a command are killed when the command
// ends, also those outside the command's session.
func TestExecLeavesNothing(t *testing.T) {
	d := newDriver(t, t.TempDir())
	task := sleeping(t, d)
	pids := strings.Fields(output(t, d, task.ID, "sleep 3600 & echo $!; setsid sh -c 'echo $$; exec sleep 3600' & read x </dev/null; until pgrep -x sleep -s $! >/dev/null; do :; done"))
	if len(pids) != 2 {
		t.Fatalf("printed %q", pids)
	}
	for _, pid := range pids {
		if _, err := os.Stat(filepath.Join("/proc", pid)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("process %s is still there: %v", pid, err)
		}
	}
	if st, err := d.Status(t.Context(), task.ID); err != nil || st.State != driver.Running {
		t.Errorf("the task: %+v, %v", st, err)
	}
}

// TestExecEndsWithTheRun: a stop of the run, or the death of its supervisor, ends
// its commands.
func TestExecEndsWithTheRun(t *testing.T) {
	for name, end := range map[string]func(d *Driver, id driver.ID, supervisor int) error{
		"stopped": func(d *Driver, id driver.ID, _ int) error { return d.Stop(context.Background(), id, 0) },
		"killed":  func(_ *Driver, _ driver.ID, supervisor int) error { return syscall.Kill(supervisor, syscall.SIGKILL) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t, t.TempDir())
			task := sleeping(t, d)
			r, w := io.Pipe()
			done := make(chan error, 1)
			go func() {
				_, err := d.Exec(t.Context(), task.ID, driver.Exec{Command: []string{"sh", "-c", "sleep 3600 & echo $!; wait"}, Stdout: w})
				done <- err
			}()
			buf := make([]byte, 32)
			n, err := r.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			d.mu.Lock()
			supervisor := d.mine[task.ID].Pid
			d.mu.Unlock()
			if err := end(d, task.ID, supervisor); err != nil {
				t.Fatal(err)
			}
			if err := <-done; name == "killed" && !errors.Is(err, driver.ErrNotRunning) {
				t.Errorf("exec ended with %v", err)
			}
			if _, err := d.Wait(t.Context(), task.ID); err != nil {
				t.Fatal(err)
			}
			pid := strings.TrimSpace(string(buf[:n]))
			// A killed process whose reaper also died waits for another reaper.
			if stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat")); err == nil && !bytes.Contains(stat, []byte(") Z ")) {
				t.Errorf("process %s is still there: %s", pid, stat)
			}
		})
	}
}

// TestUpdateReachesTheKernel: the cgroup has the new limits. A limit below the
// present use is refused.
func TestUpdateReachesTheKernel(t *testing.T) {
	d := newDriver(t, t.TempDir())
	if err, _ := d.usable(); err != nil {
		t.Skip("no control groups:", err)
	}
	task := sleeping(t, d)
	limit := func() string {
		for _, path := range []string{"/sys/fs/cgroup/memory/nusa/%/memory.limit_in_bytes", "/sys/fs/cgroup/nusa/%/memory.max"} {
			if data, err := os.ReadFile(strings.ReplaceAll(path, "%", d.name+"."+task.ID.Alloc+".main.1")); err == nil {
				return strings.TrimSpace(string(data))
			}
		}
		return "no such group"
	}
	for _, c := range []struct {
		bytes int64
		want  string
	}{{0, "67108864"}, {32 << 20, "33554432"}, {128 << 20, "134217728"}} {
		if c.bytes != 0 {
			if err := d.Update(t.Context(), task.ID, driver.Resources{MemoryBytes: c.bytes}); err != nil {
				t.Fatal(err)
			}
		}
		if got := limit(); got != c.want {
			t.Errorf("after %d the limit is %s, want %s", c.bytes, got, c.want)
		}
	}
}
