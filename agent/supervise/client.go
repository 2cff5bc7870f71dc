package supervise

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// Query returns the status of the run in dir, or ErrNotFound if no run was begun. If the
// supervisor has vanished, Query ends the run: it kills the remaining processes and records
// that the exit code is unknown.
func Query(dir string) (driver.Status, error) {
	rec, err := readRecord(dir)
	if missing(err) {
		return driver.Status{}, driver.ErrNotFound
	}
	torn := errors.Is(err, errTorn) && !shared(dir)
	if err != nil && !torn || rec.State == driver.Ended {
		return rec.Status, err
	}
	lock, err := takeLock(dir)
	if errors.Is(err, ErrSupervised) {
		return rec.Status, nil
	}
	if err != nil {
		return driver.Status{}, err
	}
	defer lock.Close()
	// The run may have ended regularly between the first read and the lock.
	rec, err = readRecord(dir)
	if err != nil && !torn || rec.State == driver.Ended {
		return rec.Status, err
	}
	return endAbandoned(dir, rec)
}

// Release kills the processes in the cgroup of a run that has no supervisor, and removes
// the cgroup. If there is no cgroup, Release does nothing.
func Release(dir string) {
	spec, err := readSpec(dir)
	if err != nil || shared(dir) {
		return
	}
	c := existing(spec.Limits)
	c.kill()
	c.remove() // fails while a process is still ending; Release is called again before the run is removed
}

// endAbandoned records the end of a run without a supervisor.
func endAbandoned(dir string, rec record) (driver.Status, error) {
	if !shared(dir) && rec.Boot == BootID() {
		if st, err := readStat(rec.PID); err == nil && rec.PID > 0 && st.ticks == rec.Ticks {
			_ = unix.Kill(-rec.Group, unix.SIGKILL)
		}
		// The kernel does not reuse the number of a session while the session has a
		// process. After that the number may belong to another session.
		ours := func() bool {
			st, err := readStat(rec.Session)
			return err != nil || st.ticks == rec.SessionTicks
		}
		endMatching(func(st stat) bool { return st.session == rec.Session && ours() || marked(st.pid, rec.mark()) })
	}
	Release(dir)
	rec.State, rec.Finished = driver.Ended, time.Now().UTC().Round(0) // Round removes the monotonic clock reading, which JSON cannot store
	rec.Cause, rec.ExitCode, rec.Signal = driver.CauseLost, 137, int(unix.SIGKILL)
	rec.Message = "its supervisor vanished; the exit code is unknown"
	if !shared(dir) && rec.Boot != BootID() {
		rec.Cause, rec.Message = driver.CauseRebooted, "the host restarted while it ran; the exit code is unknown"
	}
	return rec.Status, writeRecord(dir, rec)
}

// Begun waits until the run in dir has a status. It is called when another supervisor has
// just begun the run.
func Begun(ctx context.Context, dir string) (driver.Status, error) {
	for pace := (Pace{}); ; {
		st, err := Query(dir)
		if !errors.Is(err, driver.ErrNotFound) {
			return st, err
		}
		if err := pace.Wait(ctx); err != nil {
			return st, err
		}
	}
}

// Forbid ends a run that no supervisor has begun, and records it as failed to start. A
// supervisor that comes later finds the record and starts nothing. If the run has already
// begun, Forbid returns the status of the run.
func Forbid(ctx context.Context, dir, message string) (driver.Status, error) {
	lock, err := takeLock(dir)
	if errors.Is(err, ErrSupervised) {
		return Begun(ctx, dir)
	}
	if err != nil {
		return driver.Status{}, err
	}
	_, err = readRecord(dir)
	if missing(err) {
		now := time.Now().UTC().Round(0) // Round removes the monotonic clock reading, which JSON cannot store
		rec := record{Boot: BootID(), Status: driver.Status{State: driver.Ended, Started: now, Finished: now, ExitCode: 127,
			Cause: driver.CauseStartFailed, Message: message}}
		return rec.Status, errors.Join(writeRecord(dir, rec), lock.Close())
	}
	if err := errors.Join(err, lock.Close()); err != nil {
		return driver.Status{}, err
	}
	return Query(dir)
}

// Wait returns the final status once the run in dir has ended.
func Wait(ctx context.Context, dir string) (driver.Status, error) {
	return ask(ctx, dir, request{Op: "wait"})
}

// Stop ends the run in dir and returns once no process of the run is left.
func Stop(ctx context.Context, dir string, grace time.Duration) (driver.Status, error) {
	return ask(ctx, dir, request{Op: "stop", Grace: grace})
}

// ask sends a request to the supervisor. If the supervisor has ended, ask returns the
// status from the record.
func ask(ctx context.Context, dir string, req request) (driver.Status, error) {
	for pace := (Pace{}); ; {
		st, err := Query(dir)
		if err != nil || st.State == driver.Ended {
			return st, err
		}
		rep, err := call(ctx, dir, req)
		if err == nil && rep.Error != "" {
			return driver.Status{}, errors.New(rep.Error)
		}
		if err == nil {
			return rep.Status, nil
		}
		if ctx.Err() != nil {
			return driver.Status{}, ctx.Err()
		}
		// The supervisor closed the connection, because it is ending or was killed. A
		// moment later the lock of the run shows which of the two is true.
		if err := pace.Wait(ctx); err != nil {
			return driver.Status{}, err
		}
	}
}

func call(ctx context.Context, dir string, req request) (reply, error) {
	conn, err := dial(ctx, dir, req)
	if err != nil {
		return reply{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	return readReply(conn)
}

// dial connects to the run's socket and sends the request.
func dial(ctx context.Context, dir string, req request, files ...*os.File) (*net.UnixConn, error) {
	sock, err := openSocket(dir)
	if err != nil {
		return nil, err
	}
	defer sock.Close()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", sock.Fd()))
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UnixConn)
	if err := send(conn, req, files); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// openSocket opens the run's socket as a file, for two reasons. The path of a socket may
// have only 108 bytes, and the path through an open file is short. A container can replace
// the socket with a link, and a request must not reach another supervisor.
func openSocket(dir string) (*os.File, error) {
	folder, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	fd, err := unix.Openat(int(folder.Fd()), socketFile, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Join(dir, socketFile), Err: err}
	}
	sock := os.NewFile(uintptr(fd), socketFile)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		sock.Close()
		return nil, errors.Join(err, fmt.Errorf("%s is not a socket", filepath.Join(dir, socketFile)))
	}
	return sock, nil
}

// maxReply bounds a supervisor's reply, in bytes. Without a bound a program in a container
// that replies in place of the supervisor could fill the agent's memory.
const maxReply = 64 << 10

func readReply(conn net.Conn) (rep reply, err error) {
	line, err := bufio.NewReader(io.LimitReader(conn, maxReply)).ReadBytes('\n')
	if err != nil {
		return rep, err
	}
	return rep, json.Unmarshal(line, &rep)
}

// send sends a request. The supervisor receives files as open descriptors.
func send(conn *net.UnixConn, req request, files []*os.File) error {
	line, err := json.Marshal(req)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	n := 0
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		n, _, err = conn.WriteMsgUnix(line, unix.UnixRights(fds...), nil)
		if err != nil {
			return err
		}
	}
	if n < len(line) { // an empty write fails if the reply has already arrived
		_, err = conn.Write(line[n:])
	}
	return err
}

// Watch calls grown at once, and again whenever the log of the run in dir may have grown.
// It returns when the run has ended or when grown fails.
func Watch(ctx context.Context, dir string, grown func() error) error {
	for pace := (Pace{}); ; {
		st, err := Query(dir)
		if err != nil {
			return err
		}
		if err := grown(); err != nil || st.State == driver.Ended {
			return err
		}
		if err := watchOnce(ctx, dir, grown); err != nil {
			return err
		}
		if err := pace.Wait(ctx); err != nil {
			return err
		}
	}
}

// watchOnce calls grown whenever the supervisor reports growth over one connection. It
// returns nil when the connection ends.
func watchOnce(ctx context.Context, dir string, grown func() error) error {
	conn, err := dial(ctx, dir, request{Op: "watch"})
	if err != nil {
		return ctx.Err()
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	buf := make([]byte, 512)
	for {
		if _, err := conn.Read(buf); err != nil {
			return ctx.Err()
		}
		if err := grown(); err != nil {
			return err
		}
	}
}
