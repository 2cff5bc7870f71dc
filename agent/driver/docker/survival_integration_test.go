//go:build integration

package docker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// counted returns a command that records each of its starts in the task's folder.
func counted(then string) map[string]any { return shell("echo started >>starts; " + then) }

// begun waits until a counted task has recorded a start.
func begun(t *testing.T, task driver.Task) {
	t.Helper()
	for ctx := limited(t); starts(task) == 0; {
		must(t, pause(ctx, 5*time.Millisecond))
	}
}

func starts(task driver.Task) int {
	data, _ := os.ReadFile(filepath.Join(task.Dir, "starts"))
	return strings.Count(string(data), "\n")
}

const forever = "trap 'exit 0' TERM; while true; do sleep 0.02; done"

// untilFile ends once a file "end" is in the task's folder.
const untilFile = "trap 'exit 8' TERM; until test -e end; do sleep 0.02; done; exit 9"

// TestEngineRestart: a container that ended with the engine has an exit code. A container
// that continued is still the same run, and its exit is reported.
func TestEngineRestart(t *testing.T) {
	for name, c := range map[string]struct {
		flags []string
		how   unix.Signal
		lives bool
	}{
		"stopped":                     {how: unix.SIGTERM},
		"live restore":                {flags: []string{"--live-restore"}, how: unix.SIGTERM, lives: true},
		"live restore, killed":        {flags: []string{"--live-restore"}, how: unix.SIGKILL, lives: true},
		"killed without live restore": {how: unix.SIGKILL},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, c.flags...)
			d := open(t, e, t.TempDir())
			task := newTask(t, counted(untilFile))
			must(t, d.Start(limited(t), task))
			begun(t, task)
			before, err := d.Status(limited(t), task.ID)
			must(t, err)
			type end struct {
				st  driver.Status
				err error
			}
			ended := make(chan end, 1)
			go func() {
				st, err := d.Wait(t.Context(), task.ID)
				ended <- end{st, err}
			}()
			must(t, e.Stop(c.how))

			// The engine does not respond. The run is neither lost nor started again.
			if f := d.Fingerprint(limited(t)); f.Healthy || f.Message == "" {
				t.Errorf("without the engine: %+v", f)
			}
			if c.how == unix.SIGTERM && !c.lives {
				// The engine ended the run and may have reported its end.
			} else if st, err := d.Status(limited(t), task.ID); err != nil || st.State != driver.Running || !st.Started.Equal(before.Started) || st.Message == "" {
				t.Errorf("without the engine %+v, before %+v: %v", st, before, err)
			} else if err := d.Stop(limited(t), task.ID, 0); err == nil {
				t.Error("it was stopped without the engine")
			}
			must(t, e.Start())
			if c.lives {
				if st, err := d.Status(limited(t), task.ID); err != nil || st != before {
					t.Errorf("after the restart %+v, before %+v: %v", st, before, err)
				}
				must(t, os.WriteFile(filepath.Join(task.Dir, "end"), nil, 0o600))
			}
			got := <-ended
			if got.err != nil || got.st.State != driver.Ended || c.lives != (got.st.ExitCode == 9) || got.st.Cause != driver.CauseExited {
				t.Errorf("it ended as %+v: %v", got.st, got.err)
			}
			must(t, d.Start(limited(t), task))
			if n := starts(task); n != 1 {
				t.Errorf("it was started %d times", n)
			}
			if f := d.Fingerprint(limited(t)); !f.Healthy {
				t.Errorf("after the restart: %+v", f)
			}
		})
	}
}

// TestSurvival checks other interruptions on one engine.
func TestSurvival(t *testing.T) {
	e := newEngine(t)
	for name, f := range map[string]func(*testing.T, *engine){
		"removed behind our back": removedBehindOurBack,
		"pruned after its end":    pruned,
		"half made":               halfMade,
		"begun by a dead agent":   begunByTheDead,
		"started late":            startedLate,
		"name taken":              nameTaken,
		"stopped during its pull": stoppedDuringStart,
		"engine hangs":            hangingEngine,
		"swept":                   swept,
		"missed exit":             missedExit,
	} {
		t.Run(name, func(t *testing.T) { f(t, e) })
	}
}

func removedBehindOurBack(t *testing.T, e *engine) {
	d := open(t, e, t.TempDir())
	task := newTask(t, counted(forever))
	must(t, d.Start(limited(t), task))
	begun(t, task)
	_, err := e.client(t).ContainerRemove(limited(t), nameOf(task.ID), client.ContainerRemoveOptions{Force: true})
	must(t, err)
	st, err := d.Wait(limited(t), task.ID)
	if err != nil || st.Cause != driver.CauseLost && st.Signal != 9 || st.ExitCode != 137 {
		t.Errorf("it ended as %+v: %v", st, err)
	}
	must(t, d.Start(limited(t), task))
	if n := starts(task); n != 1 {
		t.Errorf("it was started %d times", n)
	}
	must(t, d.Remove(limited(t), task.ID))
}

// pruned checks that a recorded end is still known after the container was removed.
func pruned(t *testing.T, e *engine) {
	dir := t.TempDir()
	task := newTask(t, counted("exit 3"))
	d := open(t, e, dir)
	must(t, d.Start(limited(t), task))
	_, err := d.Wait(limited(t), task.ID)
	must(t, err)
	_, err = e.client(t).ContainerRemove(limited(t), nameOf(task.ID), client.ContainerRemoveOptions{})
	must(t, err)
	next := open(t, e, dir)
	must(t, next.Start(limited(t), task))
	if st, err := next.Wait(limited(t), task.ID); err != nil || st.ExitCode != 3 || starts(task) != 1 {
		t.Errorf("started %d times, %+v: %v", starts(task), st, err)
	}
	if got := output(t, next, task.ID, driver.LogOptions{Stdout: true, Follow: true}); got != "" {
		t.Errorf("output of a container that is gone: %q", got)
	}
}

// halfMade checks a start after an agent died. The engine had already made the container.
func halfMade(t *testing.T, e *engine) {
	dir := t.TempDir()
	d := open(t, e, dir)
	task := newTask(t, counted(forever))
	_, err := d.records.change(task.ID, func(*record) {}) // this also makes the folder of the gate
	must(t, err)
	c, err := parse(task)
	must(t, err)
	first, _, err := d.create(limited(t), task, c)
	must(t, err)

	next := open(t, e, dir)
	if _, err := next.Status(limited(t), task.ID); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("status of what never ran: %v", err)
	}
	must(t, next.Start(limited(t), task))
	begun(t, task)
	if rec, _ := next.records.get(task.ID); rec.Container == first || starts(task) != 1 {
		t.Errorf("container %s, was %s; %d starts", rec.Container, first, starts(task))
	}
	must(t, next.Stop(limited(t), task.ID, time.Second))
}

// begunByTheDead checks a start after an agent died shortly before or after it asked the
// engine to start the container.
func begunByTheDead(t *testing.T, e *engine) {
	for _, reached := range []bool{true, false} {
		dir := t.TempDir()
		d := open(t, e, dir)
		task := newTask(t, counted(forever))
		c, err := parse(task)
		must(t, err)
		_, err = d.records.change(task.ID, func(*record) {})
		must(t, err)
		made, _, err := d.create(limited(t), task, c)
		must(t, err)
		_, err = d.records.change(task.ID, func(r *record) { r.Container, r.Begun = made, true })
		must(t, err)
		if reached {
			_, err := d.cli.ContainerStart(limited(t), made, client.ContainerStartOptions{})
			must(t, err)
		}
		next := open(t, e, dir)
		must(t, next.Start(limited(t), task))
		begun(t, task)
		must(t, next.Stop(limited(t), task.ID, time.Second))
		if rec, _ := next.records.get(task.ID); (rec.Container == made) != reached || starts(task) != 1 {
			t.Errorf("reached %v: container %s, was %s; %d starts", reached, rec.Container, made, starts(task))
		}
	}
}

// startedLate checks an engine that hung. It starts the first container while Start
// replaces that container with another one.
func startedLate(t *testing.T, e *engine) {
	d := open(t, e, t.TempDir())
	task := newTask(t, counted("exit 4"))
	c, err := parse(task)
	must(t, err)
	_, err = d.records.change(task.ID, func(*record) {})
	must(t, err)
	first, _, err := d.create(limited(t), task, c)
	must(t, err)
	must(t, d.records.closeGate(task.ID))
	if _, err := d.cli.ContainerStart(limited(t), first, client.ContainerStartOptions{}); err == nil {
		t.Error("it begins although its gate is closed")
	}
	must(t, d.Start(limited(t), task))
	if st, err := d.Wait(limited(t), task.ID); err != nil || st.ExitCode != 4 || starts(task) != 1 {
		t.Errorf("%d starts, %+v: %v", starts(task), st, err)
	}
	if rec, _ := d.records.get(task.ID); rec.Container == first {
		t.Error("it is the first container")
	}
	// A container that began before its gate was closed counts, even if it has ended.
	task = newTask(t, counted("exit 5"))
	c, err = parse(task)
	must(t, err)
	_, err = d.records.change(task.ID, func(*record) {})
	must(t, err)
	first, _, err = d.create(limited(t), task, c)
	must(t, err)
	_, err = d.cli.ContainerStart(limited(t), first, client.ContainerStartOptions{})
	must(t, err)
	must(t, d.untilStopped(limited(t), first))
	must(t, d.Start(limited(t), task))
	if st, err := d.Wait(limited(t), task.ID); err != nil || st.ExitCode != 5 || starts(task) != 1 {
		t.Errorf("%d starts, %+v: %v", starts(task), st, err)
	}
	must(t, d.Remove(limited(t), task.ID))
	if _, err := os.Stat(filepath.Dir(d.records.gate(task.ID))); err == nil {
		t.Error("its gate is left")
	}
}

func nameTaken(t *testing.T, e *engine) {
	other := open(t, e, t.TempDir())
	task := newTask(t, counted(forever))
	must(t, other.Start(limited(t), task))
	begun(t, task)
	d := open(t, e, t.TempDir()) // a driver with another owner id
	if err := d.Start(limited(t), task); !errors.Is(err, driver.ErrStart) || !errors.Is(err, errTaken) {
		t.Errorf("start: %v", err)
	}
	must(t, d.Stop(limited(t), task.ID, 0))
	must(t, d.Remove(limited(t), task.ID))
	if st, err := other.Status(limited(t), task.ID); err != nil || st.State != driver.Running {
		t.Errorf("the other's is %+v: %v", st, err)
	}
	must(t, other.Stop(limited(t), task.ID, time.Second))
}

// stoppedDuringStart checks that Stop ends a Start that waits for the engine.
func stoppedDuringStart(t *testing.T, e *engine) {
	d := open(t, e, t.TempDir())
	task := newTask(t, counted(forever))
	e.signal(t, unix.SIGSTOP)
	started := make(chan error, 1)
	go func() { started <- d.Start(limited(t), task) }()
	for d.inFlight(task.ID) == nil {
		must(t, pause(limited(t), time.Millisecond))
	}
	stopped := make(chan error, 1)
	go func() { stopped <- d.Stop(limited(t), task.ID, time.Second) }()
	if err := <-started; !errors.Is(err, driver.ErrStart) {
		t.Errorf("start: %v", err)
	}
	e.signal(t, unix.SIGCONT)
	must(t, <-stopped)
	if _, err := d.Status(limited(t), task.ID); !errors.Is(err, driver.ErrNotFound) || starts(task) != 0 {
		t.Errorf("%d starts, then %v", starts(task), err)
	}
}

// hangingEngine checks that every call returns while the engine hangs, and works after the
// engine continues.
func hangingEngine(t *testing.T, e *engine) {
	d := open(t, e, t.TempDir())
	task := newTask(t, counted(untilFile))
	must(t, d.Start(limited(t), task))
	begun(t, task)
	before, err := d.Status(limited(t), task.ID)
	must(t, err)
	e.signal(t, unix.SIGSTOP)
	if f := d.Fingerprint(limited(t)); f.Healthy {
		t.Errorf("it hangs, and is %+v", f)
	}
	if st, err := d.Status(limited(t), task.ID); err != nil || st.State != driver.Running || st.PID != before.PID {
		t.Errorf("it hangs, and the task is %+v: %v", st, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := d.Stop(short, task.ID, 0); err == nil {
		t.Error("it hangs, and the task was stopped")
	}
	must(t, os.WriteFile(filepath.Join(task.Dir, "end"), nil, 0o600))
	e.signal(t, unix.SIGCONT)
	if st, err := d.Wait(limited(t), task.ID); err != nil || st.ExitCode != 9 {
		t.Errorf("afterwards it ended as %+v: %v", st, err)
	}
}

// swept checks that a container that could not be removed with its record is removed later.
// Other containers stay.
func swept(t *testing.T, e *engine) {
	d, other := open(t, e, t.TempDir()), open(t, e, t.TempDir())
	ours, theirs := newTask(t, counted("exit 0")), newTask(t, counted("exit 0"))
	for task, by := range map[*driver.Task]*Driver{&ours: d, &theirs: other} {
		must(t, by.Start(limited(t), *task))
		_, err := by.Wait(limited(t), task.ID)
		must(t, err)
	}
	must(t, d.records.remove(ours.ID))
	if f := d.Fingerprint(limited(t)); !f.Healthy {
		t.Fatal(f.Message)
	}
	for task, want := range map[*driver.Task]bool{&ours: false, &theirs: true} {
		if _, err := e.client(t).ContainerInspect(limited(t), nameOf(task.ID), client.ContainerInspectOptions{}); (err == nil) != want {
			t.Errorf("ours %v: %v", !want, err)
		}
	}
}

// missedExit checks a task that ended while no agent ran.
func missedExit(t *testing.T, e *engine) {
	dir := t.TempDir()
	task := newTask(t, counted(untilFile))
	must(t, open(t, e, dir).Start(limited(t), task))
	must(t, os.WriteFile(filepath.Join(task.Dir, "end"), nil, 0o600))
	next := open(t, e, dir)
	if st, err := next.Wait(limited(t), task.ID); err != nil || st.ExitCode != 9 || st.Cause != driver.CauseExited {
		t.Errorf("%+v: %v", st, err)
	}
	must(t, next.Remove(limited(t), task.ID))
	if _, err := e.client(t).ContainerInspect(limited(t), nameOf(task.ID), client.ContainerInspectOptions{}); err == nil {
		t.Error("its container is left")
	}
}
