package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

const (
	// execPollEvery is the pause between two checks whether a command has ended. The end of
	// the output does not show the end of the command, because the command's children may
	// keep the output open.
	execPollEvery = 100 * time.Millisecond
	// drainLimit bounds the reading of output after the command has ended.
	drainLimit = 500 * time.Millisecond
	// killLimit bounds the attempts to kill a command whose caller has given up.
	killLimit = 2 * time.Second
)

// Exec implements driver.Driver.
func (d *Driver) Exec(ctx context.Context, id driver.ID, x driver.Exec) (driver.ExitStatus, error) {
	if !d.local() {
		return driver.ExitStatus{}, driver.ErrUnsupported // the driver could not kill a command on another host
	}
	rec, err := d.running(ctx, id)
	if err != nil {
		return driver.ExitStatus{}, err
	}
	made, err := d.cli.ExecCreate(ctx, rec.Container, client.ExecCreateOptions{
		Cmd: x.Command, TTY: x.TTY, AttachStdin: x.Stdin != nil, AttachStdout: true, AttachStderr: !x.TTY,
	})
	if cerrdefs.IsConflict(err) || cerrdefs.IsNotFound(err) {
		return driver.ExitStatus{}, fmt.Errorf("exec in %s: %w", id, driver.ErrNotRunning)
	}
	if err != nil {
		return driver.ExitStatus{}, fmt.Errorf("%w: %w", driver.ErrStart, d.address.wrap(err))
	}
	conn, err := d.cli.ExecAttach(ctx, made.ID, client.ExecAttachOptions{TTY: x.TTY})
	if err != nil {
		d.killExec(made.ID, rec)
		return driver.ExitStatus{}, fmt.Errorf("%w: %w", driver.ErrStart, d.address.wrap(err))
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	stop := make(chan struct{})
	defer close(stop)
	if x.Stdin != nil {
		go func() {
			_, _ = io.Copy(conn.Conn, x.Stdin)
			_ = conn.CloseWrite()
		}()
	}
	if x.TTY {
		go d.resize(made.ID, x, stop)
	}
	go d.untilExecEnds(made.ID, stop, func() { _ = conn.Conn.SetReadDeadline(time.Now().Add(drainLimit)) })

	said := &head{}
	stdout, stderr := io.MultiWriter(orDiscard(x.Stdout), said), orDiscard(x.Stderr)
	if x.TTY {
		_, err = io.Copy(stdout, conn.Reader)
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, conn.Reader)
	}
	if ctx.Err() == nil && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
		var st driver.ExitStatus
		st, err = d.execStatus(ctx, made.ID, said)
		if ctx.Err() == nil {
			return st, err
		}
	}
	// The caller has given up, or the output of the command cannot be written to the
	// caller.
	d.killExec(made.ID, rec)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return driver.ExitStatus{}, fmt.Errorf("exec in %s: %w", id, err)
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// head holds the first 1024 bytes that were written.
type head struct{ bytes.Buffer }

func (h *head) Write(p []byte) (int, error) {
	h.Buffer.Write(p[:min(len(p), max(0, 1024-h.Len()))])
	return len(p), nil
}

// running returns the record of a run if the run is running, else an error.
func (d *Driver) running(ctx context.Context, id driver.ID) (record, error) {
	st, answered, err := d.status(ctx, id)
	switch {
	case err != nil:
		return record{}, err
	case !answered:
		return record{}, errors.New(st.Message)
	case st.State != driver.Running:
		return record{}, fmt.Errorf("run %s: %w", id, driver.ErrNotRunning)
	}
	rec, _ := d.records.get(id)
	return rec, nil
}

// resize passes the new sizes of the terminal to the engine until stop is closed.
func (d *Driver) resize(exec string, x driver.Exec, stop <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for size := x.Size; ; {
		if size.Rows > 0 && size.Columns > 0 {
			// The engine refuses a size until the command has begun.
			for range 20 {
				_, err := d.cli.ExecResize(ctx, exec, client.ExecResizeOptions{Height: uint(size.Rows), Width: uint(size.Columns)})
				if err == nil || pause(ctx, execPollEvery/10) != nil {
					break
				}
			}
		}
		var ok bool
		select {
		case size, ok = <-x.Resize:
			if !ok {
				return
			}
		case <-stop:
			return
		}
	}
}

// untilExecEnds calls ended once a command has ended. It gives up when stop is closed.
func (d *Driver) untilExecEnds(exec string, stop <-chan struct{}, ended func()) {
	tick := time.NewTicker(execPollEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), askLimit)
		got, err := d.cli.ExecInspect(ctx, exec, client.ExecInspectOptions{})
		cancel()
		if err == nil && !got.Running && got.PID > 0 {
			ended()
			return
		}
	}
}

// execStatus returns how a command ended, after its output has ended.
func (d *Driver) execStatus(ctx context.Context, exec string, said *head) (driver.ExitStatus, error) {
	for {
		got, err := d.cli.ExecInspect(ctx, exec, client.ExecInspectOptions{})
		if err != nil {
			return driver.ExitStatus{}, d.address.wrap(err)
		}
		if !got.Running {
			code := got.ExitCode
			if (code == driver.NotExecutable || code == driver.NoCommand) && got.PID == 0 {
				text := strings.TrimSpace(said.String())
				return driver.ExitStatus{}, &driver.CommandError{Code: faultOf(code, text), Text: text}
			}
			st := driver.ExitStatus{Code: code}
			if n := code - 128; n > 0 && n < 65 {
				st.Signal = n
			}
			return st, nil
		}
		if err := pause(ctx, execPollEvery/10); err != nil {
			return driver.ExitStatus{}, err
		}
	}
}

// faultOf returns the exit code of a command that did not begin. Docker 20.10 reports "not
// executable" also for a missing command. In that case the message of the container runtime
// shows the difference.
func faultOf(code int, text string) int {
	if strings.Contains(text, "executable file not found") || strings.Contains(text, "no such file or directory") {
		return driver.NoCommand
	}
	return code
}

// killExec kills a command and all its descendants. The engine has no such request, so the
// driver sends the signals to the processes on this host.
func (d *Driver) killExec(exec string, rec record) {
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	for ctx.Err() == nil { // the command may not have begun yet
		got, err := d.cli.ExecInspect(ctx, exec, client.ExecInspectOptions{})
		if err != nil || !got.Running && got.PID > 0 {
			return
		}
		if got.PID > 0 {
			killTree(got.PID, rec.Container)
		}
		if pause(ctx, execPollEvery/10) != nil {
			return
		}
	}
}

// killTree kills a process of a container, all processes of its session, and all its
// descendants.
func killTree(root int, container string) {
	// The process id may belong to another process now, so check its cgroup.
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", root))
	if err != nil || !strings.Contains(string(groups), container) {
		return
	}
	doomed := map[int]bool{root: true}
	for before := 0; before != len(doomed); {
		before = len(doomed)
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || doomed[pid] {
				continue
			}
			if parent, session := family(pid); doomed[parent] || session == root {
				// A stopped process cannot start further processes while the loop lists the
				// processes.
				_ = unix.Kill(pid, unix.SIGSTOP)
				doomed[pid] = true
			}
		}
	}
	for pid := range doomed {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// family returns the parent and the session of a process (proc_pid_stat(5)).
func family(pid int) (parent, session int) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	text := string(data) // the name in brackets may contain spaces
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) < 4 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(f[1])
	session, _ = strconv.Atoi(f[3])
	return parent, session
}
