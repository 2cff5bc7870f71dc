package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

const (
	// markExec is the environment variable that marks the processes of a further command.
	// It also marks those that have left the command's session.
	markExec = "NUSA_EXEC"
	// streams is the number of streams of a further command: standard input, output and
	// error.
	streams = 3
	// killWait bounds the wait for the supervisor's reply after the caller gave up a
	// further command.
	killWait = 5 * time.Second
)

// extras are the further commands in a run. The supervisor starts them, so that they cannot
// outlive the run even if the agent dies.
type extras struct {
	mu      sync.Mutex
	count   int
	over    bool // the run's own command has ended
	running map[int]*extra
	group   sync.WaitGroup
}

// extra is a further command. Its process leads its own session.
type extra struct {
	pid    int
	mark   string
	exited chan syscall.WaitStatus // has capacity for the one value
}

// close makes startExtra refuse further commands.
func (x *extras) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
}

// reaped records the end of a child, if the child is a further command.
func (x *extras) reaped(pid int, ws syscall.WaitStatus) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.running[pid]; e != nil {
		delete(x.running, pid)
		e.exited <- ws
	}
}

// handleExec runs a further command until the command ends or the caller closes the
// connection. It replies once no process of the command is left.
func (s *supervisor) handleExec(conn *net.UnixConn, req request, files []*os.File) {
	if len(req.Argv) == 0 || len(files) != streams {
		respond(conn, reply{Error: fmt.Sprintf("exec with %d words and %d streams", len(req.Argv), len(files))})
		return
	}
	e, err := s.startExtra(req, files)
	closeAll(files)
	switch {
	case errors.Is(err, driver.ErrNotRunning):
		respond(conn, reply{NotRunning: true})
		return
	case err != nil:
		rep := failed(err)
		if fault := (*driver.CommandError)(nil); errors.As(err, &fault) {
			rep.Exit.Code = fault.Code
		}
		respond(conn, rep)
		return
	}
	defer s.extras.group.Done()
	var ws syscall.WaitStatus
	select {
	case ws = <-e.exited:
		e.sweep()
	case <-closed(conn):
		e.sweep()
		ws = <-e.exited
	}
	respond(conn, reply{Exit: exitStatus(ws)})
}

// startExtra starts a further command. The command has the user, the folder, the
// environment and the cgroup of the run's own command.
func (s *supervisor) startExtra(req request, files []*os.File) (*extra, error) {
	// Only this thread enters the folder and, on v1, the cgroup. The thread is never
	// unlocked, so it ends with this goroutine, which waits for the command. If the thread
	// ended earlier, the kernel would kill the command.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, err
	}
	if s.view != nil {
		if err := enterView(s.view); err != nil {
			return nil, err
		}
	}
	if err := unix.Chdir(s.spec.Dir); err != nil {
		return nil, fmt.Errorf("folder %s: %w", s.spec.Dir, err)
	}
	path, err := lookPath(req.Argv[0], s.spec.Env, s.spec.Dir)
	if err != nil {
		return nil, &driver.CommandError{Code: driver.NoCommand, Text: err.Error()}
	}
	attr := &syscall.SysProcAttr{Setsid: true, Setctty: req.TTY, Pdeathsig: syscall.SIGKILL, Credential: s.credential, Ptrace: len(s.spec.Ulimits) > 0}
	if req.TTY && s.credential != nil {
		// In a container the owner of the host's terminal cannot be changed, and the
		// command does not need that change.
		if err := files[0].Chown(int(s.credential.Uid), -1); err != nil && !s.spec.Contained {
			return nil, err
		}
	}
	group := s.cgroup
	err = group.enter(attr)
	defer group.leave()
	if err != nil {
		return nil, err
	}
	x := &s.extras
	// Hold the lock until the process id is known, because reaped looks the id up.
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return nil, driver.ErrNotRunning
	}
	x.count++
	e := &extra{mark: fmt.Sprintf("%s%d.", s.rec.mark(), x.count), exited: make(chan syscall.WaitStatus, 1)}
	env := append(slices.Clone(s.spec.Env), markExec+"="+e.mark)
	if req.TTY && !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") }) {
		env = append(env, "TERM=xterm")
	}
	p, err := os.StartProcess(path, req.Argv, &os.ProcAttr{Env: env, Files: files, Sys: attr})
	if err != nil {
		return nil, commandFault(req.Argv[0], err)
	}
	e.pid = p.Pid
	x.running[e.pid] = e
	x.group.Add(1)
	if err := limitTraced(e.pid, s.spec.Ulimits, s.credential); err != nil {
		fmt.Fprintln(os.Stderr, "further command:", err) // the command was killed
	}
	return e, p.Release()
}

// commandFault returns a CommandError with the exit code of a shell if the command itself
// is at fault, for example because its file does not exist. Otherwise it returns err.
func commandFault(name string, err error) error {
	code := 0
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		code = driver.NoCommand
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOEXEC), errors.Is(err, unix.EISDIR):
		code = driver.NotExecutable
	default:
		return err
	}
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return &driver.CommandError{Code: code, Text: fmt.Sprintf("command %q: %v", name, err)}
}

// sweep kills the command and all its descendants until none is left. This process adopts
// orphans, so all of them are descendants of this process. A process belongs to the command
// in three cases: it is in the command's session, it has the command's mark, or it descends
// from such a process. A process that clears its environment, leaves the session and loses
// its parent is not found. It ends with the run.
func (e *extra) sweep() {
	for {
		ours := descendants(slices.Collect(processes()), func(st stat) bool { return st.pid == os.Getpid() })
		own := func(st stat) bool { return st.session == e.pid || marked(st.pid, e.mark) }
		var found []stat // a shell is killed before its children, so that it reports no child's death
		for _, st := range ours {
			if own(st) {
				found = append(found, st)
			}
		}
		found = append(found, descendants(ours, own)...)
		for _, st := range found {
			_ = unix.Kill(st.pid, unix.SIGKILL)
		}
		if len(found) == 0 {
			return
		}
		time.Sleep(sweepEvery)
	}
}

// execOn runs a further command in the run in dir until the command ends. When ctx ends,
// the command and its descendants are killed. The files become the command's standard
// input, output and error. execOn closes them. Errors: driver.ErrNotFound, ErrNotRunning,
// ErrStart, and the error of ctx.
func execOn(ctx context.Context, dir string, argv []string, tty bool, files []*os.File) (driver.ExitStatus, error) {
	defer closeAll(files)
	if err := Running(dir); err != nil {
		return driver.ExitStatus{}, err
	}
	conn, err := dial(ctx, dir, request{Op: "exec", Argv: argv, TTY: tty}, files...)
	closeAll(files)
	if err != nil {
		return driver.ExitStatus{}, gone(ctx, dir, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() {
		_ = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(killWait))
	})()
	rep, err := readReply(conn)
	switch {
	case ctx.Err() != nil:
		return driver.ExitStatus{}, ctx.Err()
	case err != nil:
		return driver.ExitStatus{}, gone(ctx, dir, err)
	case rep.NotRunning:
		return driver.ExitStatus{}, driver.ErrNotRunning
	case rep.Error != "" && rep.Exit.Code != 0:
		return driver.ExitStatus{}, &driver.CommandError{Code: rep.Exit.Code, Text: rep.Error}
	case rep.Error != "":
		return driver.ExitStatus{}, fmt.Errorf("%w: %s", driver.ErrStart, rep.Error)
	}
	return rep.Exit, nil
}

// Update changes the limits of the run in dir, which must be running. Errors:
// driver.ErrNotFound, ErrNotRunning, ErrUnsupported, and errors of the kernel.
func Update(ctx context.Context, dir string, change func(*Limits)) error {
	if err := Running(dir); err != nil {
		return err
	}
	spec, err := readSpec(dir)
	if err != nil {
		return err
	}
	if spec.Limits.Cgroup == "" {
		return fmt.Errorf("%w: the run has no control groups", driver.ErrUnsupported)
	}
	change(&spec.Limits)
	rep, err := call(ctx, dir, request{Op: "update", Limits: spec.Limits})
	switch {
	case err != nil:
		return gone(ctx, dir, err)
	case rep.NotRunning:
		return driver.ErrNotRunning
	case rep.Error != "":
		return fmt.Errorf("change the limits: %s", rep.Error)
	}
	return nil
}

// Signal sends a signal to the command of the run in dir.
func Signal(ctx context.Context, dir string, signal int) error {
	if err := Running(dir); err != nil {
		return err
	}
	rep, err := call(ctx, dir, request{Op: "signal", Signal: signal})
	switch {
	case err != nil:
		return gone(ctx, dir, err)
	case rep.NotRunning:
		return driver.ErrNotRunning
	case strings.HasPrefix(rep.Error, "unknown operation"):
		return fmt.Errorf("%w: the run's supervisor is of an earlier version: restart the task", driver.ErrUnsupported)
	case rep.Error != "":
		return fmt.Errorf("signal %d: %s", signal, rep.Error)
	}
	return nil
}

// Running returns nil if the run in dir is running, else driver.ErrNotFound or
// ErrNotRunning.
func Running(dir string) error {
	st, err := Query(dir)
	if err == nil && st.State != driver.Running {
		err = driver.ErrNotRunning
	}
	return err
}

// gone returns why a supervisor did not reply. The end of a run becomes visible only a
// moment after the connection breaks, so gone waits for that.
func gone(ctx context.Context, dir string, err error) error {
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for pace := (Pace{}); ; {
		if err := Running(dir); err != nil {
			return err
		}
		if pace.Wait(short) != nil {
			return cmp.Or(ctx.Err(), fmt.Errorf("the supervisor did not reply: %w", err))
		}
	}
}
