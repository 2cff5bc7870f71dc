//go:build integration

package incus

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lxc/incus/v6/shared/api"
	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// counted returns a command that records each of its starts in the task's folder. Once a file
// "end" exists, the command ends with exit code 9.
func counted() map[string]any {
	return shell("echo started >>starts; until test -e end; do sleep 0.02; done; exit 9")
}

// plain returns a config that runs the image's own init.
func plain() map[string]any { return map[string]any{"image": "bb"} }

func starts(task driver.Task) int {
	data, _ := os.ReadFile(filepath.Join(task.Dir, "starts"))
	return strings.Count(string(data), "\n")
}

func end(t *testing.T, task driver.Task) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(task.Dir, "end"), nil, 0o600))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func limited(t testing.TB, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// until polls for at most two minutes.
func until(t testing.TB, what string, so func() bool) {
	t.Helper()
	ctx := limited(t, 2*time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}

// has reports whether the daemon has the instance of a run.
func has(t *testing.T, d *Driver, id driver.ID) bool {
	t.Helper()
	all, err := real(t).Instances(t.Context())
	must(t, err)
	return slices.ContainsFunc(all, func(i api.Instance) bool { return i.Name == instanceName(d.owner, id) })
}

// TestDaemonRestart: containers outlive their daemon. They stay the same runs, and
// their exits are reported.
func TestDaemonRestart(t *testing.T) {
	i := real(t)
	for name, stop := range map[string]func(){"stopped": i.Stop, "killed": i.Kill} {
		t.Run(name, func(t *testing.T) {
			d := newReal(t, t.TempDir())
			tk, image := task(t, d, "restart-"+name, counted()), task(t, d, "restart-image-"+name, plain())
			must(t, d.Start(limited(t, time.Minute), tk))
			must(t, d.Start(limited(t, time.Minute), image))
			before, err := d.Status(t.Context(), tk.ID)
			must(t, err)
			until(t, "it has noted its start", func() bool { return starts(tk) == 1 })
			type end2 struct {
				st  driver.Status
				err error
			}
			ended := make(chan end2, 1)
			go func() {
				st, err := d.Wait(t.Context(), tk.ID)
				ended <- end2{st, err}
			}()
			stop()
			if f := d.Fingerprint(t.Context()); f.Healthy || !strings.Contains(f.Message, i.Socket()) {
				t.Errorf("without the daemon: %+v", f)
			}
			if st, err := d.Status(t.Context(), tk.ID); err != nil || st != before {
				t.Errorf("without the daemon %+v, before %+v: %v", st, before, err)
			}
			if st, err := d.Status(t.Context(), image.ID); err != nil || st.State != driver.Running {
				t.Errorf("without the daemon the image's own init is %+v: %v", st, err)
			}
			end(t, tk)
			if got := <-ended; got.err != nil || got.st.ExitCode != 9 || got.st.Cause != driver.CauseExited {
				t.Errorf("without the daemon it ended as %+v: %v", got.st, got.err)
			}
			must(t, i.Start())
			must(t, d.Start(limited(t, time.Minute), tk))
			if starts(tk) != 1 {
				t.Errorf("it was started %d times", starts(tk))
			}
			if st, err := d.Status(t.Context(), image.ID); err != nil || st.State != driver.Running {
				t.Errorf("after the restart the image's own init is %+v: %v", st, err)
			}
			until(t, "what ended is deleted", func() bool {
				return d.Fingerprint(t.Context()).Healthy && !has(t, d, tk.ID)
			})
			must(t, d.Stop(limited(t, time.Minute), image.ID, time.Second))
			if st, err := d.Status(t.Context(), image.ID); err != nil || st.Cause != driver.CauseStopped || has(t, d, image.ID) {
				t.Errorf("stopped, the image's own init is %+v: %v", st, err)
			}
		})
	}
}

// TestDaemonHangs: while the daemon hangs, the status of running instances is known and they
// can be stopped. A start that was given up never begins.
func TestDaemonHangs(t *testing.T) {
	i := real(t)
	d := newReal(t, t.TempDir())
	runs, stops := task(t, d, "hang-runs", counted()), task(t, d, "hang-stops", counted())
	late, given := task(t, d, "hang-late", counted()), task(t, d, "hang-given-up", counted())
	must(t, d.Start(limited(t, time.Minute), runs))
	must(t, d.Start(limited(t, time.Minute), stops))
	until(t, "they have begun", func() bool { return starts(runs) == 1 && starts(stops) == 1 })
	must(t, i.Process.Signal(unix.SIGSTOP))
	awake := false
	wake := func() {
		if !awake {
			awake = true
			must(t, i.Process.Signal(unix.SIGCONT))
		}
	}
	defer wake()
	if f := d.Fingerprint(t.Context()); f.Healthy || !strings.Contains(f.Message, i.Socket()) {
		t.Errorf("it hangs, and is %+v", f)
	}
	if st, err := d.Status(limited(t, 10*time.Second), runs.ID); err != nil || st.State != driver.Running {
		t.Errorf("it hangs, and the task is %+v: %v", st, err)
	}
	must(t, d.Stop(limited(t, time.Minute), stops.ID, time.Second))
	if st, err := d.Status(t.Context(), stops.ID); err != nil || st.Cause != driver.CauseStopped {
		t.Errorf("it hangs, and a stopped task is %+v: %v", st, err)
	}
	// After an interrupted start the next call continues.
	if err := d.Start(limited(t, 300*time.Millisecond), late); !errors.Is(err, driver.ErrStart) {
		t.Errorf("it hangs, and a start says %v", err)
	}
	// A stop during the start ends the start at once.
	failed := make(chan error, 1)
	go func() { failed <- d.Start(t.Context(), given) }()
	until(t, "the start has begun", func() bool { _, err := d.read(given.ID); return err == nil })
	must(t, d.Stop(limited(t, time.Minute), given.ID, 0))
	if err := <-failed; !errors.Is(err, driver.ErrStart) {
		t.Errorf("a start that was stopped says %v", err)
	}
	wake()
	must(t, d.Start(limited(t, time.Minute), late))
	until(t, "the cut off start goes on", func() bool { return starts(late) == 1 })
	must(t, d.Start(limited(t, time.Minute), stops))
	until(t, "nothing is left of the others", func() bool {
		return d.Fingerprint(t.Context()).Healthy && !has(t, d, given.ID) && !has(t, d, stops.ID)
	})
	for _, tk := range []driver.Task{runs, late} {
		end(t, tk)
		if st, err := d.Wait(limited(t, time.Minute), tk.ID); err != nil || st.ExitCode != 9 || starts(tk) != 1 {
			t.Errorf("%s: %d starts, ended as %+v: %v", tk.ID, starts(tk), st, err)
		}
	}
	if starts(given) != 0 || starts(stops) != 1 {
		t.Errorf("what was given up started %d times, what was stopped %d times", starts(given), starts(stops))
	}
}

// TestAgentDiesWhileAnInstanceIsMade: an agent dies after the daemon made its instance, or after the daemon
// started it.
func TestAgentDiesWhileAnInstanceIsMade(t *testing.T) {
	for _, started := range []bool{false, true} {
		dir := t.TempDir()
		d := newReal(t, dir)
		tk := task(t, d, "half-made", counted())
		if started {
			tk.ID.Run = 2
		}
		c, err := parse(tk)
		must(t, err)
		_, err = d.prepare(tk, c)
		must(t, err)
		post := request(d.owner, tk, c, d.box(tk.ID), d.cfg.Init)
		post.Start = started
		must(t, d.engine.call(t.Context(), http.MethodPost, "/1.0/instances", nil, post, nil))
		if started {
			until(t, "it has begun", func() bool { return starts(tk) == 1 })
		}
		next := newReal(t, dir)
		must(t, next.Start(limited(t, time.Minute), tk))
		end(t, tk)
		if st, err := next.Wait(limited(t, time.Minute), tk.ID); err != nil || st.ExitCode != 9 || starts(tk) != 1 {
			t.Errorf("started %v: %d starts, ended as %+v: %v", started, starts(tk), st, err)
		}
		must(t, next.Remove(limited(t, time.Minute), tk.ID))
	}
}

// TestDeletedInstanceIsLost: another program deleted the instance.
func TestDeletedInstanceIsLost(t *testing.T) {
	for name, config := range map[string]map[string]any{"supervised": counted(), "image": plain()} {
		d := newReal(t, t.TempDir())
		tk := task(t, d, "killed-"+name, config)
		must(t, d.Start(limited(t, time.Minute), tk))
		path := instancePath(instanceName(d.owner, tk.ID))
		must(t, real(t).Ask(t.Context(), http.MethodPut, path+"/state", api.InstanceStatePut{Action: "stop", Force: true, Timeout: -1}, nil))
		must(t, real(t).Ask(t.Context(), http.MethodDelete, path, nil, nil))
		st, err := d.Wait(limited(t, time.Minute), tk.ID)
		// If the image's own init runs, the daemon may have reported its end before the deletion.
		if err != nil || st.State != driver.Ended || st.Cause != driver.CauseLost && name == "supervised" {
			t.Errorf("%s: it ended as %+v: %v", name, st, err)
		}
		must(t, d.Start(limited(t, time.Minute), tk))
		if has(t, d, tk.ID) || starts(tk) > 1 {
			t.Errorf("%s: it was started again", name)
		}
	}
}

// TestSharedDaemon: agents that share a daemon do not touch each other's instances,
// not even runs of the same id.
func TestSharedDaemon(t *testing.T) {
	one, two := newReal(t, t.TempDir()), newReal(t, t.TempDir())
	mine, theirs := task(t, one, "shared", counted()), task(t, two, "shared", counted())
	must(t, one.Start(limited(t, time.Minute), mine))
	must(t, two.Start(limited(t, time.Minute), theirs))
	until(t, "both have begun", func() bool { return starts(mine) == 1 && starts(theirs) == 1 })
	must(t, one.Stop(limited(t, time.Minute), mine.ID, 0))
	must(t, one.Remove(limited(t, time.Minute), mine.ID))
	if f := one.Fingerprint(t.Context()); !f.Healthy {
		t.Error(f.Message)
	}
	one.ending.Wait()
	if st, err := two.Status(t.Context(), theirs.ID); err != nil || st.State != driver.Running || has(t, one, mine.ID) || !has(t, two, theirs.ID) {
		t.Errorf("the other's is %+v: %v", st, err)
	}
	// This driver has no record of the other driver's instance.
	must(t, os.RemoveAll(two.runDir(theirs.ID)))
	until(t, "it is swept", func() bool { return two.Fingerprint(t.Context()).Healthy && !has(t, two, theirs.ID) })
}

// TestDiskFull: nothing starts, and the error says why. Running instances continue.
func TestDiskFull(t *testing.T) {
	real(t)
	dir := t.TempDir()
	must(t, unix.Mount("nusa-test", dir, "tmpfs", 0, "size=256k"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	d := newReal(t, dir)
	fill := filepath.Join(dir, "fill")
	f, err := os.Create(fill)
	must(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	f.Close()
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	tk := task(t, d, "full", counted())
	if err := d.Start(limited(t, time.Minute), tk); !errors.Is(err, driver.ErrStart) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	if has(t, d, tk.ID) || starts(tk) != 0 {
		t.Error("it was started")
	}
	must(t, os.Remove(fill))
	if _, err := d.Status(t.Context(), tk.ID); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("afterwards: %v", err)
	}
}
