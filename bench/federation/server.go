package federation

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// activeWithin bounds the time in which a server becomes the active one.
	activeWithin = 5 * time.Minute
	// callWithin bounds one question whether it is.
	callWithin = time.Second
)

// server is the process of the measured global server.
type server struct {
	exe, dir, log string
	addr          string // gRPC
	args          []string
	cmd           *exec.Cmd
	exited        chan struct{} // closed when the process has ended
}

// startServer starts a server with its data in a new folder.
func startServer(o Options, exe string) (*server, error) {
	dir, err := os.MkdirTemp(o.Dir, "nusa-bench-")
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	s := &server{exe: exe, dir: dir, log: filepath.Join(dir, "log")}
	ports, err := report.FreePorts(3)
	if err != nil {
		return nil, s.failed(err)
	}
	addr := func(k int) string { return fmt.Sprintf("127.0.0.1:%d", ports[k]) }
	s.addr = addr(0)
	s.args = []string{
		"global", "--name", "g1", "--data-dir", filepath.Join(dir, "data"), "--grpc-addr", addr(0), "--http-addr", "-",
		"--etcd-client-addr", addr(1), "--etcd-peer-addr", addr(2), "--log-level", "error",
	}
	if o.Profile != "" {
		s.args = append([]string{"bench", "profiled", filepath.Join(o.Profile, "global"), "--"}, s.args...)
	}
	if err := s.start(); err != nil {
		return nil, s.failed(err)
	}
	return s, nil
}

// failed removes the folder of a server that did not start.
func (s *server) failed(err error) error {
	_ = os.RemoveAll(s.dir)
	return err
}

// start starts the process and writes its output to its log.
func (s *server) start() error {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = process(s.exe, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start the global server: %w", err)
	}
	exited, cmd := make(chan struct{}), s.cmd
	s.exited = exited
	go func() {
		defer close(exited)
		_ = cmd.Wait() // the log says why it ended
	}()
	return nil
}

// process returns a command without the operator's settings, in a group of its own, so that
// Ctrl-C does not stop it before this process does. It ends with this process.
func process(exe string, args ...string) *exec.Cmd {
	cmd := exec.Command(exe, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NUSA_") })
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// kill ends the process with SIGKILL.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// close ends the process with SIGTERM, and with SIGKILL after report.StopWithin, and
// removes the folder.
func (s *server) close() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	late := time.NewTimer(report.StopWithin)
	defer late.Stop()
	select {
	case <-s.exited:
	case <-late.C:
		s.kill()
	}
	_ = os.RemoveAll(s.dir)
}

// died returns the reason why the process has ended; nil while it runs.
func (s *server) died() error {
	select {
	case <-s.exited:
	default:
		return nil
	}
	why := "it left no word"
	if data, err := os.ReadFile(s.log); err == nil && len(bytes.TrimSpace(data)) > 0 {
		lines := strings.Split(string(bytes.TrimSpace(data)), "\n")
		why = lines[len(lines)-1]
	}
	return fmt.Errorf("the global server has ended: %s", why)
}

// awaitActive waits until the server is the active one.
func (s *server) awaitActive(ctx context.Context) error {
	ctx, cancel := within(ctx, activeWithin, fmt.Errorf("the global server was not active within %s", activeWithin))
	defer cancel()
	for {
		if s.active(ctx) {
			return nil
		}
		if err := s.died(); err != nil {
			return err
		}
		if err := report.Pause(ctx, report.PollEvery); err != nil {
			return err
		}
	}
}

// active asks by a connection of its own: one that had failed would wait before it tries
// again.
func (s *server) active(ctx context.Context) bool {
	conn, err := serve.Dial(network.Host(), s.addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	info, err := nusav1.NewSystemClient(conn).Info(ctx, &nusav1.InfoRequest{})
	return err == nil && info.GetLeader()
}

// signal tells a profiled server to begin or end a profile.
func (s *server) signal(sig syscall.Signal) { _ = s.cmd.Process.Signal(sig) }

// within ends ctx with a cause after d. It sets no deadline, because gRPC would send a
// deadline to the server, and its error could arrive before the cause.
func within(ctx context.Context, d time.Duration, late error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d, func() { cancel(late) })
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}
