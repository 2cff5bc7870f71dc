package drivertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
)

// Subject is a driver under test, with task configurations for the suite.
type Subject struct {
	// Driver must be healthy on this host.
	Driver driver.Driver
	// Reopen returns a new driver, as a restarted agent would make it. Running tasks
	// continue.
	Reopen func(t *testing.T) driver.Driver
	// Clock is the clock of the leases.
	Clock func() time.Duration
	// Sleeper is a config that runs until it is stopped.
	Sleeper map[string]any
	// Exiter prints out and err, then exits with the code.
	Exiter func(code int, out, err string) map[string]any
	// Invalid is a config that the driver refuses with ErrInvalid.
	Invalid map[string]any
	// Broken is a config that the driver accepts, but whose task fails to start. Nil: the
	// driver has no such task.
	Broken map[string]any
	// Silent says that tasks run nothing: they print nothing, and an Exiter ends with code 0.
	Silent bool
	// Framed says that the stored output may take more bytes than the output itself.
	Framed bool
	// Shell returns a command that runs a POSIX shell script in a task. The task must have
	// the programs cat, sleep and stty. Shell is required if the driver has CapExec.
	Shell func(script string) []string
}

// limit bounds one call in a test.
const limit = 2 * time.Minute

type suite struct {
	Subject
	t   *testing.T
	ctx context.Context
	n   int
}

// Run runs the suite for one driver.
func Run(t *testing.T, s Subject) {
	for _, c := range []struct {
		name string
		f    func(*suite)
	}{
		{"fingerprint", (*suite).fingerprint},
		{"unknown run", (*suite).unknown},
		{"exit code and output", (*suite).exits},
		{"start twice", (*suite).startTwice},
		{"never again after the end", (*suite).startAfterEnd},
		{"stop", (*suite).stop},
		{"invalid", (*suite).invalid},
		{"broken", (*suite).broken},
		{"adopted after a restart", (*suite).adopt},
		{"missed exit", (*suite).missedExit},
		{"lease ends it", (*suite).leaseEnds},
		{"renewed lease", (*suite).leaseRenewed},
		{"late start", (*suite).lateStart},
		{"follow ends with the run", (*suite).follow},
		{"tail", (*suite).tail},
		{"remove", (*suite).remove},
		{"cancelled wait", (*suite).cancelled},
		{"exec", (*suite).execOutput},
		{"exec with input", (*suite).execInput},
		{"exec refused", (*suite).execRefused},
		{"exec killed", (*suite).execKilled},
		{"exec with a terminal", (*suite).execTerminal},
		{"stats", (*suite).stats},
		{"update", (*suite).update},
		{"signal", (*suite).signal},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			c.f(&suite{Subject: s, t: t, ctx: ctx})
		})
	}
}

// task makes a task with a new ID. The task is stopped at the end of the test.
func (s *suite) task(config map[string]any) driver.Task {
	s.t.Helper()
	s.n++
	dir := s.t.TempDir()
	for _, d := range []string{"task", "alloc"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			s.t.Fatal(err)
		}
	}
	t := driver.Task{
		ID:     driver.ID{Alloc: fmt.Sprintf("00000000-%04d-4000-8000-%s", s.n, strings.Map(hex, s.t.Name())), Task: "main", Run: 1},
		Config: config,
		Env:    map[string]string{"PATH": os.Getenv("PATH"), "NUSA_TASK": "main"},
		Dir:    filepath.Join(dir, "task"), AllocDir: filepath.Join(dir, "alloc"),
		Resources: driver.Resources{CPUMilli: 100, MemoryBytes: 256 << 20},
		Logs:      driver.LogBounds{Files: 2, SizeBytes: 1 << 20},
		StopGrace: time.Second,
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := s.Driver.Stop(ctx, t.ID, 0); err != nil {
			s.t.Errorf("stop %s at the end: %v", t.ID, err)
		}
		if err := s.Driver.Remove(ctx, t.ID); err != nil {
			s.t.Errorf("remove %s at the end: %v", t.ID, err)
		}
	})
	return t
}

func hex(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
		return r
	}
	return '0'
}

func (s *suite) start(t driver.Task) driver.Task {
	s.t.Helper()
	if err := s.Driver.Start(s.ctx, t); err != nil {
		s.t.Fatalf("start: %v", err)
	}
	return t
}

func (s *suite) wait(id driver.ID) driver.Status {
	s.t.Helper()
	st, err := s.Driver.Wait(s.ctx, id)
	if err != nil {
		s.t.Fatalf("wait: %v", err)
	}
	if st.State != driver.Ended || st.Finished.Before(st.Started) {
		s.t.Fatalf("wait returned %+v", st)
	}
	return st
}

func (s *suite) state(id driver.ID) driver.State {
	s.t.Helper()
	st, err := s.Driver.Status(s.ctx, id)
	if err != nil {
		s.t.Fatalf("status: %v", err)
	}
	return st.State
}

func (s *suite) logs(id driver.ID, o driver.LogOptions) (stdout, stderr string) {
	s.t.Helper()
	err := s.Driver.Logs(s.ctx, id, o, func(c driver.LogChunk) error {
		if len(c.Data) == 0 || len(c.Data) > driver.MaxChunk {
			return fmt.Errorf("chunk of %d bytes", len(c.Data))
		}
		if c.Stderr {
			stderr += string(c.Data)
		} else {
			stdout += string(c.Data)
		}
		return nil
	})
	if err != nil {
		s.t.Fatalf("logs: %v", err)
	}
	return stdout, stderr
}

func (s *suite) fingerprint() {
	f := s.Driver.Fingerprint(s.ctx)
	if !f.Healthy || !slices.IsSorted(f.Capabilities) {
		s.t.Fatalf("fingerprint %+v", f)
	}
}

func (s *suite) unknown() {
	id := driver.ID{Alloc: "00000000-0000-4000-8000-000000000000", Task: "none", Run: 1}
	if _, err := s.Driver.Status(s.ctx, id); !errors.Is(err, driver.ErrNotFound) {
		s.t.Errorf("status: %v", err)
	}
	if _, err := s.Driver.Wait(s.ctx, id); !errors.Is(err, driver.ErrNotFound) {
		s.t.Errorf("wait: %v", err)
	}
	if err := s.Driver.Logs(s.ctx, id, driver.LogOptions{Stdout: true}, nil); !errors.Is(err, driver.ErrNotFound) {
		s.t.Errorf("logs: %v", err)
	}
	if err := s.Driver.Stop(s.ctx, id, time.Second); err != nil {
		s.t.Errorf("stop: %v", err)
	}
	if err := s.Driver.Remove(s.ctx, id); err != nil {
		s.t.Errorf("remove: %v", err)
	}
}

// silent checks that a task that runs nothing has ended well and has no output.
func (s *suite) silent(id driver.ID) {
	s.t.Helper()
	if st := s.wait(id); st.ExitCode != 0 || st.Signal != 0 || st.Cause != driver.CauseExited {
		s.t.Fatalf("ended as %+v", st)
	}
	if n, err := s.Driver.Size(s.ctx, id); n != 0 || err != nil {
		s.t.Errorf("the size of its output is %d, %v", n, err)
	}
	if out, err := s.logs(id, driver.LogOptions{Stdout: true, Stderr: true, Follow: true}); out+err != "" {
		s.t.Fatalf("stdout %q, stderr %q", out, err)
	}
}

func (s *suite) exits() {
	t := s.start(s.task(s.Exiter(7, "to out\n", "to err\n")))
	if s.Silent {
		s.silent(t.ID)
		return
	}
	if st := s.wait(t.ID); st.ExitCode != 7 || st.Signal != 0 || st.Cause != driver.CauseExited {
		s.t.Fatalf("ended as %+v", st)
	}
	out, err := s.logs(t.ID, driver.LogOptions{Stdout: true, Stderr: true})
	want := int64(len("to out\nto err\n"))
	if n, err := s.Driver.Size(s.ctx, t.ID); n < want || n > want && !s.Framed || err != nil {
		s.t.Errorf("the size of its output is %d, %v", n, err)
	}
	if out != "to out\n" || err != "to err\n" {
		s.t.Fatalf("stdout %q, stderr %q", out, err)
	}
	out, err = s.logs(t.ID, driver.LogOptions{Stderr: true})
	if out != "" || err != "to err\n" {
		s.t.Fatalf("only stderr: stdout %q, stderr %q", out, err)
	}
}

func (s *suite) startTwice() {
	t := s.start(s.task(s.Sleeper))
	first, err := s.Driver.Status(s.ctx, t.ID)
	if err != nil {
		s.t.Fatal(err)
	}
	s.start(t)
	again, err := s.Driver.Status(s.ctx, t.ID)
	if err != nil || again != first {
		s.t.Fatalf("%+v, was %+v: %v", again, first, err)
	}
}

func (s *suite) startAfterEnd() {
	t := s.start(s.task(s.Exiter(0, "once\n", "")))
	s.wait(t.ID)
	s.start(t)
	if got := s.state(t.ID); got != driver.Ended {
		s.t.Fatalf("is %s again", got)
	}
	if out, _ := s.logs(t.ID, driver.LogOptions{Stdout: true}); out != "once\n" && !s.Silent {
		s.t.Fatalf("printed %q", out)
	}
}

func (s *suite) stop() {
	t := s.start(s.task(s.Sleeper))
	if got := s.state(t.ID); got != driver.Running {
		s.t.Fatalf("is %s after its start", got)
	}
	for range 2 {
		if err := s.Driver.Stop(s.ctx, t.ID, 5*time.Second); err != nil {
			s.t.Fatal(err)
		}
	}
	if st := s.wait(t.ID); st.Cause != driver.CauseStopped {
		s.t.Fatalf("ended as %+v", st)
	}
}

func (s *suite) invalid() {
	t := s.task(s.Invalid)
	if err := s.Driver.Start(s.ctx, t); !errors.Is(err, driver.ErrInvalid) {
		s.t.Fatalf("start: %v", err)
	}
}

func (s *suite) broken() {
	if s.Broken == nil {
		return
	}
	t := s.task(s.Broken)
	for range 2 {
		if err := s.Driver.Start(s.ctx, t); !errors.Is(err, driver.ErrStart) {
			s.t.Fatalf("start: %v", err)
		}
	}
	if st := s.wait(t.ID); st.Cause != driver.CauseStartFailed || st.Message == "" {
		s.t.Fatalf("ended as %+v", st)
	}
}

func (s *suite) adopt() {
	t := s.start(s.task(s.Sleeper))
	before, err := s.Driver.Status(s.ctx, t.ID)
	if err != nil {
		s.t.Fatal(err)
	}
	next := s.Reopen(s.t)
	after, err := next.Status(s.ctx, t.ID)
	if err != nil || after != before {
		s.t.Fatalf("after the restart %+v, before %+v: %v", after, before, err)
	}
	if err := next.Start(s.ctx, t); err != nil {
		s.t.Fatal(err)
	}
	if err := next.Stop(s.ctx, t.ID, time.Second); err != nil {
		s.t.Fatal(err)
	}
	if got := s.state(t.ID); got != driver.Ended {
		s.t.Fatalf("is %s after the second driver stopped it", got)
	}
}

func (s *suite) missedExit() {
	t := s.start(s.task(s.Exiter(3, "", "")))
	s.wait(t.ID)
	st, err := s.Reopen(s.t).Wait(s.ctx, t.ID)
	if err != nil || st.State != driver.Ended || st.ExitCode != 3 && !s.Silent {
		s.t.Fatalf("after the restart %+v: %v", st, err)
	}
}

func (s *suite) fencing() bool {
	return slices.Contains(s.Driver.Fingerprint(s.ctx).Capabilities, driver.CapSelfFencing)
}

func (s *suite) leaseEnds() {
	t := s.task(s.Sleeper)
	if !s.fencing() {
		if err := s.Driver.Renew(s.ctx, s.start(t).ID, lease.Deadline{At: s.Clock()}); !errors.Is(err, driver.ErrInvalid) {
			s.t.Fatalf("renew without the capability: %v", err)
		}
		t = s.task(s.Sleeper)
		t.Lease.At = s.Clock() + time.Hour
		if err := s.Driver.Start(s.ctx, t); !errors.Is(err, driver.ErrInvalid) {
			s.t.Fatalf("start with a deadline without the capability: %v", err)
		}
		return
	}
	t.Lease.At = s.Clock() + 150*time.Millisecond
	s.start(t)
	st := s.wait(t.ID)
	// A slow engine may miss the deadline before it starts the command. Then the command
	// never starts.
	if st.Cause != driver.CauseLeaseExpired && st.Cause != driver.CauseLateStart || s.Clock() < t.Lease.At {
		s.t.Fatalf("ended as %+v at %s, the lease was up to %s", st, s.Clock(), t.Lease.At)
	}
}

func (s *suite) leaseRenewed() {
	if !s.fencing() {
		return // leaseEnds covers this case
	}
	var t driver.Task
	var renewed time.Duration
	for length := time.Second; ; length *= 2 { // repeat until the engine is fast enough to renew the lease in time
		t = s.task(s.Sleeper)
		t.Lease = lease.Deadline{At: s.Clock() + length, Number: 7}
		s.start(t)
		renewed = t.Lease.At + 500*time.Millisecond
		// The last two deadlines have a lower number than the first one and arrive after
		// it.
		for _, d := range []lease.Deadline{{At: renewed, Number: 9}, {At: renewed + time.Hour, Number: 8}, {At: 1, Number: 8}} {
			if err := s.Driver.Renew(s.ctx, t.ID, d); err != nil {
				s.t.Fatal(err)
			}
		}
		if s.Clock() < t.Lease.At {
			break
		}
	}
	if st := s.wait(t.ID); st.Cause != driver.CauseLeaseExpired || s.Clock() < renewed {
		s.t.Fatalf("ended as %+v at %s, the lease was up to %s", st, s.Clock(), renewed)
	}
}

// lateStart checks that no command starts after its deadline, and that Start then returns
// no error.
func (s *suite) lateStart() {
	if !s.fencing() {
		return // leaseEnds covers this case
	}
	t := s.task(s.Exiter(0, "it runs", ""))
	t.Lease = lease.Deadline{At: s.Clock() - time.Millisecond, Number: 1}
	s.start(t)
	if st := s.wait(t.ID); st.Cause != driver.CauseLateStart || st.Message == "" {
		s.t.Fatalf("ended as %+v", st)
	}
	if out, _ := s.logs(t.ID, driver.LogOptions{Stdout: true}); out != "" {
		s.t.Fatalf("it ran and printed %q", out)
	}
}

func (s *suite) follow() {
	t := s.start(s.task(s.Exiter(0, "all of it\n", "and this\n")))
	if s.Silent {
		s.silent(t.ID)
		return
	}
	out, err := s.logs(t.ID, driver.LogOptions{Stdout: true, Stderr: true, Follow: true})
	if out != "all of it\n" || err != "and this\n" {
		s.t.Fatalf("stdout %q, stderr %q", out, err)
	}
	if got := s.state(t.ID); got != driver.Ended {
		s.t.Fatalf("followed to the end, but the run is %s", got)
	}
}

func (s *suite) tail() {
	if s.Silent {
		return // nothing is printed
	}
	t := s.start(s.task(s.Exiter(0, "0123456789", "")))
	s.wait(t.ID)
	if out, _ := s.logs(t.ID, driver.LogOptions{Stdout: true, TailBytes: 4}); out != "6789" {
		s.t.Fatalf("the last 4 bytes are %q", out)
	}
	t = s.start(s.task(s.Exiter(0, "one\n\nthree\nfour", "five\nsix\n")))
	s.wait(t.ID)
	for lines, want := range []string{1: "four|six\n", 2: "three\nfour|five\nsix\n", 3: "\nthree\nfour|five\nsix\n", 4: "one\n\nthree\nfour|five\nsix\n", 5: "one\n\nthree\nfour|five\nsix\n"} {
		if lines == 0 {
			continue
		}
		if out, err := s.logs(t.ID, driver.LogOptions{Stdout: true, Stderr: true, TailLines: lines}); out+"|"+err != want {
			s.t.Fatalf("the last %d lines are %q, want %q", lines, out+"|"+err, want)
		}
	}
}

func (s *suite) remove() {
	t := s.start(s.task(s.Sleeper))
	if err := s.Driver.Remove(s.ctx, t.ID); err == nil {
		s.t.Fatal("a run that still runs was removed")
	}
	s.listed(t.ID, true)
	if err := s.Driver.Stop(s.ctx, t.ID, 0); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Driver.Remove(s.ctx, t.ID); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.Driver.Status(s.ctx, t.ID); !errors.Is(err, driver.ErrNotFound) {
		s.t.Fatalf("status of a removed run: %v", err)
	}
	if n, err := s.Driver.Size(s.ctx, t.ID); n != 0 || err != nil {
		s.t.Errorf("the size of a removed run is %d, %v", n, err)
	}
	s.listed(t.ID, false)
}

// listed checks whether the driver lists a run, if the driver can list its runs.
func (s *suite) listed(id driver.ID, want bool) {
	s.t.Helper()
	l, ok := s.Driver.(driver.Lister)
	if !ok {
		return
	}
	ids, err := l.Runs(s.ctx)
	if got := slices.Contains(ids, id); err != nil || got != want {
		s.t.Errorf("the runs %v have %s: %t, want %t, %v", ids, id, got, want, err)
	}
}

func (s *suite) cancelled() {
	t := s.start(s.task(s.Sleeper))
	ctx, cancel := context.WithTimeout(s.ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := s.Driver.Wait(ctx, t.ID); !errors.Is(err, context.DeadlineExceeded) {
		s.t.Fatalf("wait: %v", err)
	}
	if got := s.state(t.ID); got != driver.Running {
		s.t.Fatalf("is %s after a cancelled wait", got)
	}
}
