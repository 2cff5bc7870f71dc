package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/internal/boottime"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(Main(os.Args[2:]))
	}
	goleak.VerifyTestMain(leftover.M{M: m})
}

const patience = time.Minute

// subject is a test's supervised command.
type subject struct {
	t   *testing.T
	ctx context.Context
	dir string
	p   *os.Process
}

func spec(script string, change ...func(*Spec)) Spec {
	s := Spec{Argv: []string{"sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH")}, Dir: "/", LogFiles: 3, LogSizeBytes: 1 << 20, StopGrace: time.Second}
	for _, f := range change {
		f(&s)
	}
	return s
}

func newSpawner(t *testing.T) *Spawner {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := NewSpawner([]string{self, "supervise"})
	t.Cleanup(s.Close)
	return s
}

func start(t *testing.T, s Spec) *subject {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	r := &subject{t: t, ctx: ctx, dir: t.TempDir()}
	if err := WriteSpec(r.dir, s); err != nil {
		t.Fatal(err)
	}
	p, _, err := newSpawner(t).Spawn(ctx, r.dir)
	if err != nil {
		t.Fatal(err)
	}
	r.p = p
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := Stop(ctx, r.dir, 0); err != nil {
			_ = p.Kill()
		}
		_, _ = p.Wait()
	})
	return r
}

func (r *subject) wait() driver.Status {
	r.t.Helper()
	st, err := Wait(r.ctx, r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	return st
}

func (r *subject) file(name string) string {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(data)
}

// untilOutput waits until the first stdout file contains a whole line, and returns
// it.
func (r *subject) untilOutput() string {
	r.t.Helper()
	found := errors.New("found")
	var line string
	err := Watch(r.ctx, r.dir, func() error {
		data, err := os.ReadFile(filepath.Join(r.dir, "stdout.0"))
		if i := strings.IndexByte(string(data), '\n'); err == nil && i >= 0 {
			line = string(data[:i])
			return found
		}
		return nil
	})
	if !errors.Is(err, found) {
		r.t.Fatalf("no output: %v", err)
	}
	return line
}

func alive(pid int) bool {
	st, err := readStat(pid)
	return err == nil && st.state != "Z"
}

// untilGone waits until a process has ended.
func untilGone(t *testing.T, pid int) {
	t.Helper()
	limit, tick := time.After(patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for alive(pid) {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("process %d is still there", pid)
		}
	}
}

func TestExitCodesAreReported(t *testing.T) {
	for _, c := range []struct {
		script       string
		code, signal int
	}{
		{"exit 0", 0, 0},
		{"exit 42", 42, 0},
		{"kill -9 $$", 137, 9},
		{"kill -TERM $$", 143, 15},
	} {
		st := start(t, spec(c.script)).wait()
		if st.ExitCode != c.code || st.Signal != c.signal || st.Cause != driver.CauseExited || st.State != driver.Ended {
			t.Errorf("%s: %+v", c.script, st)
		}
	}
}

// TestEnvironmentIsPrivate: neither the supervisor's command line nor a file that
// other users can read contains the environment.
func TestEnvironmentIsPrivate(t *testing.T) {
	r := start(t, spec("echo up; sleep 60", func(s *Spec) { s.Env = append(s.Env, "SECRET=hush") }))
	r.untilOutput()
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", r.p.Pid))
	if err != nil || strings.Contains(string(cmdline), "hush") {
		t.Errorf("command line %q: %v", cmdline, err)
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if fi, err := e.Info(); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v: %v", e.Name(), fi.Mode(), err)
		}
	}
}

// TestStopKillsEverything: a stop kills background children, children outside the
// session, and a command that ignores the signal.
func TestStopKillsEverything(t *testing.T) {
	r := start(t, spec(`trap "" TERM
		sleep 3601 & a=$!
		setsid sleep 3602 & 
		setsid sh -c 'sleep 3603 & echo $!; wait' | { read b; echo $a $b; cat; }`))
	pids := strings.Fields(r.untilOutput())
	st, err := Stop(r.ctx, r.dir, 50*time.Millisecond)
	if err != nil || st.Cause != driver.CauseStopped || st.Signal != 9 {
		t.Fatalf("%+v: %v", st, err)
	}
	for _, f := range pids {
		if pid, _ := strconv.Atoi(f); pid == 0 || alive(pid) {
			t.Errorf("process %s is alive", f)
		}
	}
	if n := countMatching("sleep\x003602"); n != 0 {
		t.Errorf("%d of the processes that left the session are alive", n)
	}
}

// countMatching counts processes by a part of their command line.
func countMatching(part string) int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	n := 0
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), part) {
			n++
		}
	}
	return n
}

// TestExitKillsTheRest: a command's background processes end with it.
func TestExitKillsTheRest(t *testing.T) {
	r := start(t, spec("sleep 3600 & echo $!; exit 3"))
	pid, _ := strconv.Atoi(r.untilOutput())
	if st := r.wait(); st.ExitCode != 3 {
		t.Errorf("%+v", st)
	}
	if pid == 0 || alive(pid) {
		t.Errorf("process %d is alive", pid)
	}
}

func TestStopIsGentleFirst(t *testing.T) {
	r := start(t, spec(`trap "echo bye; exit 9" TERM; echo up; while :; do sleep 0.01; done`))
	r.untilOutput()
	st, err := Stop(r.ctx, r.dir, patience)
	if err != nil || st.ExitCode != 9 || st.Cause != driver.CauseStopped {
		t.Fatalf("%+v: %v", st, err)
	}
	if out := r.file("stdout.0"); out != "up\nbye\n" {
		t.Errorf("printed %q", out)
	}
}

// TestRotation: the size and number of files are bounded. No byte within the retained files is
// lost.
func TestRotation(t *testing.T) {
	r := start(t, spec("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done", func(s *Spec) { s.LogFiles, s.LogSizeBytes = 2, 4096 }))
	r.wait()
	files, _ := filepath.Glob(filepath.Join(r.dir, "stdout.*"))
	if len(files) != 2 {
		t.Fatalf("files %v", files)
	}
	last := 0
	for _, f := range files {
		n, _ := strconv.Atoi(strings.TrimPrefix(filepath.Ext(f), "."))
		last = max(last, n)
	}
	first, second := r.file(logName("stdout", last-1)), r.file(logName("stdout", last))
	if len(first) != 4096 || len(second) > 4096 || !strings.HasSuffix(second, "line 1999\n") {
		t.Errorf("%d and %d bytes, ending with %q", len(first), len(second), second[max(0, len(second)-20):])
	}
	lines := strings.Split(strings.TrimSpace(first+second), "\n")[1:] // the first line may be incomplete
	for i, l := range lines {
		if want := fmt.Sprintf("line %d", 2000-len(lines)+i); l != want {
			t.Fatalf("line %d is %q, want %q", i, l, want)
		}
	}
}

// TestCommandDiesWithItsSupervisor: the command ends with its supervisor, and the
// record says that the exit code is unknown.
func TestCommandDiesWithItsSupervisor(t *testing.T) {
	limits := Limits{}
	if name := fmt.Sprintf("killed-%d", os.Getpid()); LimitsUsable(name+"-probe") == nil {
		limits.Cgroup = name
	}
	// Only a cgroup catches the process that left the session.
	script := "sleep 3600 & a=$!; setsid sleep 3604 & echo $a $!; wait"
	r := start(t, spec(script, func(s *Spec) { s.Limits = limits }))
	pids := strings.Fields(r.untilOutput())
	child, _ := strconv.Atoi(pids[0])
	escaped, _ := strconv.Atoi(pids[1])
	before, err := Query(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.p.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = r.p.Wait()
	st := r.wait()
	if st.Cause != driver.CauseLost || st.State != driver.Ended {
		t.Errorf("%+v", st)
	}
	if limits.Cgroup == "" {
		_ = syscall.Kill(escaped, syscall.SIGKILL)
	}
	for _, pid := range []int{before.PID, child, escaped} {
		untilGone(t, pid)
	}
	Release(r.dir)
	for _, dir := range existing(limits).dirs {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left behind: %v", dir, err)
		}
	}
	if again := r.wait(); again != st {
		t.Errorf("asked again: %+v, was %+v", again, st)
	}
}

// TestRunStartsOnce: a second supervisor for the same run does nothing, while the first one
// runs and after it has ended.
func TestRunStartsOnce(t *testing.T) {
	r := start(t, spec("echo up; sleep 3600"))
	r.untilOutput()
	if _, _, err := newSpawner(t).Spawn(r.ctx, r.dir); err == nil || !strings.Contains(err.Error(), ErrSupervised.Error()) {
		t.Errorf("while it runs: %v", err)
	}
	if _, err := Stop(r.ctx, r.dir, time.Second); err != nil {
		t.Fatal(err)
	}
	_, _ = r.p.Wait() // the first supervisor holds the lock until its end
	p, _, err := newSpawner(t).Spawn(r.ctx, r.dir)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = p.Wait()
	if out := r.file("stdout.0"); out != "up\n" {
		t.Errorf("printed %q", out)
	}
}

// TestSpareTakesTheSecondRun: a waiting process takes the second run. If the spare was killed,
// the next run starts nevertheless. No spare is left at the end.
func TestSpareTakesTheSecondRun(t *testing.T) {
	s := newSpawner(t)
	exits := func(code int) {
		t.Helper()
		dir := t.TempDir()
		if err := WriteSpec(dir, spec(fmt.Sprintf("exit %d", code))); err != nil {
			t.Fatal(err)
		}
		p, _, err := s.Spawn(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := Wait(t.Context(), dir); err != nil || st.ExitCode != code {
			t.Errorf("%+v, want %d: %v", st, code, err)
		}
		_, _ = p.Wait()
	}
	exits(1)
	spare := s.spare.os.Pid
	exits(2)
	if s.spare.os.Pid == spare {
		t.Error("the spare was not used")
	}
	if err := s.spare.os.Kill(); err != nil {
		t.Fatal(err)
	}
	untilGone(t, s.spare.os.Pid)
	exits(3)
	spare = s.spare.os.Pid
	s.Close()
	if alive(spare) {
		t.Error("the spare is still there")
	}
}

func TestLongPath(t *testing.T) {
	deep := filepath.Join(t.TempDir(), strings.Repeat("a-long-name/", 12))
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteSpec(deep, spec("exit 6")); err != nil {
		t.Fatal(err)
	}
	p, _, err := newSpawner(t).Spawn(t.Context(), deep)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := Wait(t.Context(), deep); err != nil || st.ExitCode != 6 {
		t.Errorf("%+v: %v", st, err)
	}
	_, _ = p.Wait()
}

// TestLeaseIsEnforcedWithoutAgent: the supervisor enforces the deadline without an
// agent, and kills a command that does not end.
func TestLeaseIsEnforcedWithoutAgent(t *testing.T) {
	var r *subject
	var deadline time.Duration
	for length := time.Second; ; length *= 2 { // repeat until the machine is fast enough to renew the lease in time
		first := boottime.Now() + length
		r = start(t, spec(`trap "" TERM; echo up; while :; do sleep 0.01; done`, func(s *Spec) {
			s.LeaseDeadline, s.StopGrace = first, 50*time.Millisecond
		}))
		deadline = first + 500*time.Millisecond
		if err := Renew(r.ctx, r.dir, lease.Deadline{At: deadline}); err != nil {
			t.Fatal(err)
		}
		if boottime.Now() < first {
			break
		}
	}
	st := r.wait()
	if st.Cause != driver.CauseLeaseExpired || st.Signal != 9 || boottime.Now() < deadline {
		t.Errorf("%+v at %s, deadline %s", st, boottime.Now(), deadline)
	}
	if err := Renew(r.ctx, r.dir, lease.Deadline{At: deadline}); err != nil {
		t.Errorf("renewal after the end: %v", err)
	}
}

// TestLimits: with cgroups the memory limit is enforced. Without them the error
// says why.
func TestLimits(t *testing.T) {
	name := fmt.Sprintf("test-%d", os.Getpid())
	if err := LimitsUsable(name + "-probe"); err != nil {
		if v2, parents := hierarchies(); len(parents) > 0 && os.Geteuid() == 0 && !v2 {
			t.Errorf("root, control groups at %v, and yet: %v", parents, err)
		}
		return
	}
	r := start(t, spec("head -c 200m /dev/zero | tail", func(s *Spec) {
		s.Limits = Limits{Cgroup: name, MemoryBytes: 16 << 20, CPUMilli: 500, HardCPU: true}
	}))
	if st := r.wait(); st.ExitCode == 0 || !strings.Contains(st.Message, "out of memory: the limit is 16 MiB") {
		t.Errorf("%+v", st)
	}
	_, parents := hierarchies()
	for _, p := range parents {
		if _, err := os.Stat(filepath.Join(p, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s/%s is left behind: %v", p, name, err)
		}
	}
}

// TestExtentIsShort: the description of a PATH is short for every PATH.
func TestExtentIsShort(t *testing.T) {
	for path, want := range map[string]string{
		"": "which is empty", "/bin": "/bin", "/a:/b": "2 folders from /a to /b",
		"/a" + strings.Repeat(":/x", 1000) + ":/z": "1002 folders from /a to /z",
		strings.Repeat("/a", 1000):                 "/" + strings.Repeat("a/", 50)[:99],
	} {
		if got := extent(path); got != want {
			t.Errorf("%.20q: %q, want %q", path, got, want)
		}
	}
}

func TestLookPath(t *testing.T) {
	env := []string{"PATH=/nowhere:" + os.Getenv("PATH")}
	want, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		env        []string
		fails      bool
	}{
		{"sh", want, env, false},
		{"/bin/x", "/bin/x", nil, false},
		{"./x", "/dir/x", nil, false},
		{"no-such-command", "", env, true},
		{"sh", "", nil, true},
	} {
		got, err := lookPath(c.name, c.env, "/dir")
		if got != c.want || (err != nil) != c.fails {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestUnknownUser(t *testing.T) {
	dir := t.TempDir()
	if err := WriteSpec(dir, spec("true", func(s *Spec) { s.User = "no-such-user" })); err != nil {
		t.Fatal(err)
	}
	p, st, err := newSpawner(t).Spawn(t.Context(), dir)
	if err != nil || st.Cause != driver.CauseStartFailed || !strings.Contains(st.Message, "no-such-user") {
		t.Errorf("%+v: %v", st, err)
	}
	_, _ = p.Wait()
}

// TestOtherUser needs root. Without root it tests the refusal.
func TestOtherUser(t *testing.T) {
	dir, name, own, other := t.TempDir(), "nobody", t.TempDir(), t.TempDir()
	if syscall.Geteuid() != 0 {
		name = "root"
	}
	if err := WriteSpec(dir, spec("id -un", func(s *Spec) { s.User, s.Dir, s.Own = name, other, own })); err != nil {
		t.Fatal(err)
	}
	p, st, err := newSpawner(t).Spawn(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = p.Wait() }()
	if syscall.Geteuid() != 0 {
		if st.Cause != driver.CauseStartFailed {
			t.Errorf("without root: %+v", st)
		}
		return
	}
	if _, err := Wait(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if out, err := os.ReadFile(filepath.Join(dir, "stdout.0")); string(out) != "nobody\n" {
		t.Errorf("ran as %q: %v", out, err)
	}
	for folder, mine := range map[string]bool{own: false, other: true} {
		if fi, err := os.Stat(folder); err != nil || (fi.Sys().(*syscall.Stat_t).Uid == 0) != mine {
			t.Errorf("%s, the agent's %v: %v, %v", folder, mine, fi, err)
		}
	}
}

// TestReusedNumberIsNotKilled: long after a supervisor was killed, another session may have
// its process id. That session is not killed.
func TestReusedNumberIsNotKilled(t *testing.T) {
	cmd := exec.Command("sleep", "3600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	other, err := readStat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	rec := record{Status: driver.Status{State: driver.Running, PID: other.pid}, Boot: BootID(),
		Session: other.pid, Group: other.pid, Ticks: other.ticks - 1, SessionTicks: other.ticks - 1}
	if err := errors.Join(WriteSpec(dir, spec("true")), writeRecord(dir, rec)); err != nil {
		t.Fatal(err)
	}
	if st, err := Query(dir); err != nil || st.Cause != driver.CauseLost {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil || !alive(other.pid) {
		t.Errorf("another's session was killed: %v", err)
	}
}
