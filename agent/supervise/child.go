package supervise

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/internal/boottime"
)

// supervisor runs one command.
type supervisor struct {
	spec   Spec
	rec    record
	cgroup cgroup
	logs   [2]*rotor
	pipes  [2]*os.File // read ends of stdout and stderr
	copied chan struct{}

	// view is the command's mount namespace, or nil for the host's mount namespace.
	view *os.File
	// credential is the command's user, or nil for the agent's user.
	credential *syscall.Credential

	// guard decides when the command may be forked and when the command must end. Only the
	// goroutine of run uses guard.
	guard lease.Guard

	stops   chan stopRequest
	renews  chan lease.Deadline
	updates chan updateRequest
	signals chan signalRequest
	// ended is closed when the final record is written.
	ended   chan struct{}
	grown   *broadcast
	clients sync.WaitGroup
	extras  extras
}

type stopRequest struct{ grace time.Duration }

type updateRequest struct {
	limits Limits
	done   chan error // has capacity for the result
}

type signalRequest struct {
	signal int
	done   chan error // has capacity for the result
}

// sweepEvery is the pause between two kills of the remaining processes of a command. A
// process may fork while it is being killed, so one kill may not be enough.
const sweepEvery = 10 * time.Millisecond

// pipeWait bounds the reading of output after every process was killed.
const pipeWait = time.Second

func newSupervisor(spec Spec, rec record) *supervisor {
	return &supervisor{
		spec: spec, rec: rec,
		copied:  make(chan struct{}, 2),
		stops:   make(chan stopRequest),
		renews:  make(chan lease.Deadline),
		updates: make(chan updateRequest),
		signals: make(chan signalRequest),
		ended:   make(chan struct{}),
		grown:   newBroadcast(),
		extras:  extras{running: map[int]*extra{}},
	}
}

// start begins the command in its own process group and cgroup, with pipes for its output.
// The kernel kills the command when this process dies.
func (s *supervisor) start() (err error) {
	s.guard, err = newGuard(s.spec)
	if err != nil {
		return err
	}
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Ptrace: len(s.spec.Ulimits) > 0}
	if err := s.become(attr); err != nil {
		return err
	}
	// Errors name the field of the task's config. All drivers have the same field names.
	path, err := lookPath(s.spec.Argv[0], s.spec.Env, s.spec.Dir)
	if err != nil {
		return fmt.Errorf("config.command: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	files := []*os.File{null}
	for i, name := range []string{"stdout", "stderr"} {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer w.Close()
		s.pipes[i] = r
		files = append(files, w)
		s.logs[i] = newRotor(name, s.spec.LogFiles, s.spec.LogSizeBytes)
	}
	s.cgroup, err = enterCgroup(s.spec.Limits, attr)
	if err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	p, err := s.fork(path, &os.ProcAttr{Env: s.spec.Env, Files: files, Sys: attr})
	s.cgroup.leave()
	if err != nil {
		s.cgroup.remove()
		return err
	}
	s.rec.PID, s.rec.Group = p.Pid, p.Pid
	st, _ := readStat(p.Pid)
	s.rec.Ticks = st.ticks
	s.rec.State, s.rec.Started = driver.Running, time.Now()
	if err := writeRecord(".", s.rec); err != nil {
		_ = unix.Kill(-p.Pid, unix.SIGKILL)
		return err
	}
	reserve(".")
	for i := range s.pipes {
		go func() {
			s.logs[i].copyFrom(s.pipes[i], s.grown.notify)
			s.copied <- struct{}{}
		}()
	}
	return nil
}

// become prepares the command's user and the files that the command sees.
func (s *supervisor) become(attr *syscall.SysProcAttr) (err error) {
	if s.spec.User != "" {
		attr.Credential, err = Credential(s.spec.User)
		if err != nil {
			return fmt.Errorf("config.user: %w", err)
		}
		s.credential = attr.Credential
		if c := attr.Credential; c != nil && s.spec.Own != "" {
			if err := os.Chown(s.spec.Own, int(c.Uid), int(c.Gid)); err != nil {
				return err
			}
		}
	}
	if s.spec.View != nil {
		s.view, err = s.spec.View.enter()
	}
	return err
}

// fork starts the command in its folder. It enters the folder with the supervisor's rights,
// because the command's user may not enter the agent's private folders above.
func (s *supervisor) fork(path string, attr *os.ProcAttr) (*os.Process, error) {
	home, err := os.Open(".")
	if err != nil {
		return nil, err
	}
	defer home.Close()
	if err := os.Chdir(s.spec.Dir); err != nil {
		return nil, fmt.Errorf("config.dir: %w", err)
	}
	if !s.guard.MayFork(boottime.Now()) {
		return nil, errors.Join(errLate, home.Chdir())
	}
	p, err := os.StartProcess(path, s.spec.Argv, attr)
	switch {
	case err != nil:
		err = fmt.Errorf("config.command: %w", driver.StartFault(path, err))
	case s.guard.Forked(boottime.Now()) == lease.Kill:
		err = errLate
		s.killLate(p)
	default:
		err = limitTraced(p.Pid, s.spec.Ulimits, s.credential)
		if err != nil {
			_, _ = p.Wait()
		}
	}
	return p, errors.Join(err, home.Chdir())
}

// killLate kills a command that was forked after its deadline, because the host was
// suspended before the fork.
func (s *supervisor) killLate(p *os.Process) {
	_ = unix.Kill(-p.Pid, unix.SIGKILL)
	s.cgroup.kill()
	_, _ = p.Wait()
	endMatching(func(st stat) bool { return st.parent == os.Getpid() || st.session == s.rec.Session })
}

// supervise returns once no process of the command is left and the final record is written.
func (s *supervisor) supervise(sock net.Listener) error {
	go s.serve(sock)
	wake, err := newAlarm()
	if err != nil {
		return err
	}
	defer wake.close()
	exited, alone := s.reap()
	status := s.untilExit(exited, wake)
	s.sweep(alone)
	s.extras.group.Wait()
	s.drain()
	cause, message := s.commandEnd()
	oom := s.cgroup.outOfMemory()
	if oom {
		message = driver.OutOfMemory(s.spec.Limits.MemoryBytes)
	}
	s.cgroup.remove()
	s.rec.Status = driver.Status{
		State: driver.Ended, PID: s.rec.PID, Started: s.rec.Started, Finished: time.Now(),
		Cause: cause, Message: message, OutOfMemory: oom,
	}
	code := exitStatus(status)
	s.rec.ExitCode, s.rec.Signal = code.Code, code.Signal
	s.writeEnd()
	close(s.ended)
	s.grown.close()
	sock.Close()
	s.sayGoodbye()
	return nil
}

// untilExit handles stops, renewals, updates, signals and the deadline until the command has ended.
// It returns the command's wait status.
func (s *supervisor) untilExit(exited <-chan syscall.WaitStatus, wake *alarm) syscall.WaitStatus {
	for {
		wake.set(s.guard.Wake())
		select {
		case status := <-exited:
			s.guard.Exited()
			return status
		case r := <-s.stops:
			s.effect(s.guard.Stop(boottime.Now(), r.grace))
		case d := <-s.renews:
			s.guard.Renew(d)
		case u := <-s.updates:
			err := s.cgroup.limit(s.spec.Limits, u.limits)
			if err == nil {
				s.spec.Limits = u.limits
			}
			u.done <- err
		case r := <-s.signals: // the process is not reaped yet, so no other process has its id
			r.done <- unix.Kill(s.rec.PID, unix.Signal(r.signal))
		case <-wake.fired:
			s.effect(s.guard.Tick(boottime.Now()))
		}
	}
}

// retryWrite is the pause before a failed write of a record is repeated.
const retryWrite = time.Second

// writeEnd returns once the end of the run is recorded. Callers wait for the record,
// because an end that is reported and then forgotten would be worse than a late end.
func (s *supervisor) writeEnd() {
	err := writeRecord(".", s.rec)
	if err != nil {
		fmt.Fprintf(os.Stderr, "nusa supervise: the end is not recorded yet, trying again: %v\n", err)
	}
	for err != nil {
		time.Sleep(retryWrite)
		err = writeRecord(".", s.rec)
	}
}

// sayGoodbye waits at most pipeWait until the callers that wait for the end have their
// replies.
func (s *supervisor) sayGoodbye() {
	answered := make(chan struct{})
	go func() {
		s.clients.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-time.After(pipeWait):
	}
}

// reap reaps every child, also orphans that this process adopted. The first channel
// delivers the wait status of the command. The second channel is closed when no child is
// left.
func (s *supervisor) reap() (<-chan syscall.WaitStatus, <-chan struct{}) {
	exited, alone := make(chan syscall.WaitStatus, 1), make(chan struct{})
	go func() {
		defer close(alone)
		for {
			var ws syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &ws, 0, nil)
			switch {
			case err == syscall.EINTR:
			case err != nil:
				return // ECHILD: no child is left
			case ws.Stopped(): // the child stopped, so that limitTraced can set its limits
			case pid == s.rec.PID:
				s.extras.close()
				exited <- ws
			default:
				s.extras.reaped(pid, ws)
			}
		}
	}()
	return exited, alone
}

func exitStatus(ws syscall.WaitStatus) driver.ExitStatus {
	if ws.Signaled() {
		return driver.ExitStatus{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
	}
	return driver.ExitStatus{Code: ws.ExitStatus()}
}

// sweep kills the processes that the command left, until none is left.
func (s *supervisor) sweep(alone <-chan struct{}) {
	_ = unix.Kill(-s.rec.Group, unix.SIGKILL)
	s.cgroup.kill()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-alone:
			return
		case <-tick.C:
			s.cgroup.kill()
			killMatching(func(st stat) bool { return st.parent == os.Getpid() || st.session == s.rec.Session })
		}
	}
}

// drain waits until the output is in the log files.
func (s *supervisor) drain() {
	timeout := time.After(pipeWait)
	for range s.pipes {
		select {
		case <-s.copied:
		case <-timeout:
			s.pipes[0].Close()
			s.pipes[1].Close()
			return
		}
	}
}

// extent describes a PATH briefly, by its number of folders and its first and last folder.
func extent(path string) string {
	dirs := filepath.SplitList(path)
	switch n := len(dirs); n {
	case 0:
		return "which is empty"
	case 1:
		return fmt.Sprintf("%.100s", dirs[0])
	default:
		return fmt.Sprintf("%d folders from %.100s to %.100s", n, dirs[0], dirs[n-1])
	}
}

// noCommandError says that the PATH has no such command.
type noCommandError string

func (e noCommandError) Error() string { return string(e) }

// final reports whether another attempt to start a command would fail, too: the command or the user
// does not exist, the file is not a program, or the user may not run it.
func final(err error) bool {
	if errors.As(err, new(noCommandError)) || errors.As(err, new(user.UnknownUserError)) {
		return true
	}
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.EISDIR, unix.ENOEXEC, unix.ELOOP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// lookPath finds a command in the PATH of the task's own environment.
func lookPath(name string, env []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, nil
	}
	for _, kv := range env {
		value, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, d := range filepath.SplitList(value) {
			p := filepath.Join(d, name)
			if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
				return p, nil
			}
		}
		return "", noCommandError(fmt.Sprintf("command %q: executable file not found in the task's PATH, %s: install it on the node, or give its full path", name, extent(value)))
	}
	return "", noCommandError(fmt.Sprintf("command %q: no PATH in the task's environment", name))
}
