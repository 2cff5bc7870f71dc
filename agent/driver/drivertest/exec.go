package drivertest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// The following cases test Exec, Stats, Update and Signal. A driver without the capability must
// return ErrUnsupported.

func (s *suite) has(capability string) bool {
	return slices.Contains(s.Driver.Fingerprint(s.ctx).Capabilities, capability)
}

// execs starts a task in which the test can run further commands. It returns false if the
// driver has no CapExec, after it has checked that Exec returns ErrUnsupported.
func (s *suite) execs() (driver.Task, bool) {
	s.t.Helper()
	t := s.task(s.Sleeper)
	t.Env["GREETING"] = "good day"
	s.start(t)
	if s.has(driver.CapExec) {
		if s.Shell == nil {
			s.t.Fatal("the subject has exec, and no Shell to test it with")
		}
		return t, true
	}
	if _, err := s.Driver.Exec(s.ctx, t.ID, driver.Exec{Command: []string{"true"}}); !errors.Is(err, driver.ErrUnsupported) {
		s.t.Fatalf("exec without the capability: %v", err)
	}
	return t, false
}

// exec runs a script to its end and returns its output.
func (s *suite) exec(id driver.ID, script string, x driver.Exec) (stdout, stderr string, st driver.ExitStatus) {
	s.t.Helper()
	var out, errs bytes.Buffer
	x.Command = s.Shell(script)
	if x.Stdout == nil {
		x.Stdout = &out
	}
	x.Stderr = &errs
	st, err := s.Driver.Exec(s.ctx, id, x)
	if err != nil {
		s.t.Fatalf("exec of %q: %v", script, err)
	}
	return out.String(), errs.String(), st
}

func (s *suite) execOutput() {
	t, ok := s.execs()
	if !ok {
		return
	}
	out, errs, st := s.exec(t.ID, "echo to out; echo to err >&2; exit 7", driver.Exec{})
	if out != "to out\n" || errs != "to err\n" || st.Code != 7 || st.Signal != 0 {
		s.t.Errorf("stdout %q, stderr %q, %+v", out, errs, st)
	}
	if _, _, st := s.exec(t.ID, "kill -9 $$", driver.Exec{}); st.Code != 128+9 || st.Signal != 9 && st.Signal != 0 {
		s.t.Errorf("killed: %+v, want the code 137", st)
	}
	if out, _, _ := s.exec(t.ID, `echo "$GREETING $NUSA_TASK"`, driver.Exec{}); out != "good day main\n" {
		s.t.Errorf("with the task's environment it printed %q", out)
	}
	if out, _, st := s.exec(t.ID, "cat; test ! -t 0 && test ! -t 1", driver.Exec{}); out != "" || st.Code != 0 {
		s.t.Errorf("without input: %q, %+v", out, st)
	}
	if got := s.state(t.ID); got != driver.Running {
		s.t.Errorf("the task is %s after all that", got)
	}
}

func (s *suite) execInput() {
	t, ok := s.execs()
	if !ok {
		return
	}
	want := strings.Repeat("0123456789abcde\n", 16<<10) // more than a pipe holds
	if out, _, st := s.exec(t.ID, "cat", driver.Exec{Stdin: strings.NewReader(want)}); out != want || st.Code != 0 {
		s.t.Errorf("of %d bytes came back %d, %+v", len(want), len(out), st)
	}
	// Unread input, or input that never arrives, does not delay the end of the command.
	if _, _, st := s.exec(t.ID, "exit 3", driver.Exec{Stdin: strings.NewReader(want)}); st.Code != 3 {
		s.t.Errorf("with unread input: %+v", st)
	}
	never, end := io.Pipe()
	defer end.Close()
	if _, _, st := s.exec(t.ID, "exit 4", driver.Exec{Stdin: never}); st.Code != 4 {
		s.t.Errorf("with input that never comes: %+v", st)
	}
}

func (s *suite) execRefused() {
	t, ok := s.execs()
	if !ok {
		return
	}
	var fault *driver.CommandError
	_, err := s.Driver.Exec(s.ctx, t.ID, driver.Exec{Command: []string{"/no/such/command"}, Stdout: io.Discard, Stderr: io.Discard})
	if !errors.As(err, &fault) || fault.Code != driver.NoCommand || fault.Text == "" {
		s.t.Errorf("a command that does not exist: %v, want a CommandError of %d", err, driver.NoCommand)
	}
	none := driver.ID{Alloc: "00000000-0000-4000-8000-000000000000", Task: "none", Run: 1}
	if _, err := s.Driver.Exec(s.ctx, none, driver.Exec{Command: s.Shell("exit 0")}); !errors.Is(err, driver.ErrNotFound) {
		s.t.Errorf("in a run that never was: %v", err)
	}
	if err := s.Driver.Stop(s.ctx, t.ID, 0); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.Driver.Exec(s.ctx, t.ID, driver.Exec{Command: s.Shell("exit 0")}); !errors.Is(err, driver.ErrNotRunning) {
		s.t.Errorf("in a run that has ended: %v", err)
	}
}

// execKilled checks that the processes of a command end with the command's context, and
// that the task continues.
func (s *suite) execKilled() {
	t, ok := s.execs()
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	r, w := io.Pipe()
	defer r.Close()
	done := make(chan error, 1)
	go func() {
		_, err := s.Driver.Exec(ctx, t.ID, driver.Exec{Command: s.Shell("sleep 3600 & echo $$ $!; wait"), Stdout: w, Stderr: io.Discard})
		w.CloseWithError(err)
		done <- err
	}()
	pids, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		s.t.Fatalf("the command printed %q: %v", pids, err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		s.t.Errorf("exec whose context ended: %v", err)
	}
	alive := "for p in " + strings.TrimSpace(pids) + "; do state=; read -r _ _ state _ 2>/dev/null </proc/$p/stat; case $state in ''|Z|X) ;; *) exit 1 ;; esac; done"
	// An engine may need a moment to kill the processes. The suite's context bounds the
	// wait.
	for s.ctx.Err() == nil {
		if _, _, st := s.exec(t.ID, alive, driver.Exec{}); st.Code == 0 {
			break
		}
	}
	if got := s.state(t.ID); got != driver.Running {
		s.t.Errorf("the task is %s afterwards", got)
	}
}

func (s *suite) execTerminal() {
	t, ok := s.execs()
	if !ok {
		return
	}
	resize := make(chan driver.WindowSize)
	r, w := io.Pipe()
	defer r.Close()
	in, keys := io.Pipe()
	defer keys.Close()
	type end struct {
		st  driver.ExitStatus
		err error
	}
	done := make(chan end, 1)
	// An engine may set the first size only after the start, so the script waits for it.
	go func() {
		st, err := s.Driver.Exec(s.ctx, t.ID, driver.Exec{
			Command: s.Shell(`test -t 0 && test -t 1 && test -t 2 && while case $(stty size 2>/dev/null) in ''|'0 0') ;; *) false ;; esac; do sleep 0.01; done; stty size; until test "$(stty size)" = "40 100"; do sleep 0.05; done; echo resized; exec sleep 3600`),
			TTY:     true, Size: driver.WindowSize{Columns: 80, Rows: 24}, Resize: resize, Stdin: in, Stdout: w,
		})
		w.CloseWithError(cmp.Or(err, io.EOF))
		done <- end{st, err}
	}()
	out := bufio.NewReader(r)
	if line, err := out.ReadString('\n'); line != "24 80\r\n" {
		s.t.Fatalf("its size is %q: %v", line, err)
	}
	select {
	case resize <- driver.WindowSize{Columns: 100, Rows: 40}:
	case <-s.ctx.Done():
		s.t.Fatal("the driver did not take the new size")
	}
	if line, err := out.ReadString('\n'); line != "resized\r\n" {
		s.t.Fatalf("after the new size it printed %q: %v", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // discard the echo
	if _, err := keys.Write([]byte{3}); err != nil {
		s.t.Fatal(err)
	}
	if e := <-done; e.err != nil || e.st.Code != 128+2 {
		s.t.Errorf("after Ctrl-C: %+v", e)
	}
}

func (s *suite) stats() {
	t := s.start(s.task(s.Sleeper))
	before, err := s.Driver.Stats(s.ctx, t.ID)
	if !s.has(driver.CapStats) {
		if !errors.Is(err, driver.ErrUnsupported) {
			s.t.Fatalf("stats without the capability: %v", err)
		}
		return
	}
	if err != nil || before.Processes == 0 || before.MemoryBytes == 0 || before.MemoryPeakBytes >= 0 && before.MemoryPeakBytes < before.MemoryBytes {
		s.t.Errorf("%+v: %v", before, err)
	}
	if s.has(driver.CapExec) && before.CPU >= 0 {
		s.exec(t.ID, "i=0; while test $i -lt 100000; do i=$((i+1)); done", driver.Exec{})
		// An engine may measure rarely. The suite's context bounds the wait.
		for after := before; after.CPU <= before.CPU; {
			after, err = s.Driver.Stats(s.ctx, t.ID)
			if err != nil {
				s.t.Fatalf("the CPU time stays %s: %v", before.CPU, err)
			}
		}
	}
	if _, err := s.Driver.Stats(s.ctx, driver.ID{Alloc: "00000000-0000-4000-8000-000000000000", Task: "none", Run: 1}); !errors.Is(err, driver.ErrNotFound) {
		s.t.Errorf("of a run that never was: %v", err)
	}
	if err := s.Driver.Stop(s.ctx, t.ID, 0); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.Driver.Stats(s.ctx, t.ID); !errors.Is(err, driver.ErrNotRunning) {
		s.t.Errorf("of a run that has ended: %v", err)
	}
}

func (s *suite) update() {
	t := s.start(s.task(s.Sleeper))
	limits := driver.Resources{CPUMilli: 200, MemoryBytes: 128 << 20}
	err := s.Driver.Update(s.ctx, t.ID, limits)
	if !s.has(driver.CapUpdate) {
		if !errors.Is(err, driver.ErrUnsupported) {
			s.t.Fatalf("update without the capability: %v", err)
		}
		return
	}
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range []driver.Resources{limits, {}, t.Resources} { // the limits, no limits, the original limits
		if err := s.Driver.Update(s.ctx, t.ID, r); err != nil {
			s.t.Errorf("update to %+v: %v", r, err)
		}
	}
	if got := s.state(t.ID); got != driver.Running {
		s.t.Errorf("is %s after its limits changed", got)
	}
	if err := s.Driver.Update(s.ctx, driver.ID{Alloc: "00000000-0000-4000-8000-000000000000", Task: "none", Run: 1}, limits); !errors.Is(err, driver.ErrNotFound) {
		s.t.Errorf("of a run that never was: %v", err)
	}
	if err := s.Driver.Stop(s.ctx, t.ID, 0); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Driver.Update(s.ctx, t.ID, limits); !errors.Is(err, driver.ErrNotRunning) {
		s.t.Errorf("of a run that has ended: %v", err)
	}
}

func (s *suite) signal() {
	t := s.start(s.task(s.Sleeper))
	err := s.Driver.Signal(s.ctx, t.ID, int(syscall.SIGURG)) // ignored unless the program handles it
	if !s.has(driver.CapSignal) {
		if !errors.Is(err, driver.ErrUnsupported) {
			s.t.Fatalf("signal without the capability: %v", err)
		}
		return
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if got := s.state(t.ID); got != driver.Running {
		s.t.Errorf("is %s after a signal that it ignores", got)
	}
	if err := s.Driver.Signal(s.ctx, driver.ID{Alloc: "00000000-0000-4000-8000-000000000000", Task: "none", Run: 1}, 1); !errors.Is(err, driver.ErrNotFound) {
		s.t.Errorf("to a run that never was: %v", err)
	}
	if err := s.Driver.Signal(s.ctx, t.ID, int(syscall.SIGKILL)); err != nil {
		s.t.Fatal(err)
	}
	if st := s.wait(t.ID); st.Signal != int(syscall.SIGKILL) && st.ExitCode != 128+int(syscall.SIGKILL) {
		s.t.Errorf("ended with %+v after SIGKILL", st)
	}
	if err := s.Driver.Signal(s.ctx, t.ID, 1); !errors.Is(err, driver.ErrNotRunning) {
		s.t.Errorf("to a run that has ended: %v", err)
	}
}
